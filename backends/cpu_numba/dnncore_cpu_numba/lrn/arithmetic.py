"""The arithmetic of local response normalisation over buffers: tasks that a step calls by address.

A step makes a term of each element, sums these over a window along its axis, and makes its results
of the sums. The terms include their factors, so that only what is itself out of range overflows.

squares          scale * src**2
products         unit * diff_dst * src * base**(-beta - 1); also own = diff_dst * base**-beta
only_own         own alone, where the sums of an earlier step are the terms
finish_forward   base = k + sum; dst = src * base**-beta
finish_backward  diff_src = own - factor / unit * src * sum

Quick powers are right for moderate bases, from 1 / limit to limit. A buffer with any other base,
NaN among them, is computed in float64. Buffers do not overlap.
"""

# ruff: noqa: ARG001 - tasks of one kind are called with the same arguments

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.pointers import (
    bits_to_f32,
    call,
    f32_to_bits,
    load_f32,
    load_i64,
    store_f32,
)
from dnncore_cpu_numba.codegen.task import Task, device, task
from dnncore_cpu_numba.runtime.program import F32, Param

__all__ = [
    "ADDRESSES",
    "BASE",
    "COLUMN",
    "COLUMNS",
    "DIFF",
    "EARLIER",
    "LENGTH",
    "MAKE_RESULTS",
    "MAKE_TERMS",
    "NEST",
    "PIECE",
    "PLACES",
    "POWER",
    "REACH",
    "READ",
    "RESULT",
    "SRC",
    "TENSORS",
    "WRITE",
    "Constants",
    "add",
    "fill",
    "finish_backward",
    "finish_forward",
    "only_own",
    "power_task",
    "products",
    "squares",
    "sum_5",
    "sum_ring",
    "wide_products",
]

_ZERO, _ONE = np.float32(0), np.float32(1)
_ONE_BITS = 0x3F800000
# Reassociated, scale * src * src might overflow where its value does not.
_ORDERED = {"contract", "nsz"}

# The tensors of a step, and the slots of the parameters. An absent tensor or task has address 0.
TENSORS = RESULT, BASE, SRC, DIFF, EARLIER = range(5)
NEST, COLUMNS, LENGTH, REACH, READ, WRITE, MAKE_TERMS, MAKE_RESULTS, POWER, WIDE = range(10)
_K, _SCALE, _EXPONENT, _NEXT_EXPONENT, _UNIT, _FACTOR, _LOW, _OUTSIDE = range(10, 18)
COLUMN, PLACES, PIECE, ADDRESSES = range(18, 38, 5)


class Constants:
    """The constants of an operation.

    exponent, next_exponent: -beta and -beta - 1. unit: a power of two near the size of scale * src
    where base is about 2 * k, so that neither products nor factor are far from 1. low: the bits of
    1 / limit; the bits of a moderate base less those have none of the bits of `outside`.
    """

    def __init__(self, op: Any) -> None:
        scale = op.alpha / op.divisor
        size = math.sqrt(abs(scale)) * math.sqrt(abs(op.k) or 1.0)
        unit = 2.0 ** max(-100, min(round(math.log2(size)), 100)) if size else 1.0
        self.k, self.scale, self.unit = F32(op.k), F32(scale), F32(unit)
        self.exponent, self.next_exponent = F32(-op.beta), F32(-op.beta - 1)
        self.factor = F32(2 * scale * op.beta / unit)
        # LLVM may compute base**1.5 on the way, which must not be out of range either.
        octaves = 64
        while octaves > 1 and octaves * max(1.5, abs(op.beta)) > 120:
            octaves //= 2
        self.low = (127 - octaves) << 23
        self.outside = -(2 * octaves << 23)

    def params(self) -> list[Param]:
        """The slots behind the tasks' addresses."""
        return [
            self.k, self.scale, self.exponent, self.next_exponent, self.unit, self.factor,
            self.low, self.outside,
        ]  # fmt: skip


@device
def _distance(x, low):
    """The bits of a base less those of the lowest moderate one."""
    return np.int32(f32_to_bits(x) - np.int32(low))


@device
def _are_moderate(params, base, count):
    """Whether all bases are."""
    low, bits = load_i64(params, _LOW), np.int32(0)
    for i in range(count):
        bits |= _distance(load_f32(base, i), low)
    return bits & load_i64(params, _OUTSIDE) == 0


