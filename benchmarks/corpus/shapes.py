"""Shapes of problem texts, in which @3 means 3 times the batch size, and sizes of windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from benchmarks.corpus.layers import Value
from dnncore.problem.shapes import dims_text

__all__ = ["Axis", "Size", "axes_text", "each", "image_text", "tensor_text", "window_of",
           "window_text"]  # fmt: skip

Size: TypeAlias = int | Sequence[int]
"""A number for all axes, or one for each."""


class Axis(NamedTuple):
    """One axis of a window. Dilation 1 is dense."""

    src: int
    dst: int
    kernel: int
    stride: int
    dilation: int
    pad: int  # at the start


def each(number: Size, count: int) -> Sequence[int]:
    """The numbers of all axes."""
    return [number] * count if isinstance(number, int) else number


def window_of(
    sizes: Sequence[int], kernel: Size, stride: Size, pad: Size | str | None, dilation: Size,
    *, ceil: bool = False,
) -> list[Axis]:  # fmt: skip
    """All axes of a window.

    pad: cells at both ends. None means (kernel - 1) * dilation / 2. "same" means that the result
        has size / stride cells, rounded up, with an odd padding cell at the end, as in TensorFlow.
    ceil: whether the last window may reach beyond the end.
    """
    n = len(sizes)
    pads = [pad] * n if pad is None or isinstance(pad, str) else each(pad, n)
    columns = (each(number, n) for number in (kernel, stride, dilation))
    return [_axis(*row, ceil) for row in zip(sizes, pads, *columns, strict=True)]


def _axis(size: int, pad: int | str | None, k: int, s: int, d: int, ceil: bool) -> Axis:
    reach = (k - 1) * d + 1
    if isinstance(pad, str):
        both = max(0, (-(-size // s) - 1) * s + reach - size)
        left, right = both // 2, both - both // 2
    else:
        left = right = (reach - 1) // 2 if pad is None else pad
    span = size + left + right - reach
    count = (-(-span // s) if ceil else span // s) + 1
    if ceil and (count - 1) * s >= size + left:
        count -= 1
    return Axis(size, count, k, s, d, left)


def window_text(window: Iterable[Axis]) -> str:
    """The problem text of a window, such as `_ih5oh3kh3sh2dh1ph0`, without default values."""
    rows = []
    for axis in window:
        i, o, k, s, d, p = axis
        row = {"i": i, "o": o, "k": k}
        row |= {"s": s} if s > 1 else {}
        row |= {"d": d - 1} if d > 1 else {}
        if (o - 1) * s + (k - 1) * d + 1 != i:  # a reader without p places half of it at the start
            row["p"] = p
        rows.append(row)
    return axes_text(rows)


def image_text(x: Value) -> str:
    """The problem text of an image's sizes, such as `_ih5`; "" for a vector."""
    return axes_text([{"i": size} for size in x.dims[1:]])


def tensor_text(x: Value) -> str:
    """The dims of a tensor: `@1x16x5x5`."""
    return f"@{x.batch}x{dims_text(x.dims)}"


def axes_text(rows: list[dict[str, int]]) -> str:
    """The letters and numbers of each axis, or only of the first axis if all axes are equal."""
    letters = "dhw"[3 - len(rows) :]
    if all(row == rows[0] for row in rows):
        rows = rows[:1]
    texts = ["".join(f"{name}{letter}{n}" for name, n in row.items())
             for letter, row in zip(letters, rows, strict=False)]  # fmt: skip
    return "".join(f"_{text}" for text in texts)
