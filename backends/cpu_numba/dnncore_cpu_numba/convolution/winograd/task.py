"""The tasks of Winograd convolution: transforms and matrix products of blocks of tiles.

A unit of work is one block of tiles and one group of panels. A panel is some vectors of output
channels:

    for each unit of a thread's share:
        transform the block's tiles of src              V[position][tile][input channel]
        for each panel of the group:
            for each position:
                M[position][tile] = V[position] * U[position][panel]        the microkernel
            transform M's tiles back and store them in dst

Each share has its own V and M in the scratchpad, which are small enough to stay in a cache. If the
panels of a block are divided into several units, each unit is a share.
`convolution/winograd/implementation.py` plans the convolution.
"""

from __future__ import annotations

from dnncore.planning.toom_cook import TAPS
from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.pointers import address, load_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.winograd.transforms import (
    DST_CALL,
    OPERAND,
    OUTPUTS,
    POSITIONS,
    SPAN,
    SRC_CALL,
    WEIGHTS_CALL,
)
from dnncore_cpu_numba.gemm.microkernel import MICROKERNEL, SEGMENT
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS

KERNELS = Record(
    "kernels of a tile", ("whole last", "address", "for whole vectors, for the last one")
)
MATRIX = Record(
    "operand of a convolution",
    ("address", "address"),
    ("batch row pixel step", "bytes", "strides; step: from vector to vector of channels"),
)
WINOGRAD = Record(
    "winograd",
    ("shares blocks groups panels block tiles", "count", "block: tiles of one, tiles: all"),
    ("tiles_down tiles_across", "count", "of an image"),
    ("scratch", "address"),
    ("share_bytes products", "bytes", "size of a share's scratch, and offset of M in it"),
    ("src", "address"),
    ("src_batch src_row src_pixel src_step", "bytes", "strides"),
    ("src_vectors src_lanes", "count", "of channels: whole vectors, and lanes of the last"),
    ("height width", "count", "of src"),
    ("top left", "index", "pixels of the first window before the image"),
    ("readers", Pointer(KERNELS), "`SRC_CALL` by [bordered]"),
    ("src_plane src_bytes", "bytes", "of V: from position to position, from tile to tile"),
    ("weights", "address"),
    ("depth", "count", "channels that are summed up"),
    ("lane_bytes", "bytes", "of a vector"),
    ("batch_table", Pointer(SEGMENT)),
    ("kernels", "address", "of a table of `MICROKERNEL` by [last panel][rows]"),
    ("most_rows vectors last_vectors", "count", "of a microkernel's tile"),
    ("dst_plane", "bytes", "of M, from position to position"),
    ("dst", "address"),
    ("dst_batch dst_row dst_pixel dst_step", "bytes", "strides"),
    ("dst_lanes dst_height dst_width", "count"),
    ("writers", Pointer(KERNELS), "`DST_CALL` by [last tile of a row]"),
    ("direct", "address", "a `DIRECT_CALL`"),
    ("operand_count", "count"),
    ("operands", Many(MATRIX)),
)
TRANSFORM = Record(
    "transform of weights",
    ("kernel", "address", "a `WEIGHTS_CALL`"),
    ("src", "address", "the first tap"),
    ("row column", "bytes", "from tap to tap"),
    ("depth", "count"),
    ("target", "address"),
    ("lane_bytes", "bytes"),
)
ROOM = Record("room of operands", ("operands", Many(OPERAND, MOST_OPERANDS)))


