"""Chains of element-wise stages, run tile by tile, so that no code is compiled per chain.

A stage is `STAGE` int64: the address of a native function, alpha, beta (float32 bits), the number
of its operand or -1. The function is `void stage(stage, x, operand, y, length)`: y = f(x, operand)
for contiguous float32, where y may be one of the others. A chain runs over a tile of at most
`TILE_LENGTH` elements, one pass per stage, in the first-level cache.

A tile is `rows` rows of `columns` elements. Its tensors are dst, then src, then the operands, each
as `TENSOR` int64: the address of the first element, the distance in elements from one column to the
next and from one row to the next; 0 repeats. Post-ops are stages: `sum` adds dst itself, which only
the last stage overwrites.
"""

# ruff: noqa: ARG001 - stages of a kind have the same parameters

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dnncore.backend import PostOp
from dnncore_cpu_numba import vecmath
from dnncore_cpu_numba.pointers import (
    call,
    load_f32,
    load_i32,
    load_i64,
    stack,
    store_f32,
    store_i32,
    store_i64,
)
from dnncore_cpu_numba.streaming import LINE, stream
from dnncore_cpu_numba.task import Task, device, task

__all__ = [
    "STAGE",
    "TENSOR",
    "TILE_LENGTH",
    "Stage",
    "add",
    "apply_stages",
    "binary",
    "copy_tile",
    "eltwise",
    "slope",
    "stages_of",
]

STAGE = 4  # int64 of one stage
TENSOR = 3  # int64 of one tensor
TILE_LENGTH = 2048  # elements: src, dst and two buffers of 8 KB each are about a first-level cache
DST = 0
_BUFFER = TILE_LENGTH // 2  # int64
_ZERO, _ONE = np.float32(0), np.float32(1)

Stage = tuple[int, int, int, int]


