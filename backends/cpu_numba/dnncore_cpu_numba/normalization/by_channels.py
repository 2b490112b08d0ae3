"""Batch and group normalization of rows: sums of channels, then a few numbers per channel.

A channel is one of the batch for batch normalization, and one of an image for group normalization.
The small arrays in the scratchpad are of f32 and dense. Tensors that have no contiguous rows in
common are first copied to dense ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.normalization.plan import Plan, Tensors, copied, layouts_of_copies, passed
from dnncore_cpu_numba.rows import channels_tasks as tasks
from dnncore_cpu_numba.rows.channels import Application, ChannelSums
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor


class Channels:
    """The dims of numbers per channel, and their places in the scratchpad.

    members: channels of a set. sets: sets of an image.
    """

    def __init__(self, plan: Plan) -> None:
        dims = plan.op.source.dims
        self.plan, self.dims, self.vector = plan, plan.places.summed, plan.places.vector
        self.images, self.sets = plan.places.sets[:2]
        self.members = dims[1] // max(1, self.sets)
        self.desc = MemoryDesc(self.dims, "f32")

    def number(self) -> Tensor:
        """Reserve a number per channel."""
        return self.plan.room(self.dims)

    def of_sets(self, statistic: Tensor, room: Tensor) -> tuple[Tensor, list[Step]]:
        """Return a statistic of sets per channel, and the steps that copy it if necessary."""
        if self.members == 1:
            return statistic.seen_as(self.desc), []
        return room, copied(room, statistic)

    def zeros(self, desc: MemoryDesc | None = None) -> Tensor:
        """Return zeros. desc: by default the layout of scale and shift."""
        desc = desc or MemoryDesc(self.vector, "f32")
        return Tensor(Table(np.zeros(desc.nelems, np.float32)), desc)


class ForwardByChannels:
    """The plan of the results, from statistics of sets."""

    def __init__(self, plan: Plan, source: MemoryDesc) -> None:
        op = plan.op
        self.plan, self.channels = plan, Channels(plan)
        self.mean, self.slope = self.channels.number(), self.channels.number()
        tensors = {"y": op.dst.with_data_type("f32"), "x": source, "mean": self.channels.desc}
        tensors |= {"slope": self.channels.desc, "rest": self.channels.zeros().desc}
        for name, tensor in (("other", getattr(op, "src1", None)), ("mask", op.workspace_desc())):
            if tensor is not None:
                tensors[name] = tensor
        self.application = Application.planned(op.src.dims, tensors)

    def steps(self, named: Tensors, result: Tensor) -> Iterator[Step]:
        """Yield the steps that write the result and the mask."""
        channels, plan = self.channels, self.plan
        assert self.application is not None
        mean, steps = channels.of_sets(plan.mean, self.mean)
        yield from steps
        scale = [plan.places.of_vector(named["scale"])] if "scale" in named else []
        stages = [binary("mul", 2) for _ in scale]
        yield from chain_steps(channels.dims, [self.slope, plan.factor, *scale], stages)
        rest = plan.places.of_vector(named["shift"]) if "shift" in named else channels.zeros()
        tensors = {"y": result, "x": named["src"], "mean": mean, "slope": self.slope}
        tensors["rest"] = rest
        for name, other in (("other", "src1"), ("mask", "workspace")):
            if other in named:
                tensors[name] = named[other]
        relu = getattr(plan.op, "fuse_relu", False)
        yield from self.application.steps(tensors, relu=relu, written="workspace" in named)


class BackwardByChannels:
    """The plan of all gradients, from statistics of sets.

    dense: rooms of x, and of diff without masked elements, which becomes the result; or empty.
    """

    def __init__(self, plan: Plan, workspace: MemoryDesc | None) -> None:
        op = plan.op
        self.plan, self.channels = plan, Channels(plan)
        own = self.channels.number
        self.mean, self.first, self.second = own(), own(), own()
        self.slope, self.share, self.rest = own(), own(), own()
        given = {"x": op.src, "diff": op.diff_dst, "y": op.diff_src}
        if workspace is not None:
            given["mask"] = workspace
        copies = [dict.fromkeys(("x", "diff", "y"), desc) for desc in layouts_of_copies(op.src)]
        for tensors in (given, *copies):
            read = {name: desc for name, desc in tensors.items() if name != "y"}
            self.sums = ChannelSums.planned(op.src.dims, self.channels.dims, read)
            self.application = self._application(tensors)
            if self.sums is not None and self.application is not None:
                break
        assert self.sums is not None
        rooms = {} if tensors is given else read
        self.dense = {name: plan.tensor(desc) for name, desc in rooms.items()}
        self.room = plan.reserve(self.sums.nbytes)

    def _application(self, given: Mapping[str, MemoryDesc]) -> Application | None:
        op, desc = self.plan.op, self.channels.desc
        tensors = {**given, "y": given["y"].with_data_type("f32"), "slope": desc, "rest": desc}
        diff = tensors.pop("diff")
        if not op.use_global_stats:
            tensors |= {"mean": desc, "other": diff, "share": desc}
        elif "mask" in given:  # it selects elements of `other` only
            return None
        else:
            tensors |= {"x": diff, "mean": desc}
        return Application.planned(op.src.dims, tensors)

    def steps(self, named: Tensors, result: Tensor, shift: Tensor, scale: Tensor) -> Iterator[Step]:
        """Yield the steps that write diff_src, and the gradients of shift and scale to rooms."""
        plan, op = self.plan, self.plan.op
        mean, steps = self.channels.of_sets(plan.mean, self.mean)
        yield from steps
        read = {"x": named["src"], "diff": named["diff_dst"]}
        if "workspace" in named:
            read["mask"] = named["workspace"]
        target = result
        if self.dense:
            yield from copied(self.dense["x"], named["src"])
            yield from passed(self.dense["diff"], named)
            read, target = self.dense, self.dense["diff"]
        wants_vectors = "diff_shift" in named or "diff_scale" in named
        if wants_vectors or not op.use_global_stats:
            yield from self._summed(read, mean)
        if wants_vectors:
            yield self._vectors(shift, scale)
        yield self._slopes(named)
        yield from self._applied(read, target, mean)
        if self.dense:
            yield from copied(result, target)

    def _summed(self, read: Tensors, mean: Tensor) -> Iterator[Step]:
        assert self.sums is not None
        yield from self.sums.steps(self.room, read, mean.address)
        sums = self.first.address, self.second.address
        yield self.sums.combined(self.room, True, 0.0, *sums)

    def _slopes(self, named: Tensors) -> Step:
        channels, op = self.channels, self.plan.op
        values = {
            "first": 0 if op.use_global_stats else self.first.address,
            "second": self.second.address, "factor": self.plan.factor.address,
            "scale": named["scale"].address if "scale" in named else 0,
            "members": channels.members, "groups": channels.sets, "count": op.count,
            "slope": self.slope.address, "share": self.share.address, "rest": self.rest.address,
        }  # fmt: skip
        return Step(tasks.slopes, values, self.plan.count, grain=1024)

    def _applied(self, read: Tensors, target: Tensor, mean: Tensor) -> list[Step]:
        assert self.application is not None
        tensors = {**read, "y": target, "rest": self.rest}
        diff = tensors.pop("diff")
        if self.plan.op.use_global_stats:
            zeros = self.channels.zeros(self.channels.desc)
            tensors |= {"x": diff, "mean": zeros, "slope": self.share}
        else:
            tensors |= {"mean": mean, "slope": self.slope, "other": diff, "share": self.share}
        return self.application.steps(tensors)

    def _vectors(self, shift: Tensor, scale: Tensor) -> Step:
        channels = self.channels
        values = {
            "first": self.first.address, "second": self.second.address,
            "factor": self.plan.factor.address, "images": channels.images,
            "channels": channels.vector[1], "members": channels.members,
            "shift": shift.address, "scale": scale.address,
        }  # fmt: skip
        grain = max(8, 1024 // max(1, channels.images))
        return Step(tasks.vectors, values, channels.vector[1], grain=grain)