@task(WINOGRAD)
def winograd_loop(params, begin, end):
    """Compute the shares [begin, end) of a convolution."""
    units = params.blocks * params.groups
    shares = params.shares
    for share in range(begin, end):
        scratch = params.scratch + share * params.share_bytes
        _share(params, scratch, units * share // shares, units * (share + 1) // shares)


@device
def _share(params, scratch, begin, end):
    products = scratch + params.products
    groups, panels = params.groups, params.panels
    for unit in range(begin, end):
        block, group = unit // groups, unit % groups
        first = block * params.block
        count = min(params.block, params.tiles - first)
        _read_tiles(params, scratch, first, count)
        for panel in range(panels * group // groups, panels * (group + 1) // groups):
            _multiply(params, scratch, products, panel, count)
            _write_tiles(params, products, panel, first, count)


@device
def _read_tiles(params, target, first, count):
    """Transform tiles of src to V."""
    height, width = params.height, params.width
    across, down = params.tiles_across, params.tiles_down
    row_bytes, pixel_bytes = params.src_row, params.src_pixel
    vectors, lanes = params.src_vectors, params.src_lanes
    step, plane = params.src_step, params.src_plane
    for tile in range(first, first + count):
        y = tile // across % down * OUTPUTS - params.top
        x = tile % across * OUTPUTS - params.left
        src = params.src + tile // (across * down) * params.src_batch
        src += y * row_bytes + x * pixel_bytes
        bordered = y < 0 or x < 0 or y + SPAN > height or x + SPAN > width
        readers = params.readers[bordered]
        if vectors:
            SRC_CALL.call(
                readers.whole, src=src, row=row_bytes, pixel=pixel_bytes, step=step,
                count=vectors, target=target, plane=plane, first_row=-y, end_row=height - y,
                first_column=-x, end_column=width - x, lanes=0,
            )  # fmt: skip
        if lanes:
            last, place = src + vectors * step, target + vectors * params.lane_bytes
            SRC_CALL.call(
                readers.last, src=last, row=row_bytes, pixel=pixel_bytes, step=step, count=1,
                target=place, plane=plane, first_row=-y, end_row=height - y, first_column=-x,
                end_column=width - x, lanes=lanes,
            )  # fmt: skip
        target += params.src_bytes


@device
def _multiply(params, src, products, panel, count):
    """Compute M = V * U at each position, for some tiles and one panel."""
    is_last = panel == params.panels - 1
    most, lane_bytes = params.most_rows, params.lane_bytes
    kernels = params.kernels + 8 * (most + 1) * is_last
    depth, src_bytes = params.depth, params.src_bytes
    block, row = POSITIONS * depth * lane_bytes, params.vectors * lane_bytes
    b = params.weights + panel * params.vectors * block
    batch = params.batch_table
    parts = -(-count // most)
    for position in range(POSITIONS):
        a = src + position * params.src_plane
        c = products + position * params.dst_plane
        for part in range(parts):
            rows = count // parts + (part < count % parts)
            MICROKERNEL.call(
                load_i64(kernels, rows), a=a, b=b, fetch=0, c=c, batch_table=batch, blocks=1,
                a_advance=0, b_advance=0, a_stride=src_bytes, b_row=lane_bytes, b_block=block,
                c_row=row, c_block=lane_bytes, accumulate=0, lanes=0, operands=0,
            )  # fmt: skip
            a += rows * src_bytes
            c += rows * row
        b += depth * lane_bytes


@device
def _write_tiles(params, products, panel, first, count):
    """Transform M to tiles of dst."""
    across, down = params.tiles_across, params.tiles_down
    height, width = params.dst_height, params.dst_width
    is_last = panel == params.panels - 1
    vectors = params.last_vectors if is_last else params.vectors
    lanes = params.dst_lanes * is_last
    whole = vectors - (lanes > 0)
    vector = panel * params.vectors
    lane_bytes, plane = params.lane_bytes, params.dst_plane
    row_bytes, pixel_bytes = params.dst_row, params.dst_pixel
    step = params.dst_step
    room = ROOM.room()
    operands = address(room.operands)
    for tile in range(first, first + count):
        image = tile // (across * down)
        y, x = tile // across % down * OUTPUTS, tile % across * OUTPUTS
        dst = params.dst + image * params.dst_batch
        dst += y * row_bytes + x * pixel_bytes + vector * step
        rows = min(OUTPUTS, height - y)
        writers = params.writers[x + OUTPUTS > width]
        _find_operands(params, room, image, y, x, vector)
        if whole:
            DST_CALL.call(
                writers.whole, products=products, plane=plane, dst=dst, row=row_bytes,
                pixel=pixel_bytes, step=step, count=whole, rows=rows, lanes=0, operands=operands,
                direct=params.direct, loop=address(params), tile=tile, vector=vector,
            )  # fmt: skip
        if lanes:
            _find_operands(params, room, image, y, x, vector + whole)
            last, dst = products + whole * lane_bytes, dst + whole * step
            DST_CALL.call(
                writers.last, products=last, plane=plane, dst=dst, row=row_bytes,
                pixel=pixel_bytes, step=step, count=1, rows=rows, lanes=lanes, operands=operands,
                direct=params.direct, loop=address(params), tile=tile, vector=vector + whole,
            )  # fmt: skip
        products += params.vectors * lane_bytes


@device
def _find_operands(params, room, image, y, x, vector):
    """Store the addresses and strides of a tile's operands to `room`."""
    for i in range(params.operand_count):
        matrix, operand = params.operands[i], room.operands[i]
        place = matrix.address + image * matrix.batch + (y * matrix.row + x * matrix.pixel)
        operand.address = place + vector * matrix.step
        operand.row = matrix.row
        operand.pixel = matrix.pixel
        operand.step = matrix.step


@task(TRANSFORM)
def transform_weights(params, begin, end):
    """Transform the weights of some vectors of columns."""
    depth, lane_bytes = params.depth, params.lane_bytes
    block = depth * lane_bytes
    for vector in range(begin, end):
        src = params.src + vector * TAPS * TAPS * block
        target = params.target + vector * POSITIONS * block
        WEIGHTS_CALL.call(
            params.kernel, src=src, row=params.row, column=params.column, count=depth,
            target=target, plane=block,
        )  # fmt: skip
