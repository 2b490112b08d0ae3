"""Max pooling: dst is the largest cell that a window sees inside the image, the first of equals.

The workspace holds its tap's place in the kernel. NaN counts as larger than everything. A window
that sees no cell inside the image gives the lowest number of dst's type and workspace 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore_reference.definition import Definition
from dnncore_reference.window import Windows

Array = np.ndarray[Any, Any]


def forward(op: Any, src: Array) -> dict[str, Array]:
    """Find the first maximum in row-major order of the taps, and which tap it is."""
    windows = _windows(op)
    padded = windows.pad(src)
    inside = windows.pad(np.ones(src.shape, bool), outside=False)
    best = np.full(op.dst.dims, np.finfo(op.dst.dtype).min, np.float64)
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


def backward(op: Any, diff_dst: Array, workspace: Array) -> dict[str, Array]:
    """Add each diff_dst to the cell that its window's workspace names; the rest is zero."""
    windows = _windows(op)
    padded = windows.pad(np.zeros(op.diff_src.dims))
    for index, tap in enumerate(windows.taps()):
        padded[windows.cells(tap)] += np.where(workspace == index, diff_dst, 0.0)
    return {"diff_src": windows.crop(padded)}


def _windows(op: Any) -> Windows:
    return Windows(op, op.kernel, op.src_role.dims[2:], op.dst_role.dims[2:])


FORWARD = (Definition("pooling", forward, like={"dst": "src"}),)
BACKWARD = (Definition("pooling", backward, like={"diff_src": "diff_dst"}),)
