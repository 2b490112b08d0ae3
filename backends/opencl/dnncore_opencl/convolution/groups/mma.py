"""Convolution of f16 and bf16 with few channels per group, on NVIDIA's tensor cores.

The kernel is `groups_mma.cl`. A tile of the tensor cores has channels of one group: 8 of the result
and 16 of the image.
"""

from __future__ import annotations

import math
from typing import Any

from dnncore.backend import Accepted, Attributes, Convolution, MemoryDesc, Refused
from dnncore_opencl.codegen.digits import int4, inverses
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import HALVES, read, write
from dnncore_opencl.convolution.groups.axes import Axis, axes_of
from dnncore_opencl.convolution.groups.channels import CHANNELS, sizes_of
from dnncore_opencl.convolution.groups.data import GroupsData, weights_access
from dnncore_opencl.convolution.groups.tiling import (
    PIXELS,
    conversions,
    image_access,
    parameters_of,
)
from dnncore_opencl.convolution.views import chain, operands, steps
from dnncore_opencl.copies.staging import plain
from dnncore_opencl.devices.nvidia import capability
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.runtime.launch import Launch, Source, template

LEAST_CAPABILITY = (8, 0)
EFFICIENCY, LEAST_EFFICIENCY = 1.3, 0.3
FULL = 16  # channels per group on either side that fill a tile
GROUP = 128  # work-items
PIXELS_OF_WARP = 32
FEWEST = 3  # channels per group on either side; with fewer, most of a tile is empty
MOST_WORDS = 11 << 10  # 32-bit words of weights in local memory
COLUMN_TILE, STEP, SPARE = 8, 16, 4  # channels of the result, of the image; words between columns


class GroupsMma(GroupsData):
    """Forward and backward by data."""

    name = "opencl:direct:groups:mma"
    data_types = HALVES
    instructions = "mma_ptx"  # the template with the tensor cores' instructions

    def refusal(self, engine: Any) -> Refused | None:
        """Refuse devices that lack the instructions."""
        if capability(engine) >= LEAST_CAPABILITY:
            return None
        reason = "needs NVIDIA's tensor cores of compute capability 8.0"
        return Refused("device", f"{reason}; got {engine.device.name}")

    def wanted(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Return a plain layout for images."""
        return desc if "weights" in name else plain(desc)

    def efficiency(self, op: Convolution, engine: Any) -> float:
        """Exceeds all others if tiles are full and each tap reaches each pixel."""
        _, *channels = op.grouped_weights[:3]
        is_strided = self.is_backward and max(op.strides) > 1
        return EFFICIENCY if min(channels) >= FULL and not is_strided else LEAST_EFFICIENCY

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept 2-D and 1-D images of f16 or bf16, and groups of several channels."""
        if refused := self.refusal(engine):
            return refused
        _, *channels = op.grouped_weights[:3]
        if max(channels) < FEWEST:
            reason = f"groups must have {FEWEST} channels out or in at least; got {channels}"
            return Refused("shape", reason)
        return super().accept(op, attr, engine, hint)

    def plan(self, op: Convolution, attr: Attributes, engine: Any, start: int) -> Plan | Refused:
        """Return one launch."""
        depth, height, width = axes_of(op, is_backward=self.is_backward)
        if (depth.image, depth.result, depth.kernel) != (1, 1, 1) or depth.padding:
            return Refused("shape", f"images must have two dims at most; got {op.src_role.dims}")
        _, columns, inner = sizes_of(op, is_backward=self.is_backward)
        taps = height.kernel * width.kernel
        row = math.ceil(inner / STEP) * STEP // 2 + SPARE
        words = taps * math.ceil(columns / COLUMN_TILE) * COLUMN_TILE * row
        if words > MOST_WORDS:
            return Refused("shape", f"weights of a group must be {MOST_WORDS} words; got {words}")
        if not op.result.nelems:
            return Plan()
        return Plan(lambda: (self._launch(op, attr, engine, height, width),))

    def _launch(
        self, op: Convolution, attr: Attributes, engine: Any, height: Axis, width: Axis
    ) -> Launch:
        image, result = getattr(op, self.image), getattr(op, self.result)
        parameters = parameters_of(op, (self.image, op.WEIGHTS, self.result), self.result)
        after = steps(chain(op, attr), operands(op, attr))
        kind = image.data_type
        groups, columns, inner = sizes_of(op, is_backward=self.is_backward)
        pixels = (image.dims[0], 1, height.result, width.result)
        to_result = f"{self.result} + (at)"
        row, pixel = (0, *image.strides[2:])[-2:]
        defines = {
            "MMA": f'"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"',
            "ELEMENT_BYTES": "2",
            "IS_F16": str(int(kind == "f16")),
            "ITEMS": str(GROUP),
            "IS_BACKWARD": str(int(self.is_backward)),
            "IS_ALONG": str(int(_is_paired(image, inner))),
            "IMAGE": self.image,
            "GROUP": str(GROUP),
            "GROUPS_OF_CHANNELS": parameters.size(groups),
            "COLUMNS": str(columns),
            "DEPTH": str(inner),
            "CHANNEL_STEP": parameters.index(image.strides[CHANNELS]),
            "ROW_STEP": parameters.index(row),
            "PIXEL_STEP": parameters.index(pixel),
            "LOAD_RESULT(at)": read(engine, result.data_type, 1, to_result),
            "STORE_RESULT(at, value)": write(engine, result.data_type, 1, to_result, "value"),
            **image_access("IMAGE", image, parameters),
            **image_access("RESULT", result, parameters),
            **weights_access(op, parameters, swapped=self.is_backward),
            **_place_defines(height, parameters),
            **_place_defines(width, parameters),
            **parameters.defines,
        }
        descs = [desc for _, desc in (*op.tensors(), *attr.operands())]
        snippets = (
            *conversions(engine, descs, (1,)),
            after.code,
            template("digits"),
            template(self.instructions),
            template("tiles"),
        )
        arguments = {
            **parameters.arguments,
            "pixels": int4(pixels),
            "pixels_inverse": inverses(pixels),
            **after.arguments,
        }
        source = Source("groups_mma", parameters.schema | PIXELS | after.schema, defines, snippets)
        of_group = GROUP // 32 * PIXELS_OF_WARP
        blocks = math.ceil(math.prod(pixels) / of_group)
        return Launch(source, arguments, (groups * blocks * GROUP,), (GROUP,))


def _is_paired(image: MemoryDesc, depth: int) -> bool:
    """Whether pairs of channels are contiguous and aligned to words."""
    others = (
        stride
        for dim, (size, stride) in enumerate(zip(image.dims, image.strides, strict=True))
        if dim != CHANNELS and size > 1
    )
    return image.strides[CHANNELS] == 1 and not any(n % 2 for n in (depth, image.offset0, *others))


def _place_defines(axis: Axis, parameters: Parameters) -> dict[str, str]:
    """Define the image's pixel for a pixel of the result and a tap, and the sizes."""
    name, index, padding = axis.letter, parameters.index, parameters.size(axis.padding)
    moved = f"(tap) * {index(axis.spacing)}"
    if axis.is_backward:
        place = f"backward_place((out) + {padding} - {moved}, {index(axis.stride)})"
    else:
        place = f"((out) * {index(axis.stride)} - {padding} + {moved})"
    return {
        f"TAPS_{name}": str(axis.kernel),
        f"IMAGE_{name}": parameters.size(axis.image),
        f"PLACE_{name}(out, tap)": place,
    }


FORWARD = GroupsMma("src", "dst", is_backward=False)
BACKWARD_DATA = GroupsMma("diff_dst", "diff_src", is_backward=True)
