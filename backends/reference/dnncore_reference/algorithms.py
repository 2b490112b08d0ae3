"""The formulas of the algorithms that operations and post-ops share, by name."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _relu(s: Array, alpha: float, _beta: float) -> Array:
    # Without a slope negative values vanish, -inf as well; alpha * -inf would be NaN.
    return np.where(s > 0, s, alpha * s) if alpha else np.maximum(s, 0)


def _logistic_slope(s: Array, *_: float) -> Array:
    e = np.exp(-np.abs(s))  # the slope is even, and so exp cannot overflow
    return e / (1 + e) ** 2


ELTWISE = {
    "relu": _relu,
    "tanh": lambda s, *_: np.tanh(s),
    "logistic": lambda s, *_: 1 / (1 + np.exp(-s)),
    "linear": lambda s, alpha, beta: alpha * s + beta,
}

ELTWISE_SLOPES = {
    "relu": lambda s, alpha, _beta: np.where(s > 0, 1.0, alpha),
    "tanh": lambda s, *_: 1 / np.cosh(s) ** 2,
    "logistic": _logistic_slope,
    "linear": lambda _s, alpha, _beta: alpha,
}

BINARY = {
    "add": np.add,
    "mul": np.multiply,
}
