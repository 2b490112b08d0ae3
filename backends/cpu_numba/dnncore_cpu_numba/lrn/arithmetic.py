"""The arithmetic of local response normalisation over buffers. Steps call these by address.

A step computes a term for each element, sums the terms over a window along its axis, and computes
results from the sums. The terms include their factors. If the base is many orders of magnitude
larger than k, terms of the gradient underflow in f32, and the gradient loses precision.

squares          scale * src**2
products         unit * diff_dst * src * base**(-beta - 1); also own = diff_dst * base**-beta
only_own         only own; the terms are the sums of an earlier step
finish_forward   base = k + sum; dst = src * base**-beta
finish_backward  diff_src = own - factor / unit * src * sum

The fast powers are valid for moderate bases, from 1 / limit to limit. A buffer with any other base,
including NaN, is computed in float64. Buffers do not overlap.
"""

# ruff: noqa: ARG001 - tasks of one kind are called with the same arguments

from __future__ import annotations

import math

import numpy as np

from dnncore.backend import LRN
from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import NEST
from dnncore_cpu_numba.codegen.pointers import f32_to_bits, load_f32, store_f32
from dnncore_cpu_numba.codegen.task import Task, device, native_function

MOST_OCTAVES = 120  # largest |log2| of a power; f32 has 126
_ZERO, _ONE = np.float32(0), np.float32(1)
# With reassociation, scale * src * src may overflow although its value does not.
_ORDERED = {"contract", "nsz"}

TENSORS = Record("tensors of a window", ("result base src diff earlier", "address"))
WINDOW = Record(
    "window",
    ("nest", Pointer(NEST)),
    ("columns length reach", "count", "of an item, of the axis, of a window to each side"),
    ("read write", "address", "a `PIECES_CALL` or a `ROW_CALL`"),
    ("make_terms", "address", "a `TERMS_CALL`"),
    ("make_results", "address", "a `RESULTS_CALL`"),
    ("power", "address", "a `POWER_CALL`"),
    ("wide", "address", "a `WIDE_CALL`"),
    ("k scale exponent next_exponent unit factor", "float32", "see `constants`"),
    ("low outside", "bits"),
    ("strides", Many("elements", TENSORS.size), "from column to column"),
    ("places", Many("address", TENSORS.size), "of tables of the axis' places in bytes"),
    ("pieces", Many("count", TENSORS.size), "places of the axis that are neighbours"),
    ("sizes", Many("bytes", TENSORS.size), "of elements"),
    ("kernels", Many("address", TENSORS.size), "that convert rows to f32 or from it; 0 for f32"),
    ("starts", TENSORS),
)
_PARAMS = ("params", Pointer(WINDOW))
_COUNT = ("count", "elements")
TERMS_CALL = Record("terms", _PARAMS, ("src diff base own terms", "address"), _COUNT)
RESULTS_CALL = Record("results", _PARAMS, ("src base own total", "address"), _COUNT)
POWER_CALL = Record("powers", _PARAMS, ("x base result", "address"), _COUNT)
WIDE_CALL = Record(
    "powers in float64",
    ("base x y", "address", "y may be absent"),
    ("factor exponent", "float32"),
    ("result", "address"),
    _COUNT,
)


def constants(op: LRN) -> dict[str, float]:
    """Return the constants of an operation by their names in `WINDOW`.

    exponent, next_exponent: -beta and -beta - 1. unit: a power of two near the magnitude of
    scale * src for a base of about 2 * k; it keeps products and factor near 1. low: the bits of
    1 / limit. outside: bits that are not set in the difference of a moderate base's bits and low.
    """
    scale = op.alpha / op.divisor
    size = math.sqrt(abs(scale)) * math.sqrt(abs(op.k) or 1.0)
    unit = 2.0 ** max(-100, min(round(math.log2(size)), 100)) if size else 1.0
    # LLVM may compute base**1.5 as an intermediate value, which must not overflow either.
    octaves = 64
    while octaves > 1 and octaves * max(1.5, abs(op.beta)) > MOST_OCTAVES:
        octaves //= 2
    return {
        "k": op.k, "scale": scale, "unit": unit, "factor": 2 * scale * op.beta / unit,
        "exponent": -op.beta, "next_exponent": -op.beta - 1,
        "low": (127 - octaves) << 23, "outside": -(2 * octaves << 23),
    }  # fmt: skip


@device
def _distance(x, low):
    """Return the bits of a base minus the bits of the lowest moderate base."""
    return np.int32(f32_to_bits(x) - np.int32(low))


@device
def _are_moderate(params, base, count):
    """Whether all bases are moderate."""
    low, bits = params.low, np.int32(0)
    for i in range(count):
        bits = np.int32(bits | _distance(load_f32(base, i), low))
    return bits & params.outside == 0


@native_function(WIDE_CALL)
def wide_products(base, x, y, factor, exponent, result, count):
    """result = factor * x * y * base**exponent, rounded once."""
    for i in range(count):
        scale = np.float64(factor) * np.float64(load_f32(x, i))
        if y:
            scale *= np.float64(load_f32(y, i))
        store_f32(result, i, vecmath.power(load_f32(base, i), scale, exponent))


# -- x * base**-beta for moderate bases ------------------------------------------------------------


