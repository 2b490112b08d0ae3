"""Element-wise work over tensors of any layout: a chain of stages on every tile of their nests.

Eltwise, binary, sum and reorder without conversion are all this: dst = chain(src, operands).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, Loop, Nest, advance, nests, padding, seek
from dnncore_cpu_numba.codegen.pointers import call, load_i64, stack, store_i8, store_i64
from dnncore_cpu_numba.codegen.task import Task, task
from dnncore_cpu_numba.elementwise.post_ops import (
    ROOM,
    TENSOR,
    TILE_LENGTH,
    Stage,
    apply_stages,
    copy_tile,
    forget,
    reader,
)
from dnncore_cpu_numba.runtime.program import Arg, Param, Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import is_streamed

__all__ = ["MAX_TENSORS", "Place", "chain_steps", "zero_padding"]

MAX_TENSORS = 128  # of one chain: what a thread has room for
_TENSORS = TENSOR * MAX_TENSORS
_LINE_LENGTH = 16  # elements of a cache line
_CHUNK = 4 * _LINE_LENGTH  # elements of a loop's item
_GRAIN = 4096  # elements of a part at least: what a core does in the time of a launch


Place = int | Arg | Scratch
"""Where a tensor is: the place of its memory in binding order, or its buffer's address."""


def chain_steps(
    dims: Sequence[int],
    tensors: Sequence[tuple[Place, MemoryDesc]],
    stages: Sequence[Stage],
) -> list[Step]:
    """The steps of dst = chain(src).

    tensors: dst, src, then the stages' operands, of type f32; inputs may be s8, and all of one
    other type of four bytes where there are no stages. A dim of size 1 is broadcast to `dims`.
    """
    chain = _Chain(tensors, stages)
    steps = []
    for nest in nests(_covered(dims, chain.descs), chain.descs):
        ordered = nest.ordered()
        steps += chain.in_tiles(ordered) if len(ordered.loops) > 1 else [chain.along(ordered)]
    return steps + zero_padding(chain.places[0], chain.descs[0])


