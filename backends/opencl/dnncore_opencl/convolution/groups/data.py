"""Convolution with few channels per group, forward and backward by data.

The kernel is `groups_data.cl`. It accepts every layout whose only blocked dim is channels, and any
strides, dilations and kernel sizes. Other layouts are copied.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from dnncore.backend import Accepted, Attributes, Convolution, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.layout import Parameters, access
from dnncore_opencl.codegen.vectors import HALVES, read, write
from dnncore_opencl.convolution.groups.axes import axes_of
from dnncore_opencl.convolution.groups.channels import (
    GROUP,
    MOST_CHANNELS,
    Channels,
    sizes_of,
    wanted_image,
)
from dnncore_opencl.convolution.groups.tiling import (
    Tiling,
    conversions,
    divided_taps,
    image_access,
    parameters_of,
    reads,
)
from dnncore_opencl.convolution.views import chain, operands, steps
from dnncore_opencl.copies.staging import ROW_MAJOR, Staging
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.implementation import accepted, common_refusal, size_refusal
from dnncore_opencl.runtime.launch import Launch

HELD = 4096  # floats of weights in local memory: half of the local memory of every device
CPU_EFFICIENCY = 0.02
GPU_EFFICIENCY = 1.2  # above the claim of tensor cores, whose tiles small groups leave mostly empty
GPU_EFFICIENCY_OF_HALVES = 0.4
MMA_CHANNELS = 16  # per group; from this number on, tensor cores are faster for f16 and bf16
WEIGHTS_COORDINATES = ("g", "o", "i", "d", "h", "w")


class Groups(Implementation[Convolution]):
    """The base of all directions: devices, formats and refusals."""

    name = "opencl:direct:groups"
    data_types: tuple[str, ...] = ("f32", *HALVES)
    attributes = POST_OP_WORDS

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept groups of few channels in every layout."""
        if op.algorithm == "winograd":
            reason = "computes by algorithm direct; got winograd; pass algorithm='direct' or 'auto'"
            return Refused("algorithm", reason)
        op = op.resolve_any(**self.formats(op))
        refused = common_refusal(op, attr) or _channels_refusal(op)
        if refused:
            return refused
        staging = Staging.of(op, attr, self.wanted)
        plan = size_refusal(staging.op, staging.attr) or self.plan(
            staging.op, staging.attr, engine, staging.nbytes
        )
        if isinstance(plan, Refused):
            return plan
        return accepted(op, engine, staging, [plan], self.efficiency(op, engine))

    def efficiency(self, op: Convolution, engine: Any) -> float:
        """Return the share of the peaks. Tiles of other families are mostly empty."""
        if engine.is_cpu:
            return CPU_EFFICIENCY
        _, *channels = op.grouped_weights[:3]
        is_small = op.src_role.data_type == "f32" or max(channels) < MMA_CHANNELS
        return GPU_EFFICIENCY if is_small else GPU_EFFICIENCY_OF_HALVES

    def formats(self, op: Convolution) -> dict[str, str]:
        """Put the channels of images last."""
        tags = {a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()}
        for name in (op.SRC, op.DST):
            tags[name] = f"a{tags[name][2:]}b"
        return tags

    def wanted(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Return the layout in which the kernel accesses a tensor."""
        return desc if "weights" in name else wanted_image(desc)

    @abstractmethod
    def plan(self, op: Convolution, attr: Attributes, engine: Any, start: int) -> Plan | Refused:
        """Plan the launches.

        start: bytes at the beginning of the scratchpad that are already used.
        """


def _channels_refusal(op: Convolution) -> Refused | None:
    groups, *channels, _ = op.grouped_weights[:4]
    if max(channels) > MOST_CHANNELS or (groups == 1 and max(channels) > 1):
        reason = f"there must be groups, of {MOST_CHANNELS} channels out and in at most"
        return Refused("shape", f"{reason}; got {groups} of {tuple(channels)}")
    return None


class GroupsData(Groups):
    """Forward and backward by data."""

    def __init__(self, image: str, result: str, *, is_backward: bool) -> None:
        self.image, self.result, self.is_backward = image, result, is_backward

    def plan(
        self,
        op: Convolution,
        attr: Attributes,
        engine: Any,
        start: int,
    ) -> Plan | Refused:
        """Return one launch."""
        tiling = self.tiling(op, engine)
        if isinstance(tiling, Refused):
            return tiling
        if not op.result.nelems:
            return Plan()
        return Plan(lambda: (self.launch(op, attr, engine, tiling),))

    def tiling(self, op: Convolution, engine: Any) -> Tiling | Refused:
        """Choose the tiles."""
        axes = divided_taps(*axes_of(op, is_backward=self.is_backward))
        if isinstance(axes, Refused):
            return axes
        image, result = getattr(op, self.image), getattr(op, self.result)
        taps = math.prod(axis.taps for axis in axes[1:])
        sizes = sizes_of(op, is_backward=self.is_backward)
        channels = Channels.of(engine, sizes, taps, image, result)
        most = HELD // (taps * channels.results * channels.reads)
        channels = channels.with_slots_within(most)
        tiling = Tiling(image.dims[0], axes, channels)
        return tiling.fastest(engine.device.limits["compute_units"])

    def launch(self, op: Convolution, attr: Attributes, engine: Any, tiling: Tiling) -> Launch:
        """Return the launch of the kernel."""
        channels = tiling.channels
        image, result = getattr(op, self.image), getattr(op, self.result)
        names = (self.image, op.WEIGHTS, self.result)
        parameters = parameters_of(op, names, self.result)
        after = steps(chain(op, attr), operands(op, attr))
        to_image, to_weights, to_result = (f"{name} + (at)" for name in names)
        defines = {
            **tiling.defines(image, parameters),
            "IS_PIXELS_FIRST": str(int(not channels.along)),
            "READS": str(channels.reads),
            "VALUE(x, r)": "((const float *)&(x))[r]" if channels.reads > 1 else "(x)",
            "HELD_DEPTH": str(_held_depth(channels, tiling.taps)),
            "PIXEL_BLOCKS": parameters.divisor(tiling.pixel_blocks),
            **reads(engine, "IMAGE", image.data_type, channels.values, to_image),
            "LOAD_WEIGHT(at)": read(engine, op.weights_role.data_type, 1, to_weights),
            "LOAD_RESULT(at)": read(engine, result.data_type, 1, to_result),
            "STORE_RESULT(at, value)": write(engine, result.data_type, 1, to_result, "value"),
            "STORE_RESULTS(at, value)": write(
                engine, result.data_type, channels.results, to_result, "value"
            ),
            **image_access("IMAGE", image, parameters),
            **image_access("RESULT", result, parameters),
            **weights_access(op, parameters, swapped=self.is_backward),
        }
        descs = [desc for _, desc in (*op.tensors(), *attr.operands())]
        functions = conversions(engine, descs, (channels.values, channels.results))
        groups = channels.blocks * tiling.pixel_blocks
        work = op.flops * GROUP
        return tiling.launch("groups_data", parameters, defines, functions, after, groups, work)


def _held_depth(channels: Channels, taps: int) -> int:
    """Return the channels of the image whose weights are in local memory at once."""
    most = HELD // (channels.slots * channels.results * taps)
    return min(most // channels.reads * channels.reads, channels.depth)


def weights_access(op: Convolution, parameters: Parameters, *, swapped: bool) -> dict[str, str]:
    """Define WEIGHTS_AT(group, channel of the result, channel of the image, taps)."""
    spatial = op.src_role.ndims - 2
    group = ("g",) if op.weights_role.ndims > op.src_role.ndims else ()
    channels = ("i", "o") if swapped else ("o", "i")
    used = (*group, *channels, *WEIGHTS_COORDINATES[6 - spatial :])
    return access("WEIGHTS", op.weights_role, WEIGHTS_COORDINATES, used, parameters)


FORWARD = GroupsData("src", "dst", is_backward=False)
BACKWARD_DATA = GroupsData("diff_dst", "diff_src", is_backward=True)
