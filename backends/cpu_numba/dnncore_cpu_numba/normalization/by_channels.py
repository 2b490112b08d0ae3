"""Batch and group normalization of dense rows: sums of channels, then a few numbers per channel.

A channel is one of the batch for batch normalization, and one of an image for group normalization.
The small arrays in the scratchpad are of f32 and dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dnncore.backend import GroupNormalization, MemoryDesc
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.rows import channels_tasks as tasks
from dnncore_cpu_numba.rows.channels import Application, ChannelSums
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

Tensors = Mapping[str, Tensor]
Reserve = Callable[[int], Scratch]


class Channels:
    """The dims of numbers per channel, and their places in the scratchpad.

    members: channels of a set. sets: sets of an image.
    """

    def __init__(self, op: Any, reserve: Reserve) -> None:
        dims = op.source.dims
        is_group = isinstance(op, GroupNormalization)
        self.reserve = reserve
        self.images = dims[0] if is_group else 1
        self.sets = op.groups if is_group else dims[1]
        self.members = dims[1] // max(1, self.sets)
        self.dims = (self.images, dims[1], *[1] * (len(dims) - 2))
        self.vector = (1, *self.dims[1:])
        self.desc = MemoryDesc(self.dims, "f32")

    def number(self) -> Tensor:
        """Reserve a number per channel."""
        return Tensor(self.reserve(self.desc.nbytes), self.desc)

    def per_channel(self, desc: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of scale or shift."""
        strides = [0] * len(self.dims)
        strides[1] = desc.strides[0]
        return MemoryDesc(self.vector, desc.data_type, strides=tuple(strides))

    def dense(self, vector: Tensor, room: Tensor) -> tuple[Tensor, list[Step]]:
        """Return scale or shift as dense f32, and the steps that copy it if it is not."""
        desc = self.per_channel(vector.desc)
        if vector.desc.data_type == "f32" and vector.desc.strides == (1,):
            return vector.seen_as(desc), []
        room = room.seen_as(MemoryDesc(self.vector, "f32"))
        return room, chain_steps(self.vector, [room, vector.seen_as(desc)], [])

    def of_sets(self, statistic: Tensor, room: Tensor) -> tuple[Tensor, list[Step]]:
        """Return a statistic of sets per channel, and the steps that copy it if necessary."""
        if self.members == 1:
            return statistic.seen_as(self.desc), []
        return room, chain_steps(self.dims, [room, statistic], [])

    def zeros(self) -> Tensor:
        """Return zeros per channel."""
        return Tensor(Table(np.zeros(self.dims[1], np.float32)), MemoryDesc(self.vector, "f32"))


class ForwardByChannels:
    """The plan of the results, from statistics of sets."""

    def __init__(self, op: Any, reserve: Reserve, source: MemoryDesc) -> None:
        self.op, self.channels = op, Channels(op, reserve)
        self.mean, self.slope, self.rest = (self.channels.number() for _ in range(3))
        tensors = {"y": op.dst.with_data_type("f32"), "x": source, "mean": self.channels.desc}
        tensors |= {"slope": self.channels.desc, "rest": self.channels.zeros().desc}
        for name, tensor in (("other", getattr(op, "src1", None)), ("mask", op.workspace_desc())):
            if tensor is not None:
                tensors[name] = tensor
        self.application = Application.planned(op.src.dims, tensors)

    def steps(
        self, named: Tensors, src: Tensor, result: Tensor, mean: Tensor, factor: Tensor
    ) -> Iterator[Step]:
        """Yield the steps that write the result and the mask."""
        channels, op = self.channels, self.op
        assert self.application is not None
        mean, copied = channels.of_sets(mean, self.mean)
        yield from copied
        slope, operands = self.slope, [factor]
        if "scale" in named:
            scale = named["scale"]
            operands.append(scale.seen_as(channels.per_channel(scale.desc)))
        stages = [binary("mul", 2)] if len(operands) > 1 else []
        yield from chain_steps(channels.dims, [slope, *operands], stages)
        rest = channels.zeros()
        if "shift" in named:
            rest, copied = channels.dense(named["shift"], self.rest)
            yield from copied
        tensors = {"y": result, "x": src, "mean": mean, "slope": slope, "rest": rest}
        for name, other in (("other", "src1"), ("mask", "workspace")):
            if other in named:
                tensors[name] = named[other]
        relu = getattr(op, "fuse_relu", False)
        yield from self.application.steps(tensors, relu=relu, written="workspace" in named)


