"""Convolution in groups of few channels, forward and backward by data.

The kernel is `groups_data.cl`. It takes every layout in which the channels alone have blocks, and
computes any strides, dilations and kernels. Other layouts are copied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dnncore.backend import Accepted, Attributes, Convolution, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.digits import INT4, UINT4, int4, inverses
from dnncore_opencl.codegen.layout import Parameters, access
from dnncore_opencl.codegen.vectors import (
    HALVES,
    TYPES,
    half_functions,
    read,
    vector,
    write,
)
from dnncore_opencl.convolution.groups.axes import Axis, axes_of
from dnncore_opencl.convolution.groups.channels import (
    GROUP,
    MOST_CHANNELS,
    Channels,
    sizes_of,
    wanted_image,
)
from dnncore_opencl.convolution.views import chain, operands, place_of, steps
from dnncore_opencl.copies.staging import ROW_MAJOR, Staging
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.implementation import accepted, common_refusal, size_refusal
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import Arg, Schema

MOST_TAPS = 64  # that are computed at once
HELD = 4096  # floats in local memory: half of what every device has
SUMS = 32  # of a work-item
WINDOW = 36  # values of a row of the image in registers
RESIDENT = 1024  # work-items of a multiprocessor that hide each other's latency
PIXELS = Schema(pixels=INT4, pixels_inverse=UINT4)  # images, then tiles along three dims
COORDINATES = ("n", "c", "d", "h", "w")
WEIGHTS_COORDINATES = ("g", "o", "i", "d", "h", "w")


class Groups(Implementation[Convolution]):
    """What all directions share: devices, formats and refusals."""

    name = "opencl:direct:groups"
    data_types = ("f32", *HALVES)
    efficiency: ClassVar[dict[str, float]] = {"cpu": 0.02, "gpu": 0.7, "accelerator": 0.7}

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
        return accepted(op, engine, staging, [plan], self.efficiency[engine.device_type])

    def formats(self, op: Convolution) -> dict[str, str]:
        """Put channels of images last."""
        tags = {a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()}
        for name in (op.SRC, op.DST):
            tags[name] = f"a{tags[name][2:]}b"
        return tags

    def wanted(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Return the layout in which the kernel takes a tensor."""
        return desc if "weights" in name else wanted_image(desc)

    def plan(
        self, op: Convolution, attr: Attributes, engine: Any, start: int
    ) -> Plan | Refused:
        """Plan the launches.

        start: the bytes at the beginning of the scratchpad that are taken.
        """
        raise NotImplementedError


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
        self, op: Convolution, attr: Attributes, engine: Any, start: int  # noqa: ARG002
    ) -> Plan | Refused:
        """One launch."""
        sweep = Sweep.of(self, op, engine)
        if isinstance(sweep, Refused):
            return sweep
        return Plan((sweep.launch(attr),) if op.result.nelems else ())


