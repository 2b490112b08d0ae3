"""Winograd's short convolutions by points that come in pairs: matrices, errors, OpenCL C.

m outputs y of a filter g of three taps along m + 2 inputs d are, with the products element by
element (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin and Gray 2016, "Fast
Algorithms for Convolutional Neural Networks"),

    y = DST ((WEIGHTS g) * (SRC d))

This is linear in g, so that the gradient by g is the adjoint, summed up over all tiles:

    diff_g = WEIGHTS^T ((DST^T diff_y) * (SRC d))

The matrices follow from the points at which polynomials are evaluated (Toom and Cook): 0, +-p for
each of m / 2 numbers p, and infinity. Rows, or columns, of +p and -p differ in the signs of odd
powers only, so each pair is the sum and the difference of two halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

__all__ = ["F23", "F43", "TAPS", "Tile", "ToomCook", "transposed"]

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
        """How much larger rounding errors are than those of direct sums, of TAPS squared terms.

        Errors are taken as independent: one of a product at point p comes into output y scaled by
        DST[y, p], and the product's size is |WEIGHTS[p]| times |SRC[p]|, 2-norms of rows. In 2-D
        both are squared; the worst output of a tile counts.
        """
        return _largest_error(self.dst, self.weights, self.src) / TAPS

    @cached_property
    def gradient_error_factor(self) -> float:
        """The same of the gradient of weights, of as many squared terms as a tile has outputs."""
        gradient, diff_dst = transposed(self.weights), transposed(self.dst)
        return _largest_error(gradient, diff_dst, self.src) / self.outputs

    def code(self, suffix: str = "") -> str:
        """Functions of x, `step` apart, that leave y.

        `src_points`, `weights_points` and `dst_outputs` multiply by the three matrices; the
        adjoints `dst_points` and `weights_taps` by the last two transposed. suffix: behind their
        names.
        """
        functions = (
            ("src_points", _to_points(self.src)),
            ("weights_points", _to_points(self.weights)),
            ("dst_outputs", _from_points(self.dst)),
            ("dst_points", _to_points(transposed(self.dst))),
            ("weights_taps", _from_points(transposed(self.weights))),
        )
        return "\n".join(_function(name + suffix, statements) for name, statements in functions)

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
F43 = ToomCook((Fraction(11, 16), Fraction(23, 16)))  # the best sixteenths


@dataclass(frozen=True)
class Tile:
    """A tile in 2-D whose columns and rows may have different algorithms."""

    down: ToomCook
    across: ToomCook

    @property
    def name(self) -> str:
        """Outputs down and across, and taps."""
        return f"{self.down.outputs}x{self.across.outputs}x{TAPS}"

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return self.down.outputs, self.across.outputs

    @property
    def spans(self) -> tuple[int, int]:
        """Rows and columns of inputs."""
        return self.down.span, self.across.span

    @property
    def positions(self) -> int:
        """Products per tile and pair of channels."""
        return self.down.span * self.across.span

    @property
    def is_exact(self) -> bool:
        """Whether small integers give the exact result."""
        return self.down.is_exact and self.across.is_exact

    @property
    def error_factor(self) -> float:
        """How much larger rounding errors are than those of direct sums."""
        return math.sqrt(self.down.error_factor * self.across.error_factor)

    @property
    def gradient_error_factor(self) -> float:
        """The same of the gradient of weights."""
        return math.sqrt(self.down.gradient_error_factor * self.across.gradient_error_factor)

    @property
    def defines(self) -> dict[str, int]:
        """The sizes, as kernels take them."""
        return {
            "OUTPUTS_DOWN": self.down.outputs,
            "OUTPUTS_ACROSS": self.across.outputs,
            "SPAN_DOWN": self.down.span,
            "SPAN_ACROSS": self.across.span,
        }

    def code(self) -> str:
        """The functions of columns, `..._down`, and those of rows, `..._across`."""
        return "\n".join((self.down.code("_down"), self.across.code("_across")))


def transposed(rows: Rows) -> Rows:
    """Columns become rows."""
    return tuple(zip(*rows, strict=True))


def _largest_error(result: Rows, *factors: Rows) -> float:
    """The largest variance of a row of `result` times products at points of unit factors."""
    sizes = [math.prod(math.hypot(*row) for row in rows) for rows in zip(*factors, strict=True)]
    return max(sum((f * n) ** 2 for f, n in zip(row, sizes, strict=True)) for row in result)


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**i for i in range(count))


def _infinity(count: int) -> tuple[Fraction, ...]:
    return (*[Fraction(0)] * (count - 1), Fraction(1))


def _function(name: str, statements: Iterator[str]) -> str:
    lines = "\n".join(f"    {statement}" for statement in statements)
    return f"static inline void {name}(const floats *x, const int step, floats *y) {{\n{lines}\n}}"


def _to_points(rows: Rows) -> Iterator[str]:
    x = [f"x[{i} * step]" for i in range(len(rows[0]))]
    yield f"y[0] = {_sum(rows[0], x)};"
    for i in range(1, len(rows) - 1, 2):
        yield f"const floats even{i} = {_sum(rows[i][::2], x[::2])};"
        yield f"const floats odd{i} = {_sum(rows[i][1::2], x[1::2])};"
        yield f"y[{i}] = even{i} + odd{i};"
        yield f"y[{i + 1}] = even{i} - odd{i};"
    yield f"y[{len(rows) - 1}] = {_sum(rows[-1], x)};"


def _from_points(rows: Rows) -> Iterator[str]:
    last = len(rows[0]) - 1
    firsts = range(1, last, 2)  # of pairs
    for i in firsts:
        yield f"const floats even{i} = x[{i} * step] + x[{i + 1} * step];"
        yield f"const floats odd{i} = x[{i} * step] - x[{i + 1} * step];"
    for i, row in enumerate(rows):
        half = "odd" if i % 2 else "even"
        terms = ("x[0]", *(f"{half}{j}" for j in firsts), f"x[{last} * step]")
        factors = (row[0], *(row[j] for j in firsts), row[-1])
        yield f"y[{i}] = {_sum(factors, terms)};"


def _sum(factors: Sequence[Fraction], terms: Sequence[str]) -> str:
    used = [(f, term) for f, term in zip(factors, terms, strict=True) if f]
    return " + ".join(term if f == 1 else f"{float(f)!r}f * {term}" for f, term in used)
