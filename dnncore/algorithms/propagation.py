"""Numbers with the noise that their computation in f32 has caused.

Error bounds of formulas with several stages, such as recurrent cells, are computed by evaluating
the formula with `Approximate` numbers. Each operation propagates the noise of its operands and adds
its own rounding:

    x y           |x| dy + |y| dx + dx dy + u |x y|
    f(x)          the largest slope of f within x - dx ... x + dx, times dx, + n u |f(x)|
    sum x_k y_k   the sums of these terms, and the noise of a sum (`dnncore.algorithms.rounding`)

Expected root mean squares are propagated likewise; the errors of different numbers count as
independent. Where intermediate results may exceed the range of f32, every result is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import LARGEST, LEAST_NORMAL, ROUNDOFF, Array, Noise, summed

__all__ = ["Approximate", "Scalar", "exact", "joined"]

FUNCTION = 16
"""Roundings of exponentials and quotients."""


@dataclass(frozen=True)
class Scalar:
    """A function of one number, and its slope, which is largest at 0 and falls on both sides.

    high: the largest distance of two results.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    high: float = np.inf


@dataclass(frozen=True)
class Approximate:
    """Values in float64 and their noise. random: whether the terms of sums have random order."""

    value: Array
    noise: Noise
    random: bool = False

    def __add__(self, other: Any) -> Approximate:
        other = exact(other)
        return self._result(self.value + other.value, self.noise + other.noise)

    def __sub__(self, other: Any) -> Approximate:
        return self + exact(other) * -1.0

    def __rsub__(self, other: Any) -> Approximate:
        result: Approximate = self * -1.0 + other
        return result

    def __mul__(self, other: Any) -> Approximate:
        other = exact(other)
        x, y = np.abs(self.value), np.abs(other.value)
        dx, dy = self.noise, other.noise
        limit = _times(x, dy.limit) + _times(y, dx.limit) + _times(dx.limit, dy.limit)
        rms = np.hypot(_times(x, dy.rms), _times(y, dx.rms))
        return self._result(self.value * other.value, Noise(limit, rms))

    def __getitem__(self, key: Any) -> Approximate:
        return Approximate(self.value[key], Noise(self.noise.limit[key], self.noise.rms[key]),
                           self.random)  # fmt: skip

    def _result(self, value: Array, noise: Noise, roundings: float = 1.0) -> Approximate:
        """Return a rounded result. A subnormal number may be replaced by 0."""
        size = np.where(np.isfinite(value), np.abs(value), 0.0)
        own = roundings * ROUNDOFF * size
        tiny = np.where((size < LEAST_NORMAL) & (size > 0), LEAST_NORMAL, 0.0)
        return self._finished(value, noise + Noise(own + tiny, 0.6 * own))

    def _finished(self, value: Array, noise: Noise) -> Approximate:
        """Return a result; unknown where it may exceed f32 or an operand is unknown, exact where it
        is infinite or NaN for another reason.
        """
        is_finite, unknown = np.isfinite(value), np.isposinf(noise.limit)
        limit, rms = (np.where(is_finite, part, 0.0) for part in (noise.limit, noise.rms))
        reach = np.abs(np.where(is_finite, value, 0.0)) + limit
        noise = Noise(limit, rms).unknown_where(unknown | ~(reach <= LARGEST))
        return Approximate(value, noise, self.random)

    def apply(self, function: Scalar, roundings: float = FUNCTION) -> Approximate:
        """Return the function of each number."""
        value = function.value(self.value)
        nearest = np.maximum(np.abs(self.value) - self.noise.limit, 0.0)
        slope = function.slope(np.where(np.isnan(nearest), 0.0, nearest))
        limit = np.minimum(_times(slope, self.noise.limit), function.high)
        overflown = np.isposinf(self.noise.limit) & ~np.isfinite(value)
        unknown = self.noise.is_unknown | overflown  # sums that overflow may be NaN
        limit = np.where(unknown, np.inf, limit)
        rms = np.minimum(_times(slope, np.nan_to_num(self.noise.rms, nan=np.inf)), function.high)
        return self._result(value, Noise(limit, rms), roundings)

    def product(self, other: Any) -> Approximate:
        """Return sums of products over the last axis and the first one of `other`."""
        other = exact(other)
        x, y = np.abs(self.value), np.abs(other.value)
        value, size = np.tensordot(self.value, other.value, 1), np.tensordot(x, y, 1)
        norm = np.sqrt(np.tensordot(x * x, y * y, 1)) if self.random else size
        total = value if self.random else size
        rounding = summed(float(y.shape[0]) if y.ndim else 1.0, total, norm)
        dx, dy = self.noise, other.noise
        limit = _sums(x, dy.limit) + _sums(y, dx.limit, swapped=True)
        limit = limit + _sums(dx.limit, dy.limit)
        rms = np.sqrt(_sums(x * x, dy.rms**2) + _sums(y * y, dx.rms**2, swapped=True))
        is_finite = np.isfinite(size)
        rounding = Noise(*(np.where(is_finite, a, 0.0) for a in (rounding.limit, rounding.rms)))
        noise = rounding + Noise(limit, rms)
        return self._finished(value, noise.unknown_where(~(size <= LARGEST) & np.isfinite(value)))

    def total(self) -> Approximate:
        """Return sums along the first axis."""
        return exact(np.ones(self.value.shape[:1])).product(self)

    def changed(self, change: Callable[[Array], Array]) -> Approximate:
        """Return the numbers with changed axes."""
        noise = Noise(change(self.noise.limit), change(self.noise.rms))
        return Approximate(change(self.value), noise, self.random)


def exact(values: Any, *, random: bool = False) -> Approximate:
    """Return numbers without noise."""
    if isinstance(values, Approximate):
        return values
    array = np.asarray(values, np.float64)
    return Approximate(array, Noise.within(np.zeros(array.shape)), random)


def joined(
    numbers: Sequence[Approximate], axis: int, join: Callable[..., Array] = np.concatenate
) -> Approximate:
    """Return numbers joined along an axis, by `np.concatenate` or `np.stack`."""
    limits, rms = ([getattr(n.noise, name) for n in numbers] for name in ("limit", "rms"))
    noise = Noise(join(limits, axis), join(rms, axis))
    return Approximate(join([n.value for n in numbers], axis), noise, numbers[0].random)


def _times(x: Array, noise: Array) -> Array:
    """Return products with a noise. 0 times an unknown noise is unknown."""
    product = x * noise
    return np.where(np.isnan(product), np.where(noise == 0, 0.0, np.inf), product)


def _sums(x: Array, noise: Array, *, swapped: bool = False) -> Array:
    """Return sums of products with a noise, as `_times`. swapped: the noise is the first factor."""

    def sums(a: Array, b: Array) -> Array:
        total: Array = np.tensordot(b, a, 1) if swapped else np.tensordot(a, b, 1)
        return total

    if np.isfinite(x).all() and np.isfinite(noise).all():
        return sums(x, noise)
    other, unknown = np.isfinite(x), ~np.isfinite(noise)
    lost = sums(np.ones(x.shape), unknown * 1.0) + sums(~other * 1.0, (noise != 0) * 1.0)
    known = sums(np.where(other, x, 0.0), np.where(unknown, 0.0, noise))
    return np.where(lost > 0, np.inf, known)