@dataclass(frozen=True)
class Sweep:
    """One kernel over the tiles of a result."""

    direction: GroupsData
    op: Convolution
    engine: Any
    axes: tuple[Axis, Axis, Axis]
    channels: Channels

    @classmethod
    def of(cls, direction: GroupsData, op: Convolution, engine: Any) -> Sweep | Refused:
        """Choose the tiles."""
        depth, *plane = axes_of(op, is_backward=direction.is_backward)
        divided = divided_taps(*plane)
        if isinstance(divided, Refused):
            return divided
        taps = math.prod(axis.taps for axis in divided)
        image, result = (getattr(op, name) for name in (direction.image, direction.result))
        sizes = sizes_of(op, is_backward=direction.is_backward)
        channels = Channels.of(engine, sizes, taps, image, result)
        units = engine.device.limits["compute_units"]
        sweep = cls(direction, op, engine, (depth, *divided), channels)
        return min(sweep.choices, key=lambda choice: choice.cost(units))

    @property
    def choices(self) -> Iterator[Sweep]:
        """The same with all tiles that fit into registers."""
        depth, height, width = self.axes
        across = range(1, 5) if self.channels.along else (1,)
        reads = self.channels.results if self.channels.is_depthwise else self.channels.reads
        for down, side in itertools.product(range(1, 17), across):
            h = height.with_tile(down * height.least_tile)
            w = width.with_tile(side * width.least_tile)
            is_least = down == side == 1
            sums = h.tile * w.tile * self.channels.results
            if is_least or (sums <= SUMS and reads * w.window <= WINDOW):
                yield Sweep(self.direction, self.op, self.engine, (depth, h, w), self.channels)

    def cost(self, units: int) -> float:
        """An estimate of the time, in arbitrary units."""
        _, height, width = self.axes
        channels = self.channels
        reads = channels.results if channels.is_depthwise else channels.depth
        loads = height.window * width.window * reads
        products = height.tile * width.tile * height.taps * width.taps * channels.results
        products *= channels.depth
        weights = height.taps * width.taps * channels.results * channels.depth
        own = 40 + 2 * loads + weights + products / 4
        items = channels.blocks * math.ceil(self.tiles / channels.others) * GROUP
        return own * max(items, units * RESIDENT)

    @cached_property
    def pixels(self) -> tuple[int, int, int, int]:
        """Images, and tiles along three dims."""
        depth, height, width = self.axes
        image = getattr(self.op, self.direction.image)
        return (image.dims[0], depth.result, height.blocks, width.blocks)

    @property
    def tiles(self) -> int:
        """Tiles of the pixels."""
        return math.prod(self.pixels)

    def launch(self, attr: Attributes) -> Launch:
        """The kernel."""
        op, engine, channels = self.op, self.engine, self.channels
        image, result = getattr(op, self.direction.image), getattr(op, self.direction.result)
        weights = op.weights_role
        parameters = parameters_of(op, (self.direction.image, op.WEIGHTS, self.direction.result))
        depth, height, width = self.axes
        pixel_blocks = math.ceil(self.tiles / channels.others)
        reads = channels.results if channels.is_depthwise else channels.reads
        held = held_depth(channels, height.taps * width.taps)
        row, pixel = extended_strides(image)[1:]
        lane = "(x)" if channels.is_depthwise or channels.reads == 1 else "((const float *)&(x))[r]"
        steps_code = steps(chain(op, attr), operands(op, attr))
        names = (self.direction.image, op.WEIGHTS, self.direction.result)
        defines: dict[str, Any] = {
            "IS_BACKWARD": int(self.direction.is_backward),
            "IS_DEPTHWISE": int(channels.is_depthwise),
            "IS_PIXELS_FIRST": int(not channels.along),
            "IS_WIDE": int(channels.is_wide),
            "GROUP": GROUP,
            "SLOTS": channels.slots,
            "RESULTS": channels.results,
            "READS": channels.reads,
            "HELD_DEPTH": held,
            "FLOATS": vector("float", channels.results),
            "VALUES": vector("float", reads),
            "VALUE(x, r)": lane,
            "VECTORS": parameters.size(channels.vectors),
            "VECTORS_OF_GROUP": parameters.index(channels.vectors_of_group),
            "COLUMNS": parameters.index(channels.columns),
            "DEPTH": parameters.index(channels.depth),
            "SLOT_BLOCKS": parameters.size(channels.blocks),
            "PIXEL_BLOCKS": parameters.size(pixel_blocks),
            "ROW_STEP": parameters.index(row * height.in_step),
            "PIXEL_STEP": parameters.index(pixel * width.in_step),
            "LOAD_IMAGE(at)": read(engine, image.data_type, reads, f"{names[0]} + (at)"),
            "LOAD_WEIGHT(at)": read(engine, weights.data_type, 1, f"{names[1]} + (at)"),
            "LOAD_RESULT(at)": read(engine, result.data_type, 1, f"{names[2]} + (at)"),
            "STORE_RESULT(at, value)": write(
                engine, result.data_type, 1, f"{names[2]} + (at)", "value"
            ),
            "STORE_RESULTS(at, value)": write(
                engine, result.data_type, channels.results, f"{names[2]} + (at)", "value"
            ),
            **image_access("IMAGE", image, parameters),
            **image_access("RESULT", result, parameters),
            **weights_access(op, weights, parameters, swapped=self.direction.is_backward),
            **depth.depth_defines(parameters),
            **height.defines(parameters),
            **width.defines(parameters),
            **parameters.defines,
        }
        types = [image.data_type, weights.data_type, result.data_type]
        types += [desc.data_type for _, desc in attr.operands()]
        bias = getattr(op, "bias", None)
        types += [] if bias is None else [bias.data_type]
        halves = half_functions(engine, types, {1, reads, channels.results})
        snippets = (
            *(("#define HALVES", *halves) if halves else ()),
            steps_code.code,
            template("digits"),
            template("tiles"),
        )
        schema = parameters.schema | PIXELS | steps_code.schema
        arguments = {
            **parameters.arguments,
            "pixels": int4(self.pixels),
            "pixels_inverse": inverses(self.pixels),
            **steps_code.arguments,
        }
        source = Source("groups_data", schema, defines, snippets)
        groups = channels.blocks * pixel_blocks
        work = op.flops * 2 * GROUP
        return Launch(source, arguments, (groups * GROUP,), (GROUP,), work)


