"""Reduction: dst has one number for all elements of src along the reduced dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnncore.backend import Reduction
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]

PLAIN: dict[str, Callable[..., Array]] = {
    "max": np.max,
    "min": np.min,
    "sum": np.sum,
    "mul": np.prod,
    "mean": np.mean,
}
NORMS = ("norm_lp_max", "norm_lp_sum", "norm_lp_power_p_max", "norm_lp_power_p_sum")


def forward(op: Reduction, src: Array) -> dict[str, Array]:
    """Reduce the elements, or the p-th powers of their absolute values."""
    dims = op.reduced_dims
    if not src.size:
        return {"dst": np.zeros(op.dst.dims)}
    if op.algorithm in PLAIN:
        return {"dst": PLAIN[op.algorithm](src, axis=dims, keepdims=True)}
    total = (np.abs(src) ** op.p).sum(axis=dims, keepdims=True)
    total = np.maximum(total, op.eps) if op.algorithm.endswith("max") else total + op.eps
    return {"dst": total if "power_p" in op.algorithm else total ** (1 / op.p)}


TABLE = (
    Definition(
        "reduction", forward, has_formula=lambda op: op.algorithm in PLAIN or op.algorithm in NORMS
    ),
)
