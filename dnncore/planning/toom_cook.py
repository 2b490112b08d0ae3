"""Winograd's short convolutions: their matrices, and the rounding errors that these cause.

m outputs y of a filter g of three taps along m + 2 inputs d are, with the products element by
element (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin and Gray 2016, "Fast
Algorithms for Convolutional Neural Networks"),

    y = DST ((WEIGHTS g) * (SRC d))                 m + 2 products, where the direct sum has 3 m
    Y = DST ((WEIGHTS G WEIGHTS^T) * (SRC D SRC^T)) DST^T                                 in 2-D

The first formula is linear in g. So the gradient with respect to g is the adjoint, summed over all
tiles:

    diff_g = WEIGHTS^T ((DST^T diff_y) * (SRC d))

The matrices follow from the points at which polynomials are evaluated (Toom and Cook): 0, +-p for
each of m / 2 numbers p, and infinity. Rows, or columns, of +p and -p differ in the signs of odd
powers only. The points decide the rounding error: with +-1 and +-2 the error is four times that of
+-11/16 and +-23/16, which are the best multiples of 1/16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

__all__ = ["F23", "F43", "TAPS", "Rows", "ToomCook", "error_factor", "gradient_error_factor",
           "transposed"]  # fmt: skip

Rows = tuple[tuple[Fraction, ...], ...]
TAPS = 3


@dataclass(frozen=True)
class ToomCook:
    """The algorithm F(m x m, 3 x 3) with the points 0, +-p for each p of `pairs`, and infinity."""

    pairs: tuple[Fraction, ...]

    @property
    def outputs(self) -> int:
        """m: the number of outputs along each side of a tile."""
        return 2 * len(self.pairs)

    @property
    def span(self) -> int:
        """Inputs along each side of a tile, and the number of points."""
        return self.outputs + TAPS - 1

    @property
    def positions(self) -> int:
        """Products per tile and pair of channels."""
        return self.span**2

    @property
    def name(self) -> str:
        """A text with the numbers of outputs and taps."""
        return f"{self.outputs}x{TAPS}"

    @cached_property
    def points(self) -> tuple[Fraction, ...]:
        """The finite points."""
        return (Fraction(0), *(sign * p for p in self.pairs for sign in (1, -1)))

    @cached_property
    def src(self) -> Rows:
        """SRC. Its rows are polynomials that are 0 at all finite points except one, and one that is
        0 at all.
        """
        of_others = (self._polynomial(self._others(point)) for point in self.points)
        return (*of_others, self._polynomial(self.points))

    @cached_property
    def weights(self) -> Rows:
        """WEIGHTS: computes a filter's values at the points."""
        return (*(self._filter_row(point) for point in self.points), _infinity(TAPS))

    @cached_property
    def dst(self) -> Rows:
        """DST: powers of the points."""
        columns = (*(_powers(p, self.outputs) for p in self.points), _infinity(self.outputs))
        return transposed(columns)

    @cached_property
    def taps(self) -> Rows:
        """TAPS: computes a filter from its values at the points, TAPS * WEIGHTS = 1.

        The middle tap is computed from the values at the first pair, +p and -p.
        """
        first, plus, *_ = self.weights
        middle = 1 / (2 * plus[1])
        rest = [Fraction(0)] * (self.span - 3)
        return (
            (1 / first[0], Fraction(0), Fraction(0), *rest),
            (Fraction(0), middle, -middle, *rest),
            _infinity(self.span),
        )

    @property
    def is_exact(self) -> bool:
        """Whether small integers give the exact result, because all factors are sums of powers of
        two.
        """
        factors = (f for rows in (self.src, self.weights, self.dst) for row in rows for f in row)
        return all(f.denominator & (f.denominator - 1) == 0 for f in factors)

    @cached_property
    def errors(self) -> tuple[Spread, ...]:
        """The errors of each output of a tile, for the forward direction and backward data."""
        return _spreads(self.dst, self.weights, self.src)

    @cached_property
    def gradient_errors(self) -> tuple[Spread, ...]:
        """The errors of each tap of the gradient of weights."""
        return _spreads(transposed(self.weights), transposed(self.dst), self.src)

    def _polynomial(self, roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """Return the coefficients of the product of all (x - root), from x**0 on, padded with
        zeros.
        """
        product = [Fraction(1)]
        for root in roots:
            raised, scaled = [Fraction(0), *product], [*(root * c for c in product), Fraction(0)]
            product = [a - b for a, b in zip(raised, scaled, strict=True)]
        return (*product, *[Fraction(0)] * (self.span - len(product)))

    def _others(self, point: Fraction) -> list[Fraction]:
        return [other for other in self.points if other != point]

    def _filter_row(self, point: Fraction) -> tuple[Fraction, ...]:
        scale = math.prod(point - other for other in self._others(point))
        return tuple(power / scale for power in _powers(point, TAPS))


F23 = ToomCook((Fraction(1),))
F43 = ToomCook((Fraction(11, 16), Fraction(23, 16)))


def transposed(rows: Rows) -> Rows:
    """Return the transposed matrix."""
    return tuple(zip(*rows, strict=True))


class Spread(NamedTuple):
    """The variances of an output along one dim, for independent inputs of variance 1.

    size: the sum over all points of the variances of products, in the output's units.
    rounded: the same sum, with each variance multiplied by the mean square of the relative errors
        of its transforms. The unit is the mean square of the roundoff.
    """

    size: float
    rounded: float


def error_factor(down: ToomCook, across: ToomCook, depth: int) -> float:
    """Return the rms error of a convolution, divided by that of direct sums; at least 1.

    down, across: the algorithms along both dims. depth: the number of channels that are added up.

    Errors and inputs are assumed to be independent (Higham and Mary 2019). A product of transformed
    inputs at point (p, q) contributes to output (y, z) with the variance w[y, p] * w[z, q], where

        w[y, p] = (DST[y, p] * |WEIGHTS[p]| * |SRC[p]|)**2                   2-norms of rows

    Its relative error has a variance for each transform along each dim, plus (depth + 3) / 2 for
    the sum over channels and its products. A sum of n terms in any transform has (n + 3) / 2: the
    mean square of partial sums in random order, and 1 for products. So with size[y] = sum(w[y]) and
    rounded[y] = sum(w[y, p] times the relative variances), the variance of output (y, z) is

        depth * (rounded[y] size[z] + size[y] rounded[z] + (depth + 3) / 2 * size[y] size[z])

    A direct sum has K = TAPS**2 * depth terms, thus K * (K + 1) / 2. The result is that of the
    worst output of a tile. (Barabasz et al. 2020, "Error analysis and improving the accuracy of
    Winograd convolution for deep neural networks", bound the same by norms of matrices.)
    """
    return _largest_ratio(down.errors, across.errors, depth, TAPS * TAPS)


def gradient_error_factor(down: ToomCook, across: ToomCook, depth: int) -> float:
    """Return the error factor of the gradient of weights, a sum over `depth` tiles."""
    terms = down.outputs * across.outputs
    return _largest_ratio(down.gradient_errors, across.gradient_errors, depth, terms)


def _largest_ratio(
    down: Sequence[Spread], across: Sequence[Spread], depth: int, terms: int
) -> float:
    depth = max(1, depth)
    added = (depth + 3) / 2
    largest = max(
        a.rounded * b.size + a.size * b.rounded + added * a.size * b.size
        for a in down
        for b in across
    )
    return max(1.0, math.sqrt(2 * largest / (terms * (terms * depth + 1))))


def _spreads(result: Rows, *factors: Rows) -> tuple[Spread, ...]:
    """Return the spread of each row of `result`, which is applied to products of transformed
    factors.
    """
    sizes = [math.prod(_square(row) for row in rows) for rows in zip(*factors, strict=True)]
    errors = [sum(map(_error_of_sum, rows)) for rows in zip(*factors, strict=True)]
    found = []
    for row in result:
        parts = [float(f * f) * size for f, size in zip(row, sizes, strict=True)]
        own = _error_of_sum(row)
        rounded = sum(p * (own + e) for p, e in zip(parts, errors, strict=True))
        found.append(Spread(sum(parts), rounded))
    return tuple(found)


def _square(row: Sequence[Fraction]) -> float:
    return float(sum(f * f for f in row))


def _error_of_sum(row: Sequence[Fraction]) -> float:
    """Return the relative variance of a sum by rounding; 0 if the row only copies or negates."""
    used = [abs(f) for f in row if f]
    return 0.0 if used == [1] else (len(used) + 3) / 2


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**i for i in range(count))


def _infinity(count: int) -> tuple[Fraction, ...]:
    return (*[Fraction(0)] * (count - 1), Fraction(1))
