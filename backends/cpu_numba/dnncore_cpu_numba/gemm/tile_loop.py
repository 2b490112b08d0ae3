"""The task of all matrix work: calls the microkernel for each tile.

`gemm/tiles.py` makes the tables of the task. A work item is one block of tiles of one outer index:

    for each stretch of items whose part of A stays in cache:
        for each panel:                                 the panel of B stays in cache
            for each chunk of the reduction:            chunks after the first add to C
                for each item of the stretch:
                    for each tile of its block:         call the microkernel

If B is the larger matrix, panels are the outermost loop, and threads share the panels.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.pointers import address, load_i64, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.gemm.microkernel import MICROKERNEL, OPERAND

OUTER = 10  # most outer dims: the batch dims of a matrix with 12 dims
MOST_OPERANDS = 128  # most operands of post-ops; each thread reserves memory for this number

MATRIX = Record(
    "matrix",
    ("address", "address"),
    ("row block", "bytes", "from one to the next"),
    ("outer", Many("bytes", OUTER), "from index to index of the outer dims"),
)
BLOCK = Record(
    "block of tiles",
    ("first", "index", "tile"),
    ("count", "count", "tiles"),
    ("offsets", Many("bytes"), "in A, B, C and the operands"),
)
TILE = Record(
    "tile",
    ("kind", "index"),
    ("batch", "bytes", "from the chunk's batches to the tile's"),
    ("a", "bytes", "offset"),
    ("fetch", "bytes", "added to the chunk's fetch"),
    ("c", "bytes", "offset"),
    ("operands", Many("bytes"), "offsets"),
)
CHUNK = Record(
    "chunk",
    ("batches", "bytes", "offset of its batches"),
    ("blocks", "count"),
    ("a_advance b_advance fetch", "bytes", "see `MICROKERNEL`"),
)
ROOM = Record(
    "room of a block",
    ("a b c", "address"),
    ("places", Many("address", MOST_OPERANDS), "of operands"),
    ("operands", Many(OPERAND, MOST_OPERANDS), "the table that the microkernel reads"),
)
TILE_LOOP = Record(
    "tile loop",
    ("kernels", "address", "of a table by [last chunk][last panel][kind]"),
    ("kinds", "count"),
    ("batches", "address", "of all chunks' batches, tables of `SEGMENT`"),
    ("chunks", Pointer(CHUNK)),
    ("chunk_count", "count"),
    ("tiles", Pointer(TILE)),
    ("blocks", Pointer(BLOCK)),
    ("block_count", "count"),
    ("rest", "count", "items of a group of panels"),
    ("stretch", "count", "items"),
    ("panels panels_per_group vectors last_lanes", "count", "vectors of a panel; see `Tiling`"),
    ("a_stride b_row", "bytes", "see `MICROKERNEL`"),
    ("continues", "flag", "C holds a sum"),
    ("operand_count dims", "count", "operands and outer dims"),
    ("extents", Many("count", OUTER), "of the outer dims"),
    ("a b c", MATRIX),
    ("operands", Many(MATRIX)),
)


_WIDTH = TILE.field("operands").slot


@task(TILE_LOOP)
def tile_loop(params, begin, end):
    """Compute the items [begin, end) of a matrix problem."""
    rest, stretch, per_group = params.rest, params.stretch, params.panels_per_group
    room = ROOM.room()
    item = begin
    while item < end:
        group = item // rest
        until = min(end - group * rest, rest)
        panel_end = min((group + 1) * per_group, params.panels)
        for first in range(item - group * rest, until, stretch):
            last = min(first + stretch, until)
            for panel in range(group * per_group, panel_end):
                for chunk in range(params.chunk_count):
                    for index in range(first, last):
                        _run_block(params, room, index, panel, chunk)
        item = group * rest + until


@device
def _run_block(params, room, index, panel, chunk):
    """Compute all tiles of one item in one panel and one chunk."""
    operands = params.operand_count
    width = 8 * (_WIDTH + operands)  # bytes of a row of either table
    block = BLOCK.at(address(params.blocks) + index % params.block_count * width)
    _find_block(params, room, operands, index // params.block_count, block, panel)

    is_last_chunk = chunk == params.chunk_count - 1
    is_last_panel = panel == params.panels - 1
    kernels = params.kernels + 8 * params.kinds * (2 * is_last_chunk + is_last_panel)
    accumulate = params.continues | min(chunk, 1)
    part = params.chunks[chunk]
    batches = params.batches + part.batches
    place = address(params.tiles) + block.first * width
    for _ in range(block.count):
        tile = TILE.at(place)
        for i in range(operands):
            room.operands[i].address = room.places[i] + tile.operands[i]
        MICROKERNEL.call(
            load_i64(kernels, tile.kind),
            a=room.a + tile.a, b=room.b, fetch=part.fetch + tile.fetch, c=room.c + tile.c,
            batch_table=batches + tile.batch, blocks=part.blocks, a_advance=part.a_advance,
            b_advance=part.b_advance, a_stride=params.a_stride, b_row=params.b_row,
            b_block=params.b.block, c_row=params.c.row, c_block=params.c.block,
            accumulate=accumulate, lanes=params.last_lanes, operands=address(room.operands),
        )  # fmt: skip
        place += width


@device
def _find_block(params, room, operands, index, block, panel):
    """Store the address of the block in each matrix, and the operands' strides, to `room`."""
    vector = panel * params.vectors
    matrices = 3 + operands
    for i in range(matrices):
        matrix = params.a[i]  # the other matrices follow A in memory
        place = block.offsets[i] + vector * matrix.block
        store_i64(room, i, matrix.address + place)
    for i in range(operands):
        matrix, operand = params.operands[i], room.operands[i]
        operand.row = matrix.row
        operand.block = matrix.block
    for dim in range(params.dims - 1, -1, -1):
        place = index % params.extents[dim]
        index //= params.extents[dim]
        for i in range(matrices):
            store_i64(room, i, load_i64(room, i) + place * params.a[i].outer[dim])
