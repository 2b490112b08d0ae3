"""Winograd's short convolutions: matrices and what they do to rounding errors.

m outputs y of a filter g of three taps along m + 2 inputs d are, with the products element by
element (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin and Gray 2016, "Fast
Algorithms for Convolutional Neural Networks"),

    y = DST ((WEIGHTS g) * (SRC d))                 m + 2 products, where the direct sum has 3 m
    Y = DST ((WEIGHTS G WEIGHTS^T) * (SRC D SRC^T)) DST^T                                 in 2-D

The first is linear in g. So the gradient by g is the adjoint, summed over all tiles:

    diff_g = WEIGHTS^T ((DST^T diff_y) * (SRC d))

The matrices follow from the points at which polynomials are evaluated (Toom and Cook): 0, +-p for
each of m / 2 numbers p, and infinity. Rows, or columns, of +p and -p differ in the signs of odd
powers only. The points decide the rounding error: +-1 and +-2 make it four times that of +-11/16
and +-23/16, which are the best sixteenths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

__all__ = ["F23", "F43", "TAPS", "Rows", "ToomCook", "transposed"]

Rows = tuple[tuple[Fraction, ...], ...]
TAPS = 3


@dataclass(frozen=True)
class ToomCook:
    """F(m x m, 3 x 3) by the points 0, +-p for each p of `pairs`, and infinity."""

    pairs: tuple[Fraction, ...]

    @property
    def outputs(self) -> int:
        """m: along each side of a tile of the result."""
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
        """Outputs and taps."""
        return f"{self.outputs}x{TAPS}"

    @cached_property
    def points(self) -> tuple[Fraction, ...]:
        """The finite ones."""
        return (Fraction(0), *(sign * p for p in self.pairs for sign in (1, -1)))

    @cached_property
    def src(self) -> Rows:
        """SRC: polynomials that are 0 at all finite points but one, and one that is at all."""
        of_others = (self._polynomial(self._others(point)) for point in self.points)
        return (*of_others, self._polynomial(self.points))

    @cached_property
    def weights(self) -> Rows:
        """WEIGHTS: a filter's values at the points."""
        return (*(self._filter_row(point) for point in self.points), _infinity(TAPS))

    @cached_property
    def dst(self) -> Rows:
        """DST: powers of the points."""
        columns = (*(_powers(p, self.outputs) for p in self.points), _infinity(self.outputs))
        return transposed(columns)

    @property
    def is_exact(self) -> bool:
        """Whether small integers give the exact result: factors are sums of powers of two."""
        factors = (f for rows in (self.src, self.weights, self.dst) for row in rows for f in row)
        return all(f.denominator & (f.denominator - 1) == 0 for f in factors)

    @cached_property
    def error_factor(self) -> float:
        """How much larger rounding errors are than those of direct sums of TAPS squared terms.

        Errors are taken as independent (Higham and Mary 2019), and so are the inputs. An error u of
        a product at point p comes into output y scaled by |DST[y, p]|. The product's size is
        |WEIGHTS[p]| times |SRC[p]|, 2-norms of rows. So variances add up to

            k[y]**2 = sum over p of (DST[y, p] * |WEIGHTS[p]| * |SRC[p]|)**2

        where a direct sum has TAPS. In 2-D both are squared. The worst output of a tile counts.
        (Barabasz et al. 2020, "Error analysis and improving the accuracy of Winograd convolution
        for deep neural networks", bound the same by the norms of the whole matrices.)
        """
        return _largest_error(self.dst, self.weights, self.src) / TAPS

    @cached_property
    def gradient_error_factor(self) -> float:
        """The same of the gradient of weights, of as many squared terms as a tile has outputs."""
        gradient, diff_dst = transposed(self.weights), transposed(self.dst)
        return _largest_error(gradient, diff_dst, self.src) / self.outputs

    def _polynomial(self, roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """The coefficients of the product of all (x - root), from x**0 on, filled up."""
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


def _largest_error(result: Rows, *factors: Rows) -> float:
    """The largest variance of a row of `result` times products at points of unit factors."""
    sizes = [math.prod(math.hypot(*row) for row in rows) for rows in zip(*factors, strict=True)]
    return max(sum((f * n) ** 2 for f, n in zip(row, sizes, strict=True)) for row in result)


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**i for i in range(count))


def _infinity(count: int) -> tuple[Fraction, ...]:
    return (*[Fraction(0)] * (count - 1), Fraction(1))
