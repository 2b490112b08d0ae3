"""Eltwise: dst = f(src), and diff_src = diff_dst * f'(src)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore_reference.algorithms import ELTWISE, ELTWISE_SLOPES
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: Any, src: Array) -> dict[str, Array]:
    """Apply f to each element."""
    return {"dst": ELTWISE[op.algorithm](src, op.alpha, op.beta)}


def backward(op: Any, src: Array, diff_dst: Array) -> dict[str, Array]:
    """Scale each gradient by the slope of f."""
    return {"diff_src": diff_dst * ELTWISE_SLOPES[op.algorithm](src, op.alpha, op.beta)}


FORWARD = (Definition("eltwise", forward, like={"dst": "src"}),)
BACKWARD = (Definition("eltwise", backward, like={"diff_dst": "src", "diff_src": "src"}),)