@task(arity=7)
def wide_products(base, x, y, factor, exponent, result, count):
    """result = factor * x * y * base**exponent, rounded once; y may be absent.

    factor, exponent: the bits of float32.
    """
    for i in range(count):
        scale = np.float64(_float(factor)) * np.float64(load_f32(x, i))
        if y:
            scale *= np.float64(load_f32(y, i))
        store_f32(result, i, vecmath.power(load_f32(base, i), scale, _float(exponent)))


@device
def _float(bits):
    return bits_to_f32(np.int32(bits))


# -- x * base**-beta, of moderate bases ------------------------------------------------------------


@task(arity=5)
def _multiply_by_power(params, x, base, result, count):
    """Any beta."""
    exponent = load_f32(params, 2 * _EXPONENT)
    for i in range(count):
        power = vecmath.exp(exponent * vecmath.log(load_f32(base, i)))
        store_f32(result, i, load_f32(x, i) * power)


@task(arity=5)
def _multiply_by_half(params, x, base, result, count):
    """Beta 1/2, by quick reciprocal roots."""
    for i in range(count):
        store_f32(result, i, load_f32(x, i) * (_ONE / np.sqrt(load_f32(base, i))))


@task(arity=5)
def _multiply_by_three_quarters(params, x, base, result, count):
    """Beta 3/4, by quick reciprocal roots."""
    for i in range(count):
        root = np.sqrt(load_f32(base, i))
        store_f32(result, i, load_f32(x, i) * (_ONE / (root * np.sqrt(root))))


@task(arity=5)
def _divide(params, x, base, result, count):
    """Beta 1, by quick reciprocals."""
    for i in range(count):
        store_f32(result, i, load_f32(x, i) / load_f32(base, i))


def power_task(beta: float) -> Task:
    """The task (params, x, base, result, count) that computes x * base**-beta."""
    quick = {0.5: _multiply_by_half, 0.75: _multiply_by_three_quarters, 1.0: _divide}
    task: Task = quick.get(beta, _multiply_by_power)
    return task


@device
def _multiply(params, x, base, result, count, are_moderate):
    """The same, of any bases."""
    if are_moderate:
        call(load_i64(params, POWER), (params, x, base, result, count))
    else:
        exponent = load_i64(params, _EXPONENT)
        call(load_i64(params, WIDE), (base, x, 0, _ONE_BITS, exponent, result, count))


# -- terms and results -----------------------------------------------------------------------------


@task(arity=7, fastmath=_ORDERED)
def squares(params, src, diff, base, own, terms, count):
    """Terms of forward."""
    scale = load_f32(params, 2 * _SCALE)
    for i in range(count):
        scaled = scale * load_f32(src, i)
        store_f32(terms, i, scaled * load_f32(src, i))


@task(arity=7, fastmath=_ORDERED | {"arcp"})
def products(params, src, diff, base, own, terms, count):
    """Terms of backward, and own."""
    are_moderate = _are_moderate(params, base, count)
    _multiply(params, diff, base, own, count, are_moderate)
    if are_moderate:
        unit = load_f32(params, 2 * _UNIT)
        for i in range(count):
            quotient = unit * load_f32(src, i) / load_f32(base, i)
            store_f32(terms, i, load_f32(own, i) * quotient)
    else:
        unit_bits, exponent = load_i64(params, _UNIT), load_i64(params, _NEXT_EXPONENT)
        call(load_i64(params, WIDE), (base, diff, src, unit_bits, exponent, terms, count))


@task(arity=7)
def only_own(params, src, diff, base, own, terms, count):
    """Backward's own."""
    _multiply(params, diff, base, own, count, _are_moderate(params, base, count))


@task(arity=6)
def finish_forward(params, src, base, own, total, count):
    """Turn sums into dst, in place, and write bases."""
    k, low, bits = load_f32(params, 2 * _K), load_i64(params, _LOW), np.int32(0)
    for i in range(count):
        x = k + load_f32(total, i)
        store_f32(base, i, x)
        bits |= _distance(x, low)
    _multiply(params, src, base, total, count, bits & load_i64(params, _OUTSIDE) == 0)


@task(arity=6, fastmath=_ORDERED)
def finish_backward(params, src, base, own, total, count):
    """Turn sums into diff_src, in place."""
    factor = load_f32(params, 2 * _FACTOR)
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
    """The sums of the rows around the middle one that exist."""
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
    """x = value everywhere."""
    for i in range(count):
        store_f32(x, i, value)
