"""Plans of gradients of normalizations. See `normalization/implementations.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from dnncore.backend import LayerNormalization, MemoryDesc
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary
from dnncore_cpu_numba.normalization.by_channels import BackwardByChannels
from dnncore_cpu_numba.normalization.plan import ZERO, Plan, Tensors, vector, zeros
from dnncore_cpu_numba.rows import tasks
from dnncore_cpu_numba.rows.statistics import Statistics
from dnncore_cpu_numba.rows.whole import Whole, whole_sets
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class Backward(Plan):
    """Averages of g and of g * x over sets, then the gradients.

    workspace: the mask of a fused relu, if there is one.
    """

    def __init__(self, op: Any, workspace: MemoryDesc | None) -> None:
        super().__init__(op)
        self.workspace = workspace
        self.mean, self.variance, self.factor = (self._statistic() for _ in range(3))
        self.first, self.second = self._statistic(), self._statistic()
        dims, places = op.src.dims, self.places
        plain = {"x": op.src, "diff": op.diff_dst, "mean": MemoryDesc(places.sets, "f32")}
        if workspace is not None:
            plain["mask"] = workspace
        if not op.has_mean:
            del plain["mean"]
        self.scale = None
        self.of_sets: Statistics | None = None
        self.of_channels: Statistics | None = None
        wants_vectors = op.diff_scale is not None or op.diff_shift is not None
        self.whole = whole_sets(op)
        self.by_channels: BackwardByChannels | None = None
        if self.whole is None and not isinstance(op, LayerNormalization):
            by_channels = BackwardByChannels(op, self._room, workspace)
            self.by_channels = by_channels if by_channels.suits else None
        if self.whole is not None or self.by_channels is not None:
            wants_vectors = False
        elif not op.use_global_stats or (wants_vectors and places.is_channel):
            own = dict(plain)
            if op.scale is not None and not places.is_channel:
                own["weight"] = places.per_channel(op.scale)
            self.of_sets = Statistics(dims, places.sets, own)
        if wants_vectors and not places.is_channel:
            own = {**plain, "factor": MemoryDesc(places.sets, "f32")}
            self.of_channels = Statistics(dims, places.vector, own)
        if op.scale is not None and places.is_channel:
            self.scale = self._statistic()
        channels = 4 * places.vector[places.channel]
        self.vectors = [
            Tensor(self._room(channels), MemoryDesc((op.channels,), "f32")) for _ in range(2)
        ]
        plans = [plan for plan in (self.of_sets, self.of_channels) if plan is not None]
        least = self.whole.nbytes if self.whole else 0
        self.room = self._room(max((plan.nbytes for plan in plans), default=least))
        self.masked = None
        if workspace is not None and self.by_channels is None:
            desc = op.src.with_data_type("f32").with_offset0(0)
            self.masked = Tensor(self._room(desc.nbytes), desc)

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write all gradients."""
        op = self.op
        named = arguments(op, self.workspace)
        if not op.src.nelems:
            return zeros([named[n] for n in ("diff_scale", "diff_shift") if n in named])
        return [*self._all(named, result)]

    def _all(self, named: dict[str, Tensor], result: Tensor) -> Iterator[Step]:
        op, dims = self.op, self.op.src.dims
        if op.has_mean:
            yield from self._copied(self.mean, named["mean"])
        yield from self._copied(self.variance, named["variance"])
        values = {
            "source": self.variance.address, "target": self.factor.address, "epsilon": op.epsilon,
        }  # fmt: skip
        yield Step(tasks.factors, values, self.count, grain=1024)
        if self.whole is not None:
            yield from self._by_whole_sets(self.whole, named, result)
            return
        if self.by_channels is not None:
            if "diff_src1" in named:
                yield from self._masked(named, named["diff_src1"])
            yield from self.by_channels.steps(named, result, self.mean, self.factor)
            return
        if self.scale is not None:
            scale = vector(self.places, named["scale"])
            yield from chain_steps(self.places.sets, [self.scale, scale], [])
        read = {"x": named["src"], "diff": named["diff_dst"], "mean": self.mean}
        if not op.has_mean:
            del read["mean"]
        if "workspace" in named:
            read["mask"] = named["workspace"]
        yield from self._of_vectors(named, read)
        if self.of_sets is not None:
            yield from self._of_sets(named, read)
        yield from self._apply(named, result, dims)

    def _by_whole_sets(self, whole: Whole, named: Tensors, result: Tensor) -> Iterator[Step]:
        rooms = {"mean": self.mean.address, "variance": 0, "factor": self.factor.address}
        src, diff = named["src"], named["diff_dst"]
        yield whole.backward(self.op, src, diff, result, rooms, named, self.room)
        if "diff_scale" in named or "diff_shift" in named:
            first, second = self.vectors
            yield whole.joined(self.room, first.address, second.address)
            yield from self._vector_outputs(named, first, second, None)

    def _of_sets(self, named: Tensors, read: Tensors) -> Iterator[Step]:
        op, plan = self.op, self.of_sets
        assert plan is not None
        own = dict(read)
        if op.scale is not None and not self.places.is_channel:
            own["weight"] = vector(self.places, named["scale"])
        yield from plan.steps(self.room, own, tasks.SUMS)
        sums = self.first.address, self.second.address
        yield plan.combined(self.room, True, 0.0, *sums)
        if self.places.is_channel:
            yield from self._vector_outputs(named, self.first, self.second, self.factor)
        values = {
            "first": sums[0], "second": sums[1], "factor": self.factor.address,
            "scale": self.scale.address if self.scale is not None else 0, "count": op.count,
        }  # fmt: skip
        yield Step(tasks.shares, values, self.count, grain=1024)

    def _of_vectors(self, named: Tensors, read: Tensors) -> Iterator[Step]:
        plan = self.of_channels
        if plan is None:
            return
        yield from plan.steps(self.room, {**read, "factor": self.factor}, tasks.SUMS)
        first, second = self.vectors
        yield plan.combined(self.room, True, 0.0, first.address, second.address)
        yield from self._vector_outputs(named, first, second, None)

    def _vector_outputs(
        self, named: Tensors, first: Tensor, second: Tensor, factor: Tensor | None
    ) -> Iterator[Step]:
        """Yield the steps that write diff_scale and diff_shift."""
        desc = MemoryDesc((self.op.channels,), "f32")
        if "diff_shift" in named:
            yield from self._kept(named["diff_shift"], first)
        if "diff_scale" in named:
            tensors = [named["diff_scale"], second.seen_as(desc)]
            tensors += [factor.seen_as(desc)] if factor is not None else []
            stages = [binary("mul", 2)] if factor is not None else []
            yield from chain_steps(desc.dims, tensors, stages)

    def _masked(self, named: Tensors, result: Tensor) -> list[Step]:
        """Return the steps that write diff_dst where the mask is not 0, and else 0."""
        dims = self.op.src.dims
        zero = Tensor(Table(ZERO), MemoryDesc((1,) * len(dims), "f32"))
        tensors = [result, named["diff_dst"], zero, named["workspace"]]
        return chain_steps(dims, tensors, [binary("select", 2)])

    def _apply(self, named: Tensors, result: Tensor, dims: Sequence[int]) -> Iterator[Step]:
        op = self.op
        diff = named["diff_dst"]
        if self.masked is not None:
            yield from self._masked(named, self.masked)
            diff = self.masked
            if "diff_src1" in named:
                yield from chain_steps(dims, [named["diff_src1"], diff], [])
        if op.use_global_stats:
            tensors, stages = [result, diff, self.factor], [binary("mul", 2)]
            if "scale" in named:
                tensors.append(vector(self.places, named["scale"]))
                stages.append(binary("mul", 3))
            yield from chain_steps(dims, tensors, stages)
            return
        tensors = [result, named["src"]]
        stages = []

        def then(stage: Any, *more: Tensor) -> None:
            stages.append(stage(len(tensors)))
            tensors.extend(more)

        if op.has_mean:
            then(partial(binary, "sub"), self.mean)
        then(partial(binary, "mul"), self.second)
        if op.has_mean:
            then(partial(binary, "sub"), self.first)
        if "scale" in named:
            scale = vector(self.places, named["scale"])
            place = len(tensors)
            stages.append(Stage(binary("add", place).task, operand=place, factor=place + 1))
            tensors += [diff, scale]
        else:
            then(partial(binary, "add"), diff)
        then(partial(binary, "mul"), self.factor)
        yield from chain_steps(dims, tensors, stages)
