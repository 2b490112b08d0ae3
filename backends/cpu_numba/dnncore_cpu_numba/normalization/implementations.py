"""Batch, layer and group normalization: statistics of sets, then a chain over all elements.

Small arrays in the scratchpad, of f32 and dense, hold mean, variance and factor, which is
1 / sqrt(variance + epsilon). With the average A of g, and the average B of g * x, where
x = (src - mean) * factor,

    dst      = (src - mean) * factor * scale + shift
    diff_src = ((src - mean) * C - A + diff_dst * scale) * factor     with C = -B * factor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import (
    Accepted,
    Attributes,
    BatchNormalizationForward,
    GroupNormalization,
    Implementation,
    LayerNormalization,
    MemoryDesc,
    Normalization,
    Refused,
)
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary, eltwise
from dnncore_cpu_numba.normalization.by_channels import BackwardByChannels, ForwardByChannels
from dnncore_cpu_numba.rows import tasks
from dnncore_cpu_numba.rows.channels import ChannelSums
from dnncore_cpu_numba.rows.statistics import Statistics
from dnncore_cpu_numba.rows.whole import Whole, whole_sets
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

Tensors = Mapping[str, Tensor]
_ZERO = np.zeros(LINE, np.uint8)


class _Places:
    """The dims of statistics and vectors, to be broadcast to src's dims."""

    def __init__(self, op: Normalization) -> None:
        dims = op.source.dims
        self.sets = [1] * len(dims)
        self.channel = 1
        if isinstance(op, LayerNormalization):
            self.channel = len(dims) - 1
            self.sets = [*dims[:-1], 1]
        elif isinstance(op, GroupNormalization):
            self.sets[:2] = op.statistics_dims
        else:
            self.sets[1] = dims[1]
        self.vector = [1] * len(dims)
        self.vector[self.channel] = dims[self.channel]
        self.is_channel = self.sets == self.vector

    def per_channel(self, desc: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of scale or shift."""
        strides = [0] * len(self.vector)
        strides[self.channel] = desc.strides[0]
        return MemoryDesc(self.vector, desc.data_type, strides=tuple(strides), offset0=desc.offset0)


class NormalizationImplementation(Implementation[Normalization]):
    """Statistics in one or two passes over cached rows, then a chain."""

    name = "cpu_numba:simd"
    data_types = (*FLOATS, "s8", "u8")
    attributes = WORDS
    takes_repeats = True

    def accept(
        self, op: Normalization, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops."""
        open_ones = [a.name for a, desc in op.tensors() if desc.is_any]
        op = op.resolve_any(**dict.fromkeys(open_ones, op.source))
        for name in ("scale", "shift"):
            desc = getattr(op, name, None)
            if desc is not None and desc.inner_blocks:
                return Refused("format", f"{name} must have no blocks; got {desc.tag!r}")
        if attr.post_ops and "diff_src" in vars(op):
            return Refused("attribute", "gradients take no post-ops")
        workspace = op.workspace_desc(hint)
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        plan = _Forward(op, attr) if "dst" in vars(op) else _Backward(op, workspace)
        return offered(
            op, attr, engine, plan.steps, plan.nbytes, workspace, efficiency=0.4, exact=False
        )


class _Plan:
    """Rooms in the scratchpad."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.places = _Places(op)
        self.nbytes = 0
        self.count = 1
        for n in self.places.sets:
            self.count *= n

    def _room(self, nbytes: int) -> Scratch:
        room = Scratch(self.nbytes)
        self.nbytes += -(-nbytes // LINE) * LINE
        return room

    def _statistic(self) -> Tensor:
        return Tensor(self._room(4 * self.count), MemoryDesc(self.places.sets, "f32"))

    def _copied(self, room: Tensor, given: Tensor) -> list[Step]:
        """Return the steps that copy an argument to a statistic in the scratchpad."""
        dims = given.desc.dims
        return chain_steps(dims, [room.seen_as(MemoryDesc(dims, "f32")), given], [])

    def _kept(self, given: Tensor, room: Tensor) -> list[Step]:
        dims = given.desc.dims
        return chain_steps(dims, [given, room.seen_as(MemoryDesc(dims, "f32"))], [])


class _Forward(_Plan):
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
        return _zeros([named[name] for name in ("mean", "variance") if name in named])

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
                then(algorithm, _vector(self.places, named[name]))
        if not isinstance(op, BatchNormalizationForward) or not op.fuse_relu:
            return chain_steps(op.src.dims, tensors, stages)
        if "src1" in named:
            then("add", named["src1"])
        steps: list[Step] = []
        if "workspace" in named:  # 1 - (z <= 0)
            masks = [*stages]
            zero = Tensor(Table(_ZERO), MemoryDesc((1,) * op.src.ndims, "f32"))
            masks.append(binary("le", len(tensors)))
            masks.append(eltwise("linear", -1.0, 1.0))
            steps = chain_steps(op.src.dims, [named["workspace"], *tensors[1:], zero], masks)
        return steps + chain_steps(op.src.dims, tensors, [*stages, eltwise("relu")])


class _Backward(_Plan):
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
            return _zeros([named[n] for n in ("diff_scale", "diff_shift") if n in named])
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
            vector = _vector(self.places, named["scale"])
            yield from chain_steps(self.places.sets, [self.scale, vector], [])
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
            own["weight"] = _vector(self.places, named["scale"])
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
        zero = Tensor(Table(_ZERO), MemoryDesc((1,) * len(dims), "f32"))
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
                tensors.append(_vector(self.places, named["scale"]))
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
            scale = _vector(self.places, named["scale"])
            place = len(tensors)
            stages.append(Stage(binary("add", place).task, operand=place, factor=place + 1))
            tensors += [diff, scale]
        else:
            then(partial(binary, "add"), diff)
        then(partial(binary, "mul"), self.factor)
        yield from chain_steps(dims, tensors, stages)


def _vector(places: _Places, tensor: Tensor) -> Tensor:
    return tensor.seen_as(places.per_channel(tensor.desc))


def _zeros(tensors: Sequence[Tensor]) -> list[Step]:
    """Return the steps that set all elements of tensors to 0."""
    steps: list[Step] = []
    for one in tensors:
        zero = Tensor(Table(_ZERO), MemoryDesc((1,) * one.desc.ndims, "f32"))
        steps += chain_steps(one.desc.dims, [one, zero], [])
    return steps


TABLE = (NormalizationImplementation(),)
