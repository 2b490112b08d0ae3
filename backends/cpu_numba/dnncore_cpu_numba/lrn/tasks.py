"""The native loops of local response normalisation: sums over a window along one axis.

`lrn/arithmetic.py` defines the steps. An item is some columns. A column is all places along the
axis. `vectors` stores each column contiguously in buffers, with zeros between columns for windows
that cross the borders. `slabs` computes place by place for all columns, and keeps the rows of a
window in a ring buffer. `rows` calls a kernel.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.codegen.task import device, native_function, task
from dnncore_cpu_numba.copies.intrinsics import WIDTH, copy_and_claim, copy_and_fetch
from dnncore_cpu_numba.copies.typed_rows import convert_row
from dnncore_cpu_numba.lrn.arithmetic import (
    RESULTS_CALL,
    TENSORS,
    TERMS_CALL,
    WINDOW,
    add,
    fill,
    sum_5,
    sum_ring,
)
from dnncore_cpu_numba.lrn.kernel import FIELDS, LRN_CALL, POINT

TILE = 2048  # floats of a buffer of `vectors`; five buffers fit into a first-level cache
RING = 16384  # floats of a ring of `slabs`; usually only a part is used
_UNIT = 64  # loops run over whole units of four vectors, because LLVM unrolls them by four
_BUFFER = (TILE + _UNIT) // 2  # size in int64
_RING_BUFFER = RING // 2
_ZERO, _ONE = np.float32(0), np.float32(1)
_RESULT, _BASE, _SRC, _DIFF, _EARLIER = (
    TENSORS.field(name).slot for name in ("result", "base", "src", "diff", "earlier")
)
_ITEM = (("params", Pointer(WINDOW)), ("tensors", Pointer(TENSORS)), ("tensor", "index"))
PIECES_CALL = Record("copies of columns", *_ITEM, ("buffer", "address"), ("pitch", "elements"))
ROW_CALL = Record("copies of a place", *_ITEM, ("place", "index"), ("buffer", "address"))
ROWS = Record(
    "rows of vectors",
    ("nest", Pointer(NEST)),
    ("kernel streamed", "address", "a `LRN_CALL`; the second one if all results are whole lines"),
    ("starts", POINT),
    ("fields", FIELDS),
)


def room(length: int, reach: int) -> int:
    """Return the number of columns of a length that fit into the buffers of `vectors`."""
    pitch, head = (-(-count // WIDTH) * WIDTH for count in (length + reach, reach))
    return (TILE - 2 * head) // pitch


@task(WINDOW)
def vectors(params, begin, end):
    """Compute columns that are contiguous in memory, or contiguous in blocks."""
    columns, length = params.columns, params.length
    reach, read, write = params.reach, params.read, params.write
    make_terms, make_results = params.make_terms, params.make_results
    pitch, head = _aligned(length + reach), _aligned(reach)
    count = (columns * pitch + _UNIT - 1) // _UNIT * _UNIT
    src, diff, base, terms = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    own, total = stack(_BUFFER), stack(_BUFFER)
    fill(src, _ZERO, TILE + _UNIT)
    fill(diff, _ZERO, TILE + _UNIT)
    fill(base, _ONE, TILE + _UNIT)
    fill(terms, _ZERO, TILE + _UNIT)
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        backward = tensors.diff != 0
        if tensors.src:
            _pieces(read, params, tensors, _SRC, src, pitch)
        if backward:
            _pieces(read, params, tensors, _DIFF, diff, pitch)
            _pieces(read, params, tensors, _BASE, base, pitch)
        if tensors.earlier:
            _pieces(read, params, tensors, _EARLIER, terms + 4 * head, pitch)
        if make_terms:
            _make_terms(make_terms, params, src, diff, base, own, terms + 4 * head, count)
        first = terms + 4 * (head - reach)
        if reach == 2:
            sum_5(first, first + 4, first + 8, first + 12, first + 16, total, count)
        else:
            fill(total, _ZERO, count)
            for shift in range(2 * reach + 1):
                add(first + 4 * shift, total, count)
        if make_results:
            _make_results(make_results, params, src, base, own, total, count)
        _pieces(write, params, tensors, _RESULT, total, pitch)
        if tensors.base and not backward:
            _pieces(write, params, tensors, _BASE, base, pitch)
        advance(params.nest, position, tensors, 1)


@task(WINDOW)
def slabs(params, begin, end):
    """Compute all columns, place by place."""
    columns, length = params.columns, params.length
    reach, read, write = params.reach, params.read, params.write
    make_terms, make_results = params.make_terms, params.make_results
    count = (columns + WIDTH - 1) // WIDTH * WIDTH
    rows = min(2 * reach + 1, length)
    diff, base, total = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    src, terms, own = stack(_RING_BUFFER), stack(_RING_BUFFER), stack(_RING_BUFFER)
    fill(src, _ZERO, rows * count)
    fill(terms, _ZERO, rows * count)
    fill(diff, _ZERO, count)
    fill(base, _ONE, count)
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        backward, summed = tensors.diff != 0, tensors.earlier != 0
        for place in range(length + reach):
            if place < length:
                row = 4 * count * (place % rows)
                if summed:
                    _row(read, params, tensors, _EARLIER, place, terms + row)
                else:
                    _row(read, params, tensors, _SRC, place, src + row)
                if backward:
                    _row(read, params, tensors, _DIFF, place, diff)
                    _row(read, params, tensors, _BASE, place, base)
                if make_terms:
                    at = src + row, own + row, terms + row
                    _make_terms(make_terms, params, at[0], diff, base, at[1], at[2], count)
            if place >= reach:
                middle = place - reach
                sum_ring(terms, rows, count, middle, reach, length, total)
                row = 4 * count * (middle % rows)
                if summed and make_results:
                    _row(read, params, tensors, _SRC, middle, src + row)
                if make_results:
                    _make_results(make_results, params, src + row, base, own + row, total, count)
                _row(write, params, tensors, _RESULT, middle, total)
                if tensors.base and not backward:
                    _row(write, params, tensors, _BASE, middle, base)
        advance(params.nest, position, tensors, 1)


@task(ROWS)
def rows(params, begin, end):
    """Compute some points per item by a kernel that runs along the axis; see `lrn/kernel.py`."""
    position, tensors = stack(MAX_LOOPS), POINT.room()
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        kernel = params.kernel
        both = tensors.result | tensors.base
        if params.streamed and both % LINE == 0:
            kernel = params.streamed
        LRN_CALL.call(kernel, tensors=tensors, fields=params.fields)
        advance(params.nest, position, tensors, 1)


@device
def _make_terms(function, params, src, diff, base, own, terms, count):
    TERMS_CALL.call(
        function, params=params, src=src, diff=diff, base=base, own=own, terms=terms, count=count
    )


@device
def _make_results(function, params, src, base, own, total, count):
    RESULTS_CALL.call(
        function, params=params, src=src, base=base, own=own, total=total, count=count
    )


@device
def _pieces(function, params, tensors, tensor, buffer, pitch):
    PIECES_CALL.call(
        function, params=params, tensors=tensors, tensor=tensor, buffer=buffer, pitch=pitch
    )


@device
def _row(function, params, tensors, tensor, place, buffer):
    ROW_CALL.call(
        function, params=params, tensors=tensors, tensor=tensor, place=place, buffer=buffer
    )


@device
def _aligned(count):
    """Return a number of floats, rounded up to whole vectors."""
    return (count + WIDTH - 1) // WIDTH * WIDTH


# -- between tensors and buffers -------------------------------------------------------------------


@device
def _distance(params, places, place):
    """Return the bytes from a place to the next one."""
    following = min(place + 1, params.length - 1)
    return load_i64(places, following) - load_i64(places, place)


def _copies(way: str, copy_vector):
    """Return the native functions that copy columns, and a place of all columns.

    way: "read" copies to a buffer, "write" copies back. copy_vector: copies `WIDTH` floats and
    prefetches memory that is needed later.
    """
    reads = way == "read"

    @device
    def convert(kernel, memory, step, buffer, count):
        if reads:
            convert_row(kernel, memory, step, buffer, 4, count)
        else:
            convert_row(kernel, buffer, 4, memory, step, count)

    @device
    def move(memory, buffer, count, distance):
        """Copy f32, and prefetch memory at a distance in bytes."""
        source, target = (memory, buffer) if reads else (buffer, memory)
        whole = count // WIDTH * WIDTH
        for i in range(0, whole, WIDTH):
            copy_vector(source + 4 * i, target + 4 * i, memory + 4 * i + distance)
        for i in range(whole, count):
            store_f32(target, i, load_f32(source, i))

    def pieces(params, tensors, tensor, buffer, pitch):
        """Copy the columns of an item, one contiguous piece of the axis after another."""
        columns, length = params.columns, params.length
        size, kernel = params.sizes[tensor], params.kernels[tensor]
        stride, places = size * params.strides[tensor], params.places[tensor]
        piece = params.pieces[tensor]
        for start in range(0, length, piece):
            origin = load_i64(tensors, tensor) + load_i64(places, start)
            for column in range(columns):
                count = min(piece, length - start)
                inside = buffer + 4 * (column * pitch + start)
                if kernel:
                    convert(kernel, origin + column * stride, size, inside, count)
                else:
                    move(origin + column * stride, inside, count, columns * stride)

    def row(params, tensors, tensor, place, buffer):
        """Copy one place of all columns."""
        columns, stride = params.columns, params.strides[tensor]
        places = params.places[tensor]
        memory = load_i64(tensors, tensor) + load_i64(places, place)
        if params.kernels[tensor]:
            step = stride * params.sizes[tensor]
            convert(params.kernels[tensor], memory, step, buffer, columns)
        elif stride == 1:
            move(memory, buffer, columns, _distance(params, places, place))
        elif reads:
            for i in range(columns):
                store_f32(buffer, i, load_f32(memory, i * stride))
        else:
            for i in range(columns):
                store_f32(memory, i * stride, load_f32(buffer, i))

    pieces.__name__, row.__name__ = f"{way}_pieces", f"{way}_row"
    return native_function(PIECES_CALL)(pieces), native_function(ROW_CALL)(row)


(_READ_PIECES, _READ_ROW), (_WRITE_PIECES, _WRITE_ROW) = (
    _copies("read", copy_and_fetch), _copies("write", copy_and_claim),
)  # fmt: skip
VECTORS = vectors, _READ_PIECES, _WRITE_PIECES
SLABS = slabs, _READ_ROW, _WRITE_ROW
"""(the task of a step, the functions that it calls to read and to write buffers)."""
