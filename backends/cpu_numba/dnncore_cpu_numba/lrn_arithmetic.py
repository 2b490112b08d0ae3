"""The arithmetic of local response normalisation over buffers, and what its tasks are told.

A step produces a number for each element of src, sums these over a window along its axis, and
makes its results of the sums:

SQUARES     src**2                                  GIVE_SUMS       the sums themselves
PRODUCTS    diff_dst * src * base**(-beta - 1)      GIVE_FORWARD    base and dst
SUMS        the sums of an earlier step             GIVE_BACKWARD   diff_src

Buffers do not overlap.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba import vecmath
from dnncore_cpu_numba.pointers import load_f32, load_i64, store_f32
from dnncore_cpu_numba.task import device

__all__ = [
    "ADDRESSES",
    "BASE",
    "COLUMN",
    "COLUMNS",
    "DIFF",
    "EARLIER",
    "GIVE",
    "GIVE_BACKWARD",
    "GIVE_FORWARD",
    "GIVE_SUMS",
    "LENGTH",
    "NEST",
    "PIECE",
    "PLACES",
    "PRODUCE",
    "PRODUCTS",
    "REACH",
    "RESULT",
    "ROW_ADDRESSES",
    "ROW_FIELDS",
    "ROW_KERNEL",
    "ROW_STREAMED",
    "SQUARES",
    "SRC",
    "SUMS",
    "TENSORS",
    "add",
    "fill",
    "make_results",
    "make_terms",
    "power_mode",
    "sum_5",
    "sum_ring",
]

_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)

SQUARES, PRODUCTS, SUMS = range(3)
GIVE_SUMS, GIVE_FORWARD, GIVE_BACKWARD = range(3)
# How base**-beta is computed.
_BROKEN, _EVEN, _ODD, _NONE, _HALF, _THREE_QUARTERS, _WHOLE = range(7)

# The tensors of a step, and the slots of the parameters. An absent tensor has address 0.
TENSORS = RESULT, BASE, SRC, DIFF, EARLIER = range(5)
NEST, COLUMNS, LENGTH, REACH, PRODUCE, GIVE, POWER = range(7)
K, SCALE, BETA, FACTOR = range(7, 11)
COLUMN, PLACES, PIECE, ADDRESSES = range(11, 31, 5)
ROW_KERNEL, ROW_STREAMED, ROW_ADDRESSES, ROW_FIELDS = 1, 2, 3, 7  # of `rows`, behind the nest


def power_mode(beta: float) -> int:
    """Which of the ways to compute base**-beta is right."""
    exact = {0.0: _NONE, 0.5: _HALF, 0.75: _THREE_QUARTERS, 1.0: _WHOLE}
    return exact.get(beta, _BROKEN if beta % 1 else _ODD if beta % 2 else _EVEN)


@device
def make_terms(params, src, diff, base, powers, terms, count):
    """The numbers to be summed; for products the powers base**-beta are kept."""
    if load_i64(params, PRODUCE) == SQUARES:
        for i in range(count):
            store_f32(terms, i, load_f32(src, i) * load_f32(src, i))
        return
    _raise(params, base, powers, count)
    for i in range(count):
        scaled = load_f32(diff, i) * load_f32(powers, i)
        store_f32(terms, i, scaled * (load_f32(src, i) / load_f32(base, i)))


@device
def make_results(params, src, diff, base, powers, total, count):
    """Turn sums into the result, in place; forward also into bases."""
    give = load_i64(params, GIVE)
    if give == GIVE_FORWARD:
        k, scale = load_f32(params, 2 * K), load_f32(params, 2 * SCALE)
        for i in range(count):
            store_f32(base, i, k + scale * load_f32(total, i))
        _raise(params, base, total, count)
        for i in range(count):
            store_f32(total, i, load_f32(total, i) * load_f32(src, i))
    elif give == GIVE_BACKWARD:
        if load_i64(params, PRODUCE) != PRODUCTS:
            _raise(params, base, powers, count)
        factor = load_f32(params, 2 * FACTOR)
        for i in range(count):
            own = load_f32(diff, i) * load_f32(powers, i)
            store_f32(total, i, own - factor * load_f32(src, i) * load_f32(total, i))


@device
def _raise(params, base, powers, count):
    """base**-beta; quick reciprocal roots make NaN of an infinite base, which gives 0."""
    mode = load_i64(params, POWER)
    if mode == _THREE_QUARTERS:
        for i in range(count):
            x = load_f32(base, i)
            root = np.sqrt(x)
            power = _ONE / (root * np.sqrt(root))
            store_f32(powers, i, _ZERO if x == _INFINITY else power)
    elif mode == _HALF:
        for i in range(count):
            x = load_f32(base, i)
            store_f32(powers, i, _ZERO if x == _INFINITY else _ONE / np.sqrt(x))
    elif mode == _WHOLE:
        for i in range(count):
            store_f32(powers, i, _ONE / load_f32(base, i))
    elif mode == _NONE:
        fill(powers, _ONE, count)
    else:
        exponent = -load_f32(params, 2 * BETA)
        for i in range(count):
            x = load_f32(base, i)
            size = -x if x < _ZERO and mode != _BROKEN else x
            y = vecmath.exp(exponent * vecmath.log(size))
            store_f32(powers, i, -y if x < _ZERO and mode == _ODD else y)


@device
def sum_5(a, b, c, d, e, total, count):
    """total = the sum of five buffers."""
    for i in range(count):
        sides = load_f32(a, i) + load_f32(b, i) + load_f32(d, i) + load_f32(e, i)
        store_f32(total, i, sides + load_f32(c, i))


@device
def sum_ring(terms, rows, count, middle, reach, length, total):
    """The sums of the rows around the middle one that exist."""
    low, high = max(0, middle - reach), min(length, middle + reach + 1)
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
    """x = value everywhere."""
    for i in range(count):
        store_f32(x, i, value)
