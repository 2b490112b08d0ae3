"""The native loops of reduction: fold many elements of src into a few results.

Each element of src is mapped, the mapped values are combined, and the outcome is finished:

map         x, |x|, x**2, |x|**p
combine     larger, smaller, sum, product
finish      t, t / n, max(t, eps), t + eps, or the p-th root of the last two

An item is a part of the places of a row of results. In each step, a native function of the
algorithm folds a part of src into accumulators:

columns     one element into the accumulator of each of several neighbouring results
rows        one row into the accumulator of each of several neighbouring results
lanes       one long row of a single result, distributed over `LANES` accumulators

After each `_PATIENCE` steps the sums are folded into totals. Rounding errors are therefore smaller
than in one long sum.
"""

# ruff: noqa: ARG005 - maps have the same parameters

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dnncore_cpu_numba.codegen import precise_math, vecmath
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import prefetch
from dnncore_cpu_numba.codegen.pointers import (
    LOADS_AS_F32,
    bits_to_f64,
    load_f32,
    load_f64,
    stack,
    store_f32,
    store_f64,
)
from dnncore_cpu_numba.codegen.task import Task, device, exact, native_function, task
from dnncore_cpu_numba.codegen.type_conversion import STORED
from dnncore_cpu_numba.codegen.vector_ir import bytes_of
from dnncore_cpu_numba.copies.typed_rows import convert_row
from dnncore_cpu_numba.rows.sums_kernel import SUMS_CALL, Formula, SumsKernel

COLUMNS = 1024  # most results of a row
LANES = 64
_STRETCH = 4 * LANES  # elements that are combined before the sums in memory are updated
_AHEAD = 4096  # prefetch distance in bytes
_PATIENCE = 256  # steps that are folded into sums before the sums are folded into totals
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)

SOURCE = Record("source of a reduction", ("src", "address"))
TENSORS = Record("tensors of a reduction", ("dst", "address"), ("source", SOURCE))
FOLD = Record(
    "fold",
    ("results", Pointer(NEST), "over (dst, src)"),
    ("places", Pointer(NEST), "of a result, over src"),
    ("steps parts per_part", "count", "of a row of results, its parts, and steps of a part"),
    ("in_lanes in_rows", "flag"),
    ("width length", "count", "accumulators, and elements of a step"),
    ("src_stride dst_stride", "elements"),
    ("src_row", "bytes", "from row to row of src"),
    ("function", "address", "a `FOLD_CALL` of src, or a `SUMS_CALL` of its rows"),
    ("merge", "address", "a `FOLD_CALL` of outcomes"),
    ("start power", "float32", "the outcome of nothing, and the norm's p"),
    ("finish", "index", "of `FINISHES`"),
    ("divisor eps", "float32"),
    ("wide_start wide_power wide_divisor wide_eps", "bits", "of the same as float64"),
    ("part_bytes", "bytes", "from a part's outcomes to the next"),
    ("dst_size", "bytes", "of an element"),
    ("store", "address", "a kernel that converts rows of f32 to dst; 0 for f32 and f64"),
    ("row", "count", "elements of a row, if rows are folded"),
    ("starts", TENSORS),
)
FOLD_CALL = Record(
    "fold function",
    ("src", "address"),
    ("stride", "elements", "between the elements that are counted"),
    ("sums", "address"),
    ("count", "count"),
    ("params", Pointer(FOLD)),
)

FINISHES = {
    "max": 0, "min": 0, "sum": 0, "mul": 0,
    "mean": 1,
    "norm_lp_power_p_max": 2, "norm_lp_power_p_sum": 3,
    "norm_lp_max": 4, "norm_lp_sum": 5,
}  # fmt: skip
"""Algorithm -> the number of its last computation; see `_finish`."""


class _Arithmetic(NamedTuple):
    """The type of accumulators, and the functions that fold in it: of f32 or of f64."""

    load: Any
    store: Any
    maths: Any
    buffer: int  # size of accumulators in int64
    numbers: Any  # (params) -> start, power, divisor, eps
    loads: dict[str, Any]  # by the type of src


@device
def _numbers(params):
    return params.start, params.power, params.divisor, params.eps


