"""Element-wise work over tensors of any layout: a chain of stages on every tile of their nests.

Eltwise, binary, sum and reorder without conversion are all this: dst = chain(src, operands).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.nest import MAX_LOOPS, Nest, advance, nests, padding, seek
from dnncore_cpu_numba.pointers import load_i64, stack, store_i8, store_i64
from dnncore_cpu_numba.post_ops import (
    TENSOR,
    TILE_LENGTH,
    Stage,
    apply_stages,
    copy_tile,
    reader,
)
from dnncore_cpu_numba.program import Arg, Param, Scratch, Step, Table
from dnncore_cpu_numba.streaming import STREAM_BYTES
from dnncore_cpu_numba.task import Task, task

__all__ = ["MAX_TENSORS", "Place", "chain_steps", "zero_padding"]

MAX_TENSORS = 128  # of one chain: what a thread has room for
_ROOM = TENSOR * MAX_TENSORS
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
    places, descs = zip(*tensors, strict=True)
    chain = Table(np.array([stage.row() for stage in stages], np.int64).reshape(-1))
    itemsizes = [desc.itemsize for desc in descs]
    readers = [reader(itemsize).address for itemsize in itemsizes]
    steps = []
    for nest in nests(_covered(dims, descs), descs):
        for part in nest.ordered().tiles(TILE_LENGTH):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            views = np.array([*zip(columns.strides, rows.strides, readers, strict=True)], np.int64)
            params = [Table(outer.table(itemsizes)), rows.extent, columns.extent]
            params += [chain, len(stages), copy_tile.address, Table(views.reshape(-1))]
            params.append(int(descs[0].nbytes >= STREAM_BYTES))
            starts = zip(places, itemsizes, part.offsets, strict=True)
            params += [_moved(place, size * offset) for place, size, offset in starts]
            steps.append(_step(_tiles, params, outer, rows.extent * columns.extent))
    return steps + zero_padding(places[0], descs[0])


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
            steps.append(_step(_zeros, params, outer, rows.extent * columns.extent))
    return steps


def _moved(place: Place, nbytes: int) -> Arg | Scratch:
    """The address so many bytes further on."""
    address = Arg(place) if isinstance(place, int) else place
    return replace(address, byte_offset=address.byte_offset + nbytes)


def _step(task: Task, params: list[Param], outer: Nest, elements: int) -> Step:
    return Step(task, params, outer.size, grain=-(-_GRAIN // elements))


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
    table, rows, columns = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    chain, count, copy = load_i64(params, 3), load_i64(params, 4), load_i64(params, 5)
    views, streamed = load_i64(params, 6), load_i64(params, 7) != 0
    position, tensors = stack(MAX_LOOPS), stack(_ROOM)
    for t in range(load_i64(table, 1)):
        for i in range(TENSOR - 1):
            store_i64(tensors, TENSOR * t + 1 + i, load_i64(views, (TENSOR - 1) * t + i))
    seek(table, begin, position, params + 8 * 8, tensors, TENSOR)
    for _ in range(begin, end):
        apply_stages(chain, count, copy, tensors, rows, columns, streamed)
        advance(table, position, tensors, TENSOR)


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
