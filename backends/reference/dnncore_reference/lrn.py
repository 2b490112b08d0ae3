"""Local response normalisation and its gradient, with base = k + alpha / n * sum of src**2.

dst      = src * base**-beta
diff_src = diff_dst * base**-beta
           - 2 alpha beta / n * src * sum of diff_dst * src * base**(-beta - 1)

Both sums are over the same window around each element, clipped at the borders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import LRN
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def window_sum(op: LRN, values: Array) -> Array:
    """Sum over `half_window` elements on each side, along all window dims one by one."""
    for dim in op.window_dims:
        last = values.shape[dim] - 1
        reach = min(op.half_window, last)
        along = np.moveaxis(values, dim, 0)
        total = np.zeros_like(along)
        for shift in range(-reach, reach + 1):
            here, there = max(0, -shift), max(0, shift)
            count = last + 1 - abs(shift)
            total[here : here + count] += along[there : there + count]
        values = np.moveaxis(total, 0, dim)
    return values


def forward(op: LRN, src: Array) -> dict[str, Array]:
    """Divide each element by a power of its base."""
    base = op.k + op.alpha / op.divisor * window_sum(op, src * src)
    return {"dst": src * base**-op.beta, "workspace": base}


def backward(op: LRN, src: Array, diff_dst: Array, workspace: Array) -> dict[str, Array]:
    """Compute diff_src from diff_dst, src and the workspace, which holds the bases."""
    shared = window_sum(op, diff_dst * src * workspace ** (-op.beta - 1))
    factor = 2 * op.alpha * op.beta / op.divisor
    return {"diff_src": diff_dst * workspace**-op.beta - factor * src * shared}


FORWARD = (Definition("lrn", forward, like={"dst": "src"}),)
BACKWARD = (Definition("lrn", backward, like={"diff_dst": "src", "diff_src": "src"}),)
