"""Layouts of a convolution's tensors for kernels on CPUs.

A tensor has channel blocks. In a plain layout, a block is as many consecutive channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Attributes, Convolution, MemoryDesc, Operation, PostOp, Refused
from dnncore.planning.phases import Phase, phases
from dnncore_opencl.codegen.digits import extended, int4
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.product import broadcast_strides
from dnncore_opencl.runtime.schema import Arg, Scratch

FLOAT = 4  # bytes
MOST_PHASES = 1 << 10  # most launches of an operation
COORDINATES = 5  # coordinates of an image element: image, channel, depth, height, width
WEIGHTS_COORDINATES = 6  # group, output and input channel, tap along depth, height, width


@dataclass(frozen=True)
class View:
    """The layout of a tensor.

    place: of its memory; None for the scratchpad. start: the first element. group, block, channel:
    strides of a group, a channel block and a channel. pixels: strides of image, depth, height and
    width. For weights, `block` and `channel` are the strides of a block of the result's channels
    and of a block of the other channels, and the image's stride is 0.
    """

    place: int | None
    start: int
    group: int
    block: int
    channel: int
    pixels: tuple[int, ...]

    def moved(self, steps: Sequence[int], scales: Sequence[int]) -> View:
        """Return the view from pixel `steps` on, with pixel strides multiplied by `scales`."""
        image, *spatial = self.pixels
        start = self.start + sum(s * n for s, n in zip(spatial, steps, strict=True))
        scaled = (s * n for s, n in zip(spatial, scales, strict=True))
        return replace(self, start=start, pixels=(image, *scaled))

    @property
    def buffer(self) -> Arg | Scratch:
        """The buffer argument of the kernel."""
        return Scratch() if self.place is None else Arg(self.place)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of parameters `name` and `name`_channels.

        The first holds the strides of pixels, the second the first element and channel strides.
        """
        channels = int4((self.start, self.group, self.block, self.channel))
        return {name: int4(self.pixels), f"{name}_channels": channels}


def blocked_tag(image: MemoryDesc, lanes: int) -> str:
    """Return the format of channel blocks of `lanes` channels."""
    return f"aB{'cde'[: image.ndims - 2]}{lanes}b"


def place_of(op: Operation, name: str) -> int:
    """Return the place of a tensor in bind order."""
    return [argument.name for argument, _ in op.tensors()].index(name)


def image_view(op: Convolution, name: str, lanes: int) -> View:
    """Return an image's view. In a plain layout, a block is `lanes` consecutive channels."""
    desc = getattr(op, name)
    groups, *_ = op.grouped_weights
    image, channel, *spatial = desc.strides
    block, lane = (channel, 1) if desc.inner_blocks else (channel * lanes, channel)
    group = block * (desc.dims[1] // groups) // lanes
    pixels = (image, *extended(spatial, 3))
    return View(place_of(op, name), desc.offset0, group, block, lane, pixels)


def chain(op: Operation, attr: Attributes) -> tuple[PostOp, ...]:
    """Return the post-ops of an image: the bias as the first step, then the attribute's."""
    bias = getattr(op, "bias", None)
    first = () if bias is None else (PostOp.binary("add", bias),)
    return (*first, *attr.post_ops)


def operands(op: Operation, attr: Attributes) -> tuple[View, ...]:
    """Return the views of the operands of these steps."""
    views, count = [], len(op.tensors())
    bias = getattr(op, "bias", None)
    if bias is not None:
        (stride,) = broadcast_strides(bias)
        views.append(View(place_of(op, "bias"), bias.offset0, 0, 0, stride, (0, 0, 0, 0)))
    for i, (_, desc) in enumerate(attr.operands()):
        image, channel, *spatial = broadcast_strides(desc)
        pixels = (image, *extended(spatial, 3))
        views.append(View(count + i, desc.offset0, 0, 0, channel, pixels))
    return tuple(views)


def steps(post_ops: Sequence[PostOp], views: Sequence[View]) -> Epilogue:
    """Return the epilogue for an element's image, channel, depth, height and width."""
    placed = []
    for view in views:
        assert view.place is not None
        strides = (view.pixels[0], view.channel, *view.pixels[1:])
        placed.append(Operand(view.place, view.start, strides))
    return epilogue(post_ops, placed, COORDINATES)


def weights_steps(op: Convolution, attr: Attributes) -> Epilogue:
    """Return the epilogue for an element of diff_weights: group, channels, and three taps."""
    placed, count = [], len(op.tensors())
    first = op.weights_role.ndims - op.src_role.ndims
    for i, (_, desc) in enumerate(attr.operands()):
        strides = broadcast_strides(desc)
        group, channels = strides[0] if first else 0, strides[first : first + 2]
        taps = extended(strides[first + 2 :], 3)
        placed.append(Operand(count + i, desc.offset0, (group, *channels, *taps)))
    return epilogue(attr.post_ops, placed, WEIGHTS_COORDINATES)


def refuse_phases(op: Convolution) -> Refused | None:
    """Refuse very many phases of a gradient by data."""
    phases = math.prod(map(min, op.src_role.dims[2:], op.strides))
    if phases <= MOST_PHASES:
        return None
    return Refused("shape", f"has up to {MOST_PHASES} phases; strides make {phases}")


def spatial_phases(op: Convolution) -> list[list[Phase]]:
    """Return the phases of each spatial dim."""
    spacings = [dilation + 1 for dilation in op.dilations]
    sizes, kernel = op.src_role.dims[2:], op.grouped_weights[3:]
    dims = zip(sizes, kernel, op.strides, spacings, op.padding_l, strict=True)
    return [phases(*dim) for dim in dims]
