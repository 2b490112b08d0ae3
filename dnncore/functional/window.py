"""The geometry of sliding windows, as convolution and pooling read it from their options."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.ops.window import SPATIAL, effective_kernel, entries, window_output

__all__ = ["IMAGE", "Padding", "Sizes", "window"]

IMAGE = {1: "W", 2: "H, W", 3: "D, H, W"}
"""The spatial dims of an image by their number, in words."""

Sizes = int | Sequence[int]
"""One integer for all spatial dims, or one for each."""
Padding = int | Sequence[int | Sequence[int]]
"""Cells on both sides: one integer for all spatial dims, or for each an integer or a pair."""


def window(
    function: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The operation's fields of a window over spatial dims of these sizes, and the output's sizes.

    Raises `DescriptorError` for options of another form and for a kernel larger than its image;
    what the numbers may be is checked by the operation itself.
    """
    spatial = len(sizes)
    left, right = zip(*_pairs(function, padding, spatial), strict=True)
    fields = {
        "strides": entries(function, "strides", strides, spatial),
        "dilations": entries(function, "dilations", dilations, spatial),
        "padding_l": entries(function, "padding", left, spatial),
        "padding_r": entries(function, "padding", right, spatial),
    }
    output = []
    for i, geometry in enumerate(zip(sizes, kernel, *fields.values(), strict=True)):
        size, taps, stride, dilation, before, after = geometry
        span = effective_kernel(taps, dilation)
        if span > size + before + after:
            raise DescriptorError(
                f"{function}: the kernel spans {span} cells along {SPATIAL[i - spatial]} but src"
                f" has {size} + padding {before} + {after}; pad it or use a smaller kernel"
            )
        # A stride that is too small is the operation's to refuse.
        output.append(window_output(size, taps, max(stride, 1), dilation, before, after))
    return fields, tuple(output)


def _pairs(function: str, padding: Any, spatial: int) -> list[tuple[int, ...]]:
    """(before, after) per spatial dim."""
    try:
        sides = [_repeated(side, 2) for side in _repeated(padding, spatial)]
        return [tuple(map(operator.index, pair)) for pair in sides]
    except (TypeError, ValueError):
        raise DescriptorError(
            f"{function}: padding must be one integer for all sides, or hold for each of the"
            f" {spatial} spatial dims an integer or a pair (before, after); got {padding!r}"
        ) from None


def _repeated(value: Any, count: int) -> tuple[Any, ...]:
    """An integer `count` times, or the values of a sequence of that length."""
    try:
        return (operator.index(value),) * count
    except TypeError:
        found = tuple(value)
    if len(found) != count:
        raise ValueError(found)
    return found
