"""Chains of element-wise stages, run tile by tile, so that no code is compiled per chain.

A stage is `STAGE` int64: the address of a native function (`elementwise/algorithms.py`), alpha,
beta (float32 bits), the numbers of its operand and of its condition or -1, and the address of the
function's twin that streams its results or 0. The function is `void stage(stage, x, operand,
condition, y, length)`: y = f(x, operand, condition) for contiguous float32, where y may be one of
the others. A chain runs over a tile of at most `TILE_LENGTH` elements, one pass per stage, in the
first-level cache.

A tile is `rows` rows of `columns` elements. Its tensors are dst, then src, then the operands, each
as `TENSOR` int64: the address of the first element, the distance in elements from one column to the
next and from one row to the next, where 0 repeats, and the address of the function that reads a
tile of it. Post-ops are stages: `sum` adds dst itself, which only the last stage overwrites.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dnncore.backend import PostOp, Refused
from dnncore_cpu_numba.codegen.nontemporal import LINE, stream
from dnncore_cpu_numba.codegen.pointers import (
    call,
    load_i32,
    load_i64,
    load_s8,
    stack,
    store_f32,
    store_i32,
    store_i64,
)
from dnncore_cpu_numba.codegen.task import Task, device, task
from dnncore_cpu_numba.elementwise import algorithms

__all__ = [
    "ROOM",
    "STAGE",
    "TENSOR",
    "TILE_LENGTH",
    "Stage",
    "UnknownAlgorithm",
    "add",
    "apply_stages",
    "binary",
    "copy_tile",
    "eltwise",
    "forget",
    "gradient",
    "reader",
    "refuse_unknown",
    "stages_of",
]

STAGE = 6  # int64 of one stage
TENSOR = 4  # int64 of one tensor
TILE_LENGTH = 2048  # elements: src, dst and two buffers of 8 KB each are about a first-level cache
DST = 0
_BUFFER = TILE_LENGTH // 2  # int64
_NOTHING = -1  # in place of a tensor's number
_HELD = 8  # int64: which tiles the buffers of operand and condition hold; a cache line
ROOM = _HELD + 3 * _BUFFER


class UnknownAlgorithm(LookupError):
    """An algorithm that this backend has no stage for."""


@dataclass(frozen=True)
class Stage:
    """One step of a chain; operand and condition are numbers of tensors."""

    task: Task
    alpha: float = 0.0
    beta: float = 0.0
    operand: int = -1
    condition: int = -1

    @property
    def cost(self) -> float:
        """Its time over that of reading and writing memory, beside which it runs; measured."""
        return algorithms.COSTS.get(self.task, 0.0)

    def row(self, *, streamed: bool = False) -> list[int]:
        """What a chain holds for the stage, whose function is compiled now.

        streamed: with the function's twin.
        """
        bits = (_bits(self.alpha), _bits(self.beta))
        twin = algorithms.STREAMED[self.task].address if streamed else 0
        return [self.task.address, *bits, self.operand, self.condition, twin]


def eltwise(algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> Stage:
    """x = algorithm(x). Raises `UnknownAlgorithm`, as all that name one."""
    if algorithm == "relu" and alpha == 0.0:
        algorithm = "relu_0"
    if algorithm == "pow" and beta in algorithms.POWERS:
        return Stage(algorithms.POWERS[beta], alpha)
    return Stage(_task(algorithms.ELTWISE, algorithm), alpha, beta)


def gradient(algorithm: str, alpha: float, beta: float, operand: int, *, of_dst: bool) -> Stage:
    """x = operand * the derivative of the algorithm at x, or where its value is x."""
    if algorithm == "pow" and beta != 0.0 and beta - 1.0 in algorithms.POWER_GRADIENTS:
        return Stage(algorithms.POWER_GRADIENTS[beta - 1.0], alpha * beta, operand=operand)
    table = algorithms.SLOPES_OF_DST if of_dst else algorithms.SLOPES
    return Stage(_task(table, algorithm), alpha, beta, operand)


def add(operand: int, scale: float = 1.0, of_x: float = 1.0) -> Stage:
    """x = of_x * x + scale * operand."""
    return Stage(algorithms.ADD_SCALED, scale, of_x, operand)


def binary(algorithm: str, operand: int) -> Stage:
    """x = algorithm(x, operand), and for `select` the condition after it."""
    if algorithm == "select":
        return Stage(algorithms.SELECT, operand=operand, condition=operand + 1)
    return Stage(_task(algorithms.BINARY, algorithm), operand=operand)


def stages_of(post_ops: Iterable[PostOp], first: int) -> list[Stage]:
    """The stages of a post-op chain whose operands are tensors `first`, `first` + 1, ..."""
    stages = []
    for post_op in post_ops:
        stages.append(_stage_of(post_op, first))
        first += len(post_op.operands)
    return stages


def _stage_of(post_op: PostOp, operand: int) -> Stage:
    match post_op.kind:
        case "eltwise":
            return eltwise(post_op.algorithm, post_op.alpha, post_op.beta)
        case "sum":
            return add(DST, post_op.scale)
        case "binary":
            return binary(post_op.algorithm, operand)
        case "prelu":
            return Stage(algorithms.PRELU, operand=operand)
        case kind:
            raise UnknownAlgorithm(f"has no post-op {kind!r}")


def refuse_unknown(post_ops: Iterable[PostOp]) -> Refused | None:
    """Refuse a chain in which a step or an algorithm is not known."""
    try:
        stages_of(post_ops, 0)
    except UnknownAlgorithm as error:
        return Refused("attribute", str(error))
    return None


def _task(table: Mapping[str, Task], algorithm: str) -> Task:
    if algorithm not in table:
        raise UnknownAlgorithm(f"has no algorithm {algorithm!r}")
    return table[algorithm]


def _bits(value: float) -> int:
    return int(np.array(value, np.float32).view(np.uint32))


@task(arity=8)
def apply_stages(chain, count, copy, tensors, rows, columns, streamed, room):
    """Run `count` stages over one tile; see the head of this file.

    copy: address of `copy_tile`. streamed: whether dst is written past the caches if it can. room:
    `ROOM` int64 that a task keeps from tile to tile; `forget` makes them ready.
    """
    length = rows * columns
    tile, aside = room + 8 * _HELD, room + 8 * (_HELD + _BUFFER)
    chosen = room + 8 * (_HELD + 2 * _BUFFER)
    contiguous = _is_contiguous(tensors, rows, columns)
    dst = load_i64(tensors, 0) if contiguous else tile
    streamed = streamed != 0 and contiguous and dst % LINE == 0 and length % (LINE // 4) == 0
    if count == 0 and not streamed:
        call(load_i64(tensors, TENSOR + 3), (tensors + 8 * TENSOR, tensors, rows, columns))
        return
    x = _gathered(copy, tensors, 1, tile, 0, rows, columns)
    if count == 0:
        stream(x, dst, length)
        return
    for i in range(count):
        stage = chain + 8 * STAGE * i
        last = i == count - 1
        operand = _gathered(copy, tensors, load_i64(stage, 3), aside, room, rows, columns)
        condition = _gathered(copy, tensors, load_i64(stage, 4), chosen, room + 16, rows, columns)
        # What is read and written in place is in the cache already.
        twin = last and streamed and x != dst and operand != dst and condition != dst
        function = load_i64(stage, 5 if twin else 0)
        call(function, (stage, x, operand, condition, dst if last else tile, length))
        x = tile
    if dst == tile:
        source = stack(TENSOR)
        _describe(source, tile, columns)
        call(copy, (source, tensors, rows, columns))


@device
def forget(room):
    """Make the room of `apply_stages` ready: nothing is held."""
    store_i64(room, 0, _NOTHING)
    store_i64(room, 2, _NOTHING)


@device
def _gathered(copy, tensors, number, buffer, held, rows, columns):
    """The address of a tensor's tile: where it is if it is contiguous, else a copy in `buffer`.

    held: the number and address of the tensor that the buffer holds a tile of, which may be the
    one that is asked for; 0 where it is overwritten.
    """
    if number < 0:
        return buffer
    tensor = tensors + 8 * TENSOR * number
    start, read = load_i64(tensor, 0), load_i64(tensor, 3)
    if read == copy and _is_contiguous(tensor, rows, columns):
        return start
    if held != 0:
        if load_i64(held, 0) == number and load_i64(held, 1) == start:
            return buffer
        store_i64(held, 0, number)
        store_i64(held, 1, start)
    target = stack(TENSOR)
    _describe(target, buffer, columns)
    call(read, (tensor, target, rows, columns))
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
    if x_row == 0 and x_column == 1 and y_column == 1 and y_row == columns:
        _repeat_row(x, y, rows, columns)
        return
    for row in range(rows):
        from_, to = x + 4 * x_row * row, y + 4 * y_row * row
        if x_column == 1 and y_column == 1:
            for i in range(columns):
                store_i32(to, i, load_i32(from_, i))
        elif x_column == 0 and y_column == 1:
            value = load_i32(from_, 0)
            for i in range(columns):
                store_i32(to, i, value)
        else:
            for i in range(columns):
                store_i32(to, i * y_column, load_i32(from_, i * x_column))


@device
def _repeat_row(x, y, rows, columns):
    """Copy a row into neighbouring ones, twice as many at a time."""
    for i in range(columns):
        store_i32(y, i, load_i32(x, i))
    done, length = columns, rows * columns
    while done < length:
        for i in range(min(done, length - done)):
            store_i32(y + 4 * done, i, load_i32(y, i))
        done *= 2


@task(arity=4)
def widen_tile(source, target, rows, columns):
    """Copy a tile of s8 to one of f32."""
    x, x_column, x_row = load_i64(source, 0), load_i64(source, 1), load_i64(source, 2)
    y, y_column, y_row = load_i64(target, 0), load_i64(target, 1), load_i64(target, 2)
    for row in range(rows):
        from_, to = x + x_row * row, y + 4 * y_row * row
        if x_column == 1 and y_column == 1:
            for i in range(columns):
                store_f32(to, i, np.float32(np.int32(load_s8(from_, i))))
        else:
            for i in range(columns):
                value = np.float32(np.int32(load_s8(from_, i * x_column)))
                store_f32(to, i * y_column, value)


def reader(itemsize: int) -> Task:
    """The function that reads a tile of a tensor into another of four-byte elements."""
    return {1: widen_tile, 4: copy_tile}[itemsize]
