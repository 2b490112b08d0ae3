"""The task behind all matrix work: it runs tiles through the microkernel.

`dnncore_cpu_numba.tiles` plans it. A work item is one outer index and row block of a problem:

    for each stretch of items small enough that their part of A stays in cache:
        for each panel:                                 B's panel stays in cache
            for each chunk of the reduction:            C is accumulated from the second on
                for each item of the stretch:
                    for each tile of rows:              the microkernel

Where B is the larger matrix, panels are outermost instead and threads split them.
"""

from __future__ import annotations

from dnncore_cpu_numba.pointers import call, load_i64, stack, store_i64
from dnncore_cpu_numba.task import device, task

__all__ = ["MATRICES", "MOST_OPERANDS", "OUTER", "tile_loop"]

OUTER = 10  # outer dims at most: the batch dims of a matrix with 12
MOST_OPERANDS = 128  # that the post-ops read: what a thread has room for

# The slots of the task's parameters.
(
    KERNELS, BATCH_TABLE, CHUNK_TABLE, CHUNKS, ROW_BLOCKS, REST, STRETCH, PANELS, PANELS_PER_GROUP,
    VECTORS, LAST_LANES, ROWS, ROW_BLOCK, MOST_ROWS, A_STEP, A_K, B_STEP, CONTINUES, OPERANDS, DIMS,
    EXTENTS,
) = range(21)  # fmt: skip
MATRICES = EXTENTS + OUTER
ADDRESS, ROW, BLOCK, STRIDES = range(4)  # inside each matrix; the strides are those of outer dims
SLOTS = STRIDES + OUTER
A, B, C = (8 * (MATRICES + i * SLOTS) for i in range(3))  # in bytes
OPERANDS_OF_TILE = 8 * 3 * 3  # in bytes: where a thread's room holds them, after A, B and C
ROOM = 3 * (3 + MOST_OPERANDS)


@task
def tile_loop(params, begin, end):
    """Run the items [begin, end) of a `TileLoop`."""
    rest = load_i64(params, REST)
    stretch = load_i64(params, STRETCH)
    per_group = load_i64(params, PANELS_PER_GROUP)
    room = stack(ROOM)
    item = begin
    while item < end:
        group = item // rest
        until = min(end - group * rest, rest)
        panel_end = min((group + 1) * per_group, load_i64(params, PANELS))
        for first in range(item - group * rest, until, stretch):
            last = min(first + stretch, until)
            for panel in range(group * per_group, panel_end):
                for chunk in range(load_i64(params, CHUNKS)):
                    for index in range(first, last):
                        _row_block_of(params, room, index, panel, chunk)
        item = group * rest + until


@device
def _row_block_of(params, room, index, panel, chunk):
    """Run one item in one panel and chunk, tile by tile."""
    row = index % load_i64(params, ROW_BLOCKS) * load_i64(params, ROW_BLOCK)
    rows = min(load_i64(params, ROW_BLOCK), load_i64(params, ROWS) - row)
    matrices = 3 + load_i64(params, OPERANDS)
    vector = panel * load_i64(params, VECTORS)
    _find_tile(params, room, matrices, index // load_i64(params, ROW_BLOCKS), row, vector)
    a, b, c = load_i64(room, 0), load_i64(room, 3), load_i64(room, 6)

    most = load_i64(params, MOST_ROWS)
    is_last_chunk = chunk == load_i64(params, CHUNKS) - 1
    is_last_panel = panel == load_i64(params, PANELS) - 1
    kernels = load_i64(params, KERNELS) + 8 * (most + 1) * (2 * is_last_chunk + is_last_panel)
    lanes = load_i64(params, LAST_LANES)
    accumulate = load_i64(params, CONTINUES) | min(chunk, 1)
    entry = load_i64(params, CHUNK_TABLE) + 24 * chunk
    batch_table = load_i64(params, BATCH_TABLE) + load_i64(entry, 0)
    tiles = -(-rows // most)
    longer = rows % tiles
    for tile in range(tiles):
        size = rows // tiles + (tile < longer)
        call(
            load_i64(kernels, size),
            (
                a, b, c, batch_table, load_i64(entry, 1), load_i64(entry, 2),
                load_i64(params, A_STEP), load_i64(params, A_K), load_i64(params + A, BLOCK),
                load_i64(params, B_STEP), load_i64(params + B, BLOCK),
                load_i64(params + C, ROW), load_i64(params + C, BLOCK), accumulate, lanes,
                room + OPERANDS_OF_TILE,
            ),
        )  # fmt: skip
        a += size * load_i64(params + A, ROW)
        c += size * load_i64(params + C, ROW)
        for i in range(3, matrices):
            store_i64(room, 3 * i, load_i64(room, 3 * i) + size * load_i64(room, 3 * i + 1))


@device
def _find_tile(params, room, matrices, index, row, vector):
    """Fill the room with (address of the tile, ROW, BLOCK) of each matrix."""
    for i in range(matrices):
        matrix = params + 8 * (MATRICES + i * SLOTS)
        place = row * load_i64(matrix, ROW) + vector * load_i64(matrix, BLOCK)
        store_i64(room, 3 * i, load_i64(matrix, ADDRESS) + place)
        store_i64(room, 3 * i + 1, load_i64(matrix, ROW))
        store_i64(room, 3 * i + 2, load_i64(matrix, BLOCK))
    for dim in range(load_i64(params, DIMS) - 1, -1, -1):
        place = index % load_i64(params, EXTENTS + dim)
        index //= load_i64(params, EXTENTS + dim)
        for i in range(matrices):
            stride = load_i64(params + 8 * (MATRICES + i * SLOTS), STRIDES + dim)
            store_i64(room, 3 * i, load_i64(room, 3 * i) + place * stride)
