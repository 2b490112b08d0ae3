"""The tasks of Winograd convolution: blocks of tiles through transforms and the microkernel.

A unit of work is one block of tiles and one group of panels, a panel being some vectors of output
channels:

    for each unit of a thread's share:
        transform the block's tiles of src              V[position][tile][input channel]
        for each panel of the group:
            for each position:
                M[position][tile] = V[position] * U[position][panel]        the microkernel
            transform M's tiles back and store them in dst

V and M are a share's own part of the scratchpad, small enough to stay in a cache; a block whose
panels are several units is transformed once per share. `convolution/winograd/implementation.py`
plans it.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.pointers import call, load_i64, stack, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.winograd.matrices import OUTPUTS, POSITIONS, SPAN, TAPS
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS

__all__ = ["OPERANDS", "OPERAND_SLOTS", "transform_weights", "winograd_loop"]

# The slots of the task's parameters: how the work is cut, src, products, dst.
(
    SHARES, BLOCKS, GROUPS, PANELS, BLOCK, TILES, TILES_DOWN, TILES_ACROSS, SCRATCH, SHARE_BYTES,
    PRODUCTS,
    SRC, SRC_BATCH, SRC_ROW, SRC_PIXEL, SRC_STEP, SRC_VECTORS, SRC_LANES, HEIGHT, WIDTH, TOP, LEFT,
    READERS, SRC_PLANE, SRC_BYTES,
    WEIGHTS, DEPTH, LANE_BYTES, BATCH_TABLE, KERNELS, MOST_ROWS, VECTORS, LAST_VECTORS, DST_PLANE,
    DST, DST_BATCH, DST_ROW, DST_PIXEL, DST_STEP, DST_LANES, DST_HEIGHT, DST_WIDTH, WRITERS,
    OPERAND_COUNT, OPERANDS,
) = range(45)  # fmt: skip
OPERAND_SLOTS = ADDRESS, BATCH, ROW, PIXEL, STEP = tuple(range(5))  # of each operand
ROOM = 4 * MOST_OPERANDS


@task
def winograd_loop(params, begin, end):
    """Compute the shares [begin, end) of a convolution."""
    units = load_i64(params, BLOCKS) * load_i64(params, GROUPS)
    shares = load_i64(params, SHARES)
    for share in range(begin, end):
        scratch = load_i64(params, SCRATCH) + share * load_i64(params, SHARE_BYTES)
        _share(params, scratch, units * share // shares, units * (share + 1) // shares)


@device
def _share(params, scratch, begin, end):
    products = scratch + load_i64(params, PRODUCTS)
    groups, panels = load_i64(params, GROUPS), load_i64(params, PANELS)
    held = -1
    for unit in range(begin, end):
        block, group = unit // groups, unit % groups
        first = block * load_i64(params, BLOCK)
        count = min(load_i64(params, BLOCK), load_i64(params, TILES) - first)
        if block != held:
            _read_tiles(params, scratch, first, count)
            held = block
        for panel in range(panels * group // groups, panels * (group + 1) // groups):
            _multiply(params, scratch, products, panel, count)
            _write_tiles(params, products, panel, first, count)


@device
def _read_tiles(params, target, first, count):
    """Transform tiles of src to V."""
    height, width = load_i64(params, HEIGHT), load_i64(params, WIDTH)
    across, down = load_i64(params, TILES_ACROSS), load_i64(params, TILES_DOWN)
    row_bytes, pixel_bytes = load_i64(params, SRC_ROW), load_i64(params, SRC_PIXEL)
    vectors, lanes = load_i64(params, SRC_VECTORS), load_i64(params, SRC_LANES)
    step, plane = load_i64(params, SRC_STEP), load_i64(params, SRC_PLANE)
    for tile in range(first, first + count):
        y = tile // across % down * OUTPUTS - load_i64(params, TOP)
        x = tile % across * OUTPUTS - load_i64(params, LEFT)
        src = load_i64(params, SRC) + tile // (across * down) * load_i64(params, SRC_BATCH)
        src += y * row_bytes + x * pixel_bytes
        bordered = y < 0 or x < 0 or y + SPAN > height or x + SPAN > width
        readers = load_i64(params, READERS) + 16 * bordered
        sides = -y, height - y, -x, width - x
        if vectors:
            call(
                load_i64(readers, 0),
                (src, row_bytes, pixel_bytes, step, vectors, target, plane, *sides, 0),
            )
        if lanes:
            last, place = src + vectors * step, target + vectors * load_i64(params, LANE_BYTES)
            call(
                load_i64(readers, 1),
                (last, row_bytes, pixel_bytes, step, 1, place, plane, *sides, lanes),
            )
        target += load_i64(params, SRC_BYTES)


@device
def _multiply(params, src, products, panel, count):
    """M = V * U at each position, of some tiles and one panel."""
    is_last = panel == load_i64(params, PANELS) - 1
    most, lane_bytes = load_i64(params, MOST_ROWS), load_i64(params, LANE_BYTES)
    kernels = load_i64(params, KERNELS) + 8 * (most + 1) * is_last
    depth, src_bytes = load_i64(params, DEPTH), load_i64(params, SRC_BYTES)
    block, row = POSITIONS * depth * lane_bytes, load_i64(params, VECTORS) * lane_bytes
    b = load_i64(params, WEIGHTS) + panel * load_i64(params, VECTORS) * block
    batch = load_i64(params, BATCH_TABLE)
    parts = -(-count // most)
    for position in range(POSITIONS):
        a = src + position * load_i64(params, SRC_PLANE)
        c = products + position * load_i64(params, DST_PLANE)
        for part in range(parts):
            rows = count // parts + (part < count % parts)
            call(
                load_i64(kernels, rows),
                (
                    a, b, 0, c, batch, 1, 0, 0, src_bytes, lane_bytes, block, row, lane_bytes, 0,
                    0, 0,
                ),
            )  # fmt: skip
            a += rows * src_bytes
            c += rows * row
        b += depth * lane_bytes


@device
def _write_tiles(params, products, panel, first, count):
    """Transform M to tiles of dst."""
    across, down = load_i64(params, TILES_ACROSS), load_i64(params, TILES_DOWN)
    height, width = load_i64(params, DST_HEIGHT), load_i64(params, DST_WIDTH)
    is_last = panel == load_i64(params, PANELS) - 1
    vectors = load_i64(params, LAST_VECTORS if is_last else VECTORS)
    lanes = load_i64(params, DST_LANES) * is_last
    whole = vectors - (lanes > 0)
    vector = panel * load_i64(params, VECTORS)
    lane_bytes, plane = load_i64(params, LANE_BYTES), load_i64(params, DST_PLANE)
    row_bytes, pixel_bytes = load_i64(params, DST_ROW), load_i64(params, DST_PIXEL)
    step = load_i64(params, DST_STEP)
    operands = stack(ROOM)
    for tile in range(first, first + count):
        image = tile // (across * down)
        y, x = tile // across % down * OUTPUTS, tile % across * OUTPUTS
        dst = load_i64(params, DST) + image * load_i64(params, DST_BATCH)
        dst += y * row_bytes + x * pixel_bytes + vector * step
        rows = min(OUTPUTS, height - y)
        writers = load_i64(params, WRITERS) + 16 * (x + OUTPUTS > width)
        _find_operands(params, operands, image, y, x, vector)
        if whole:
            call(
                load_i64(writers, 0),
                (products, plane, dst, row_bytes, pixel_bytes, step, whole, rows, 0, operands),
            )
        if lanes:
            _find_operands(params, operands, image, y, x, vector + whole)
            last, dst = products + whole * lane_bytes, dst + whole * step
            call(
                load_i64(writers, 1),
                (last, plane, dst, row_bytes, pixel_bytes, step, 1, rows, lanes, operands),
            )
        products += load_i64(params, VECTORS) * lane_bytes


@device
def _find_operands(params, room, image, y, x, vector):
    """Fill the room with (address, ROW, PIXEL, STEP) of each operand of a tile."""
    for i in range(load_i64(params, OPERAND_COUNT)):
        operand = params + 8 * (OPERANDS + 5 * i)
        address = load_i64(operand, ADDRESS) + image * load_i64(operand, BATCH)
        address += y * load_i64(operand, ROW) + x * load_i64(operand, PIXEL)
        store_i64(room, 4 * i, address + vector * load_i64(operand, STEP))
        store_i64(room, 4 * i + 1, load_i64(operand, ROW))
        store_i64(room, 4 * i + 2, load_i64(operand, PIXEL))
        store_i64(room, 4 * i + 3, load_i64(operand, STEP))


@task
def transform_weights(params, begin, end):
    """Transform the filters of some vectors of columns.

    params: kernel, first tap, steps of rows and columns of taps, depth, target, lane bytes.
    """
    depth, lane_bytes = load_i64(params, 4), load_i64(params, 6)
    block = depth * lane_bytes
    for vector in range(begin, end):
        src = load_i64(params, 1) + vector * TAPS * TAPS * block
        target = load_i64(params, 5) + vector * POSITIONS * block
        call(
            load_i64(params, 0),
            (src, load_i64(params, 2), load_i64(params, 3), depth, target, block),
        )