def divided_taps(height: Axis, width: Axis) -> tuple[Axis, Axis] | Refused:
    """Choose the taps that are computed at once."""
    w = width.with_taps_within(MOST_TAPS)
    h = height.with_taps_within(MOST_TAPS // w.taps) if w else None
    if w is None or h is None:
        kernel = f"{height.kernel}x{width.kernel}"
        reason = f"kernels must have {MOST_TAPS} taps at most, or parts that strides divide"
        return Refused("shape", f"{reason}; got {kernel}")
    return h, w


def held_depth(channels: Channels, taps: int) -> int:
    """The channels of the image whose weights are in local memory at once."""
    most = HELD // (channels.slots * channels.results * taps)
    fits = max(channels.reads, most // channels.reads * channels.reads)
    return min(fits, channels.depth)


def parameters_of(op: Convolution, names: Sequence[str]) -> Parameters:
    """Begin a kernel's parameters with its tensors, the last of which is written."""
    descs = [getattr(op, name) for name in names]
    parameters = Parameters(max(desc.nbytes // desc.itemsize for desc in descs))
    for name, desc in zip(names, descs, strict=True):
        const = "" if name == names[-1] else "const "
        argument = Arg(place_of(op, name))
        parameters.buffer(name, const + TYPES[desc.data_type], argument, is_restrict=True)
    return parameters


def extended_strides(desc: MemoryDesc) -> tuple[int, int, int]:
    """The strides of depth, height and width; 0 where there is no such dim."""
    strides = (0, 0, *desc.strides[2:])
    return strides[-3], strides[-2], strides[-1]


def image_access(name: str, desc: MemoryDesc, parameters: Parameters) -> dict[str, str]:
    """Define NAME_AT(n, c, d, h, w)."""
    used = (*COORDINATES[:2], *COORDINATES[7 - desc.ndims :])
    return access(name, desc, COORDINATES, used, parameters)


def weights_access(
    op: Convolution, desc: MemoryDesc, parameters: Parameters, *, swapped: bool
) -> dict[str, str]:
    """Define WEIGHTS_AT(group, channel of the result, channel of the image, taps)."""
    spatial = op.src_role.ndims - 2
    group = ("g",) if desc.ndims > op.src_role.ndims else ()
    channels = ("i", "o") if swapped else ("o", "i")
    used = (*group, *channels, *WEIGHTS_COORDINATES[6 - spatial :])
    return access("WEIGHTS", desc, WEIGHTS_COORDINATES, used, parameters)


FORWARD = GroupsData("src", "dst", is_backward=False)
BACKWARD_DATA = GroupsData("diff_dst", "diff_src", is_backward=True)
