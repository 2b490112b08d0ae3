"""The native loop of pooling: calls the kernel for bands of rows of results.

A band is divided into runs of rows, and each row into segments along w. All results of a run and a
segment have the same taps; one kernel call computes them. Tables hold the taps, and the offsets in
each tensor, of positions along d, of runs and of segments. If channels are contiguous in memory,
the kernel works in place. If positions along w are contiguous, up to 16 channels are transposed
into buffers, and the results are transposed back.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import address, load_i64, stack, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.copy_kernel import COPY_CALL, SIDE, TRANSPOSED
from dnncore_cpu_numba.pooling.kernel import FIELDS, POOLING_CALL, TILE

BUFFERS = 256 << 10  # bytes of all buffers; they fit into a second-level cache

TENSORS = Record("tensors of a fold", ("result a b", "address"))
ALONG = Record(
    "segment along a dim",
    ("result a b", "bytes", "to the first place"),
    ("result_step a_step b_step", "bytes", "from place to place"),
    ("taps", "count", "of each place"),
    ("tap", "index", "the first tap's"),
    ("count", "count", "places"),
)
BAND = Record(
    "band",
    ("depth", "index", "of the results"),
    ("first last", "index", "rows of results"),
    ("first_run last_run", "index"),
    ("start stop", "index", "rows that are read"),
    ("source_depth depth_step", "index", "first depth that is read, step from tap to tap"),
)
VIEW = Record(
    "buffer of a tensor",
    ("buffer", "bytes", "its offset"),
    ("outside inside", "address", "of tables: of channels in memory, of pixels in the buffer"),
    ("depth height", "bytes", "from one to the next in memory"),
    ("width", "count"),
    ("joined", "flag", "rows follow each other in memory"),
    ("item plane", "bytes", "of an element, and of a depth in the buffer"),
)
STAGING = Record(
    "buffers of a fold",
    ("channels", "count"),
    ("moves", Many("address", 3), "a `COPY_CALL` of `TRANSPOSED`: of result, a and b"),
    ("b_read b_written", "flag", "b has a buffer"),
    ("views", Many(VIEW), "of result, a and b"),
)
POOL = Record(
    "pool",
    ("nest", Pointer(NEST)),
    ("kernel streamed", "address", "each a `POOLING_CALL`; streamed: if results are whole lines"),
    ("fields", Pointer(FIELDS), "the constant fields"),
    ("d runs segments", Pointer(ALONG), "along d, h and w"),
    ("segment_count", "count"),
    ("tiles", Pointer(TILE), "of a row, for the row kernel"),
    ("whole_rows", "flag", "the kernel computes whole rows"),
    ("bands", Pointer(BAND)),
    ("band_count", "count"),
    ("empty", "float32", "the result of a window without cells"),
    ("uniform", "flag", "all sums have one divisor"),
    ("starts", TENSORS),
    ("staged", "flag", "there are buffers"),
    ("staging", Many(STAGING)),
)
_RESULT, _A, _B = (TENSORS.field(name).slot for name in ("result", "a", "b"))
_FIELDS, _ROOM = FIELDS.size, BUFFERS // 8
_FEW = 8  # fewer positions along w do not fill a tile


@task(POOL)
def pool(params, begin, end):
    """Compute the items [begin, end): bands of rows of results of all columns."""
    bands, template = params.band_count, address(params.fields)
    fields, position, tensors = FIELDS.room(), stack(MAX_LOOPS), TENSORS.room()
    buffers, starts = stack(_ROOM), TENSORS.room()
    for i in range(_FIELDS):
        store_i64(fields, i, load_i64(template, i))
    fields.tiles = params.tiles
    seek(params.nest, begin // bands, position, params.starts, tensors, 1)
    for item in range(begin, end):
        band = params.bands[item % bands]
        starts.result, starts.a, starts.b = tensors.result, tensors.a, tensors.b
        if params.staged:
            _read_band(params, band, tensors, buffers, starts)
        _compute_band(params, fields, band, starts)
        if params.staged:
            _write_band(params, band, tensors, buffers)
        if item % bands == bands - 1:
            advance(params.nest, position, tensors, 1)


@device
def _compute_band(params, fields, band, starts):
    """Compute all runs and segments of a band."""
    d = params.d[band.depth]
    fields.d = d.taps
    for run in range(band.first_run, band.last_run):
        h = params.runs[run]
        fields.h = h.taps
        for segment in range(params.segment_count):
            w = params.segments[segment]
            fields.w = w.taps
            fields.result = d.result + h.result + w.result + starts.result
            fields.a = d.a + h.a + w.a + starts.a
            fields.b = d.b + h.b + w.b + starts.b
            _set_taps(params, fields, d, h, w)
            if params.whole_rows:
                _set_lines(fields, h)
            else:
                _set_loops(fields, h, w)
            _set_ahead(fields, h)
            kernel = params.kernel
            if params.streamed and fields.result % LINE == 0:
                kernel = params.streamed
            POOLING_CALL.call(kernel, fields=fields)


@device
def _set_taps(params, fields, d, h, w):
    """Set the first tap of the box, the initial value and the divisor."""
    taps = d.taps * h.taps * w.taps
    first, start = 0, params.empty
    if taps:
        first = d.tap + h.tap + w.tap
        start = params.fields.start
    fields.tap = first
    fields.start = start
    if not params.uniform:
        fields.divisor = np.float32(taps)


@device
def _set_ahead(fields, h):
    """Set the rows that the next line of results reads and this line does not; none backward."""
    row, rows = fields.a_h, 0
    if row:
        rows = h.a_step // row
    fields.ahead = h.taps * row
    fields.ahead_rows = rows


@device
def _set_lines(fields, h):
    """Set the loop over whole rows."""
    fields.lines = h.count
    fields.result_line, fields.a_line, fields.b_line = h.result_step, h.a_step, h.b_step


@device
def _set_loops(fields, h, w):
    """Set the loops: tiles run along w, along h if a segment is short, or along both joined."""
    rows, places = h.count, w.count
    joined = h.result_step == places * w.result_step
    joined = joined and h.a_step == places * w.a_step
    joined = joined and h.b_step == places * w.b_step
    if joined:
        rows, places = 1, rows * places
    elif places < _FEW and places < rows:
        rows, places = places, rows
        h, w = w, h
    fields.count = places
    fields.lines = rows
    fields.result_step, fields.result_line = w.result_step, h.result_step
    fields.a_step, fields.a_line = w.a_step, h.a_step
    fields.b_step, fields.b_line = w.b_step, h.b_step


# -- between tensors and buffers -------------------------------------------------------------------


@device
def _read_band(params, band, tensors, buffers, starts):
    """Transpose the rows that a band needs, and set `starts` to row 0 of each buffer.

    Row 0 of the image may lie before the buffer.
    """
    start, stop, staging = band.start, band.stop, params.staging
    for tap in range(params.d[band.depth].taps):
        depth = band.source_depth + tap * band.depth_step
        for i in range(_A, _B + staging.b_read):
            view, move = staging.views[i], staging.moves[i]
            buffer = buffers + view.buffer + tap * view.plane
            image = load_i64(tensors, i)
            _move_rows(staging, move, view, image, buffer, depth, start, stop, True)
    _set_row_zero(staging, _RESULT, band.first, buffers, starts)
    _set_row_zero(staging, _A, start, buffers, starts)
    if staging.b_read:
        _set_row_zero(staging, _B, start, buffers, starts)
    if staging.b_written:
        _set_row_zero(staging, _B, band.first, buffers, starts)


@device
def _set_row_zero(staging, tensor, first, buffers, starts):
    """Set the address that row 0 would have in a buffer whose first row is `first`."""
    view = staging.views[tensor]
    row = SIDE * view.item * view.width
    store_i64(starts, tensor, buffers + view.buffer - first * row)


@device
def _write_band(params, band, tensors, buffers):
    """Transpose the results of a band from the buffers to memory."""
    staging = params.staging
    for i in range(1 + staging.b_written):
        view, move = staging.views[_B * i], staging.moves[_B * i]
        buffer, image = buffers + view.buffer, load_i64(tensors, _B * i)
        first, last = band.first, band.last
        _move_rows(staging, move, view, image, buffer, band.depth, first, last, False)


@device
def _move_rows(staging, move, view, image, buffer, depth, start, stop, inwards):
    """Transpose the rows [start, stop) into a buffer, or back if not `inwards`."""
    width, item = view.width, view.item
    image += depth * view.depth + start * view.height
    rows, length = stop - start, width
    if view.joined:
        rows, length = 1, (stop - start) * width
    shape = TRANSPOSED.room()
    shape.a = SIDE if inwards else length
    shape.j = length if inwards else staging.channels
    shape.rows = view.outside if inwards else view.inside
    shape.columns = view.inside if inwards else view.outside
    for row in range(rows):
        outside = image + row * view.height
        inside = buffer + row * length * SIDE * item
        if inwards:
            COPY_CALL.call(move, src=outside, dst=inside, shape=shape)
        else:
            COPY_CALL.call(move, src=inside, dst=outside, shape=shape)