class BackwardByChannels:
    """The plan of all gradients, from statistics of sets."""

    def __init__(self, op: Any, reserve: Reserve, workspace: MemoryDesc | None) -> None:
        self.op, self.channels = op, Channels(op, reserve)
        own = self.channels.number
        self.mean, self.first, self.second = own(), own(), own()
        self.scale, self.slope, self.share, self.rest = own(), own(), own(), own()
        self.shifts, self.scales = own(), own()
        tensors = {"x": op.src, "diff": op.diff_dst}
        if workspace is not None:
            tensors["mask"] = workspace
        self.sums = ChannelSums.planned(op.src.dims, self.channels.dims, tensors)
        desc = self.channels.desc
        tensors = {
            "y": op.diff_src.with_data_type("f32"), "x": op.src, "mean": desc, "slope": desc,
            "rest": desc,
        }  # fmt: skip
        if op.use_global_stats:
            tensors |= {"x": op.diff_dst, "mean": self.channels.zeros().desc}
        else:
            tensors |= {"other": op.diff_dst, "share": desc}
        if workspace is not None:
            tensors["mask"] = workspace
        self.application = Application.planned(op.src.dims, tensors)
        self.room = reserve(self.sums.nbytes) if self.sums else None

    @property
    def suits(self) -> bool:
        """Whether this plan computes the operation."""
        masked = self.op.use_global_stats and getattr(self.op, "fuse_relu", False)
        return self.sums is not None and self.application is not None and not masked

    def steps(self, named: Tensors, result: Tensor, mean: Tensor, factor: Tensor) -> Iterator[Step]:
        """Yield the steps that write the gradient of src and those of scale and shift."""
        op, channels = self.op, self.channels
        assert self.sums is not None
        assert self.application is not None
        assert self.room is not None
        mean, copied = channels.of_sets(mean, self.mean)
        yield from copied
        wanted = [name for name in ("diff_shift", "diff_scale") if name in named]
        needed = bool(wanted) or not op.use_global_stats
        if needed:
            read = {"x": named["src"], "diff": named["diff_dst"]}
            if "workspace" in named:
                read["mask"] = named["workspace"]
            yield from self.sums.steps(self.room, read, mean.address)
            sums = self.first.address, self.second.address
            yield self.sums.combined(self.room, True, 0.0, *sums)
        if wanted:
            yield from self._vectors(named, factor)
        values: dict[str, Any] = {"scale": 0}
        if "scale" in named:
            scale, copied = channels.dense(named["scale"], self.scale)
            yield from copied
            values["scale"] = scale.address
        given = not op.use_global_stats
        values |= {
            "first": self.first.address if given else 0, "second": self.second.address,
            "factor": factor.address, "members": channels.members, "groups": channels.sets,
            "count": op.count, "slope": self.slope.address, "share": self.share.address,
            "rest": self.rest.address,
        }  # fmt: skip
        yield Step(tasks.slopes, values, channels.images * channels.sets, grain=1024)
        tensors = {"y": result, "x": named["src"], "mean": mean, "slope": self.slope}
        tensors |= {"rest": self.rest, "other": named["diff_dst"], "share": self.share}
        if op.use_global_stats:
            zeros = channels.zeros()
            tensors = {"y": result, "x": named["diff_dst"], "mean": zeros, "slope": self.share}
            tensors["rest"] = self.rest
        if "workspace" in named:
            tensors["mask"] = named["workspace"]
        yield from self.application.steps(tensors)

    def _vectors(self, named: Tensors, factor: Tensor) -> Iterator[Step]:
        channels = self.channels
        values = {
            "first": self.first.address, "second": self.second.address, "factor": factor.address,
            "images": channels.images, "channels": channels.dims[1],
            "members": channels.members, "shift": self.shifts.address,
            "scale": self.scales.address,
        }  # fmt: skip
        yield Step(tasks.vectors, values, channels.dims[1], grain=256)
        desc = MemoryDesc((channels.dims[1],), "f32")
        for name, room in (("diff_shift", self.shifts), ("diff_scale", self.scales)):
            if name in named:
                yield from chain_steps(desc.dims, [named[name], room.seen_as(desc)], [])
