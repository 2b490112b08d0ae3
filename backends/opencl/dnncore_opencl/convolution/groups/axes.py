"""Spatial dims of a convolution: tiles of the result and the windows of the image they read.

With strides and dilations, the pixels of a tile are so far apart that all their taps read the same
pixels of the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from dnncore.backend import Convolution
from dnncore_opencl.codegen.digits import extended
from dnncore_opencl.codegen.layout import Parameters

LETTERS = "DHW"


@dataclass(frozen=True)
class Axis:
    """One spatial dim. The result is diff_src if `is_backward`, else dst. The image is the other.

    spacing: pixels from one tap to the next. tile: pixels of the result that are computed together.
    taps: taps that are computed together. They divide the kernel size.
    """

    letter: str
    result: int
    image: int
    kernel: int
    stride: int
    spacing: int
    padding: int
    is_backward: bool
    tile: int = 1
    taps: int = 1

    @property
    def common(self) -> int:
        """The greatest common divisor of stride and spacing."""
        return math.gcd(self.stride, self.spacing)

    @property
    def ratio(self) -> int:
        """The stride in units of `common`."""
        return self.stride // self.common

    @property
    def out_step(self) -> int:
        """The distance of a tile's pixels in the result."""
        return self.spacing if self.is_backward else self.spacing // self.common

    @property
    def in_step(self) -> int:
        """The distance of a window's pixels in the image."""
        return self.spacing // self.common if self.is_backward else self.spacing

    @property
    def window(self) -> int:
        """The number of pixels of the image that a tile reads."""
        if self.is_backward:
            return (self.tile - 1) // self.ratio + (self.taps - 1) // self.ratio + 1
        return self.ratio * (self.tile - 1) + self.taps

    @property
    def blocks(self) -> int:
        """The number of tiles that cover the result."""
        along = math.ceil(self.result / self.out_step)
        waste = self.ratio - 1 if self.is_backward else 0
        return self.out_step * math.ceil((along + waste) / self.tile)

    @property
    def is_whole(self) -> bool:
        """Whether all pixels of forward tiles are inside the result."""
        return self.result % (self.out_step * self.tile) == 0

    @cached_property
    def least_tile(self) -> int:
        """The smallest tile. Tiles are multiples of it."""
        return self.ratio if self.is_backward else 1

    def with_tile(self, tile: int) -> Axis:
        """Return the dim with another tile."""
        return replace(self, tile=tile)

    def with_taps_within(self, most: int) -> Axis | None:
        """Return the dim with the most taps at once, at most `most`; None if impossible."""
        step = self.least_tile
        fits = (n for n in range(min(most, self.kernel), 0, -1) if self.kernel % n == 0)
        taps = next((n for n in fits if n == self.kernel or n % step == 0), None)
        return None if taps is None else replace(self, taps=taps)

    def defines(self, parameters: Parameters) -> dict[str, str]:
        """Return the defines of tiles.cl."""
        name, index, size = self.letter, parameters.index, parameters.size
        divisor = parameters.divisor
        chunk = self.taps * self.in_step
        if self.is_backward:
            inverse = pow(self.ratio, -1, self.in_step) if self.in_step > 1 else 0
            terms = [
                divisor(self.spacing),
                divisor(self.common),
                str(self.ratio),
                divisor(self.in_step),
                index(inverse),
                size(self.padding),
                str(self.taps),
            ]
            chunk = -chunk // self.ratio
        else:
            terms = [divisor(self.out_step), index(self.stride), size(self.padding)]
        function = "backward_tile" if self.is_backward else "forward_tile"
        chunks = self.kernel // self.taps
        return {
            f"TILE_{name}": str(self.tile),
            f"TAPS_{name}": str(self.taps),
            f"RATIO_{name}": str(self.ratio),
            f"IN_STEP_{name}": index(self.in_step),
            f"OUT_STEP_{name}": index(self.out_step),
            f"CHUNKS_{name}": divisor(chunks),
            f"CHUNK_{name}(chunk)": f"(chunk) * {index(chunk)}" if chunks > 1 else "0",
            f"IMAGE_{name}": size(self.image),
            f"RESULT_{name}": size(self.result),
            f"TILE_AT_{name}(block)": f"{function}(block, {self.tile}, {', '.join(terms)})",
        }

    def depth_defines(self, parameters: Parameters) -> dict[str, str]:
        """Return the defines of tiles.cl for depth, whose taps are computed one by one."""
        index, size = parameters.index, parameters.size
        place = "0"
        if (self.result, self.image, self.kernel, self.padding) != (1, 1, 1, 0):
            moved = f"(tap) * {index(self.spacing)}"
            if self.is_backward:
                stride = parameters.divisor(self.stride)
                place = f"backward_place((d) + {size(self.padding)} - {moved}, {stride})"
            else:
                place = f"((d) * {index(self.stride)} - {size(self.padding)} + {moved})"
        return {
            "TAPS_D": parameters.divisor(self.kernel),
            "IMAGE_D": size(self.image),
            "PLACE_D(d, tap)": place,
        }


def axes_of(op: Convolution, *, is_backward: bool) -> list[Axis]:
    """Return depth, height and width. Dims that the operation does not have have size 1."""
    images, results = op.src_role.dims[2:], op.dst_role.dims[2:]
    if is_backward:
        images, results = results, images
    rows = (
        extended(results, 3, 1),
        extended(images, 3, 1),
        extended(op.grouped_weights[3:], 3, 1),
        extended(op.strides, 3, 1),
        extended([dilation + 1 for dilation in op.dilations], 3, 1),
        extended(op.padding_l, 3),
    )
    return [
        Axis(letter, result, image, kernel, stride, spacing, padding, is_backward)
        for letter, result, image, kernel, stride, spacing, padding in zip(
            LETTERS, *rows, strict=True
        )
    ]
