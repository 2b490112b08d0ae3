"""The native loops of local response normalisation: sums over a window along one axis.

A step produces a number for each element of src, sums these over a window along its axis, and
makes its results of the sums:

SQUARES     src**2                                  GIVE_SUMS       the sums themselves
PRODUCTS    diff_dst * src * base**(-beta - 1)      GIVE_FORWARD    base and dst
SUMS        the sums of an earlier step             GIVE_BACKWARD   diff_src

An item is some columns, neighbouring vectors along the axis. Two tasks differ in how a column lies
in the buffers: `vectors` keeps each in one piece, with zeros between them in which windows that
reach over the borders end; `slabs` goes from place to place of the axis with all columns and keeps
a window's rows in a ring.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba import vecmath
from dnncore_cpu_numba.moves import WIDTH, copy_and_claim, copy_and_fetch
from dnncore_cpu_numba.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.pointers import call, load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.streaming import LINE
from dnncore_cpu_numba.task import device, task

__all__ = ["RING", "TENSORS", "TILE", "power_mode", "room", "rows", "slabs", "vectors"]

TILE = 2048  # floats of a buffer of `vectors`: five of them fit into a first-level cache
RING = 16384  # floats of a ring of `slabs`, which should use a part of it only
_UNIT = 64  # loops run over whole units: four vectors, as LLVM unrolls them
_BUFFER = (TILE + _UNIT) // 2  # int64
_RING_BUFFER = RING // 2
_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)

SQUARES, PRODUCTS, SUMS = range(3)
GIVE_SUMS, GIVE_FORWARD, GIVE_BACKWARD = range(3)
# How base**-beta is computed.
_BROKEN, _EVEN, _ODD, _NONE, _HALF, _THREE_QUARTERS, _WHOLE = range(7)

# The tensors of a step, and the slots of the parameters. An absent tensor has address 0.
TENSORS = RESULT, BASE, SRC, DIFF, EARLIER = range(5)
NEST, COLUMNS, LENGTH, REACH, PRODUCE, GIVE, POWER = range(7)
K, SCALE, BETA, FACTOR = range(7, 11)
COLUMN, PLACES, PIECE, ADDRESSES = range(11, 31, 5)
ROW_KERNEL, ROW_STREAMED, ROW_ADDRESSES, ROW_FIELDS = 1, 2, 3, 7  # of `rows`, behind the nest


def room(length: int, reach: int) -> int:
    """How many columns of a length fit into the buffers of `vectors`."""
    pitch, head = (-(-count // WIDTH) * WIDTH for count in (length + reach, reach))
    return (TILE - 2 * head) // pitch


def power_mode(beta: float) -> int:
    """Which of the ways to compute base**-beta is right."""
    exact = {0.0: _NONE, 0.5: _HALF, 0.75: _THREE_QUARTERS, 1.0: _WHOLE}
    return exact.get(beta, _BROKEN if beta % 1 else _ODD if beta % 2 else _EVEN)


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
    _fill(src, _ZERO, TILE + _UNIT)
    _fill(diff, _ZERO, TILE + _UNIT)
    _fill(base, _ONE, TILE + _UNIT)
    _fill(terms, _ZERO, TILE + _UNIT)
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
            _produce(params, src, diff, base, powers, terms + 4 * head, count)
        first = terms + 4 * (head - reach)
        if reach == 2:
            _sum_5(first, first + 4, first + 8, first + 12, first + 16, total, count)
        else:
            _fill(total, _ZERO, count)
            for shift in range(2 * reach + 1):
                _add(first + 4 * shift, total, count)
        _give(params, src, diff, base, powers, total, count)
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
    _fill(src, _ZERO, count)
    _fill(diff, _ZERO, count)
    _fill(base, _ONE, count)
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
                    _produce(params, src, diff, base, powers + row, terms + row, count)
            if place >= reach:
                middle = place - reach
                _sum_ring(terms, rows, count, middle, reach, length, total)
                if give != GIVE_SUMS:
                    _read_row(params, tensors, SRC, middle, src)
                if give == GIVE_BACKWARD:
                    _read_row(params, tensors, DIFF, middle, diff)
                    if produce != PRODUCTS:
                        _read_row(params, tensors, BASE, middle, base)
                _give(params, src, diff, base, powers + 4 * count * (middle % rows), total, count)
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


# -- arithmetic over buffers, which do not overlap -------------------------------------------------


@device
def _produce(params, src, diff, base, powers, terms, count):
    """The numbers to be summed; for products the powers base**-beta are kept."""
    if load_i64(params, PRODUCE) == SQUARES:
        for i in range(count):
            store_f32(terms, i, load_f32(src, i) * load_f32(src, i))
        return
    _raise(params, base, powers, count)
    for i in range(count):
        scaled = load_f32(diff, i) * load_f32(powers, i)
        store_f32(terms, i, scaled * (load_f32(src, i) / load_f32(base, i)))


@device
def _give(params, src, diff, base, powers, total, count):
    """Turn sums into the result, in place; forward also into bases."""
    give = load_i64(params, GIVE)
    if give == GIVE_FORWARD:
        k, scale = load_f32(params, 2 * K), load_f32(params, 2 * SCALE)
        for i in range(count):
            store_f32(base, i, k + scale * load_f32(total, i))
        _raise(params, base, total, count)
        for i in range(count):
            store_f32(total, i, load_f32(total, i) * load_f32(src, i))
    elif give == GIVE_BACKWARD:
        if load_i64(params, PRODUCE) != PRODUCTS:
            _raise(params, base, powers, count)
        factor = load_f32(params, 2 * FACTOR)
        for i in range(count):
            own = load_f32(diff, i) * load_f32(powers, i)
            store_f32(total, i, own - factor * load_f32(src, i) * load_f32(total, i))


@device
def _raise(params, base, powers, count):
    """base**-beta; quick reciprocal roots make NaN of an infinite base, which gives 0."""
    mode = load_i64(params, POWER)
    if mode == _THREE_QUARTERS:
        for i in range(count):
            x = load_f32(base, i)
            root = np.sqrt(x)
            power = _ONE / (root * np.sqrt(root))
            store_f32(powers, i, _ZERO if x == _INFINITY else power)
    elif mode == _HALF:
        for i in range(count):
            x = load_f32(base, i)
            store_f32(powers, i, _ZERO if x == _INFINITY else _ONE / np.sqrt(x))
    elif mode == _WHOLE:
        for i in range(count):
            store_f32(powers, i, _ONE / load_f32(base, i))
    elif mode == _NONE:
        _fill(powers, _ONE, count)
    else:
        exponent = -load_f32(params, 2 * BETA)
        for i in range(count):
            x = load_f32(base, i)
            size = -x if x < _ZERO and mode != _BROKEN else x
            y = vecmath.exp(exponent * vecmath.log(size))
            store_f32(powers, i, -y if x < _ZERO and mode == _ODD else y)


@device
def _sum_5(a, b, c, d, e, total, count):
    for i in range(count):
        sides = load_f32(a, i) + load_f32(b, i) + load_f32(d, i) + load_f32(e, i)
        store_f32(total, i, sides + load_f32(c, i))


@device
def _sum_ring(terms, rows, count, middle, reach, length, total):
    """The sums of the rows around the middle one that exist."""
    low, high = max(0, middle - reach), min(length, middle + reach + 1)
    if high - low == 5:
        row = 4 * count
        a, b = terms + row * (low % rows), terms + row * ((low + 1) % rows)
        c, d = terms + row * ((low + 2) % rows), terms + row * ((low + 3) % rows)
        _sum_5(a, b, c, d, terms + row * ((low + 4) % rows), total, count)
        return
    _fill(total, _ZERO, count)
    for place in range(low, high):
        _add(terms + 4 * count * (place % rows), total, count)


@device
def _add(x, total, count):
    for i in range(count):
        store_f32(total, i, load_f32(total, i) + load_f32(x, i))


@device
def _fill(x, value, count):
    for i in range(count):
        store_f32(x, i, value)


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