class _Chain:
    """Makes the steps of a chain on nests of its tensors."""

    def __init__(self, tensors: Sequence[tuple[Place, MemoryDesc]], stages: Sequence[Stage]):
        self.places, self.descs = zip(*tensors, strict=True)
        self.itemsizes = [desc.itemsize for desc in self.descs]
        self.readers = [reader(itemsize).address for itemsize in self.itemsizes]
        streamed = is_streamed(self.places[0], self.descs[0])
        rows = [stage.row() for stage in stages[:-1]]
        rows += [stage.row(streamed=streamed) for stage in stages[-1:]]
        table = Table(np.array(rows, np.int64).reshape(-1))
        self.stages = len(rows)
        self.common: list[Param] = [apply_stages.address]
        self.common += [table, len(rows), copy_tile.address, int(streamed)]

    def in_tiles(self, nest: Nest) -> Iterator[Step]:
        """The steps for a nest of several loops."""
        for part in nest.tiles(TILE_LENGTH):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            params = [*self.common, Table(outer.table(self.itemsizes))]
            params += [rows.extent, columns.extent]
            triples = zip(columns.strides, rows.strides, self.readers, strict=True)
            params += [Table(np.array([*triples], np.int64).reshape(-1)), *self._starts(part)]
            yield _step(_tiles, params, outer.size, rows.extent * columns.extent)

    def along(self, nest: Nest) -> Step:
        """The step for a single loop, or none."""
        loop = nest.loops[0] if nest.loops else Loop(1, (1,) * len(self.places))
        plain = self.stages <= 1 and {*loop.strides} == {1} and {*self.itemsizes} == {4}
        params = [*self.common, loop.extent, loop.extent if plain else TILE_LENGTH]
        params += [len(self.places)]
        steps = [s * n for s, n in zip(loop.strides, self.itemsizes, strict=True)]
        tensors = zip(self._starts(nest), steps, loop.strides, self.readers, strict=True)
        params += itertools.chain.from_iterable(tensors)
        return _step(_along, params, -(-loop.extent // _CHUNK), _CHUNK)

    def _starts(self, nest: Nest) -> list[Arg | Scratch]:
        parts = zip(self.places, self.itemsizes, nest.offsets, strict=True)
        return [_moved(place, size * offset) for place, size, offset in parts]


def zero_padding(place: Place, desc: MemoryDesc) -> list[Step]:
    """The steps that zero what pads a tensor's dims to whole blocks."""
    steps = []
    for nest in padding(desc):
        for part in nest.ordered().tiles(TILE_LENGTH):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            params = [Table(outer.table([desc.itemsize])), rows.extent, columns.extent]
            params += [rows.strides[0], columns.strides[0], desc.itemsize]
            params.append(_moved(place, desc.itemsize * part.offsets[0]))
            steps.append(_step(_zeros, params, outer.size, rows.extent * columns.extent))
    return steps


def _moved(place: Place, nbytes: int) -> Arg | Scratch:
    """The address so many bytes further on."""
    address = Arg(place) if isinstance(place, int) else place
    return replace(address, byte_offset=address.byte_offset + nbytes)


def _step(task: Task, params: list[Param], items: int, elements: int) -> Step:
    """elements: of an item."""
    return Step(task, params, items, grain=-(-_GRAIN // elements))


def _covered(dims: Sequence[int], descs: Sequence[MemoryDesc]) -> list[int]:
    """The sizes to work on: with the padding, where all have the same, so that loops join."""
    sizes = []
    for dim, size in enumerate(dims):
        padded = {d.padded_dims[dim] for d in descs if d.dims[dim] == size}
        sizes.append(padded.pop() if size > 1 and len(padded) == 1 else size)
    return sizes


@task
def _tiles(params, begin, end):
    """Run a chain on the tiles of a nest."""
    apply, chain, count = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    copy, streamed, table = load_i64(params, 3), load_i64(params, 4), load_i64(params, 5)
    rows, columns, views = load_i64(params, 6), load_i64(params, 7), load_i64(params, 8)
    position, tensors, room = stack(MAX_LOOPS), stack(_TENSORS), stack(ROOM)
    for t in range(load_i64(table, 1)):
        for i in range(TENSOR - 1):
            store_i64(tensors, TENSOR * t + 1 + i, load_i64(views, (TENSOR - 1) * t + i))
    seek(table, begin, position, params + 8 * 9, tensors, TENSOR)
    forget(room)
    for _ in range(begin, end):
        call(apply, (chain, count, copy, tensors, rows, columns, streamed, room))
        advance(table, position, tensors, TENSOR)


@task
def _along(params, begin, end):
    """Run a chain on some chunks of a loop."""
    apply, chain, count = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    copy, streamed = load_i64(params, 3), load_i64(params, 4)
    extent, longest = load_i64(params, 5), load_i64(params, 6)
    tensors, room = stack(_TENSORS), stack(ROOM)
    forget(room)
    start, last = begin * _CHUNK, min(end * _CHUNK, extent)
    while start < last:
        columns = min(longest, last - start)
        if columns > _LINE_LENGTH:  # what is left does not keep the others from being streamed
            columns -= columns % _LINE_LENGTH
        for t in range(load_i64(params, 7)):
            given, tensor = params + 8 * (8 + TENSOR * t), tensors + 8 * TENSOR * t
            store_i64(tensor, 0, load_i64(given, 0) + start * load_i64(given, 1))
            store_i64(tensor, 1, load_i64(given, 2))
            store_i64(tensor, 3, load_i64(given, 3))
        call(apply, (chain, count, copy, tensors, 1, columns, streamed, room))
        start += columns


@task
def _zeros(params, begin, end):
    """Zero the tiles of a nest, whatever their elements' size."""
    table, rows, columns = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    row_stride, column_stride = load_i64(params, 3), load_i64(params, 4)
    size = load_i64(params, 5)
    position, tensors = stack(MAX_LOOPS), stack(1)
    seek(table, begin, position, params + 8 * 6, tensors, 1)
    for _ in range(begin, end):
        for row in range(rows):
            start = load_i64(tensors, 0) + row * row_stride * size
            for column in range(columns):
                for byte in range(size):
                    store_i8(start, column * column_stride * size + byte, 0)
        advance(table, position, tensors, 1)
