"""The native loop of pooling around its kernel: bands of rows of results.

A band is cut into runs of rows and segments along w whose results have the same taps: one call of
the kernel each. Tables tell where places along d, runs and segments lie in each tensor and what
taps they have. Where channels are neighbours, the kernel works in place. Where places along w are,
up to 16 channels are transposed into buffers, and the results are transposed back.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import call, load_i64, stack, store_f32, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.copy_kernel import SIDE
from dnncore_cpu_numba.pooling.kernel import FIELDS, SLOT

__all__ = ["BUFFERS", "pool"]

BUFFERS = 256 << 10  # bytes for all buffers, a part of a second-level cache

# The slots of the parameters. D, RUNS and SEGMENTS are tables along d, h and w, bands and views are
# described below; EMPTY is what a window without cells gives, and UNIFORM tells whether all sums
# have one divisor. STAGED: whether there are buffers; B_READ, B_WRITTEN: whether b has one.
NEST, KERNEL, STREAMED, BLOCK, D, RUNS, SEGMENTS, SEGMENT_COUNT, BANDS, BAND_COUNT = range(10)
EMPTY, UNIFORM, ADDRESSES = 10, 11, 12
STAGED, CHANNELS, MOVE, MOVE_B, B_READ, B_WRITTEN, VIEWS = range(15, 22)
# A row of a table, for result, a and b: the bytes to the first place and to the next one; then how
# many taps it has, the first tap's number, and how many places there are.
PLACE, STEP, TAPS, TAP, COUNT, ROW = 0, 3, 6, 7, 8, 9
# A band: its depth, rows and runs of results, and the rows that these read, at which depths.
DEPTH_OF, FIRST, LAST, FIRST_RUN, LAST_RUN, START, STOP, SOURCE_DEPTH, DEPTH_STEP, BAND = range(10)
# A view, of result, a or b: where the buffer is, tables of the places of channels in memory and of
# pixels in the buffer, and how the tensor lies in memory.
BUFFER, OUTSIDE, INSIDE, DEPTH, HEIGHT, WIDTH, ITEM, PLANE, VIEW = range(9)

_TAP, _COUNT, _LINES = SLOT["tap"], SLOT["count"], SLOT["lines"]
_RESULT, _D, _H, _W = (SLOT[name] for name in ("result", "d", "h", "w"))
_STEP, _LINE = SLOT["result_step"], SLOT["result_line"]  # three each: of result, a and b
_A_H, _AHEAD, _AHEAD_ROWS = SLOT["a_h"], SLOT["ahead"], SLOT["ahead_rows"]
_START, _DIVISOR = SLOT["start"], SLOT["divisor"]
_FIELDS, _ROOM = len(FIELDS), BUFFERS // 8
_FEW = 8  # places along w that are no tile


@task
def pool(params, begin, end):
    """Bands of rows of results, of all columns."""
    bands, template = load_i64(params, BAND_COUNT), load_i64(params, BLOCK)
    block, position, tensors = stack(_FIELDS), stack(MAX_LOOPS), stack(3)
    buffers, starts = stack(_ROOM), stack(3)
    for i in range(_FIELDS):
        store_i64(block, i, load_i64(template, i))
    seek(load_i64(params, NEST), begin // bands, position, params + 8 * ADDRESSES, tensors, 1)
    for item in range(begin, end):
        band = load_i64(params, BANDS) + 8 * BAND * (item % bands)
        for i in range(3):
            store_i64(starts, i, load_i64(tensors, i))
        if load_i64(params, STAGED):
            _read_band(params, band, tensors, buffers, starts)
        _compute_band(params, block, band, starts)
        if load_i64(params, STAGED):
            _write_band(params, band, tensors, buffers)
        if item % bands == bands - 1:
            advance(load_i64(params, NEST), position, tensors, 1)


@device
def _compute_band(params, block, band, starts):
    """Compute all runs and segments of a band."""
    d = load_i64(params, D) + 8 * ROW * load_i64(band, DEPTH_OF)
    store_i64(block, _D, load_i64(d, TAPS))
    for run in range(load_i64(band, FIRST_RUN), load_i64(band, LAST_RUN)):
        h = load_i64(params, RUNS) + 8 * ROW * run
        store_i64(block, _H, load_i64(h, TAPS))
        for segment in range(load_i64(params, SEGMENT_COUNT)):
            w = load_i64(params, SEGMENTS) + 8 * ROW * segment
            store_i64(block, _W, load_i64(w, TAPS))
            for i in range(3):
                place = load_i64(d, PLACE + i) + load_i64(h, PLACE + i) + load_i64(w, PLACE + i)
                store_i64(block, _RESULT + i, load_i64(starts, i) + place)
            _set_taps(params, block, d, h, w)
            _set_loops(block, h, w)
            _set_ahead(block, h)
            kernel = load_i64(params, KERNEL)
            if load_i64(params, STREAMED) and load_i64(block, _RESULT) % LINE == 0:
                kernel = load_i64(params, STREAMED)
            call(kernel, (block,))


@device
def _set_taps(params, block, d, h, w):
    """What the box of taps begins with and is divided by."""
    taps = load_i64(d, TAPS) * load_i64(h, TAPS) * load_i64(w, TAPS)
    first, start = 0, load_i64(params, EMPTY)
    if taps:
        first = load_i64(d, TAP) + load_i64(h, TAP) + load_i64(w, TAP)
        start = load_i64(load_i64(params, BLOCK), _START)
    store_i64(block, _TAP, first)
    store_i64(block, _START, start)
    if not load_i64(params, UNIFORM):
        store_f32(block, 2 * _DIVISOR, np.float32(taps))


@device
def _set_ahead(block, h):
    """The rows that the next line of results reads and this one does not; backward none."""
    row, rows = load_i64(block, _A_H), 0
    if row:
        rows = load_i64(h, STEP + 1) // row
    store_i64(block, _AHEAD, load_i64(h, TAPS) * row)
    store_i64(block, _AHEAD_ROWS, rows)


@device
def _set_loops(block, h, w):
    """Tiles run along w, along h where a segment is too short for one, or along both as one."""
    rows, places = load_i64(h, COUNT), load_i64(w, COUNT)
    joined = True
    for i in range(3):
        joined = joined and load_i64(h, STEP + i) == places * load_i64(w, STEP + i)
    if joined:
        rows, places = 1, rows * places
    elif places < _FEW and places < rows:
        rows, places = places, rows
        h, w = w, h
    store_i64(block, _COUNT, places)
    store_i64(block, _LINES, rows)
    for i in range(3):
        store_i64(block, _STEP + i, load_i64(w, STEP + i))
        store_i64(block, _LINE + i, load_i64(h, STEP + i))


# -- between tensors and buffers -------------------------------------------------------------------


@device
def _view(params, tensor):
    return params + 8 * (VIEWS + VIEW * tensor)


@device
def _read_band(params, band, tensors, buffers, starts):
    """Transpose the rows that a band needs; `starts` becomes where row 0 would be in buffers."""
    start, stop = load_i64(band, START), load_i64(band, STOP)
    d = load_i64(params, D) + 8 * ROW * load_i64(band, DEPTH_OF)
    for tap in range(load_i64(d, TAPS)):
        depth = load_i64(band, SOURCE_DEPTH) + tap * load_i64(band, DEPTH_STEP)
        for i in range(1, 2 + load_i64(params, B_READ)):
            view, move = _view(params, i), load_i64(params, MOVE + i - 1)
            buffer = buffers + load_i64(view, BUFFER) + tap * load_i64(view, PLANE)
            image = load_i64(tensors, i)
            _move_rows(params, move, view, image, buffer, depth, start, stop, True)
    _set_row_zero(params, 0, load_i64(band, FIRST), buffers, starts)
    _set_row_zero(params, 1, start, buffers, starts)
    if load_i64(params, B_READ):
        _set_row_zero(params, 2, start, buffers, starts)
    if load_i64(params, B_WRITTEN):
        _set_row_zero(params, 2, load_i64(band, FIRST), buffers, starts)


@device
def _set_row_zero(params, tensor, first, buffers, starts):
    """Where row 0 would be in a buffer that begins with row `first`."""
    view = _view(params, tensor)
    row = SIDE * load_i64(view, ITEM) * load_i64(view, WIDTH)
    store_i64(starts, tensor, buffers + load_i64(view, BUFFER) - first * row)


@device
def _write_band(params, band, tensors, buffers):
    """Transpose the results back."""
    depth, first = load_i64(band, DEPTH_OF), load_i64(band, FIRST)
    for i in range(1 + load_i64(params, B_WRITTEN)):
        view, move = _view(params, 2 * i), load_i64(params, MOVE + i)
        buffer, image = buffers + load_i64(view, BUFFER), load_i64(tensors, 2 * i)
        last = load_i64(band, LAST)
        _move_rows(params, move, view, image, buffer, depth, first, last, False)


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
        outside = image + row * load_i64(view, HEIGHT)
        inside = buffer + row * length * SIDE * item
        if inwards:
            call(move, (outside, inside, shape))
        else:
            call(move, (inside, outside, shape))
