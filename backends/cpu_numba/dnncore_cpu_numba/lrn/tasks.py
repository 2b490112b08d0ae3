"""The native loops of local response normalisation: sums over a window along one axis.

See `lrn/arithmetic.py` for the steps. An item is some columns, neighbouring vectors along the axis.
`vectors` keeps each in one piece in its buffers, with zeros between them in which windows that
reach over the borders end; `slabs` goes from place to place of the axis with all columns and keeps
a window's rows in a ring; `rows` leaves all to a kernel.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import call, load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.blocks import WIDTH, copy_and_claim, copy_and_fetch
from dnncore_cpu_numba.lrn.arithmetic import (
    ADDRESSES,
    BASE,
    COLUMN,
    COLUMNS,
    DIFF,
    EARLIER,
    LENGTH,
    MAKE_RESULTS,
    MAKE_TERMS,
    NEST,
    PIECE,
    PLACES,
    REACH,
    READ,
    RESULT,
    SRC,
    WRITE,
    add,
    fill,
    sum_5,
    sum_ring,
)

__all__ = ["RING", "SLABS", "VECTORS", "room", "rows"]

TILE = 2048  # floats of a buffer of `vectors`: five of them fit into a first-level cache
RING = 16384  # floats of a ring of `slabs`, which should use a part of it only
_UNIT = 64  # loops run over whole units: four vectors, as LLVM unrolls them
_BUFFER = (TILE + _UNIT) // 2  # int64
_RING_BUFFER = RING // 2
_ZERO, _ONE = np.float32(0), np.float32(1)
_KERNEL, _STREAMED, _ROW_ADDRESSES, _FIELDS = 1, 2, 3, 7  # of `rows`, behind the nest


def room(length: int, reach: int) -> int:
    """How many columns of a length fit into the buffers of `vectors`."""
    pitch, head = (-(-count // WIDTH) * WIDTH for count in (length + reach, reach))
    return (TILE - 2 * head) // pitch


@task
def vectors(params, begin, end):
    """Columns in one piece each, as they are in memory, or in blocks of it."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    reach, read, write = load_i64(params, REACH), load_i64(params, READ), load_i64(params, WRITE)
    make_terms, make_results = load_i64(params, MAKE_TERMS), load_i64(params, MAKE_RESULTS)
    pitch, head = _aligned(length + reach), _aligned(reach)
    count = (columns * pitch + _UNIT - 1) // _UNIT * _UNIT
    src, diff, base, terms = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    own, total = stack(_BUFFER), stack(_BUFFER)
    fill(src, _ZERO, TILE + _UNIT)
    fill(diff, _ZERO, TILE + _UNIT)
    fill(base, _ONE, TILE + _UNIT)
    fill(terms, _ZERO, TILE + _UNIT)
    position, tensors = stack(MAX_LOOPS), stack(5)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        backward = load_i64(tensors, DIFF) != 0
        if load_i64(tensors, SRC):
            call(read, (params, tensors, SRC, src, pitch))
        if backward:
            call(read, (params, tensors, DIFF, diff, pitch))
            call(read, (params, tensors, BASE, base, pitch))
        if load_i64(tensors, EARLIER):
            call(read, (params, tensors, EARLIER, terms + 4 * head, pitch))
        if make_terms:
            call(make_terms, (params, src, diff, base, own, terms + 4 * head, count))
        first = terms + 4 * (head - reach)
        if reach == 2:
            sum_5(first, first + 4, first + 8, first + 12, first + 16, total, count)
        else:
            fill(total, _ZERO, count)
            for shift in range(2 * reach + 1):
                add(first + 4 * shift, total, count)
        if make_results:
            call(make_results, (params, src, base, own, total, count))
        call(write, (params, tensors, RESULT, total, pitch))
        if load_i64(tensors, BASE) and not backward:
            call(write, (params, tensors, BASE, base, pitch))
        advance(load_i64(params, NEST), position, tensors, 1)


