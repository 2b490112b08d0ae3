"""Shuffle: the axis of C elements, as a matrix of C / G rows and G columns, is transposed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import ShuffleBackward, ShuffleForward
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: ShuffleForward, src: Array) -> dict[str, Array]:
    """Transpose the matrix with rows of `group_size` elements."""
    return {"dst": _transposed(src, op.axis, op.group_size)}


def backward(op: ShuffleBackward, diff_dst: Array) -> dict[str, Array]:
    """Transpose the matrix back. Its rows have C / G elements."""
    columns = op.diff_dst.dims[op.axis] // op.group_size
    return {"diff_src": _transposed(diff_dst, op.axis, columns)}


def _transposed(values: Array, axis: int, columns: int) -> Array:
    if not values.size:
        return values
    matrix = values.reshape(*values.shape[:axis], -1, columns, *values.shape[axis + 1 :])
    return np.swapaxes(matrix, axis, axis + 1).reshape(values.shape)


FORWARD = (Definition("shuffle", forward, like={"dst": "src"}),)
BACKWARD = (Definition("shuffle", backward, like={"diff_src": "diff_dst"}),)
