"""A product in the form that tensor cores read: rows, columns and k, in chunks of 16 bytes.

    c[z, row, column] = sum over k of a[z, row, k] * b[z, column, k]

`view` derives it from a `Gemm`. If c is contiguous along m, the two operands are swapped, so that
columns are contiguous. Digits with a common stride are merged, so a dense tensor is a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dnncore.planning.loops import is_one_loop, merged
from dnncore_opencl.codegen.digits import extended
from dnncore_opencl.codegen.vectors import BYTES
from dnncore_opencl.gemm.product import Gemm, Matrix, Window

MAX_TAPS = (10, 11, 11)  # along depth, height and width: the kernel stores one bit per tap
MAX_DIGITS = 4


class SharedDigit(NamedTuple):
    """A digit of an index: its size, and its stride per operand in elements."""

    size: int
    steps: tuple[int, ...]


SharedDigits = tuple[SharedDigit, ...]  # slowest first


class Unfit(Exception):
    """Reason why tensor cores cannot read a product."""


@dataclass(frozen=True)
class MmaView:
    """A product as the kernel reads it.

    is_swapped: whether rows are the product's n. rows, columns, k: digits with the strides of a, of
    b, and of both. results: the digits of rows with the strides of c and of the operands of
    post-ops. column_steps: their strides from column to column. a_along_k, b_along_k: whether the
    operand is contiguous along k. If so, its stride of the last digit of k is 1; otherwise its last
    digit of the rows (or columns) has stride 1. inner_columns: the size of the last digit of the
    columns in c. In `columns` this digit may be larger, to fill whole chunks.
    """

    gemm: Gemm
    is_swapped: bool
    a: Matrix
    b: Matrix
    a_along_k: bool
    b_along_k: bool
    rows: SharedDigits
    columns: SharedDigits
    k: SharedDigits
    results: SharedDigits
    column_steps: tuple[int, ...]
    inner_columns: int
    window: Window | None

    @property
    def extents(self) -> tuple[object, ...]:
        """The sizes and layouts that determine the time of the product, except for types."""
        lines = (self.a_along_k, self.b_along_k, self.window is None)
        sizes = (count(self.rows), count(self.columns), self.gemm.batches, self.gemm.size)
        return (*sizes, *lines, *(digit.size for digit in self.k))


def view(gemm: Gemm, per_chunk: int) -> MmaView:
    """Return the view of a product for chunks of `per_chunk` elements. Raises `Unfit`."""
    swapped = gemm.c.strides.m == 1 and gemm.m > 1
    a, b = (gemm.b, gemm.a) if swapped else (gemm.a, gemm.b)
    window = gemm.needed_window
    written = (gemm.c, *gemm.operands)

    across = (_digits_of_n, _digits_of_m) if swapped else (_digits_of_m, _digits_of_n)
    of_rows, of_columns = across
    rows, columns = of_rows(gemm, [a]), of_columns(gemm, [b, *written])
    results = _merged(of_rows(gemm, written))
    k = _digits(gemm.k, lambda o: o.strides.k, [a, b])
    if window and swapped:
        rows, k = _spatial(rows), _spatial((*k[1:], k[0]), at_end=True)
    elif window:
        k, columns = _spatial(k), _spatial((*columns[1:], columns[0]), at_end=True)
    else:
        rows = _merged(rows)
        k = _merged(_sorted(k))
        columns = _merged(_sorted(columns))
    one_channel = bool(window) and swapped and k[-1].size == 1
    a_along_k, b_along_k = (
        _is_along(k, place) or (one_channel and k[-1].steps[place] == 1) for place in (0, 1)
    )
    ordered = _inner_last(k, a_along_k=a_along_k, b_along_k=b_along_k)
    if window and ordered != k:  # with one channel, the dense digit is a tap
        raise _unfit_image(k, swapped=swapped)
    k = ordered
    columns, inner_columns = _whole_chunks(columns, per_chunk, b_along_k=b_along_k)
    if gemm.a.data_type in BYTES and not (a_along_k and b_along_k):
        raise Unfit("operands of s8 and u8 must be dense along k, and the format has other strides")
    made = MmaView(
        gemm,
        swapped,
        a,
        b,
        a_along_k,
        b_along_k,
        rows,
        tuple(SharedDigit(d.size, d.steps[:1]) for d in columns),
        k,
        results,
        _column_steps(columns),
        inner_columns,
        window,
    )
    _check(made, per_chunk)
    return made


def count(digits: Iterable[SharedDigit]) -> int:
    """Return the number of values of an index."""
    return math.prod(digit.size for digit in digits)


def _digits(
    sizes: Sequence[int], steps: Callable[[Matrix], Sequence[int]], operands: Iterable[Matrix]
) -> SharedDigits:
    by_operand = [extended(steps(operand), len(sizes)) for operand in operands]
    return tuple(
        SharedDigit(size, tuple(own[i] for own in by_operand)) for i, size in enumerate(sizes)
    )


def _digits_of_m(gemm: Gemm, operands: Iterable[Matrix]) -> SharedDigits:
    return _digits((gemm.m,), lambda o: (o.strides.m,), operands)


def _digits_of_n(gemm: Gemm, operands: Iterable[Matrix]) -> SharedDigits:
    return _digits(gemm.n, lambda o: o.strides.n, operands)


def _spatial(digits: SharedDigits, *, at_end: bool = False) -> SharedDigits:
    """Add leading spatial digits of size 1 up to three. The other digit is first, or at the end."""
    other, spatial = (digits[-1:], digits[:-1]) if at_end else (digits[:1], digits[1:])
    none = SharedDigit(1, (0,) * len(digits[0].steps))
    spatial = (none,) * (3 - len(spatial)) + spatial
    return spatial + other if at_end else other + spatial


def _merged(digits: SharedDigits) -> SharedDigits:
    """Drop digits of size 1, and join digits that can be one digit in all operands."""
    joined = merged((digit for digit in digits if digit.size > 1), _joined)
    return joined or (SharedDigit(1, (0,) * len(digits[0].steps)),)


def _joined(outer: SharedDigit, inner: SharedDigit) -> SharedDigit | None:
    if not is_one_loop(outer.steps, inner.steps, inner.size):
        return None
    return SharedDigit(outer.size * inner.size, inner.steps)


def _sorted(digits: SharedDigits) -> SharedDigits:
    return tuple(sorted(digits, key=lambda digit: digit.steps, reverse=True))


def _is_along(k: SharedDigits, operand: int) -> bool:
    return any(digit.steps[operand] == 1 and digit.size > 1 for digit in k)


def _inner_last(k: SharedDigits, *, a_along_k: bool, b_along_k: bool) -> SharedDigits:
    """Move to the end the digit of k that has stride 1 in operands along k."""
    for operand, along in enumerate((a_along_k, b_along_k)):
        if along:
            k = tuple(sorted(k, key=lambda digit: digit.steps[operand] == 1 and digit.size > 1))
    if a_along_k and b_along_k and k[-1].steps != (1, 1):
        raise Unfit(f"both operands must be dense along the same dim; got steps {k[-1].steps}")
    return k


def _unfit_image(k: SharedDigits, *, swapped: bool) -> Unfit:
    """Return the refusal of an image whose channels are not contiguous."""
    steps = [digit.steps[0 if swapped else 1] for digit in k]
    return Unfit(f"the image must be dense along channels; got strides {steps}")


def _whole_chunks(
    columns: SharedDigits, per_chunk: int, *, b_along_k: bool
) -> tuple[SharedDigits, int]:
    """Round the last of several digits of columns up to whole chunks, if b is across k."""
    size, steps = columns[-1]
    if b_along_k or count(columns[:-1]) == 1:
        return columns, size
    return (*columns[:-1], SharedDigit(-(-size // per_chunk) * per_chunk, steps)), size


def _column_steps(columns: SharedDigits) -> tuple[int, ...]:
    """Return the strides of c and of the operands along columns, which must be one digit."""
    used = [SharedDigit(d.size, d.steps[1:]) for d in columns if d.size > 1] or [
        SharedDigit(1, columns[-1].steps[1:])
    ]
    if not all(_joined(outer, inner) for outer, inner in pairwise(used)):
        steps = [digit.steps[0] for digit in used]
        raise Unfit(f"the result's columns must step alike; got strides {steps}")
    return used[-1].steps


def _check(v: MmaView, per_chunk: int) -> None:
    if count(v.columns) > 1 and v.column_steps[0] != 1:
        step = v.column_steps[0]
        raise Unfit(f"the result's columns must lie side by side; got a stride of {step}")
    for name, digits in (("rows", v.rows), ("columns", v.columns), ("k", v.k), ("rows", v.results)):
        if len(digits) > MAX_DIGITS:
            raise Unfit(f"its {name} must have {MAX_DIGITS} digits at most; got {len(digits)}")
    taps = tuple(digit.size for digit in v.k[:-1])
    if v.window and v.is_swapped and any(n > most for n, most in zip(taps, MAX_TAPS, strict=True)):
        raise Unfit(f"kernels must have {MAX_TAPS} taps at most; got {taps}")
    if v.window and (v.a_along_k != v.is_swapped or (v.b_along_k and not v.is_swapped)):
        raise _unfit_image(v.k, swapped=v.is_swapped)
    across = ((v.a_along_k, v.rows, v.a, 0), (v.b_along_k, v.columns, v.b, 1))
    for along, digits, matrix, place in across:
        steps = [d.steps[0] for d in digits if d.size > 1]
        steps_of_k = [d.steps[place] for d in v.k if d.size > 1]
        if along:
            steps_of_k = steps_of_k[:-1]
        elif steps and steps[-1] != 1:
            raise Unfit(
                f"an operand must be dense in some dim; got strides {steps} and {steps_of_k}"
            )
        else:
            steps = steps[:-1]
        if place == 0 and not along and steps:
            raise Unfit(f"rows across k must be one digit; got strides {steps} of others")
        if place == 1 and along and len(v.columns) > 1:
            raise Unfit(f"columns along k must be one digit; got {len(v.columns)}")
        batch = zip(extended(matrix.strides.batch, len(v.gemm.batch)), v.gemm.batch, strict=True)
        steps += (step for step, size in batch if size > 1)
        unaligned = [s for s in (*steps, *steps_of_k, matrix.offset) if s % per_chunk]
        if unaligned:
            raise Unfit(f"strides and offset must be multiples of {per_chunk}; got {unaligned[0]}")
