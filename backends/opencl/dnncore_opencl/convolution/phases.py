"""Which pixels of a convolution's source the same kernel taps reach, and from where."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.backend import ConvolutionBackwardData

__all__ = ["Phase", "phases"]


@dataclass(frozen=True)
class Phase:
    """Along one dim, the pixels `pixel + stride * j` of diff_src and what reaches them.

    Taps `tap + tap_step * t` reach pixel j from diff_dst's coordinate `at + j - shrink * t`.
    """

    pixel: int
    stride: int
    pixels: int
    tap: int
    tap_step: int
    taps: int
    at: int
    shrink: int


def phases(op: ConvolutionBackwardData, dim: int) -> list[Phase]:
    """Solve pixel + padding - tap * dilation = stride * output for each remainder of the pixel."""
    size, kernel = op.diff_src.dims[2 + dim], op.grouped_weights[3 + dim]
    stride, dilation, padding = op.strides[dim], op.dilations[dim] + 1, op.padding_l[dim]
    common = math.gcd(stride, dilation)
    found = []
    for pixel in range(min(stride, size)):
        reach = pixel + padding
        fits = (t for t in range(stride // common) if (reach - t * dilation) % stride == 0)
        tap = next(fits, kernel)  # no tap at all reaches these pixels: k is empty
        tap_step = stride // common
        found.append(
            Phase(
                pixel=pixel,
                stride=stride,
                pixels=len(range(pixel, size, stride)),
                tap=min(tap, kernel - 1),
                tap_step=tap_step,
                taps=len(range(tap, kernel, tap_step)),
                at=(reach - tap * dilation) // stride,
                shrink=dilation // common,
            )
        )
    return found
