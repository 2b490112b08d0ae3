"""Copies that transpose: neighbours in src are far apart in dst and the other way round.

A tile is a matrix: dst[a] and src[j] are contiguous along its two sides, and tables tell where
src's row a and dst's column j begin. Blocks of 16 x 16 four-byte elements are read as 16 vectors,
transposed in registers and written as 16 vectors, so that whole cache lines are read and written.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dnncore_cpu_numba.nest import MAX_LOOPS, Loop, Nest, advance, seek
from dnncore_cpu_numba.plan import moved
from dnncore_cpu_numba.pointers import load_i32, load_i64, stack, store_i32
from dnncore_cpu_numba.program import Arg, Scratch, Step, Table
from dnncore_cpu_numba.task import task

__all__ = ["transpose_steps"]

BLOCK = 16
SIDE = 256  # elements of a tile's side at most: 256 KB, within a second-level cache
DST, SRC = 0, 1
_GRAIN = 4096  # elements of a part at least
_LANES = ir.VectorType(ir.IntType(32), BLOCK)
_I64 = ir.IntType(64)


def transpose_steps(nest: Nest, addresses: Sequence[Arg | Scratch]) -> list[Step] | None:
    """The steps of dst = src for four-byte elements; None where no tile is worth the trouble.

    nest: over (dst, src), as `Nest.ordered` gives it. addresses: of the two tensors.
    """
    steps = []
    for part in _tiled(nest):
        a = _chain(part.loops, DST, SRC)
        j = _chain([loop for loop in part.loops if loop not in a], SRC, DST)
        sizes = [math.prod(loop.extent for loop in chain) for chain in (a, j)]
        if min(sizes) < BLOCK // 2:
            return None
        outer = Nest(part.offsets, tuple(loop for loop in part.loops if loop not in (*a, *j)))
        params = [
            Table(outer.table((4, 4))),
            *sizes,
            Table(_places(a, SRC)),
            Table(_places(j, DST)),
        ]
        params += [moved(x, 4 * o) for x, o in zip(addresses, part.offsets, strict=True)]
        grain = -(-_GRAIN // math.prod(sizes))
        steps.append(Step(_transpose, params, outer.size, grain=grain))
    return steps or None


def _tiled(nest: Nest) -> Iterator[Nest]:
    """Cut the loops along which dst or src is contiguous to the side of a tile."""
    for tensor in (DST, SRC):
        place = _contiguous(nest.loops, tensor)
        if place is None:
            return
    for part in nest.split(_contiguous(nest.loops, DST), SIDE):
        yield from part.split(_contiguous(part.loops, SRC), SIDE)


def _contiguous(loops: Sequence[Loop], tensor: int) -> int | None:
    """The place of the loop with stride 1 in one tensor only."""
    for place, loop in enumerate(loops):
        if loop.strides[tensor] == 1 and loop.strides[1 - tensor] != 1:
            return place
    return None


def _chain(loops: Sequence[Loop], tensor: int, other: int) -> list[Loop]:
    """The contiguous loop of a tensor, and those it goes on with until blocks are whole.

    Outermost first; a loop in which the other tensor is contiguous is left to that one.
    """
    chain = [loops[_contiguous(loops, tensor)]]
    size = chain[0].extent
    while size % BLOCK:
        following = [
            loop
            for loop in loops
            if loop.strides[tensor] == size
            and loop.strides[other] != 1
            and loop not in chain
            and size * loop.extent <= 4 * SIDE
        ]
        if not following:
            break
        chain.insert(0, following[0])
        size *= following[0].extent
    return chain


def _places(chain: Sequence[Loop], tensor: int) -> np.ndarray:
    """Where each step of a chain begins in the other tensor, in bytes."""
    steps = itertools.product(*(range(loop.extent) for loop in chain))
    strides = [4 * loop.strides[tensor] for loop in chain]
    return np.array([sum(map(int.__mul__, step, strides)) for step in steps], np.int64)


@task
def _transpose(params, begin, end):
    """Copy tiles: dst[a + columns[j]] = src[rows[a] + j]."""
    table, count_a, count_j = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    rows, columns = load_i64(params, 3), load_i64(params, 4)
    whole_a, whole_j = count_a // BLOCK * BLOCK, count_j // BLOCK * BLOCK
    position, tensors = stack(MAX_LOOPS), stack(2)
    seek(table, begin, position, params + 8 * 5, tensors, 1)
    for _ in range(begin, end):
        dst, src = load_i64(tensors, 0), load_i64(tensors, 1)
        for j in range(0, whole_j, BLOCK):
            for a in range(0, whole_a, BLOCK):
                _transpose_block(src + 4 * j, rows + 8 * a, dst + 4 * a, columns + 8 * j)
        for j in range(count_j):
            column = dst + load_i64(columns, j)
            for a in range(whole_a if j < whole_j else 0, count_a):
                store_i32(column, a, load_i32(src + load_i64(rows, a), j))
        advance(table, position, tensors, 1)


@intrinsic
def _transpose_block(typingctx, src, rows, dst, columns):
    """Transpose one block; `rows` and `columns` are addresses of 16 offsets in bytes each."""

    def codegen(context, builder, signature, args):
        src, rows, dst, columns = args

        def place(base, offsets, k):
            table = builder.inttoptr(offsets, _I64.as_pointer())
            offset = builder.load(builder.gep(table, [_I64(k)]))
            return builder.inttoptr(builder.add(base, offset), _LANES.as_pointer())

        vectors = [builder.load(place(src, rows, k), align=4) for k in range(BLOCK)]
        for vector, k in zip(_transposed(builder, vectors), range(BLOCK), strict=True):
            builder.store(vector, place(dst, columns, k), align=4)

    return types.void(*[types.int64] * 4), codegen


def _transposed(builder, vectors):
    """Swap the off-diagonal quarters of ever smaller blocks (J. O. Eklundh 1972)."""
    half = BLOCK // 2
    while half:
        upper = [i if i & half == 0 else i - half + BLOCK for i in range(BLOCK)]
        lower = [i + half if i & half == 0 else i + BLOCK for i in range(BLOCK)]
        for k in range(BLOCK):
            if k & half == 0:
                a, b = vectors[k], vectors[k + half]
                vectors[k] = builder.shuffle_vector(a, b, _mask(upper))
                vectors[k + half] = builder.shuffle_vector(a, b, _mask(lower))
        half //= 2
    return vectors


def _mask(lanes):
    return ir.Constant(_LANES, lanes)
