"""Pooling: dst is the maximum or the average of the cells of a window inside the image.

Maximum: of equal cells, the first is selected. NaN is larger than all numbers. The workspace holds
the index of the selected cell in the kernel. A window without cells inside the image gives the
lowest finite number of dst's type, and workspace 0.

Average: the sum of the cells inside the image, divided by the kernel's size or by their number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ml_dtypes import finfo

from dnncore.backend import Pooling, PoolingBackward, PoolingForward
from dnncore_reference.definition import Definition
from dnncore_reference.window import Windows

Array = np.ndarray[Any, Any]


def forward(op: PoolingForward, src: Array) -> dict[str, Array]:
    """Compute the maximum or the average of each window."""
    return _maximum(op, src) if op.is_max else _average(op, src)


def backward(
    op: PoolingBackward, diff_dst: Array, workspace: Array | None = None
) -> dict[str, Array]:
    """Distribute each diff_dst to the cells of its window.

    Maximum: add it to the selected cell. Average: add its share to all cells.
    """
    windows = _windows(op)
    padded = windows.pad(np.zeros(op.diff_src.dims))
    share = diff_dst if op.is_max else diff_dst / _divisor(op, windows)
    for index, tap in enumerate(windows.taps()):
        padded[windows.cells(tap)] += np.where(workspace == index, share, 0) if op.is_max else share
    return {"diff_src": windows.crop(padded)}


def _least(dtype: np.dtype[Any]) -> float:
    """Return the lowest finite value of a type: the maximum of a window without cells."""
    if np.issubdtype(dtype, np.integer):
        return float(np.iinfo(dtype).min)
    return float(finfo(dtype).min)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it


def _maximum(op: PoolingForward, src: Array) -> dict[str, Array]:
    """Return the first maximum in row-major order of the taps, and the index of its tap."""
    windows = _windows(op)
    padded = windows.pad(src)
    inside = windows.pad(np.ones(src.shape, bool), outside=False)
    best = np.full(op.dst.dims, _least(op.dst.dtype), np.float64)
    place = np.zeros(op.dst.dims)
    found = np.zeros(op.dst.dims, bool)
    for index, tap in enumerate(windows.taps()):
        cell, real = padded[windows.cells(tap)], inside[windows.cells(tap)]
        larger = (cell > best) | (np.isnan(cell) & ~np.isnan(best))
        wins = real & (larger | ~found)
        best = np.where(wins, cell, best)
        place = np.where(wins, index, place)
        found |= real
    return {"dst": best, "workspace": place}


def _average(op: PoolingForward, src: Array) -> dict[str, Array]:
    windows = _windows(op)
    padded = windows.pad(src)
    total = np.zeros(op.dst.dims)
    for tap in windows.taps():
        total += padded[windows.cells(tap)]
    return {"dst": total / _divisor(op, windows)}


def _divisor(op: Pooling, windows: Windows) -> Array | int:
    """Return the divisors of sums: the kernel's size, or the number of cells in the image."""
    if op.algorithm == "avg_include_padding":
        return math.prod(op.kernel)
    inside = windows.pad(np.ones(op.src_role.dims[2:]))
    seen: Array = sum(inside[windows.cells(tap)] for tap in windows.taps())
    return seen


def _windows(op: Pooling) -> Windows:
    return Windows(op, op.kernel, op.src_role.dims[2:], op.dst_role.dims[2:])


FORWARD = (Definition("pooling", forward, like={"dst": "src"}),)
BACKWARD = (Definition("pooling", backward, like={"diff_src": "diff_dst"}),)
