"""The geometry of sliding windows, read from the options of convolution and pooling."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

from dnncore.errors import DescriptorError
from dnncore.functional.operands import brief
from dnncore.ops.window import SPATIAL, effective_kernel, entries, window_output

__all__ = ["IMAGE", "Padding", "Sizes", "spread", "window"]

IMAGE = {1: "W", 2: "H, W", 3: "D, H, W"}
"""Number of spatial dims -> their names."""

Sizes = int | Sequence[int]
"""One integer for all spatial dims, or one for each dim."""
Padding = int | Sequence[int | Sequence[int]] | Literal["same", "valid"]
"""Cells on both sides: one integer for all spatial dims, or an integer or a pair for each dim.

"same" gives dst the size of src and requires strides of 1. "valid" is 0.
"""


def window(
    function: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the operation's fields for a window over spatial dims of these sizes, and the output
    sizes.

    Raises `DescriptorError` for options of another form and for a kernel that is larger than the
    padded image. The operation checks the range of the numbers.
    """
    fields = _fields(function, len(sizes), kernel, strides, padding, dilations)
    output = []
    for i, geometry in enumerate(zip(sizes, kernel, *fields.values(), strict=True)):
        size, taps, stride, dilation, before, after = geometry
        span = effective_kernel(taps, dilation)
        if span > size + before + after:
            raise DescriptorError(
                f"{function}: the kernel spans {span} cells along {SPATIAL[i - len(sizes)]} but"
                f" src has {size} + padding {before} + {after}; pad it or use a smaller kernel"
            )
        # The operation refuses a stride below 1.
        output.append(window_output(size, taps, max(stride, 1), dilation, before, after))
    return fields, tuple(output)


def spread(
    function: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the fields for windows in the output, one for each cell of an image of these sizes,
    and the output sizes.

    Raises `DescriptorError` for options of another form and for padding beyond the output.
    """
    fields = _fields(function, len(sizes), kernel, strides, padding, dilations)
    output = []
    for i, geometry in enumerate(zip(sizes, kernel, *fields.values(), strict=True)):
        size, taps, stride, dilation, before, after = geometry
        whole = (size - 1) * stride + effective_kernel(taps, dilation)
        if before + after > whole:
            raise DescriptorError(
                f"{function}: padding {before} + {after} cuts off more than the {whole} cells along"
                f" {SPATIAL[i - len(sizes)]}; use less"
            )
        output.append(whole - before - after)
    return fields, tuple(output)


def _fields(
    function: str,
    spatial: int,
    kernel: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
) -> dict[str, Any]:
    """Return the fields of the operation for these options."""
    steps = entries(function, "strides", strides, spatial)
    skips = entries(function, "dilations", dilations, spatial)
    if isinstance(padding, str):
        padding = _named(function, padding, kernel, steps, skips)
    left, right = zip(*_pairs(function, padding, spatial), strict=True)
    return {
        "strides": steps,
        "dilations": skips,
        "padding_l": entries(function, "padding", left, spatial),
        "padding_r": entries(function, "padding", right, spatial),
    }


def _named(
    function: str,
    name: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Padding:
    """Return the padding named "same" or "valid". The larger half of an odd sum is at the end."""
    if name == "valid":
        return 0
    if name != "same":
        raise DescriptorError(
            f"{function}: padding must be 'same', 'valid' or integers; got {brief(name)}"
        )
    if any(stride != 1 for stride in strides):
        raise DescriptorError(
            f"{function}: padding 'same' needs strides of 1; got strides {tuple(strides)};"
            " pass the padding as integers"
        )
    sums = [max(0, effective_kernel(k, d) - 1) for k, d in zip(kernel, dilations, strict=True)]
    return [(total // 2, total - total // 2) for total in sums]


def _pairs(function: str, padding: Any, spatial: int) -> list[tuple[int, ...]]:
    """Return (before, after) per spatial dim."""
    try:
        sides = [_repeated(side, 2) for side in _repeated(padding, spatial)]
        return [tuple(map(operator.index, pair)) for pair in sides]
    except (TypeError, ValueError):
        raise DescriptorError(
            f"{function}: padding must be one integer for all sides, an integer or a pair"
            f" (before, after) for each of the {spatial} spatial dims, 'same' or 'valid';"
            f" got {brief(padding)}"
        ) from None


def _repeated(value: Any, count: int) -> tuple[Any, ...]:
    """Return an integer repeated `count` times, or the values of a sequence of that length."""
    try:
        return (operator.index(value),) * count
    except TypeError:
        found = tuple(value)
    if len(found) != count:
        raise ValueError(found)
    return found