@task
def slabs(params, begin, end):
    """All columns, place by place."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    reach, read, write = load_i64(params, REACH), load_i64(params, READ), load_i64(params, WRITE)
    make_terms, make_results = load_i64(params, MAKE_TERMS), load_i64(params, MAKE_RESULTS)
    count = (columns + WIDTH - 1) // WIDTH * WIDTH
    rows = min(2 * reach + 1, length)
    diff, base, total = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    src, terms, own = stack(_RING_BUFFER), stack(_RING_BUFFER), stack(_RING_BUFFER)
    fill(src, _ZERO, rows * count)
    fill(diff, _ZERO, count)
    fill(base, _ONE, count)
    position, tensors = stack(MAX_LOOPS), stack(5)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        backward, summed = load_i64(tensors, DIFF) != 0, load_i64(tensors, EARLIER) != 0
        for place in range(length + reach):
            if place < length:
                row = 4 * count * (place % rows)
                if summed:
                    call(read, (params, tensors, EARLIER, place, terms + row))
                else:
                    call(read, (params, tensors, SRC, place, src + row))
                if backward:
                    call(read, (params, tensors, DIFF, place, diff))
                    call(read, (params, tensors, BASE, place, base))
                if make_terms:
                    call(make_terms, (params, src + row, diff, base, own + row, terms + row, count))
            if place >= reach:
                middle = place - reach
                sum_ring(terms, rows, count, middle, reach, length, total)
                row = 4 * count * (middle % rows)
                if summed and make_results:
                    call(read, (params, tensors, SRC, middle, src + row))
                if make_results:
                    call(make_results, (params, src + row, base, own + row, total, count))
                call(write, (params, tensors, RESULT, middle, total))
                if load_i64(tensors, BASE) and not backward:
                    call(write, (params, tensors, BASE, middle, base))
        advance(load_i64(params, NEST), position, tensors, 1)


@task
def rows(params, begin, end):
    """Some points each, by a kernel that walks along the axis; see `lrn/kernel.py`."""
    position, tensors = stack(MAX_LOOPS), stack(4)
    seek(load_i64(params, NEST), begin, position, params + 8 * _ROW_ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        kernel = load_i64(params, _KERNEL)
        both = load_i64(tensors, RESULT) | load_i64(tensors, BASE)
        if load_i64(params, _STREAMED) and both % LINE == 0:
            kernel = load_i64(params, _STREAMED)
        call(kernel, (tensors, params + 8 * _FIELDS))
        advance(load_i64(params, NEST), position, tensors, 1)


@device
def _aligned(count):
    """So many floats, filled up to whole vectors."""
    return (count + WIDTH - 1) // WIDTH * WIDTH


# -- between tensors and buffers -------------------------------------------------------------------


@task(arity=5)
def read_vectors(params, tensors, tensor, buffer, pitch):
    """Copy an item's columns to a buffer, piece by piece of the axis."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    stride, places = 4 * load_i64(params, COLUMN + tensor), load_i64(params, PLACES + tensor)
    piece = load_i64(params, PIECE + tensor)
    for start in range(0, length, piece):
        origin = load_i64(tensors, tensor) + load_i64(places, start)
        for column in range(columns):
            target = buffer + 4 * (column * pitch + start)
            count = min(piece, length - start)
            _copy_ahead(origin + column * stride, target, count, columns * stride)


@task(arity=5)
def write_vectors(params, tensors, tensor, buffer, pitch):
    """The way back."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    stride, places = 4 * load_i64(params, COLUMN + tensor), load_i64(params, PLACES + tensor)
    piece = load_i64(params, PIECE + tensor)
    for start in range(0, length, piece):
        origin = load_i64(tensors, tensor) + load_i64(places, start)
        for column in range(columns):
            source = buffer + 4 * (column * pitch + start)
            count = min(piece, length - start)
            _copy_back(source, origin + column * stride, count, columns * stride)


@task(arity=5)
def read_row(params, tensors, tensor, place, buffer):
    """Copy one place of all columns to a buffer."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, COLUMN + tensor)
    places = load_i64(params, PLACES + tensor)
    row = load_i64(tensors, tensor) + load_i64(places, place)
    if stride == 1:
        _copy_ahead(row, buffer, columns, _distance(params, places, place))
    else:
        for i in range(columns):
            store_f32(buffer, i, load_f32(row, i * stride))


@task(arity=5)
def write_row(params, tensors, tensor, place, buffer):
    """The way back."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, COLUMN + tensor)
    places = load_i64(params, PLACES + tensor)
    row = load_i64(tensors, tensor) + load_i64(places, place)
    if stride == 1:
        _copy_back(buffer, row, columns, _distance(params, places, place))
    else:
        for i in range(columns):
            store_f32(row, i * stride, load_f32(buffer, i))


@device
def _distance(params, places, place):
    """The bytes to the next place, which comes next."""
    following = min(place + 1, load_i64(params, LENGTH) - 1)
    return load_i64(places, following) - load_i64(places, place)


@device
def _copy_ahead(source, target, count, distance):
    """Copy to a buffer, and fetch what is to be read next, `distance` bytes further on."""
    whole = count // WIDTH * WIDTH
    for i in range(0, whole, WIDTH):
        copy_and_fetch(source + 4 * i, target + 4 * i, source + 4 * i + distance)
    for i in range(whole, count):
        store_f32(target, i, load_f32(source, i))


@device
def _copy_back(source, target, count, distance):
    """Copy from a buffer, and claim what is to be written next."""
    whole = count // WIDTH * WIDTH
    for i in range(0, whole, WIDTH):
        copy_and_claim(source + 4 * i, target + 4 * i, target + 4 * i + distance)
    for i in range(whole, count):
        store_f32(target, i, load_f32(source, i))


VECTORS = vectors, read_vectors, write_vectors
SLABS = slabs, read_row, write_row
"""A way: the task of a step, and those that it calls to read and write buffers."""
