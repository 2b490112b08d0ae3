"""Spatial parts of shapes: `ih5iw5`; with a window `ih5oh3kh3sh1dh0ph0_iw5ow3kw3sw1dw0pw0`.

An axis without numbers has the numbers of the axis before it: `ih5kh3` is a square.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dnncore.errors import DescriptorError
from dnncore.ops.convolution import Convolution
from dnncore.ops.deconvolution import Deconvolution
from dnncore.ops.pooling import Pooling
from dnncore.ops.window import Windowed, effective_kernel, window_output
from dnncore.problem.settings import Dims, Misread

__all__ = ["KINDS", "RESIZED_LETTERS", "SIZE_LETTERS", "WINDOW_LETTERS", "Window", "axes_of",
           "read_resized", "read_sizes", "read_spatial", "resized_text", "sizes_text",
           "spatial_text"]  # fmt: skip

AXES = "dhw"
KINDS = ("i", "o", "k", "s", "d", "p", "pr")  # src, dst, kernel, stride, dilation, paddings

SIZE_LETTERS = " ".join(f"i{axis}" for axis in AXES)
RESIZED_LETTERS = " ".join(kind + axis for axis in AXES for kind in "io")
WINDOW_LETTERS = " ".join(kind + axis for axis in AXES for kind in KINDS)

Row = dict[str, int]  # kind -> number, for one axis


@dataclass(frozen=True)
class Window:
    """Spatial dims, outer to inner, and the fields of `Windowed`."""

    src: Dims
    dst: Dims
    kernel: Dims
    fields: Mapping[str, Dims]


def _rows(letters: Mapping[str, int]) -> dict[str, Row]:
    """Return one row per axis from the first axis with numbers; a dilation alone is ignored."""
    rows: dict[str, Row] = {}
    previous: Row = {}
    for axis in AXES:
        row = {kind: letters[kind + axis] for kind in KINDS if kind + axis in letters}
        previous = previous if row.keys() <= {"d"} else row
        if previous:
            rows[axis] = previous
    return rows


def read_sizes(letters: Mapping[str, int]) -> Dims:
    """Return spatial dims without a window, possibly none."""
    return tuple(row["i"] for row in _rows(letters).values())


def sizes_text(sizes: Sequence[int]) -> str:
    """Return the text of sizes, `_ih5iw5`, or "": the inverse of `read_sizes`."""
    axes = AXES[len(AXES) - len(sizes) :]
    text = "".join(f"i{axis}{size}" for axis, size in zip(axes, sizes, strict=True))
    return f"_{text}" if text else ""


def read_resized(letters: Mapping[str, int]) -> tuple[Dims, Dims]:
    """Return the spatial dims of src and dst, at least one. Without oh, both sizes are equal."""
    rows = _rows(letters).values()
    if not rows or not all("i" in row for row in rows):
        raise Misread("shape", "expected the image's size, iw, ih or id")
    return tuple(row["i"] for row in rows), tuple(row.get("o", row["i"]) for row in rows)


def resized_text(src: Sequence[int], dst: Sequence[int]) -> str:
    """Return the text of two sizes, `_ih5oh10_iw5ow10`: the inverse of `read_resized`."""
    axes = AXES[len(AXES) - len(src) :]
    return "".join(f"_i{a}{i}o{a}{o}" for a, i, o in zip(axes, src, dst, strict=True))


def read_spatial(
    letters: Mapping[str, int], kind: type[Windowed], *, transposed: bool = False
) -> Window:
    """Return spatial dims with a window, at least one, for an operation of this type.

    dh 0 is dense. Without oh, the padding is the same on both sides, and its default is 0. Without
    ph, oh determines the padding, and half of it is at the start. prh gives the right padding if it
    differs from the one that oh determines. Raises `DescriptorError` if the kernel does not fit.

    transposed: the windows lie in dst, and src has a place for each, as in deconvolution.
    """
    completed = [_completed(axis, row, kind, transposed) for axis, row in _rows(letters).items()]
    if not completed:
        raise Misread("shape", "expected the image's size, iw, ih or id")
    for axis, (i, o, k, _, dilation, left, right) in zip(
        AXES[-len(completed) :], completed, strict=True
    ):
        if o < 0 and not transposed:
            raise DescriptorError(
                f"shape: the kernel spans {effective_kernel(k, dilation)} cells along {axis} but"
                f" src has {i} + padding {left} + {right}; pad it or use a smaller kernel"
            )
    src, dst, kernel, *fields = zip(*completed, strict=True)
    names = ("strides", "dilations", "padding_l", "padding_r")
    return Window(src, dst, kernel, dict(zip(names, fields, strict=True)))


def axes_of(
    letters: Mapping[str, int], *, has_window: bool, transposed: bool = False
) -> dict[str, Dims]:
    """Return axis -> its numbers in the order of `KINDS`; without a window, its sizes."""
    rows = _rows(letters)
    if has_window:
        return {axis: _completed(axis, row, Windowed, transposed) for axis, row in rows.items()}
    return {axis: (row.get("i", 0), row.get("o", 0)) for axis, row in rows.items()}


def _completed(axis: str, row: Row, operation: type[Windowed], transposed: bool) -> Dims:
    """Return (src, dst, kernel, stride, dilation, left, right) of one axis, as in `KINDS`."""
    for kind in "ik":
        if kind not in row:
            given = ", ".join(f"{kind}{axis}" for kind in row)
            raise Misread("shape", f"expected {kind}{axis} with {given}")
    i, k, stride, dilation = row["i"], row["k"], row.get("s", 1), row.get("d", 0)
    if stride < 1:
        raise Misread("shape", f"s{axis} must be at least 1; got {stride}")
    if "o" in row:
        o = row["o"]
        ends = (o, i) if transposed else (i, o)
        padding = _padding(*ends, k, stride, dilation)
        left = row.get("p", max(0, padding) // 2)
        right = row.get("pr", max(padding - left, operation.LEAST_REACH - stride))
    else:
        left = row.get("p", 0)
        right = row.get("pr", left)
        if transposed:
            o = _padding(left + right, i, k, stride, dilation)
        else:
            o = window_output(i, k, stride, dilation, left, right)
    return i, o, k, stride, dilation, left, right


def _padding(i: int, o: int, k: int, stride: int, dilation: int) -> int:
    """Return the sum of left and right padding that gives exactly `o` outputs."""
    return (o - 1) * stride + effective_kernel(k, dilation) - i


def spatial_text(
    op: Convolution | Deconvolution | Pooling, kernel: Iterable[int], *, transposed: bool = False
) -> str:
    """The inverse of `read_spatial`: `_ih5oh3kh3sh1dh0ph0_iw5...`, with prh only if needed."""
    src, dst = op.src_role.dims[2:], op.dst_role.dims[2:]
    columns = (src, dst, kernel, op.strides, op.dilations, op.padding_l, op.padding_r)
    text = ""
    for axis, row in zip(AXES[-len(src) :], zip(*columns, strict=True), strict=True):
        i, o, k, stride, dilation, left, right = row
        if transposed:
            i, o = o, i
        text += "_" + "".join(
            f"{kind}{axis}{n}" for kind, n in zip(KINDS, row, strict=True) if kind != "pr"
        )
        if right != max(_padding(i, o, k, stride, dilation) - left, op.LEAST_REACH - stride):
            text += f"pr{axis}{right}"
    return text
