"""Plans of normalizations: statistics, then the results. See `normalization/implementations.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnncore.backend import Attributes, BatchNormalizationForward, LayerNormalization, MemoryDesc
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary, eltwise
from dnncore_cpu_numba.normalization.by_channels import ForwardByChannels
from dnncore_cpu_numba.normalization.plan import (
    ZERO,
    Plan,
    Tensors,
    copied,
    layouts_of_copies,
    zeros,
)
from dnncore_cpu_numba.rows.channels import ChannelSums, Kernels
from dnncore_cpu_numba.rows.sums_kernel import SumsKernel
from dnncore_cpu_numba.rows.whole import whole_sets
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class Forward(Plan):
    """Sets of one piece are read once. Else sums of rows, then one pass over all elements.

    copy: a dense room of src, if it has scales or no contiguous rows; or None.
    """

    def __init__(self, op: Any, attr: Attributes) -> None:
        super().__init__(op)
        self.attr = attr
        given = [] if "src" in attr.scales else [op.src]
        self.sums: ChannelSums | None = None
        for source in (*given, *layouts_of_copies(op.src)):
            self.whole = whole_sets(op, source)
            if self.whole is not None or op.use_global_stats:
                break
            self.sums = ChannelSums.planned(op.src.dims, self.places.summed, {"x": source})
            if self.sums is not None:
                break
        self.copy = None if source in given else self.tensor(source)
        self.results: ForwardByChannels | None = None
        if self.whole is None and not isinstance(op, LayerNormalization):
            self.results = ForwardByChannels(self, source)
        self.outcomes = self.reserve(self.sums.nbytes if self.sums else 0)

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write the result, the statistics and the mask."""
        op = self.op
        given = arguments(op, op.workspace_desc(), self.attr)
        if not op.src.nelems:
            return self._of_nothing(given)
        named, steps = self.with_dense_vectors(given)
        if self.copy is not None:
            scales = [named[name] for name in ["src_scales"] if name in named]
            stages = [binary("mul", 2) for _ in scales]
            steps += chain_steps(op.src.dims, [self.copy, named["src"], *scales], stages)
            named["src"] = self.copy
        if self.whole is not None:
            rooms = {"mean": self.mean.address, "variance": self.variance.address, "factor": 0}
            one = self.whole.forward(op, named["src"], result, rooms, named)
            return [*steps, one, *self._kept_statistics(named)]
        if self.sums is None:
            steps += self.given_statistics(named)
        else:
            steps += [*self._statistics(self.sums, named["src"]), *self._kept_statistics(named)]
        if self.results is not None and self.results.application is not None:
            return [*steps, *self.results.steps(named, result)]
        return steps + self._chain(named, result)

    def _of_nothing(self, named: Tensors) -> list[Step]:
        """Return the steps that zero statistics of empty sets."""
        if self.op.use_global_stats:
            return []
        return zeros([named[name] for name in ("mean", "variance") if name in named])

    def _statistics(self, sums: ChannelSums, src: Tensor) -> Iterator[Step]:
        op = self.op
        mean, variance, factor = (one.address for one in (self.mean, self.variance, self.factor))
        if op.has_mean:
            yield from sums.steps(self.outcomes, {"x": src}, 0)
            rooms, members = (mean, variance, factor), sums.count // self.count
            yield sums.combined(self.outcomes, False, op.epsilon, *rooms, members=members)
            return

        def squares(along: bool) -> Kernels:  # they take no mean
            return SumsKernel("squares", along, src.desc.data_type), None

        yield from sums.steps(self.outcomes, {"x": src}, mean, squares)
        yield sums.combined(self.outcomes, True, 0.0, variance)
        averages = [eltwise("linear", 1 / op.count, 0.0)]
        yield from chain_steps(self.places.sets, [self.variance, self.variance], averages)
        yield self.factors()

    def _kept_statistics(self, named: Tensors) -> Iterator[Step]:
        for name, room in (("mean", self.mean), ("variance", self.variance)):
            if name in named:
                given = named[name]
                yield from copied(given, room.seen_as(MemoryDesc(given.desc.dims, "f32")))

    def _chain(self, named: Tensors, result: Tensor) -> list[Step]:
        """Return the steps that write the result and the mask in any layouts."""
        op = self.op
        tensors = [result, named["src"]]
        stages: list[Stage] = []

        def then(algorithm: str, tensor: Tensor) -> None:
            stages.append(binary(algorithm, len(tensors)))
            tensors.append(tensor)

        if op.has_mean:
            then("sub", self.mean)
        then("mul", self.factor)
        for name, algorithm in (("scale", "mul"), ("shift", "add")):
            if name in named:
                then(algorithm, self.places.of_vector(named[name]))
        if not isinstance(op, BatchNormalizationForward) or not op.fuse_relu:
            return chain_steps(op.src.dims, tensors, stages)
        if "src1" in named:
            then("add", named["src1"])
        steps: list[Step] = []
        if "workspace" in named:  # 1 - (z <= 0)
            masks = [*stages]
            zero = Tensor(Table(ZERO), MemoryDesc((1,) * op.src.ndims, "f32"))
            masks.append(binary("le", len(tensors)))
            masks.append(eltwise("linear", -1.0, 1.0))
            steps = chain_steps(op.src.dims, [named["workspace"], *tensors[1:], zero], masks)
        return steps + chain_steps(op.src.dims, tensors, [*stages, eltwise("relu")])
