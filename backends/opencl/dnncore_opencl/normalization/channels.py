"""Group normalization by channels: a work-group computes a set, and its work-items a channel each.

On GPUs only. A set is read once, if it is held in registers, or twice in a row, so that it is still
in the cache of the device. Sums of channels give the gradients of scale and shift.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from dnncore import backend as core
from dnncore.backend import Refused
from dnncore_opencl.codegen.grid import Shares, power_of_two, power_of_two_within
from dnncore_opencl.normalization.plan import Plan
from dnncore_opencl.rows.rows import (
    FLOAT_BYTES,
    LARGEST_GROUP,
    Rows,
    Tensors,
    parts_of,
    row_launch,
    scale_arguments,
)
from dnncore_opencl.runtime.launch import Launch, template
from dnncore_opencl.runtime.schema import Scratch

HELD_FORWARD, HELD_BACKWARD = 56, 28  # most words of a tensor that a work-item holds
GROUP, GROUP_OF_HALVES = 512, 256  # most work-items
LEAST_GROUP = 64  # work-items
WARP = 32
CACHED = 192 * 1024  # bytes of a set that every multiprocessor keeps in the cache it shares
PER_CHANNEL = ("mean", "variance", "scale", "shift")


class Channels:
    """The launch of one operation by channels."""

    def __init__(self, plan: Plan) -> None:
        op = plan.op
        self.plan = plan
        self.is_forward = op.result_name == "dst"
        inputs = ("src",) if self.is_forward else ("src", "diff_dst")
        names = (*inputs, op.result_name)
        own = {name: plan.named[name] for name in names}
        own |= {f"post{i}": tensor for i, tensor in enumerate(plan.operands)}
        per_row = {name: plan.named[name] for name in PER_CHANNEL if name in plan.named}
        self.buffers = own | per_row
        self.tensors = Tensors(
            {name: tensor.desc for name, tensor in own.items()},
            len(inputs),
            plan.attr,
            {name: tensor.desc for name, tensor in per_row.items()},
        )
        dims = plan.views.in_set[1:]
        self.rows = Rows.of(plan.engine, self.tensors, dims, in_halves=True)
        self.span = plan.views.dims[2]
        self.start = 0

    def shares(self) -> tuple[Shares, int, int]:
        """Return the work-items of a channel, the vectors that each holds, and its parts."""
        vectors = -(-self.rows.length // self.rows.lanes)
        limit = GROUP if self.tensors.descs[0].itemsize == FLOAT_BYTES else GROUP_OF_HALVES
        limit = max(limit, self.span * _least_workers(self.span))
        limit = min(limit, self.plan.engine.device.limits["max_work_group"])
        words = HELD_FORWARD if self.is_forward else HELD_BACKWARD
        nbytes = self.rows.lanes * self.tensors.descs[0].itemsize
        wanted = -(-vectors * max(1, nbytes // FLOAT_BYTES) // words)
        workers = max(power_of_two(wanted), LEAST_GROUP // self.span)
        workers = min(workers, power_of_two_within(limit // self.span))
        workers = max(workers, _least_workers(self.span))
        return Shares(workers, self.span), *parts_of(-(-vectors // workers), nbytes, words)

    @property
    def efficiency(self) -> float:
        """The share of the bandwidth: low where sets are few or do not stay in the cache."""
        units = self.plan.engine.device.limits["compute_units"]
        size = self.rows.length * self.span * sum(
            desc.itemsize for desc in list(self.tensors.named.values())[: self.tensors.result]
        )  # fmt: skip
        _, held, parts = self.shares()
        is_cached = (held and parts == 1) or size <= CACHED * (1 if self.is_forward else 2)
        is_enough = self.rows.nest.size // self.span >= units and self.rows.lanes > 1
        return 0.9 if is_enough and is_cached else 0.3

    def launches(self) -> list[Launch]:
        """Return the launch."""
        plan, op = self.plan, self.plan.op
        parameters, defines = plan.parameters(self.buffers, self.rows.length)
        if self.is_leaving:
            parameters.buffer("left", "float", Scratch())
            defines |= {"LEAVES": "", "START": parameters.size(self.start)}
        shares, held, parts = self.shares()
        direction = "forward" if self.is_forward else "backward"
        launch = row_launch(
            plan.engine, f"channels_{direction}",
            self.tensors, self.rows, parameters, shares, held, defines,
            parts=parts,
            factor=scale_arguments(op, plan.attr, parameters, plan.attributes_place),
            texts=(template("sets"), template("channels")), is_exact=bool(plan.attr.scales),
        )  # fmt: skip
        return [launch]

    @property
    def is_leaving(self) -> bool:
        """Whether gradients of scale or shift are wanted."""
        return self.plan.has("diff_scale") or self.plan.has("diff_shift")


def refusal(plan: Plan) -> Refused | None:
    """Refuse problems other than sets of contiguous channels on GPUs."""
    op, engine = plan.op, plan.engine
    if not isinstance(op, core.GroupNormalizationForward | core.GroupNormalizationBackward):
        return Refused("shape", "computes groups of channels")
    if engine.is_cpu:
        return Refused("device", f"computes on GPUs; got {engine.device.name}")
    if op.use_global_stats:
        return Refused("shape", "computes mean and variance of sets; use_global_stats gives them")
    if not op.source.nelems or math.prod(op.source.dims[2:]) < 2:
        return Refused("shape", f"needs images of several elements; got {op.source.dims}")
    whole = [*(plan.named.get(name) for name in ("src", "diff_dst", op.result_name))]
    descs = [tensor.desc for tensor in whole if tensor]
    if plan.uncopied or len(descs) < 2 or not all(map(_is_plain, descs)):
        return Refused("format", "needs plain channels, one after the other")
    span, limit = plan.views.dims[2], engine.device.limits["max_work_group"]
    if span * _least_workers(span) > min(LARGEST_GROUP, limit):
        return Refused(
            "shape", f"needs sets of at most {LARGEST_GROUP // WARP} channels; got {span}"
        )
    return None


def _least_workers(span: int) -> int:
    """Return the least work-items of a channel, so that a work-group consists of whole warps."""
    return WARP if span & (span - 1) else max(1, WARP // span)


def _is_plain(desc: Any) -> bool:
    """Whether a tensor (N, G, C / G, ...) has no blocks, and images and channels are in order."""
    if desc.inner_blocks:
        return False
    dims = zip(desc.dims, desc.strides, strict=True)
    first = [stride for size, stride in list(dims)[:3] if size > 1]
    inner = max(
        (s for n, s in zip(desc.dims[3:], desc.strides[3:], strict=True) if n > 1), default=0
    )
    return all(a > b for a, b in pairwise([*first, inner]))


def launches(plan: Plan) -> float:
    """Add the launches; return the efficiency."""
    channels = Channels(plan)
    plan.steps.append(channels.launches)
    if not channels.is_forward and channels.is_leaving:
        images, *groups = plan.views.dims[:3]
        channels.start = plan.sum_parts(images, groups)
    return channels.efficiency
