"""The native loops of pooling around its kernel: rows of results, in place or through buffers.

A row of results is some segments, one call of the kernel each. Tables tell for every place along d
and h, and for every segment along w, where it lies in each tensor and what taps it has. `in_place`
serves layouts whose channels are neighbours. `staged` serves those whose places along w are: up to
16 channels of a band of rows are transposed into a buffer, and the results are transposed back.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.copy_kernel import SIDE
from dnncore_cpu_numba.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.pointers import (
    call,
    load_i64,
    stack,
    store_f32,
    store_i64,
)
from dnncore_cpu_numba.pooling_kernel import FIELDS, SLOT
from dnncore_cpu_numba.streaming import LINE
from dnncore_cpu_numba.task import device, task

__all__ = ["BUFFERS", "in_place", "staged"]

BUFFERS = 256 << 10  # bytes for the buffers of `staged`, a part of a second-level cache

# The slots of the parameters. Tables D, H and W have `ROW` int64 a place: the bytes that it is away
# in result, a and b, how many taps it has, the first tap's number, and how many results it is.
NEST, KERNEL, STREAMED, BLOCK, D, H, W, HEIGHTS, SEGMENTS, ROWS, EMPTY, UNIFORM = range(12)
RESULT, A, B, TAPS, TAP, COUNT, ROW = range(7)
ADDRESSES = 12  # of result, a and b
# Of `staged`: bands, a table, and how many; the channels; the kernels that transpose results and b;
# whether b is read or written; and for result, a and b where the buffer is, tables of the places of
# channels in memory and of pixels in the buffer, and how the tensor lies in memory.
BANDS, BAND_COUNT, CHANNELS, MOVE, MOVE_B, B_READ, B_WRITTEN, VIEWS = range(15, 23)
DEPTH_OF, FIRST, LAST, START, STOP, SOURCE_DEPTH, DEPTH_STEP, BAND_SLOTS = range(8)
BUFFER, OUTSIDE, INSIDE, DEPTH, HEIGHT, WIDTH, ITEM, PLANE, VIEW_SLOTS = range(9)

_RESULT, _A, _B = SLOT["result"], SLOT["a"], SLOT["b"]
_D, _H, _W, _TAP, _COUNT = (SLOT[name] for name in ("d", "h", "w", "tap", "count"))
_START, _DIVISOR = SLOT["start"], SLOT["divisor"]
_FIELDS, _ROOM = len(FIELDS), BUFFERS // 8


@task
def in_place(params, begin, end):
    """Rows of results, of all columns."""
    rows, heights = load_i64(params, ROWS), load_i64(params, HEIGHTS)
    block, position, tensors = stack(_FIELDS), stack(MAX_LOOPS), stack(3)
    _copy_block(params, block)
    seek(load_i64(params, NEST), begin // rows, position, params + 8 * ADDRESSES, tensors, 1)
    for item in range(begin, end):
        row = item % rows
        d = load_i64(params, D) + 8 * ROW * (row // heights)
        h = load_i64(params, H) + 8 * ROW * (row % heights)
        at = load_i64(tensors, 0), load_i64(tensors, 1), load_i64(tensors, 2)
        _compute_row(params, block, d, h, at[0], at[1], at[2])
        if row == rows - 1:
            advance(load_i64(params, NEST), position, tensors, 1)


@task
def staged(params, begin, end):
    """Bands of rows of up to 16 channels."""
    bands = load_i64(params, BAND_COUNT)
    block, position, tensors = stack(_FIELDS), stack(MAX_LOOPS), stack(3)
    buffers = stack(_ROOM)
    _copy_block(params, block)
    seek(load_i64(params, NEST), begin // bands, position, params + 8 * ADDRESSES, tensors, 1)
    for item in range(begin, end):
        band = load_i64(params, BANDS) + 8 * BAND_SLOTS * (item % bands)
        _read_band(params, band, load_i64(tensors, 1), load_i64(tensors, 2), buffers)
        _compute_band(params, block, band, load_i64(tensors, 2), buffers)
        _write_band(params, band, load_i64(tensors, 0), load_i64(tensors, 2), buffers)
        if item % bands == bands - 1:
            advance(load_i64(params, NEST), position, tensors, 1)


@device
def _copy_block(params, block):
    """Begin with the fields that stay."""
    for i in range(_FIELDS):
        store_i64(block, i, load_i64(load_i64(params, BLOCK), i))


@device
def _compute_row(params, block, d, h, result, a, b):
    """Run the kernel on the segments of the row at table rows d and h."""
    result += load_i64(d, RESULT) + load_i64(h, RESULT)
    a += load_i64(d, A) + load_i64(h, A)
    b += load_i64(d, B) + load_i64(h, B)
    around = load_i64(d, TAPS) * load_i64(h, TAPS)
    tap = load_i64(d, TAP) + load_i64(h, TAP)
    store_i64(block, _D, load_i64(d, TAPS))
    store_i64(block, _H, load_i64(h, TAPS))
    kernel = load_i64(params, KERNEL)
    if result % LINE == 0 and load_i64(params, STREAMED):
        kernel = load_i64(params, STREAMED)
    for i in range(load_i64(params, SEGMENTS)):
        w = load_i64(params, W) + 8 * ROW * i
        taps = around * load_i64(w, TAPS)
        store_i64(block, _RESULT, result + load_i64(w, RESULT))
        store_i64(block, _A, a + load_i64(w, A))
        store_i64(block, _B, b + load_i64(w, B))
        store_i64(block, _COUNT, load_i64(w, COUNT))
        store_i64(block, _W, load_i64(w, TAPS))
        store_i64(block, _TAP, tap + load_i64(w, TAP) if taps else 0)
        template = load_i64(params, BLOCK)
        store_i64(block, _START, load_i64(template, _START) if taps else load_i64(params, EMPTY))
        if not load_i64(params, UNIFORM):
            store_f32(block, 2 * _DIVISOR, np.float32(taps))
        call(kernel, (block,))


# -- between tensors and buffers -------------------------------------------------------------------


@device
def _view(params, tensor):
    return params + 8 * (VIEWS + VIEW_SLOTS * tensor)


@device
def _read_band(params, band, a, b, buffers):
    """Transpose the rows that a band needs, of each depth that it sees."""
    start, stop = load_i64(band, START), load_i64(band, STOP)
    d = load_i64(params, D) + 8 * ROW * load_i64(band, DEPTH_OF)
    for tap in range(load_i64(d, TAPS)):
        depth = load_i64(band, SOURCE_DEPTH) + tap * load_i64(band, DEPTH_STEP)
        view, move = _view(params, 1), load_i64(params, MOVE)
        buffer = buffers + load_i64(view, BUFFER) + tap * load_i64(view, PLANE)
        _move_rows(params, move, view, a, buffer, depth, start, stop, True)
        if load_i64(params, B_READ):
            view, move = _view(params, 2), load_i64(params, MOVE_B)
            buffer = buffers + load_i64(view, BUFFER) + tap * load_i64(view, PLANE)
            _move_rows(params, move, view, b, buffer, depth, start, stop, True)


@device
def _compute_band(params, block, band, b, buffers):
    """Compute a band's rows, which its tables count from the first row of the tensors on."""
    first, start = load_i64(band, FIRST), load_i64(band, START)
    if load_i64(params, B_READ):
        b = _row_zero(params, 2, start, buffers)
    elif load_i64(params, B_WRITTEN):
        b = _row_zero(params, 2, first, buffers)
    result, a = _row_zero(params, 0, first, buffers), _row_zero(params, 1, start, buffers)
    d = load_i64(params, D) + 8 * ROW * load_i64(band, DEPTH_OF)
    for row in range(first, load_i64(band, LAST)):
        _compute_row(params, block, d, load_i64(params, H) + 8 * ROW * row, result, a, b)


