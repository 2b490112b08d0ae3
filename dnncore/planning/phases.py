"""Phases of a strided convolution: pixels of diff_src to which the same taps of the kernel
contribute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Phase", "phases"]


@dataclass(frozen=True)
class Phase:
    """Along one dim, the pixels `pixel + stride * j` of diff_src, j < pixels.

    The taps `tap + tap_step * t`, t < taps, contribute to pixel j. Tap t reads place
    `at + j - shrink * t` of diff_dst.
    """

    pixel: int
    stride: int
    pixels: int
    tap: int
    tap_step: int
    taps: int
    at: int
    shrink: int


def phases(size: int, kernel: int, stride: int, spacing: int, padding: int) -> list[Phase]:
    """Return the phases along one dim of diff_src, ordered by their first pixel.

    They solve `pixel + padding - tap * spacing = stride * place` for each remainder of the pixel.

    size: the number of pixels of diff_src.
    kernel: the number of taps.
    spacing: pixels from one tap to the next; 1 if dense.
    padding: pixels before the first one.
    """
    common = math.gcd(stride, spacing)
    tap_step = stride // common
    found = []
    for pixel in range(min(stride, size)):
        reach = pixel + padding
        fits = (t for t in range(min(tap_step, kernel)) if (reach - t * spacing) % stride == 0)
        tap = next(fits, kernel)  # `kernel` if no tap contributes to these pixels
        found.append(
            Phase(
                pixel=pixel,
                stride=stride,
                pixels=len(range(pixel, size, stride)),
                tap=min(tap, kernel - 1),
                tap_step=tap_step,
                taps=len(range(tap, kernel, tap_step)),
                at=(reach - tap * spacing) // stride,
                shrink=spacing // common,
            )
        )
    return found
