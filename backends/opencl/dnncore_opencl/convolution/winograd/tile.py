"""Tiles of Winograd's convolutions in 2-D, and their transforms in OpenCL C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dnncore.planning.toom_cook import (
    TAPS,
    Rows,
    ToomCook,
    error_factor,
    gradient_error_factor,
    transposed,
)
from dnncore_opencl.runtime.launch import template


@dataclass(frozen=True)
class WinogradTile:
    """A 2-D tile, whose columns and rows may use different algorithms."""

    down: ToomCook
    across: ToomCook

    @property
    def name(self) -> str:
        """Outputs down and across, and taps."""
        return f"{self.down.outputs}x{self.across.outputs}x{TAPS}"

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of the result per tile."""
        return self.down.outputs, self.across.outputs

    @property
    def spans(self) -> tuple[int, int]:
        """Rows and columns of the input per tile."""
        return self.down.span, self.across.span

    @property
    def positions(self) -> int:
        """Positions of a transformed tile: the multiplications per tile and pair of channels."""
        return self.down.span * self.across.span

    @property
    def is_exact(self) -> bool:
        """Whether results of small integers are exact."""
        return self.down.is_exact and self.across.is_exact

    def error_factor(self, depth: int) -> float:
        """Return how much larger errors are than those of direct sums over `depth` channels."""
        return error_factor(self.down, self.across, depth)

    def gradient_error_factor(self, depth: int) -> float:
        """Return the error factor of the gradient of weights, a sum over `depth` tiles."""
        return gradient_error_factor(self.down, self.across, depth)

    @property
    def defines(self) -> dict[str, int]:
        """Return the sizes as defines."""
        return {
            "OUTPUTS_DOWN": self.down.outputs,
            "OUTPUTS_ACROSS": self.across.outputs,
            "SPAN_DOWN": self.down.span,
            "SPAN_ACROSS": self.across.span,
        }

    def code(self) -> str:
        """Return the transform functions of columns, `..._down`, and of rows, `..._across`."""
        return "\n".join((transforms(self.down, "_down"), transforms(self.across, "_across")))

    def direct_code(self) -> str:
        """Return the function `direct_sum`, which uses `defines`."""
        return direct_code(self.down, self.across)


def transforms(algorithm: ToomCook, suffix: str = "") -> str:
    """Return the text of transform functions. They read x with stride `step` and write y.

    `src_points`, `weights_points` and `dst_outputs` multiply by the three matrices. The adjoints
    `dst_points` and `weights_taps` multiply by the last two matrices transposed. suffix: of names.
    """
    functions = (
        ("src_points", _to_points(algorithm.src)),
        ("weights_points", _to_points(algorithm.weights)),
        ("dst_outputs", _from_points(algorithm.dst)),
        ("dst_points", _to_points(transposed(algorithm.dst))),
        ("weights_taps", _from_points(transposed(algorithm.weights))),
    )
    return "\n".join(_function(name + suffix, statements) for name, statements in functions)


def direct_code(down: ToomCook, across: ToomCook) -> str:
    """Return the text of `winograd_direct.cl` after its tables, which derive taps from points."""
    tables = (_taps_table(down, "_down"), _taps_table(across, "_across"))
    return "\n".join((*tables, template("winograd_direct")))


def _taps_table(algorithm: ToomCook, suffix: str) -> str:
    """Return two points and their factors per tap. With one point, the second factor is 0."""
    pairs = [[(i, f) for i, f in enumerate(row) if f] for row in algorithm.taps]
    filled = [(*pair, (pair[0][0], Fraction(0)))[:2] for pair in pairs]
    points = ", ".join(f"{{{a[0]}, {b[0]}}}" for a, b in filled)
    factors = ", ".join(f"{{{float(a[1])!r}f, {float(b[1])!r}f}}" for a, b in filled)
    return (
        f"__constant int tap_points{suffix}[{TAPS}][2] = {{{points}}};\n"
        f"__constant float tap_factors{suffix}[{TAPS}][2] = {{{factors}}};"
    )


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
    firsts = range(1, last, 2)  # first points of pairs
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
