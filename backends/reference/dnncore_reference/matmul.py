"""Matmul: dst[..., m, n] = bias + sum over k of src[..., m, k] * weights[..., k, n]."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import MatMul
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(_op: MatMul, src: Array, weights: Array, bias: Array | float = 0.0) -> dict[str, Array]:
    """Multiply the last two dims. Batch dims of size 1 and bias are broadcast."""
    return {"dst": src @ weights + bias}


TABLE = (Definition("matmul", forward),)
