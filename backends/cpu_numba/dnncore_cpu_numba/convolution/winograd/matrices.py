"""Winograd's matrices for F(4x4, 3x3), and what they do to rounding errors.

Four outputs y of a filter g of three taps along six inputs d are, with the products element by
element (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin and Gray 2016, "Fast
Algorithms for Convolutional Neural Networks"),

    y = DST ((WEIGHTS g) * (SRC d))                 6 products, where the direct algorithm has 12
    Y = DST ((WEIGHTS G WEIGHTS^T) * (SRC D SRC^T)) DST^T       in 2-D: 36 products, not 144

The matrices follow from six points (Toom and Cook), 0, +-p, +-q and infinity, at which polynomials
with the coefficients g and d are evaluated. The points decide the rounding error: +-1 and +-2 make
it four times that of +-11/16 and +-23/16, which are the best sixteenths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["DST", "ERROR_FACTOR", "OUTPUTS", "POSITIONS", "SPAN", "SRC", "TAPS", "WEIGHTS", "Rows"]

Rows = tuple[tuple[Fraction, ...], ...]

OUTPUTS, TAPS = 4, 3
SPAN = OUTPUTS + TAPS - 1  # of a tile's inputs, and the number of points
POSITIONS = SPAN * SPAN  # products per tile and pair of channels
POINTS = (
    Fraction(0), Fraction(11, 16), Fraction(-11, 16), Fraction(23, 16), Fraction(-23, 16),
)  # fmt: skip


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of all (x - root), from x**0 on, filled up to SPAN."""
    product = [Fraction(1)]
    for root in roots:
        raised, scaled = [Fraction(0), *product], [*(root * c for c in product), Fraction(0)]
        product = [a - b for a, b in zip(raised, scaled, strict=True)]
    return (*product, *[Fraction(0)] * (SPAN - len(product)))


def _without(point: Fraction) -> list[Fraction]:
    return [other for other in POINTS if other != point]


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**i for i in range(count))


def _weights_row(point: Fraction) -> tuple[Fraction, ...]:
    scale = math.prod(point - other for other in _without(point))
    return tuple(power / scale for power in _powers(point, TAPS))


def _infinity(count: int) -> tuple[Fraction, ...]:
    return (*[Fraction(0)] * (count - 1), Fraction(1))


SRC: Rows = (*(_polynomial(_without(point)) for point in POINTS), _polynomial(POINTS))
WEIGHTS: Rows = (*(_weights_row(point) for point in POINTS), _infinity(TAPS))
DST: Rows = tuple(
    zip(*(_powers(point, OUTPUTS) for point in POINTS), _infinity(OUTPUTS), strict=True)
)


def _error_factor() -> float:
    """How much larger rounding errors are than those of direct sums.

    Errors are taken as independent (Higham and Mary 2019), inputs too: an error u of a product at
    point p comes into output y scaled by |DST[y, p]|, and the product's size is |WEIGHTS[p]| times
    |SRC[p]|, 2-norms of rows, so that variances add up to

        k[y]**2 = sum over p of (DST[y, p] * |WEIGHTS[p]| * |SRC[p]|)**2

    where a direct sum has TAPS. In 2-D both are squared; the worst output of a tile counts.
    (Barabasz et al. 2020, "Error analysis and improving the accuracy of Winograd convolution for
    deep neural networks", bound the same by the norms of the whole matrices.)
    """
    sizes = [math.hypot(*w) * math.hypot(*s) for w, s in zip(WEIGHTS, SRC, strict=True)]
    variances = [sum((y * n) ** 2 for y, n in zip(row, sizes, strict=True)) for row in DST]
    return float(max(variances)) / TAPS


ERROR_FACTOR = _error_factor()
