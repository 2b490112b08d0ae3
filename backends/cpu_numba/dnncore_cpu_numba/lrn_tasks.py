"""The native loops of local response normalisation: sums over a window along one axis.

See `lrn_arithmetic.py` for the steps. An item is some columns, neighbouring vectors along the axis.
`vectors` keeps each in one piece in its buffers, with zeros between them in which windows that
reach over the borders end; `slabs` goes from place to place of the axis with all columns and keeps
a window's rows in a ring; `rows` leaves all to a kernel.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.lrn_arithmetic import (
    ADDRESSES,
    BASE,
    COLUMN,
    COLUMNS,
    DIFF,
    EARLIER,
    GIVE,
    GIVE_BACKWARD,
    GIVE_FORWARD,
    GIVE_SUMS,
    LENGTH,
    NEST,
    PIECE,
    PLACES,
    PRODUCE,
    PRODUCTS,
    REACH,
    RESULT,
    ROW_ADDRESSES,
    ROW_FIELDS,
    ROW_KERNEL,
    ROW_STREAMED,
    SRC,
    SUMS,
    add,
    fill,
    make_results,
    make_terms,
    sum_5,
    sum_ring,
)
from dnncore_cpu_numba.moves import WIDTH, copy_and_claim, copy_and_fetch
from dnncore_cpu_numba.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.pointers import call, load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.streaming import LINE
from dnncore_cpu_numba.task import device, task

__all__ = ["RING", "TILE", "room", "rows", "slabs", "vectors"]

TILE = 2048  # floats of a buffer of `vectors`: five of them fit into a first-level cache
RING = 16384  # floats of a ring of `slabs`, which should use a part of it only
_UNIT = 64  # loops run over whole units: four vectors, as LLVM unrolls them
_BUFFER = (TILE + _UNIT) // 2  # int64
_RING_BUFFER = RING // 2
_ZERO, _ONE = np.float32(0), np.float32(1)


def room(length: int, reach: int) -> int:
    """How many columns of a length fit into the buffers of `vectors`."""
    pitch, head = (-(-count // WIDTH) * WIDTH for count in (length + reach, reach))
    return (TILE - 2 * head) // pitch


@task
def vectors(params, begin, end):
    """Columns in one piece each, as they are in memory, or in blocks of it."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    reach = load_i64(params, REACH)
    produce = load_i64(params, PRODUCE)
    pitch, head = _aligned(length + reach), _aligned(reach)
    count = (columns * pitch + _UNIT - 1) // _UNIT * _UNIT
    src, diff, base, terms = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    powers, total = stack(_BUFFER), stack(_BUFFER)
    fill(src, _ZERO, TILE + _UNIT)
    fill(diff, _ZERO, TILE + _UNIT)
    fill(base, _ONE, TILE + _UNIT)
    fill(terms, _ZERO, TILE + _UNIT)
    position, tensors = stack(MAX_LOOPS), stack(5)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        if load_i64(tensors, SRC):
            _read_vectors(params, tensors, SRC, src, pitch)
        if load_i64(tensors, DIFF):
            _read_vectors(params, tensors, DIFF, diff, pitch)
            _read_vectors(params, tensors, BASE, base, pitch)
        if produce == SUMS:
            _read_vectors(params, tensors, EARLIER, terms + 4 * head, pitch)
        else:
            make_terms(params, src, diff, base, powers, terms + 4 * head, count)
        first = terms + 4 * (head - reach)
        if reach == 2:
            sum_5(first, first + 4, first + 8, first + 12, first + 16, total, count)
        else:
            fill(total, _ZERO, count)
            for shift in range(2 * reach + 1):
                add(first + 4 * shift, total, count)
        make_results(params, src, diff, base, powers, total, count)
        _write_vectors(params, tensors, RESULT, total, pitch)
        if load_i64(params, GIVE) == GIVE_FORWARD and load_i64(tensors, BASE):
            _write_vectors(params, tensors, BASE, base, pitch)
        advance(load_i64(params, NEST), position, tensors, 1)


@task
def slabs(params, begin, end):
    """All columns, place by place."""
    columns, length = load_i64(params, COLUMNS), load_i64(params, LENGTH)
    reach = load_i64(params, REACH)
    produce, give = load_i64(params, PRODUCE), load_i64(params, GIVE)
    count = (columns + WIDTH - 1) // WIDTH * WIDTH
    rows = min(2 * reach + 1, length)
    src, diff, base, total = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    terms, powers = stack(_RING_BUFFER), stack(_RING_BUFFER)
    fill(src, _ZERO, count)
    fill(diff, _ZERO, count)
    fill(base, _ONE, count)
    position, tensors = stack(MAX_LOOPS), stack(5)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        for place in range(length + reach):
            if place < length:
                row = 4 * count * (place % rows)
                if produce == SUMS:
                    _read_row(params, tensors, EARLIER, place, terms + row)
                else:
                    _read_row(params, tensors, SRC, place, src)
                    if produce == PRODUCTS:
                        _read_row(params, tensors, DIFF, place, diff)
                        _read_row(params, tensors, BASE, place, base)
                    make_terms(params, src, diff, base, powers + row, terms + row, count)
            if place >= reach:
                middle = place - reach
                sum_ring(terms, rows, count, middle, reach, length, total)
                if give != GIVE_SUMS:
                    _read_row(params, tensors, SRC, middle, src)
                if give == GIVE_BACKWARD:
                    _read_row(params, tensors, DIFF, middle, diff)
                    if produce != PRODUCTS:
                        _read_row(params, tensors, BASE, middle, base)
                make_results(
                    params, src, diff, base, powers + 4 * count * (middle % rows), total, count
                )
                _write_row(params, tensors, RESULT, middle, total)
                if give == GIVE_FORWARD and load_i64(tensors, BASE):
                    _write_row(params, tensors, BASE, middle, base)
        advance(load_i64(params, NEST), position, tensors, 1)


@task
def rows(params, begin, end):
    """Some points each, by a kernel that walks along the axis; see `lrn_kernel.py`."""
    position, tensors = stack(MAX_LOOPS), stack(4)
    seek(load_i64(params, NEST), begin, position, params + 8 * ROW_ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        kernel = load_i64(params, ROW_KERNEL)
        both = load_i64(tensors, RESULT) | load_i64(tensors, BASE)
        if load_i64(params, ROW_STREAMED) and both % LINE == 0:
            kernel = load_i64(params, ROW_STREAMED)
        call(kernel, (tensors, params + 8 * ROW_FIELDS))
        advance(load_i64(params, NEST), position, tensors, 1)


@device
def _aligned(count):
    """So many floats, filled up to whole vectors."""
    return (count + WIDTH - 1) // WIDTH * WIDTH


# -- between tensors and buffers -------------------------------------------------------------------


@device
def _read_vectors(params, tensors, tensor, buffer, pitch):
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


@device
def _write_vectors(params, tensors, tensor, buffer, pitch):
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


@device
def _read_row(params, tensors, tensor, place, buffer):
    """Copy one place of all columns to a buffer."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, COLUMN + tensor)
    places = load_i64(params, PLACES + tensor)
    row = load_i64(tensors, tensor) + load_i64(places, place)
    if stride == 1:
        _copy_ahead(row, buffer, columns, _distance(params, places, place))
    else:
        for i in range(columns):
            store_f32(buffer, i, load_f32(row, i * stride))


@device
def _write_row(params, tensors, tensor, place, buffer):
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