@device
def _row_zero(params, tensor, first, buffers):
    """Where row 0 would be in a buffer that begins with row `first`."""
    view = _view(params, tensor)
    row = SIDE * load_i64(view, ITEM) * load_i64(view, WIDTH)
    return buffers + load_i64(view, BUFFER) - first * row


@device
def _write_band(params, band, result, b, buffers):
    """Transpose the results back."""
    depth, first, last = (
        load_i64(band, DEPTH_OF),
        load_i64(band, FIRST),
        load_i64(band, LAST),
    )
    view = _view(params, 0)
    buffer = buffers + load_i64(view, BUFFER)
    _move_rows(params, load_i64(params, MOVE), view, result, buffer, depth, first, last, False)
    if load_i64(params, B_WRITTEN):
        view = _view(params, 2)
        buffer = buffers + load_i64(view, BUFFER)
        _move_rows(params, load_i64(params, MOVE_B), view, b, buffer, depth, first, last, False)


@device
def _move_rows(params, move, view, image, buffer, depth, start, stop, inwards):
    """Transpose the rows [start, stop) into a buffer or back."""
    width, item = load_i64(view, WIDTH), load_i64(view, ITEM)
    image += depth * load_i64(view, DEPTH) + start * load_i64(view, HEIGHT)
    rows, length = stop - start, width
    if load_i64(view, HEIGHT) == width * item:
        rows, length = 1, (stop - start) * width
    shape = stack(4)
    store_i64(shape, 0, SIDE if inwards else length)
    store_i64(shape, 1, length if inwards else load_i64(params, CHANNELS))
    store_i64(shape, 2, load_i64(view, OUTSIDE if inwards else INSIDE))
    store_i64(shape, 3, load_i64(view, INSIDE if inwards else OUTSIDE))
    for row in range(rows):
        outside, inside = (
            image + row * load_i64(view, HEIGHT),
            buffer + row * length * SIDE * item,
        )
        if inwards:
            call(move, (outside, inside, shape))
        else:
            call(move, (inside, outside, shape))
