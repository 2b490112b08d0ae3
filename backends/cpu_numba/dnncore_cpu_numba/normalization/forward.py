"""Plans of normalizations: statistics, then the results. See `normalization/implementations.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnncore.backend import Attributes, BatchNormalizationForward, LayerNormalization, MemoryDesc
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary, eltwise
from dnncore_cpu_numba.normalization.by_channels import ForwardByChannels
from dnncore_cpu_numba.normalization.plan import ZERO, Plan, Tensors, vector, zeros
from dnncore_cpu_numba.rows import tasks
from dnncore_cpu_numba.rows.channels import ChannelSums
from dnncore_cpu_numba.rows.statistics import Statistics
from dnncore_cpu_numba.rows.whole import whole_sets
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class Forward(Plan):
    """Statistics in one or two passes over cached rows, then a chain of all elements."""

    def __init__(self, op: Any, attr: Attributes) -> None:
        super().__init__(op)
        self.attr = attr
        self.mean, self.variance, self.factor = (self._statistic() for _ in range(3))
        self.statistics: Statistics | None = None
        self.source = op.src
        self.is_scaled = "src" in attr.scales
        if self.is_scaled:
            self.source = op.src.with_data_type("f32").with_offset0(0)
            self.src_room = self._room(self.source.nbytes)
        self.whole = None if self.is_scaled else whole_sets(op)
        self.results: ForwardByChannels | None = None
        self.sums: ChannelSums | None = None
        if self.whole is None and not isinstance(op, LayerNormalization):
            self.results = ForwardByChannels(op, self._room, self.source)
            if not op.use_global_stats:
                channels = self.results.channels.dims
                self.sums = ChannelSums.planned(op.src.dims, channels, {"x": self.source})
        if self.sums is not None:
            self.room = self._room(self.sums.nbytes)
        elif not op.use_global_stats and self.whole is None:
            self.statistics = Statistics(op.src.dims, self.places.sets, {"x": self.source})
            self.room = self._room(self.statistics.nbytes)

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write the result, the statistics and the mask."""
        op = self.op
        named = arguments(op, op.workspace_desc(), self.attr)
        if not op.src.nelems:
            return self._of_nothing(named)
        steps: list[Step] = []
        src = named["src"]
        if self.is_scaled:
            own = Tensor(self.src_room, self.source)
            scale = named["src_scales"]
            steps += chain_steps(op.src.dims, [own, src, scale], [binary("mul", 2)])
            src = own
        if self.whole is not None:
            rooms = {"mean": self.mean.address, "variance": self.variance.address, "factor": 0}
            one = self.whole.forward(op, src, result, rooms, named)
            return [one, *self._kept_statistics(named)]
        steps += self._statistics(named, src)
        return steps + self._apply(named, src, result)

    def _of_nothing(self, named: Tensors) -> list[Step]:
        """Return the steps that zero statistics of empty sets."""
        if self.op.use_global_stats:
            return []
        return zeros([named[name] for name in ("mean", "variance") if name in named])

    def _statistics(self, named: Tensors, src: Tensor) -> Iterator[Step]:
        op = self.op
        if op.use_global_stats:
            if op.has_mean:
                yield from self._copied(self.mean, named["mean"])
            yield from self._copied(self.variance, named["variance"])
            values = {
                "source": self.variance.address, "target": self.factor.address,
                "epsilon": op.epsilon,
            }  # fmt: skip
            yield Step(tasks.factors, values, self.count, grain=1024)
            return
        rooms = [one.address for one in (self.mean, self.variance, self.factor)]
        if self.sums is not None and self.results is not None:
            members = self.results.channels.members
            yield from self.sums.steps(self.room, {"x": src}, 0)
            yield self.sums.combined(self.room, False, op.epsilon, *rooms, members=members)
            yield from self._kept_statistics(named)
            return
        assert self.statistics is not None
        kinds = {along: tasks.MOMENTS[op.has_mean, along] for along in (False, True)}
        yield from self.statistics.steps(self.room, {"x": src}, kinds)
        yield self.statistics.combined(self.room, False, op.epsilon, *rooms)
        yield from self._kept_statistics(named)

    def _kept_statistics(self, named: Tensors) -> Iterator[Step]:
        for name, room in (("mean", self.mean), ("variance", self.variance)):
            if name in named:
                yield from self._kept(named[name], room)

    def _apply(self, named: Tensors, src: Tensor, result: Tensor) -> list[Step]:
        op = self.op
        if self.results is not None and self.results.application is not None:
            return [*self.results.steps(named, src, result, self.mean, self.factor)]
        tensors = [result, src]
        stages: list[Stage] = []

        def then(algorithm: str, tensor: Tensor) -> None:
            stages.append(binary(algorithm, len(tensors)))
            tensors.append(tensor)

        if op.has_mean:
            then("sub", self.mean)
        then("mul", self.factor)
        for name, algorithm in (("scale", "mul"), ("shift", "add")):
            if name in named:
                then(algorithm, vector(self.places, named[name]))
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