@device
def _wide_numbers(params):
    start, power = bits_to_f64(params.wide_start), bits_to_f64(params.wide_power)
    return start, power, bits_to_f64(params.wide_divisor), bits_to_f64(params.wide_eps)


ARITHMETIC = {
    "f32": _Arithmetic(load_f32, store_f32, vecmath, COLUMNS // 2, _numbers, LOADS_AS_F32),
    "f64": _Arithmetic(
        load_f64, store_f64, precise_math, COLUMNS, _wide_numbers, {"f64": load_f64}
    ),
}


def _fold(held: str) -> Task:
    """Return the task that folds in f32 or in f64."""
    load, store, maths, buffer, numbers, _ = ARITHMETIC[held]
    exp, log, has_rows = maths.exp, maths.log, held == "f32"

    @device
    def fill(x, value, count):
        for i in range(count):
            store(x, i, value)

    @device
    def finished(params, x, count):
        """Compute the result from the folded values."""
        finish = params.finish
        _, p, divisor, eps = numbers(params)
        if finish == 1:
            for i in range(count):
                store(x, i, _divided(load(x, i), divisor))
        if finish == 2 or finish == 4:
            for i in range(count):
                value = load(x, i)
                store(x, i, eps if value < eps else value)
        if finish == 3 or finish == 5:
            for i in range(count):
                store(x, i, load(x, i) + eps)
        if finish >= 4 and p == _TWO:
            for i in range(count):
                store(x, i, np.sqrt(load(x, i)))
        elif finish >= 4 and p != _ONE:
            for i in range(count):
                store(x, i, exp(log(load(x, i)) / p))

    @device
    def step_of(params, src, sums, found):
        """Fold one step into sums."""
        if has_rows and params.in_rows != 0:
            SUMS_CALL.call(
                params.function, y=0, x=src, diff=0, mask=0, y_row=0, x_row=params.src_row,
                diff_row=0, mask_row=0, rows=params.length, columns=params.row, means=0,
                sums=found, ahead=_AHEAD,
            )  # fmt: skip
            _call(params.merge, found, 1, sums, params.length, params)
        else:
            _call(params.function, src, params.src_stride, sums, params.length, params)

    def fold(params, begin, end):
        """Fold parts of rows of results, as the module docstring describes."""
        parts, per_part = params.parts, params.per_part
        width, merge = params.width, params.merge
        start, _, _, _ = numbers(params)
        sums, totals, found = stack(buffer), stack(buffer), stack(buffer)
        result_position, place_position = stack(MAX_LOOPS), stack(MAX_LOOPS)
        tensors, source = TENSORS.room(), SOURCE.room()
        part = begin % parts
        seek(params.results, begin // parts, result_position, params.starts, tensors, 1)
        for _ in range(begin, end):
            first = part * per_part
            last = min(first + per_part, params.steps)
            seek(params.places, first, place_position, tensors.source, source, 1)
            fill(totals, start, width)
            if last == first + 1:
                step_of(params, source.src, totals, found)
            else:
                fill(sums, start, width)
                for step in range(first, last):
                    step_of(params, source.src, sums, found)
                    advance(params.places, place_position, source, 1)
                    if (step - first) % _PATIENCE == _PATIENCE - 1:
                        _call(merge, sums, 1, totals, width, params)
                        fill(sums, start, width)
                _call(merge, sums, 1, totals, width, params)
            count = width
            if params.in_lanes:
                _call(merge, 0, 1, totals, 0, params)
                count = 1
            finished(params, totals, count)
            dst = tensors.dst + part * params.part_bytes
            if params.store:
                step = params.dst_stride * params.dst_size
                convert_row(params.store, totals, 4, dst, step, count)
            else:
                for i in range(count):
                    store(dst, i * params.dst_stride, load(totals, i))
            part += 1
            if part == parts:
                part = 0
                advance(params.results, result_position, tensors, 1)

    fold.__name__ = f"fold_{held}"
    return task(FOLD)(fold)


@device
def _call(function, src, stride, sums, count, params):
    FOLD_CALL.call(function, src=src, stride=stride, sums=sums, count=count, params=params)


@exact
def _divided(x, divisor):
    return x / divisor  # multiplying by the reciprocal would round twice


# -- algorithms ------------------------------------------------------------------------------------


def _larger(x, y):
    larger = y if y > x else x
    return y if y != y else larger  # NaN propagates


def _smaller(x, y):
    smaller = y if y < x else x
    return y if y != y else smaller


_EACH: dict[str, Callable[..., Any]] = {
    "itself": lambda x, p: x,
    "size": lambda x, p: -x if x < _ZERO else x,
    "square": lambda x, p: x * x,
}
_BOTH: dict[str, Callable[..., Any]] = {
    "larger": _larger,
    "smaller": _smaller,
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
}


def _power(power: Any) -> Callable[..., Any]:
    return lambda x, p: power(-x if x < _ZERO else x, _ONE, p)


@dataclass(frozen=True)
class ReductionFold:
    """The native functions of the ways to fold; rows: None if not supported.

    start: the result of an empty set.
    """

    columns: Task
    lanes: Task
    rows: SumsKernel | None
    start: float


@functools.cache
def fold_of(rule: str, source: str = "f32", held: str = "f32") -> ReductionFold:
    """Return the native functions of a rule. source: the type of src. held: that of accumulators.

    Called with count 0, `columns` folds all lanes into the first one.
    """
    first, combine, map_ = RULES[rule]
    load_sum, store_sum, maths, _, numbers, loads = ARITHMETIC[held]
    both = device(_BOTH[combine])
    each = device(_EACH[map_] if map_ in _EACH else _power(maths.power))
    load, size = loads[source], bytes_of(STORED[source])

    @device
    def fold_lanes(sums):
        """Fold all lanes into the first one."""
        count = LANES // 4
        while count > 0:
            for i in range(count):
                a, b = load_sum(sums, i), load_sum(sums, count + i)
                c, d = load_sum(sums, 2 * count + i), load_sum(sums, 3 * count + i)
                store_sum(sums, i, both(both(a, b), both(c, d)))
            count //= 4

    def columns(src, stride, sums, count, params):
        _, p, _, _ = numbers(params)
        if count == 0:
            fold_lanes(sums)
        elif stride == 1:
            for i in range(count):
                value = each(load(src, i), p)
                store_sum(sums, i, both(load_sum(sums, i), value))
        else:
            for i in range(count):
                value = each(load(src, i * stride), p)
                store_sum(sums, i, both(load_sum(sums, i), value))

    def lanes(src, stride, sums, count, params):
        _, p, _, _ = numbers(params)
        done = count - count % _STRETCH if stride == 1 else 0
        for start in range(0, done, _STRETCH):
            x = src + size * start
            prefetch(x + _AHEAD, size * _STRETCH)
            for i in range(LANES):
                a, b = each(load(x, i), p), each(load(x, LANES + i), p)
                c, d = each(load(x, 2 * LANES + i), p), each(load(x, 3 * LANES + i), p)
                store_sum(sums, i, both(load_sum(sums, i), both(both(a, b), both(c, d))))
        for start in range(done, count, LANES):
            some = min(LANES, count - start)
            for i in range(some):
                value = each(load(src, (start + i) * stride), p)
                store_sum(sums, i, both(load_sum(sums, i), value))

    columns.__name__ = f"{rule}_columns_{source}"
    lanes.__name__ = f"{rule}_lanes_{source}"
    formula = FORMULAS.get(rule) if held == "f32" else None
    rows = SumsKernel(formula, True, source) if formula else None
    function = native_function(FOLD_CALL)
    return ReductionFold(function(columns), function(lanes), rows, first)


RULES = {
    "max": (float("-inf"), "larger", "itself"),
    "min": (float("inf"), "smaller", "itself"),
    "sum": (0.0, "sum", "itself"),
    "mul": (1.0, "product", "itself"),
    "sizes": (0.0, "sum", "size"),
    "squares": (0.0, "sum", "square"),
    "powers": (0.0, "sum", "power"),
}
"""Rule -> (the result of an empty set, key of `_BOTH`, key of `_EACH`)."""

FORMULAS: dict[str, Formula] = {
    "max": "largest", "min": "smallest", "sum": "plain", "mul": "multiplied", "sizes": "sizes",
    "squares": "squares",
}  # fmt: skip
"""Rule -> the formula of the kernel that folds rows."""

FOLDS = {held: _fold(held) for held in ARITHMETIC}
"""The type of accumulators -> the task."""
