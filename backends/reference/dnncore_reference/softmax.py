"""Softmax and log-softmax along one axis, and their gradients. max and sum are along the axis.

accurate: dst = exp(src - max) / sum(exp(src - max))
          diff_src = dst * (diff_dst - sum(diff_dst * dst))
log:      dst = src - max - log(sum(exp(src - max)))
          diff_src = diff_dst - exp(dst) * sum(diff_dst)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import SoftmaxBackward, SoftmaxForward
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: SoftmaxForward, src: Array) -> dict[str, Array]:
    """Compute softmax, or its logarithm."""
    largest = src.max(op.axis, keepdims=True, initial=-np.inf)
    shifted = src - largest
    total = np.exp(shifted).sum(op.axis, keepdims=True)
    dst = shifted - np.log(total) if op.algorithm == "log" else np.exp(shifted) / total
    return {"dst": dst} if op.lse is None else {"dst": dst, "lse": largest + np.log(total)}


def backward(op: SoftmaxBackward, dst: Array, diff_dst: Array) -> dict[str, Array]:
    """Compute diff_src from dst and diff_dst."""
    if op.algorithm == "log":
        total = diff_dst.sum(op.axis, keepdims=True)
        return {"diff_src": diff_dst - np.exp(dst) * total}
    total = (diff_dst * dst).sum(op.axis, keepdims=True)
    return {"diff_src": dst * (diff_dst - total)}


FORWARD = (Definition("softmax", forward, like={"dst": "src"}),)
BACKWARD = (Definition("softmax", backward, like={"diff_dst": "dst", "diff_src": "dst"}),)
