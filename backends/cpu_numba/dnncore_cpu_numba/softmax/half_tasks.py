"""The native loops of softmax for vectors of one half type, see `softmax/implementations.py`.

Elements are converted when they are used, two at a time. For bf16, the two are the halves of a
word, which needs fewer instructions than widening neighbours. For f16, they are half a vector
apart.
"""

# ruff: noqa: ARG005 - functions of a kind have the same parameters

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import prefetch, scaled, stream_row
from dnncore_cpu_numba.codegen.pointers import (
    LOADS_AS_F32,
    STORES_FROM_F32,
    load_f32,
    load_high_bf16,
    load_i32,
    load_low_bf16,
    load_s8,
    stack,
    store_f32,
    store_i8,
    store_i32,
    store_pair_bf16,
)
from dnncore_cpu_numba.codegen.task import Task, device, exact, task
from dnncore_cpu_numba.softmax.tasks import (
    BACKWARD,
    BACKWARD_TENSORS,
    FORWARD,
    FORWARD_TENSORS,
    key,
    of_key,
)

SHORTEST, LONGEST = 256, 1 << 13  # elements of vectors
_PIECE = 1024  # elements of a gradient that are computed before they are stored
_E_ROOM, _ROW_ROOM, _PIECE_ROOM = LONGEST // 2, LONGEST // 4, _PIECE // 4  # sizes in int64
_LOWEST_KEY = np.int32(-0x7F800001)
_ZERO, _ONE = np.float32(0), np.float32(1)


@dataclass(frozen=True)
class _Access:
    """Functions that load and store two elements, by an address, an index and half the length."""

    first: Callable[..., Any]
    second: Callable[..., Any]
    store: Callable[..., Any]


def _access(kind: str) -> _Access:
    if kind == "bf16":
        return _Access(
            exact(lambda x, i, half: load_low_bf16(x, i)),
            exact(lambda x, i, half: load_high_bf16(x, i)),
            exact(lambda y, i, half, a, b: store_pair_bf16(y, i, a, b)),
        )
    load, put = LOADS_AS_F32[kind], STORES_FROM_F32[kind]

    def store(y, i, half, a, b):
        put(y, i, a)
        put(y, half + i, b)

    return _Access(
        exact(lambda x, i, half: load(x, i)),
        exact(lambda x, i, half: load(x, half + i)),
        exact(store),
    )


@device
def _copy(x, y, count, streamed):
    """Copy elements of two bytes. streamed: use non-temporal stores for whole lines of y."""
    words = count // 2
    if streamed and y % 4 == 0:
        stream_row(x, y, words)
    else:
        for i in range(words):
            store_i32(y, i, load_i32(x, i))
    for i in range(4 * words, 2 * count):
        store_i8(y, i, load_s8(x, i))


@device
def _forget(e, i, value):
    """Do nothing, in place of `store_f32`."""


