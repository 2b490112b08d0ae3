"""The parts of error bounds: f32's roundoff, growth of sums, and the errors of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["DIVISION", "POWER", "ROUNDOFF", "Array", "Error", "growth", "of_argument", "of_one",
           "of_result", "power_error"]  # fmt: skip

Array = np.ndarray[Any, Any]
Size = Callable[[Array, Array, float, float], Array]

ROUNDOFF = float(np.finfo(np.float32).eps) / 2
"""The largest relative error of one rounding to f32."""

POWER = 32
"""Roundings of a power: OpenCL allows `pow` 16 ulp."""

DIVISION = 5
"""Roundings of a quotient: OpenCL allows 2.5 ulp."""


class Error(NamedTuple):
    """The error of y = f(s) when s is exact: `roundings` times the roundoff of `size`.

    size: computed from arrays s and y and numbers alpha and beta. It may exceed |y|, since terms of
    a sum may exceed the sum, and since exp(alpha * s) turns a relative error of its argument into
    a relative error of y that is alpha * s times larger.
    """

    roundings: float
    size: Size

    def bound(self, s: Array, y: Array, alpha: float, beta: float) -> Array:
        """Return the absolute error of each element."""
        return self.roundings * ROUNDOFF * self.size(s, y, alpha, beta)


def of_result(_s: Array, y: Array, _alpha: float, _beta: float) -> Array:
    """Return |y|."""
    return np.abs(y)


def of_argument(s: Array, _y: Array, _alpha: float, _beta: float) -> Array:
    """Return |s|."""
    return np.abs(s)


def of_one(s: Array, _y: Array, _alpha: float, _beta: float) -> Array:
    """Return 1."""
    return np.ones_like(s)


def growth(terms: Any) -> Any:
    """Return the roundings that a sum of `terms` terms may have; a number or an array."""
    return np.minimum(terms, 8.0 * np.sqrt(terms))


def power_error(base: Array, exponent: float) -> Array:
    """Return the relative error of base**exponent computed as exp(exponent * log(base))."""
    return POWER * ROUNDOFF * (1.0 + np.abs(exponent * np.log(np.abs(base))))
