"""PReLU: dst = src if src > 0 else weights * src, and the gradients of src and weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import PReLUBackward, PReLUForward
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(_op: PReLUForward, src: Array, weights: Array) -> dict[str, Array]:
    """Multiply the elements that are not positive by their weights."""
    return {"dst": np.where(src > 0, src, weights * src)}


def backward(op: PReLUBackward, src: Array, weights: Array, diff_dst: Array) -> dict[str, Array]:
    """Multiply the gradient by the slope, and add up the products of each weight."""
    products = np.where(src > 0, 0.0, src * diff_dst)
    return {
        "diff_src": np.where(src > 0, diff_dst, weights * diff_dst),
        "diff_weights": products.sum(op.shared_dims, keepdims=True),
    }


FORWARD = (Definition("prelu", forward, like={"dst": "src"}),)
BACKWARD = (
    Definition(
        "prelu", backward, like={"diff_dst": "src", "diff_src": "src", "diff_weights": "weights"}
    ),
)
