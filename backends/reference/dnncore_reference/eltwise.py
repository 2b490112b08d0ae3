"""Eltwise: dst = f(src), and diff_src = diff_dst * f', with f' computed from src or from dst."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnncore.backend import EltwiseBackward, EltwiseForward
from dnncore_reference.algorithms import ELTWISE, ELTWISE_SLOPES, ELTWISE_SLOPES_OF_DST
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: EltwiseForward, src: Array) -> dict[str, Array]:
    """Apply f to each element."""
    return {"dst": ELTWISE[op.function](src, op.alpha, op.beta)}


def slopes(op: EltwiseBackward) -> Mapping[str, Callable[..., Any]]:
    """Return the slopes as functions of the tensor that the gradient reads, src or dst."""
    return ELTWISE_SLOPES_OF_DST if op.uses_dst else ELTWISE_SLOPES


def backward(
    op: EltwiseBackward, diff_dst: Array, src: Array | None = None, dst: Array | None = None
) -> dict[str, Array]:
    """Scale each gradient by the slope of f."""
    slope = slopes(op)[op.function](dst if op.uses_dst else src, op.alpha, op.beta)
    return {"diff_src": diff_dst * slope}


FORWARD = (
    Definition(
        "eltwise", forward, like={"dst": "src"}, has_formula=lambda op: op.function in ELTWISE
    ),
)
BACKWARD = (
    Definition(
        "eltwise",
        backward,
        like={"diff_dst": "kept", "diff_src": "kept"},
        has_formula=lambda op: op.function in slopes(op),
    ),
)
