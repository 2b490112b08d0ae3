"""The parts of error bounds: f32's roundoff, the noise of sums, and the errors of functions.

The noise of a sum of K products, computed in f32 with the unit roundoff u. In random order, the
partial sum s_j of j terms has the mean square

    E s_j**2 = (j / K)**2 S**2 + (j / K) (K - j) / (K - 1) (P**2 - S**2 / K)

where S is the exact sum and P the 2-norm of the products. Over j = 1 ... K this adds up to
(K + 1) (S**2 / 3 + P**2 / 6). Each addition rounds its partial sum. So errors are measured in

    d = u sqrt((K + 1) (S**2 / 3 + P**2 / 6))

**The limit of an element is 10.5 d.** A rounding error of s_j is uniform within +-u 2**e, where
2**e is the power of two below |s_j|. Given the terms before it, such an error has the mean 0. Over
all mantissas, its mean square is at most 0.2 (u s_j)**2. Given all partial sums, Hoeffding's
inequality for uniform variables bounds the total error E by

    P(|E| > x) <= 2 exp(-x**2 / (0.4 u**2 sum(s_j**2)))

The sum of squares varies with the order of the terms. For large K, the partial sums are a line from
0 to S and a Brownian bridge of variance P**2. The worst case is S = 0. Then sum(s_j**2) is
K P**2 w, where w is the integral of the squared bridge, and the expectation of exp(t w) is
sqrt(sqrt(2 t) / sin(sqrt(2 t))). With x = c d the bound becomes 2 E exp(-c**2 / (2.4 w)). For
c = 10.5 it is below 1e-10 (`tests/comparison/test_sums.py` computes it). 1e9 simulated sums stay
below 0.6 of the limit (`tests/support/simulated_sums.py`). Connolly, Higham and Mary (2021,
"Stochastic rounding and its probabilistic backward error analysis") prove the inequality for any
given order.

**Nearly equal terms** are all rounded in the same direction if they differ by less than the
distance between two adjacent numbers near s_j. This distance is at most 2 u |S|. For normal terms
with the standard deviation sigma, the mean of a rounding error is at most
2 u |S| / pi exp(-(pi sigma)**2 / (2 (u S)**2)), the first harmonic of the sawtooth x - round(x).
K times this mean is added. It is 0 unless K |mean| > 1e7 sigma. Up to K = 64, even equal terms stay
within 10.5 d.

**The expected error.** The mean square of a rounding error is 0.14 to 0.2 times (u s_j)**2. An
implementation may round products before it adds them, or split each factor into two parts and omit
the product of the small parts. With three products of TF32, the error is 1.2 u of each product.
Tensor cores cut off the sum of a few products. So the expected mean square is
0.2 d**2 + 2 (u P)**2.

**Products of two half types.** Tensor cores add them in groups of 16 and cut off each sum. So each
of K / 16 steps has an error of at most u |s_j| on average, always towards zero. |s_j| is
(|S| + P) / 2 on average, or less. The sum of these means is added to the limit and to the expected
error. On an H100, the measured mean error for K = 576 is a fifth of this sum. Products of f32 do
not have such errors, because the sums of few products are added by roundings to nearest.

If the order is not random, S and P are replaced by the sum of the absolute values. Then d bounds
every order, because no partial sum is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["DIVISION", "LEAST_NORMAL", "POWER", "ROUNDOFF", "SUM_LIMIT", "Array", "Error", "Noise",
           "of_argument", "of_one", "of_result", "positive_sum", "power_error",
           "summed"]  # fmt: skip

Array = np.ndarray[Any, Any]
Size = Callable[[Array, Array, float, float], Array]

ROUNDOFF = float(np.finfo(np.float32).eps) / 2
"""The largest relative error of one rounding to f32."""

LEAST_NORMAL = float(np.finfo(np.float32).tiny)
"""The least normal number of f32. Devices may replace smaller results by 0."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number of f32."""

POWER = 32
"""Roundings of a power: OpenCL allows `pow` 16 ulp."""

TENSOR_CORE_TERMS = 16
"""The number of products of half types that a tensor core adds before it cuts off the sum."""

DIVISION = 5
"""Roundings of a quotient: OpenCL allows 2.5 ulp."""


SUM_LIMIT = 10.5
"""The largest error of a sum, in units of d (see above)."""

VARIANCE = 0.2
"""The largest mean square of a sum's error, in units of d squared."""