@native_function(POWER_CALL)
def _multiply_by_power(params, x, base, result, count):
    """x * base**-beta for any beta."""
    exponent = params.exponent
    for i in range(count):
        power = vecmath.exp(exponent * vecmath.log(load_f32(base, i)))
        store_f32(result, i, load_f32(x, i) * power)


@native_function(POWER_CALL)
def _multiply_by_half(params, x, base, result, count):
    """Beta 1/2, by fast reciprocal square roots."""
    for i in range(count):
        store_f32(result, i, load_f32(x, i) * (_ONE / np.sqrt(load_f32(base, i))))


@native_function(POWER_CALL)
def _multiply_by_three_quarters(params, x, base, result, count):
    """Beta 3/4, by fast reciprocal square roots."""
    for i in range(count):
        root = np.sqrt(load_f32(base, i))
        store_f32(result, i, load_f32(x, i) * (_ONE / (root * np.sqrt(root))))


@native_function(POWER_CALL)
def _divide(params, x, base, result, count):
    """Beta 1, by fast reciprocals."""
    for i in range(count):
        store_f32(result, i, load_f32(x, i) / load_f32(base, i))


def power_task(beta: float) -> Task:
    """Return the native function that computes x * base**-beta, a `POWER_CALL`."""
    quick = {0.5: _multiply_by_half, 0.75: _multiply_by_three_quarters, 1.0: _divide}
    task: Task = quick.get(beta, _multiply_by_power)
    return task


@device
def _multiply(params, x, base, result, count, are_moderate):
    """result = x * base**-beta for any bases."""
    if are_moderate:
        POWER_CALL.call(params.power, params=params, x=x, base=base, result=result, count=count)
    else:
        WIDE_CALL.call(
            params.wide, base=base, x=x, y=0, factor=_ONE, exponent=params.exponent, result=result,
            count=count,
        )  # fmt: skip


# -- terms and results -----------------------------------------------------------------------------


@native_function(TERMS_CALL, fastmath=_ORDERED)
def squares(params, src, diff, base, own, terms, count):
    """Compute the forward terms."""
    scale = params.scale
    for i in range(count):
        scaled = scale * load_f32(src, i)
        store_f32(terms, i, scaled * load_f32(src, i))


@native_function(TERMS_CALL, fastmath=_ORDERED | {"arcp"})
def products(params, src, diff, base, own, terms, count):
    """Compute the backward terms, and `own`."""
    are_moderate = _are_moderate(params, base, count)
    _multiply(params, diff, base, own, count, are_moderate)
    if are_moderate:
        unit = params.unit
        for i in range(count):
            quotient = unit * load_f32(src, i) / load_f32(base, i)
            store_f32(terms, i, load_f32(own, i) * quotient)
    else:
        WIDE_CALL.call(
            params.wide, base=base, x=diff, y=src, factor=params.unit,
            exponent=params.next_exponent, result=terms, count=count,
        )  # fmt: skip


@native_function(TERMS_CALL)
def only_own(params, src, diff, base, own, terms, count):
    """Compute only `own` of backward, without terms."""
    _multiply(params, diff, base, own, count, _are_moderate(params, base, count))


@native_function(RESULTS_CALL)
def finish_forward(params, src, base, own, total, count):
    """Replace sums by dst in place, and write bases."""
    k, low, bits = params.k, params.low, np.int32(0)
    for i in range(count):
        x = k + load_f32(total, i)
        store_f32(base, i, x)
        bits = np.int32(bits | _distance(x, low))
    _multiply(params, src, base, total, count, bits & params.outside == 0)


@native_function(RESULTS_CALL, fastmath=_ORDERED)
def finish_backward(params, src, base, own, total, count):
    """Replace sums by diff_src in place."""
    factor = params.factor
    for i in range(count):
        shared = factor * load_f32(src, i) * load_f32(total, i)
        store_f32(total, i, load_f32(own, i) - shared)


# -- window sums -----------------------------------------------------------------------------------


@device
def sum_5(a, b, c, d, e, total, count):
    """total = the sum of five buffers."""
    for i in range(count):
        sides = load_f32(a, i) + load_f32(b, i) + load_f32(d, i) + load_f32(e, i)
        store_f32(total, i, sides + load_f32(c, i))


@device
def sum_ring(terms, rows, count, middle, reach, length, total):
    """total = the sum of the existing rows of a window around the middle row."""
    low = middle - reach if middle > reach else 0
    high = middle + reach + 1 if middle + reach < length else length
    if high - low == 5:
        row = 4 * count
        a, b = terms + row * (low % rows), terms + row * ((low + 1) % rows)
        c, d = terms + row * ((low + 2) % rows), terms + row * ((low + 3) % rows)
        sum_5(a, b, c, d, terms + row * ((low + 4) % rows), total, count)
        return
    fill(total, _ZERO, count)
    for place in range(low, high):
        add(terms + 4 * count * (place % rows), total, count)


@device
def add(x, total, count):
    """total += x."""
    for i in range(count):
        store_f32(total, i, load_f32(total, i) + load_f32(x, i))


@device
def fill(x, value, count):
    """Set all elements of x to a value."""
    for i in range(count):
        store_f32(x, i, value)