def eltwise(algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> Stage:
    """x = algorithm(x)."""
    table = {"relu": _leaky if alpha else _relu, "tanh": _tanh, "logistic": _logistic,
             "linear": _linear}  # fmt: skip
    return table[algorithm].address, _bits(alpha), _bits(beta), -1


def slope(algorithm: str, alpha: float = 0.0) -> Stage:
    """x = the derivative of the algorithm at x."""
    table = {"relu": _step, "tanh": _tanh_slope, "logistic": _logistic_slope, "linear": _constant}
    return table[algorithm].address, _bits(alpha), 0, -1


def add(operand: int, scale: float = 1.0) -> Stage:
    """x = x + scale * operand."""
    return _add.address, _bits(scale), 0, operand


def binary(algorithm: str, operand: int) -> Stage:
    """x = algorithm(x, operand)."""
    return add(operand) if algorithm == "add" else (_multiply.address, 0, 0, operand)


def stages_of(post_ops: Iterable[PostOp], first: int) -> list[Stage]:
    """The stages of a post-op chain whose binary operands are tensors `first`, `first` + 1, ..."""
    stages = []
    for post_op in post_ops:
        if post_op.kind == "eltwise":
            stages.append(eltwise(post_op.algorithm, post_op.alpha, post_op.beta))
        elif post_op.kind == "sum":
            stages.append(add(DST, post_op.scale))
        else:
            stages.append(binary(post_op.algorithm, first))
            first += 1
    return stages


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


@device
def apply_stages(chain, count, copy, tensors, rows, columns, streamed):
    """Run `count` stages over one tile; see the head of this file.

    copy: address of `copy_tile`. streamed: write dst past the caches where it allows it.
    """
    length = rows * columns
    tile, aside = stack(_BUFFER), stack(_BUFFER)
    contiguous = _is_contiguous(tensors, rows, columns)
    streamed = streamed and contiguous and length % (LINE // 4) == 0
    streamed = streamed and load_i64(tensors, 0) % LINE == 0
    if count == 0 and not streamed:
        call(copy, (tensors + 8 * TENSOR, tensors, rows, columns))
        return
    x = _gathered(copy, tensors + 8 * TENSOR, tile, rows, columns)
    dst = load_i64(tensors, 0) if contiguous and not streamed else tile
    for i in range(count):
        stage = chain + 8 * STAGE * i
        y = dst if i == count - 1 else tile
        operand, number = x, load_i64(stage, 3)
        if number >= 0:
            operand = _gathered(copy, tensors + 8 * TENSOR * number, aside, rows, columns)
        call(load_i64(stage, 0), (stage, x, operand, y, length))
        x = y
    if streamed:
        stream(x, load_i64(tensors, 0), length)
    elif dst == tile:
        source = stack(TENSOR)
        _describe(source, tile, columns)
        call(copy, (source, tensors, rows, columns))


@device
def _gathered(copy, tensor, buffer, rows, columns):
    """The address of a tensor's tile: where it is if it is contiguous, else a copy in `buffer`."""
    if _is_contiguous(tensor, rows, columns):
        return load_i64(tensor, 0)
    target = stack(TENSOR)
    _describe(target, buffer, columns)
    call(copy, (tensor, target, rows, columns))
    return buffer


@device
def _is_contiguous(tensor, rows, columns):
    return load_i64(tensor, 1) == 1 and (rows == 1 or load_i64(tensor, 2) == columns)


@device
def _describe(tensor, address, columns):
    """Write down a contiguous tile."""
    store_i64(tensor, 0, address)
    store_i64(tensor, 1, 1)
    store_i64(tensor, 2, columns)


@task(arity=4)
def copy_tile(source, target, rows, columns):
    """Copy a tile of four-byte elements from one tensor to another; they do not overlap."""
    x, x_column, x_row = load_i64(source, 0), load_i64(source, 1), load_i64(source, 2)
    y, y_column, y_row = load_i64(target, 0), load_i64(target, 1), load_i64(target, 2)
    for row in range(rows):
        from_, to = x + 4 * x_row * row, y + 4 * y_row * row
        if x_column == 1 and y_column == 1:
            for i in range(columns):
                store_i32(to, i, load_i32(from_, i))
        else:
            for i in range(columns):
                store_i32(to, i * y_column, load_i32(from_, i * x_column))


def _map(function: Callable[..., Any]) -> Task:
    """The stage y = function(x, alpha, beta)."""
    each = device(function)

    def stage(stage, x, operand, y, length):
        alpha, beta = load_f32(stage, 2), load_f32(stage, 4)
        if x == y:  # LLVM has to know, or it makes a scalar loop
            for i in range(length):
                store_f32(y, i, each(load_f32(y, i), alpha, beta))
        else:
            for i in range(length):
                store_f32(y, i, each(load_f32(x, i), alpha, beta))

    stage.__name__ = function.__name__
    return task(stage, arity=5)


def _zip(function: Callable[..., Any]) -> Task:
    """The stage y = function(x, operand, alpha)."""
    each = device(function)

    def stage(stage, x, operand, y, length):
        alpha = load_f32(stage, 2)
        if x == y:
            for i in range(length):
                store_f32(y, i, each(load_f32(y, i), load_f32(operand, i), alpha))
        elif operand == y:
            for i in range(length):
                store_f32(y, i, each(load_f32(x, i), load_f32(y, i), alpha))
        else:
            for i in range(length):
                store_f32(y, i, each(load_f32(x, i), load_f32(operand, i), alpha))

    stage.__name__ = function.__name__
    return task(stage, arity=5)


@_map
def _relu(x, alpha, beta):
    return _ZERO if x <= _ZERO else x  # NaN stays


@_map
def _leaky(x, alpha, beta):
    return x if x > _ZERO else x * alpha


@_map
def _tanh(x, alpha, beta):
    return vecmath.tanh(x)


@_map
def _logistic(x, alpha, beta):
    return vecmath.logistic(x)


@_map
def _linear(x, alpha, beta):
    return alpha * x + beta


@_map
def _step(x, alpha, beta):
    return _ONE if x > _ZERO else alpha


@_map
def _tanh_slope(x, alpha, beta):
    return vecmath.tanh_slope(x)


@_map
def _logistic_slope(x, alpha, beta):
    return vecmath.logistic_slope(x)


@_map
def _constant(x, alpha, beta):
    return alpha


@_zip
def _add(x, operand, alpha):
    return x + alpha * operand


@_zip
def _multiply(x, operand, alpha):
    return x * operand