FEW = 64
"""Up to this number of equal terms, their common rounding needs no separate bound."""

PRODUCTS = 2.0
"""The mean square of the errors of products, in units of (u P) squared."""


@dataclass(frozen=True)
class Noise:
    """The errors of a result before it is stored, per element.

    limit: the largest allowed error.
    rms: the largest expected root mean square. NaN where every result is accepted, including NaN
        and infinity.
    """

    limit: Array
    rms: Array

    def __add__(self, other: Noise) -> Noise:
        """Return the noise of both. The errors are independent, but limits are added."""
        return Noise(self.limit + other.limit, np.hypot(self.rms, other.rms))

    def __mul__(self, factor: Any) -> Noise:
        """Return the noise of a multiple."""
        return Noise(factor * self.limit, factor * self.rms)

    def unknown_where(self, places: Array) -> Noise:
        """Return this noise, changed so that every result is accepted at these places."""
        limit, rms = np.where(places, np.inf, self.limit), np.where(places, np.nan, self.rms)
        return Noise(limit, rms)

    def unknown_beyond(self, reach: Array) -> Noise:
        """Return this noise, unknown where partial sums may exceed the range of f32 in some order.

        reach: the sums of absolute values, or larger numbers.
        """
        return self.unknown_where(reach > LARGEST)

    @property
    def is_unknown(self) -> Array:
        """Whether every result is accepted, per element."""
        return np.isposinf(self.limit) & np.isnan(self.rms)

    @classmethod
    def within(cls, limit: Array) -> Noise:
        """Return a noise of which only the limit is known; the limit is also its rms."""
        return cls(limit, np.array(limit))  # a copy, because callers change parts in place


def summed(terms: Any, total: Array, norm: Array, *, cut_off: bool = False) -> Noise:
    """Return the noise of sums in random order.

    terms: the number K of terms, per sum or for all sums.
    total: the exact sums S. For terms in any order, the sums of absolute values.
    norm: the 2-norms P of the terms. For terms in any order, the sums of absolute values. These are
        at most P sqrt(K).
    cut_off: whether the terms are products of half types, which tensor cores may add.
    """
    squares = (np.asarray(terms) + 1.0) * (total**2 / 3 + norm**2 / 6)
    rms = np.sqrt(VARIANCE * squares + PRODUCTS * norm**2)
    noise = Noise(SUM_LIMIT * ROUNDOFF * np.sqrt(squares), ROUNDOFF * rms)
    if cut_off:
        steps = np.asarray(terms) / TENSOR_CORE_TERMS
        noise += Noise.within(ROUNDOFF * steps * (np.abs(total) + norm) / 2)
    if norm is total:  # terms in any order; `_shared` is 0 below 1e12 terms, because exp is
        return noise.unknown_beyond(norm)
    noise += Noise.within(_shared(np.asarray(terms), total, norm))
    return noise.unknown_beyond(norm * np.sqrt(terms))


def _shared(terms: Any, total: Array, norm: Array) -> Array:
    """The error of sums of nearly equal terms, which are rounded in the same direction.

    Up to two terms, such as a bias, may differ from all others.
    """
    count = np.maximum(terms, FEW)
    variance = norm**2 / count - (1.0 + 2.0 / count + 1e-6) * (total / count) ** 2
    step = ROUNDOFF * np.abs(total)
    variance = np.maximum(variance, 0.0)
    exponent = np.divide(variance, step**2, out=np.full_like(step, np.inf), where=step > 0)
    mean: Array = 2 * step / np.pi * np.exp(-(np.pi**2) / 2 * exponent)
    shared: Array = np.where(terms > FEW, count * mean, 0.0)
    return shared


def positive_sum(terms: Any, total: Array) -> Noise:
    """Return the noise of sums of positive terms, whose 2-norm is at most the sum."""
    return summed(terms, total, total)


class Error(NamedTuple):
    """The error of y = f(s) when s is exact: `roundings` times the roundoff of `size`.

    size: computed from the arrays s and y and the numbers alpha and beta. It may exceed |y|,
        because terms of a sum may exceed the sum. A relative error of the argument of exp(alpha *
        s) also causes a relative error of y that is alpha * s times larger.
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


def power_error(base: Array, exponent: float) -> Array:
    """Return the relative error of base**exponent computed as exp(exponent * log(base))."""
    return POWER * ROUNDOFF * (1.0 + np.abs(exponent * np.log(np.abs(base))))