def _forward(kind: str) -> Task:
    access = _access(kind)
    first, second, store = access.first, access.second, access.store
    load, put = LOADS_AS_F32[kind], STORES_FROM_F32[kind]

    @device
    def largest(x, half, length):
        """Return the largest element; any value if there is a NaN."""
        top = _LOWEST_KEY
        for i in range(half):
            top = max(top, key(first(x, i, half)), key(second(x, i, half)))
        if length % 2:
            top = max(top, key(load(x, length - 1)))
        return of_key(top)

    def sum_of_decays(keep):
        def total_of(x, top, e, half, length):
            total = _ZERO
            for i in range(half):
                a = vecmath.decay(first(x, i, half) - top)
                b = vecmath.decay(second(x, i, half) - top)
                keep(e, i, a)
                keep(e, half + i, b)
                total += a + b
            if length % 2:
                last = vecmath.decay(load(x, length - 1) - top)
                keep(e, length - 1, last)
                total += last
            return total

        return device(total_of)

    # Functions that return the sum of e**(x - top), and store the terms in `e` or not.
    stored, forgotten = sum_of_decays(store_f32), sum_of_decays(_forget)

    def forward(params, begin, end):
        nest, length, log, keeps = params.nest, params.length, params.log, params.keeps
        streamed, half = params.streamed != 0, params.length // 2
        position, tensors = stack(MAX_LOOPS), FORWARD_TENSORS.room()
        e, row = stack(_E_ROOM), stack(_ROW_ROOM)
        seek(nest, begin, position, params.starts, tensors, 1)
        for _ in range(begin, end):
            src = tensors.src
            if streamed:
                prefetch(src + 2 * length, 2 * length)
            top = largest(src, half, length)
            rest = _ZERO
            if log:
                rest = vecmath.log(forgotten(src, top, e, half, length))
                for i in range(half):
                    a = scaled(first(src, i, half), top, _ONE, rest)
                    b = scaled(second(src, i, half), top, _ONE, rest)
                    store(row, i, half, a, b)
                if length % 2:
                    put(row, length - 1, scaled(load(src, length - 1), top, _ONE, rest))
            else:
                total = stored(src, top, e, half, length)
                factor = _ONE / total
                if keeps:
                    rest = vecmath.log(total)
                for i in range(half):
                    a, b = load_f32(e, i) * factor, load_f32(e, half + i) * factor
                    store(row, i, half, a, b)
                if length % 2:
                    put(row, length - 1, load_f32(e, length - 1) * factor)
            if keeps:
                store_f32(tensors.lse, 0, top + rest)
            _copy(row, tensors.dst, length, streamed)
            advance(nest, position, tensors, 1)

    forward.__name__ = f"forward_{kind}"
    return task(FORWARD)(forward)


def _backward(kind: str) -> Task:
    access = _access(kind)
    first, second, store = access.first, access.second, access.store
    load, put = LOADS_AS_F32[kind], STORES_FROM_F32[kind]

    @device
    def sum_of(g, half, length):
        total = _ZERO
        for i in range(half):
            total += first(g, i, half) + second(g, i, half)
        return total + load(g, length - 1) if length % 2 else total

    @device
    def dot(g, y, half, length):
        total = _ZERO
        for i in range(half):
            total += first(g, i, half) * first(y, i, half)
            total += second(g, i, half) * second(y, i, half)
        if length % 2:
            total += load(g, length - 1) * load(y, length - 1)
        return total

    @device
    def of_log(y, g, total):
        return g - vecmath.exp(y) * total

    @device
    def plain(y, g, total):
        return y * (g - total)

    def gradient_of(formula):
        def gradient(y, g, total, x, count):
            half = count // 2
            for i in range(half):
                a = formula(first(y, i, half), first(g, i, half), total)
                b = formula(second(y, i, half), second(g, i, half), total)
                store(x, i, half, a, b)
            if count % 2:
                last = count - 1
                put(x, last, formula(load(y, last), load(g, last), total))

        return device(gradient)

    log_gradient, plain_gradient = gradient_of(of_log), gradient_of(plain)

    def backward(params, begin, end):
        nest, length, log = params.nest, params.length, params.log
        streamed, half = params.streamed != 0, params.length // 2
        position, tensors = stack(MAX_LOOPS), BACKWARD_TENSORS.room()
        x = stack(_PIECE_ROOM)
        seek(nest, begin, position, params.starts, tensors, 1)
        for _ in range(begin, end):
            diff_src, dst, diff_dst = tensors.diff_src, tensors.dst, tensors.diff_dst
            total = sum_of(diff_dst, half, length) if log else dot(diff_dst, dst, half, length)
            for start in range(0, length, _PIECE):
                count = min(_PIECE, length - start)
                y, g = dst + 2 * start, diff_dst + 2 * start
                if streamed:
                    prefetch(y + 2 * length, 2 * count)
                    prefetch(g + 2 * length, 2 * count)
                if log:
                    log_gradient(y, g, total, x, count)
                else:
                    plain_gradient(y, g, total, x, count)
                _copy(x, diff_src + 2 * start, count, streamed)
            advance(nest, position, tensors, 1)

    backward.__name__ = f"backward_{kind}"
    return task(BACKWARD)(backward)


FORWARD_OF = {kind: _forward(kind) for kind in ("f16", "bf16")}
BACKWARD_OF = {kind: _backward(kind) for kind in ("f16", "bf16")}
