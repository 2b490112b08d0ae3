"""The task behind all matrix work: it runs tiles through the microkernel.

`gemm/tiles.py` plans it. A work item is one block of tiles of one outer index:

    for each stretch of items small enough that their part of A stays in cache:
        for each panel:                                 B's panel stays in cache
            for each chunk of the reduction:            C is accumulated from the second on
                for each item of the stretch:
                    for each tile of its block:         the microkernel

Where B is the larger matrix, panels are outermost instead and threads split them.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.pointers import call, load_i64, stack, store_i64
from dnncore_cpu_numba.codegen.task import device, task

__all__ = ["MATRICES", "MOST_OPERANDS", "OUTER", "tile_loop"]

OUTER = 10  # outer dims at most: the batch dims of a matrix with 12
MOST_OPERANDS = 128  # that the post-ops read: what a thread has room for

# The slots of the task's parameters.
(
    KERNELS, KINDS, BATCH_TABLE, CHUNK_TABLE, CHUNKS, TILE_TABLE, BLOCK_TABLE, BLOCKS, REST,
    STRETCH, PANELS, PANELS_PER_GROUP, VECTORS, LAST_LANES, A_STEP, B_STEP, CONTINUES, OPERANDS,
    DIMS, EXTENTS,
) = range(20)  # fmt: skip
MATRICES = EXTENTS + OUTER
ADDRESS, ROW, BLOCK, STRIDES = range(4)  # inside each matrix; the strides are those of outer dims
SLOTS = STRIDES + OUTER
B, C = (8 * (MATRICES + i * SLOTS) for i in (1, 2))  # in bytes

# A block is (first tile, tiles), a tile (kind, its batch's place in bytes); then an offset in bytes
# for each matrix: for B, a tile has what is added to `fetch`. A chunk is (its batches' place in
# bytes, blocks, a_advance, b_advance, fetch).
FIRST, COUNT = KIND, BATCH = range(2)
OFFSETS = 2

MOST = 3 + MOST_OPERANDS  # matrices; a thread's room holds their addresses for a block, then the
TABLE = 8 * MOST  # table of operands that the microkernel reads
ROOM = MOST + 3 * MOST_OPERANDS


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
                        _run_block(params, room, index, panel, chunk)
        item = group * rest + until


@device
def _run_block(params, room, index, panel, chunk):
    """Run one item in one panel and chunk, tile by tile."""
    matrices = 3 + load_i64(params, OPERANDS)
    width = 8 * (OFFSETS + matrices)
    block = load_i64(params, BLOCK_TABLE) + index % load_i64(params, BLOCKS) * width
    _find_block(params, room, matrices, index // load_i64(params, BLOCKS), block, panel)

    is_last_chunk = chunk == load_i64(params, CHUNKS) - 1
    is_last_panel = panel == load_i64(params, PANELS) - 1
    kinds = load_i64(params, KINDS)
    kernels = load_i64(params, KERNELS) + 8 * kinds * (2 * is_last_chunk + is_last_panel)
    accumulate = load_i64(params, CONTINUES) | min(chunk, 1)
    chunk_row = load_i64(params, CHUNK_TABLE) + 40 * chunk
    batches = load_i64(params, BATCH_TABLE) + load_i64(chunk_row, 0)
    tile = load_i64(params, TILE_TABLE) + load_i64(block, FIRST) * width
    for _ in range(load_i64(block, COUNT)):
        for i in range(3, matrices):
            store_i64(room + TABLE, 3 * (i - 3), load_i64(room, i) + load_i64(tile, OFFSETS + i))
        call(
            load_i64(kernels, load_i64(tile, KIND)),
            (
                load_i64(room, 0) + load_i64(tile, OFFSETS), load_i64(room, 1),
                load_i64(chunk_row, 4) + load_i64(tile, OFFSETS + 1),
                load_i64(room, 2) + load_i64(tile, OFFSETS + 2),
                batches + load_i64(tile, BATCH), load_i64(chunk_row, 1), load_i64(chunk_row, 2),
                load_i64(chunk_row, 3), load_i64(params, A_STEP), load_i64(params, B_STEP),
                load_i64(params + B, BLOCK),
                load_i64(params + C, ROW), load_i64(params + C, BLOCK), accumulate,
                load_i64(params, LAST_LANES), room + TABLE,
            ),
        )  # fmt: skip
        tile += width


@device
def _find_block(params, room, matrices, index, block, panel):
    """Fill the room with the address of the block in each matrix, and operands' strides."""
    vector = panel * load_i64(params, VECTORS)
    for i in range(matrices):
        matrix = params + 8 * (MATRICES + i * SLOTS)
        place = load_i64(block, OFFSETS + i) + vector * load_i64(matrix, BLOCK)
        store_i64(room, i, load_i64(matrix, ADDRESS) + place)
    for i in range(3, matrices):
        matrix = params + 8 * (MATRICES + i * SLOTS)
        store_i64(room + TABLE, 3 * (i - 3) + 1, load_i64(matrix, ROW))
        store_i64(room + TABLE, 3 * (i - 3) + 2, load_i64(matrix, BLOCK))
    for dim in range(load_i64(params, DIMS) - 1, -1, -1):
        place = index % load_i64(params, EXTENTS + dim)
        index //= load_i64(params, EXTENTS + dim)
        for i in range(matrices):
            stride = load_i64(params + 8 * (MATRICES + i * SLOTS), STRIDES + dim)
            store_i64(room, i, load_i64(room, i) + place * stride)
