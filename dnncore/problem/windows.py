"""Shapes with a window: `g2mb2_ic4oc8_ih5oh3kh3sh1dh0ph0_iw5ow3kw3sw1dw0pw0`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dnncore.ops.window import effective_kernel
from dnncore.problem.settings import Misread

__all__ = ["Window", "read_spatial", "spatial_text", "window_letters"]

AXES = "dhw"
SPATIAL = {"i": None, "o": None, "k": None, "s": 1, "d": 0, "p": None, "r": None}


def window_letters() -> str:
    """The letters of all spatial axes."""
    names = [kind + axis for axis in AXES for kind in ("i", "o", "k", "s", "d", "p")]
    return " ".join(names + [f"pr{axis}" for axis in AXES])


@dataclass(frozen=True)
class Window:
    """Spatial dims, outer to inner, and the fields of `Windowed`."""

    src: tuple[int, ...]
    dst: tuple[int, ...]
    kernel: tuple[int, ...]
    fields: Mapping[str, tuple[int, ...]]


def read_spatial(letters: Mapping[str, float]) -> Window:
    """One row per axis; an axis without numbers is like the one before it.

    dh 0 is dense. Without oh, the padding is the same on both sides, 0 if silent; without ph, it
    is what oh needs, half of it at the start. A right padding that oh tells is not written; prh
    is for another one.
    """
    rows = [_row(letters, axis) for axis in AXES]
    first = next((i for i, row in enumerate(rows) if row), None)
    if first is None:
        raise Misread("shape", "expected the image's size, iw, ih or id")
    for i in range(first + 1, len(AXES)):
        rows[i] = rows[i] or rows[i - 1]
    completed = [_completed(AXES[i], rows[i]) for i in range(first, len(AXES))]
    src, dst, kernel, *fields = zip(*completed, strict=True)
    names = ("strides", "dilations", "padding_l", "padding_r")
    return Window(src, dst, kernel, dict(zip(names, fields, strict=True)))


def _row(letters: Mapping[str, float], axis: str) -> dict[str, int]:
    names = {kind: f"pr{axis}" if kind == "r" else kind + axis for kind in SPATIAL}
    return {kind: int(letters[name]) for kind, name in names.items() if name in letters}


def _completed(axis: str, row: dict[str, int]) -> tuple[int, ...]:
    """(src, dst, kernel, stride, dilation, left, right) of one axis."""
    for kind in "ik":
        if kind not in row:
            raise Misread("shape", f"expected {kind}{axis} beside {_given(axis, row)}")
    i, k, stride, dilation = row["i"], row["k"], row.get("s", 1), row.get("d", 0)
    if stride < 1:
        raise Misread("shape", f"s{axis} must be at least 1; got {stride}")
    span = effective_kernel(k, dilation)
    if "o" in row:
        o = row["o"]
        total = (o - 1) * stride + span - i
        left = row.get("p", max(0, total) // 2)
        right = row.get("r", total - left)
    else:
        left = row.get("p", 0)
        right = row.get("r", left)
        o = int((i - span + left + right) / stride) + 1
    return i, o, k, stride, dilation, left, right


def _given(axis: str, row: dict[str, int]) -> str:
    return ", ".join(f"{kind}{axis}" for kind in row)


def spatial_text(op: Any, kernel: Iterable[int]) -> str:
    """What `read_spatial` reads: `_ih5oh3kh3sh1dh0ph0_iw5...`, with prh only where oh differs."""
    src, dst = op.src_role.dims[2:], op.dst_role.dims[2:]
    columns = (src, dst, kernel, op.strides, op.dilations, op.padding_l, op.padding_r)
    text = ""
    for axis, row in zip(AXES[-len(src) :], zip(*columns, strict=True), strict=True):
        i, o, k, stride, dilation, left, right = row
        text += f"_i{axis}{i}o{axis}{o}k{axis}{k}s{axis}{stride}d{axis}{dilation}p{axis}{left}"
        if right != (o - 1) * stride + effective_kernel(k, dilation) - i - left:
            text += f"pr{axis}{right}"
    return text
