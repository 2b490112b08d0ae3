"""The native loops of max pooling.

A tensor's image is addressed through tables of the byte offsets of its places along d, h and w, so
that any layout works; a column is one of some neighbouring channels. Going forward, a work item is
some windows in a row, with all columns: the tap of the window is the outer loop, and the best
values and their taps so far lie in contiguous buffers, as [window][column]. Two tasks differ in
what is vectorised, columns or windows. Going backward, an item is a whole image of some columns.

The parameters begin with the nest over batch and channels, the columns, the table `SHAPE` and the
place tables; then follow the strides of a column and, last, the addresses: dst, src, workspace.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore_cpu_numba.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.pointers import (
    load_f32,
    load_i32,
    load_i64,
    load_u8,
    stack,
    store_f32,
    store_i8,
    store_i32,
)
from dnncore_cpu_numba.task import device, task

__all__ = [
    "TILE",
    "backward_columns",
    "backward_planes",
    "forward_columns",
    "forward_windows",
]

TILE = 1024  # windows x columns of an item: two buffers of 4 KB
_LANES = 16
# int64 of a buffer. The last vector may reach over the end. Half a page more than whole pages: a
# processor takes a load for one of what was just stored 4096 bytes away, and waits.
_BUFFER = TILE // 2 + 256
_ZERO = np.float32(0)
_LOWEST = np.finfo(np.float32).min

# The slots of the table SHAPE, each for d, h and w; then windows per item.
DST, SRC, KERNEL, STRIDE, DILATION, PADDING = range(0, 18, 3)
WINDOWS = 18
# The slots of the parameters.
NEST, COLUMNS, SHAPE = range(3)
DST_PLACES, SRC_PLACES, WS_PLACES = range(3, 12, 3)  # three tables each
WS_SIZE, DST_COLUMN, SRC_COLUMN, WS_COLUMN, ADDRESSES = range(12, 17)


@task
def forward_columns(params, begin, end):
    """Max pooling, vectorised over columns where they are neighbours; for any layout."""
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    src_w, stride = load_i64(params, SRC_PLACES + 2), load_i64(params, SRC_COLUMN)
    whole = columns // _LANES * _LANES if stride == 1 else 0
    by_lanes = columns if stride == 1 else 0
    kw, sw = load_i64(shape, KERNEL + 2), load_i64(shape, STRIDE + 2)
    dw, pw = load_i64(shape, DILATION + 2), load_i64(shape, PADDING + 2)
    width = load_i64(shape, SRC + 2)
    best, taps = stack(_BUFFER), stack(_BUFFER)
    position, tensors = stack(MAX_LOOPS), stack(3)
    od, oh, first = _seek_windows(params, shape, begin, position, tensors)
    for _ in range(begin, end):
        last = min(load_i64(shape, DST + 2), first + load_i64(shape, WINDOWS))
        _clear(best, taps, (last - first) * columns)
        taken = False
        for tap in range(load_i64(shape, KERNEL) * load_i64(shape, KERNEL + 1)):
            row = _source_row(params, shape, load_i64(tensors, 1), od, oh, tap)
            if row == 0:
                continue
            for s in range(kw):
                for window in range(first, last):
                    x = window * sw - pw + s * dw
                    if x < 0 or x >= width:
                        continue
                    new = not taken and (s == 0 or x < dw)
                    cell, index = row + load_i64(src_w, x), tap * kw + s
                    start = (window - first) * columns
                    b, t = best + 4 * start, taps + 4 * start
                    for c in range(0, whole, _LANES):
                        _take_lanes(cell + 4 * c, b + 4 * c, t + 4 * c, index, 0, new, _LANES)
                    if whole < by_lanes:
                        at, rest = 4 * whole, columns - whole
                        _take_some_lanes(cell + at, b + at, t + at, index, 0, new * rest, rest)
                    for c in range(by_lanes, columns):
                        _take(load_f32(cell, c * stride), b, t, c, index, new)
            taken = True
        _finish(params, tensors, best, taps, od, oh, first, last)
        od, oh, first = _next_windows(params, shape, od, oh, last, position, tensors)


@task
def forward_windows(params, begin, end):
    """Max pooling of one column, vectorised over windows; src's places along w are even."""
    shape, src_w = load_i64(params, SHAPE), load_i64(params, SRC_PLACES + 2)
    kw, sw = load_i64(shape, KERNEL + 2), load_i64(shape, STRIDE + 2)
    dw, pw = load_i64(shape, DILATION + 2), load_i64(shape, PADDING + 2)
    width = load_i64(shape, SRC + 2)
    step = load_i64(src_w, 1) // 4 if width > 1 else 1
    best, taps = stack(_BUFFER), stack(_BUFFER)
    position, tensors = stack(MAX_LOOPS), stack(3)
    od, oh, first = _seek_windows(params, shape, begin, position, tensors)
    for _ in range(begin, end):
        last = min(load_i64(shape, DST + 2), first + load_i64(shape, WINDOWS))
        _clear(best, taps, last - first)
        taken = False
        for tap in range(load_i64(shape, KERNEL) * load_i64(shape, KERNEL + 1)):
            row = _source_row(params, shape, load_i64(tensors, 1), od, oh, tap)
            if row == 0:
                continue
            for s in range(kw):
                # This tap is inside src for windows in [low, high); for those below `fresh` it is
                # the first.
                offset = s * dw - pw
                low = max(first, -(offset // sw))
                high = min(last, (width - 1 - offset) // sw + 1)
                fresh = high if s == 0 else min(high, -((offset - dw) // sw))
                fresh = low if taken else fresh
                cells, index = row + 4 * (first * sw + offset) * step, tap * kw + s
                _take_row(cells, sw * step, best, taps, index, low - first, fresh - first,
                          high - first)  # fmt: skip
            taken = True
        _finish(params, tensors, best, taps, od, oh, first, last)
        od, oh, first = _next_windows(params, shape, od, oh, last, position, tensors)


@task
def backward_columns(params, begin, end):
    """The gradient, vectorised over columns where they are neighbours; for any layout."""
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    out_w = load_i64(params, SRC_PLACES + 2)
    g_w, ws_w = load_i64(params, DST_PLACES + 2), load_i64(params, WS_PLACES + 2)
    g_stride, out_stride = load_i64(params, DST_COLUMN), load_i64(params, SRC_COLUMN)
    ws_stride, ws_size = load_i64(params, WS_COLUMN), load_i64(params, WS_SIZE)
    by_lanes = columns if g_stride == 1 and out_stride == 1 and ws_stride == 1 else 0
    kw, sw = load_i64(shape, KERNEL + 2), load_i64(shape, STRIDE + 2)
    dw, pw = load_i64(shape, DILATION + 2), load_i64(shape, PADDING + 2)
    width = load_i64(shape, SRC + 2)
    heights, windows = load_i64(shape, DST + 1), load_i64(shape, DST + 2)
    position, tensors = stack(MAX_LOOPS), stack(3)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        g, out, ws = load_i64(tensors, 0), load_i64(tensors, 1), load_i64(tensors, 2)
        _zero_image(params, shape, out, columns, out_stride)
        for place in range(load_i64(shape, DST) * heights):
            od, oh = place // heights, place % heights
            g_row = g + _place(params, DST_PLACES, od, oh)
            ws_row = ws + _place(params, WS_PLACES, od, oh)
            for tap in range(load_i64(shape, KERNEL) * load_i64(shape, KERNEL + 1)):
                row = _source_row(params, shape, out, od, oh, tap)
                if row == 0:
                    continue
                for window in range(windows):
                    gradient = g_row + load_i64(g_w, window)
                    winner = ws_row + load_i64(ws_w, window)
                    for s in range(kw):
                        x = window * sw - pw + s * dw
                        if x < 0 or x >= width:
                            continue
                        cell, index = row + load_i64(out_w, x), tap * kw + s
                        for c in range(0, by_lanes, _LANES):
                            g_c, out_c, ws_c = gradient + 4 * c, cell + 4 * c, winner + ws_size * c
                            if ws_size == 1:
                                _give_bytes(g_c, ws_c, out_c, index, columns - c)
                            else:
                                _give_words(g_c, ws_c, out_c, index, columns - c)
                        for c in range(by_lanes, columns):
                            if _winner(winner, c * ws_stride, ws_size) == index:
                                sum_ = load_f32(cell, c * out_stride)
                                sum_ += load_f32(gradient, c * g_stride)
                                store_f32(cell, c * out_stride, sum_)
        advance(load_i64(params, NEST), position, tensors, 1)


@task
def backward_planes(params, begin, end):
    """The gradient of one column, where every window has a tap inside and all places are even."""
    shape, ws_size = load_i64(params, SHAPE), load_i64(params, WS_SIZE)
    kh, kw = load_i64(shape, KERNEL + 1), load_i64(shape, KERNEL + 2)
    heights, windows = load_i64(shape, DST + 1), load_i64(shape, DST + 2)
    step_d, step_h, step_w = _step(params, 0), _step(params, 1), _step(params, 2)
    g_step = _column_step(params, DST_PLACES + 2, windows, 4)
    ws_step = _column_step(params, WS_PLACES + 2, windows, ws_size)
    taps = stack(_BUFFER)
    position, tensors = stack(MAX_LOOPS), stack(3)
    for tap in range(load_i64(shape, KERNEL) * kh * kw):
        d, h, w = tap // (kh * kw), tap // kw % kh, tap % kw
        place = d * load_i64(shape, DILATION) * step_d + h * load_i64(shape, DILATION + 1) * step_h
        store_i32(taps, tap, place + w * load_i64(shape, DILATION + 2) * step_w)
    seek(load_i64(params, NEST), begin, position, params + 8 * ADDRESSES, tensors, 1)
    for _ in range(begin, end):
        g, out, ws = load_i64(tensors, 0), load_i64(tensors, 1), load_i64(tensors, 2)
        _zero_image(params, shape, out, 1, 1)
        for place in range(load_i64(shape, DST) * heights):
            od, oh = place // heights, place % heights
            g_row = g + _place(params, DST_PLACES, od, oh)
            ws_row = ws + _place(params, WS_PLACES, od, oh)
            z = od * load_i64(shape, STRIDE) - load_i64(shape, PADDING)
            y = oh * load_i64(shape, STRIDE + 1) - load_i64(shape, PADDING + 1)
            row = out + 4 * (z * step_d + y * step_h - load_i64(shape, PADDING + 2) * step_w)
            stride = load_i64(shape, STRIDE + 2) * step_w
            for window in range(windows):
                tap = _winner(ws_row, window * ws_step, ws_size)
                cell = window * stride + load_i32(taps, tap)
                store_f32(row, cell, load_f32(row, cell) + load_f32(g_row, window * g_step))
        advance(load_i64(params, NEST), position, tensors, 1)


# -- parts -----------------------------------------------------------------------------------------


@device
def _seek_windows(params, shape, item, position, tensors):
    """Find an item's image, row and windows: (od, oh, first window)."""
    per_item, windows = load_i64(shape, WINDOWS), load_i64(shape, DST + 2)
    chunks = (windows + per_item - 1) // per_item
    heights, depths = load_i64(shape, DST + 1), load_i64(shape, DST)
    row = item // chunks
    image = row // heights // depths
    seek(load_i64(params, NEST), image, position, params + 8 * ADDRESSES, tensors, 1)
    return row // heights % depths, row % heights, item % chunks * per_item


@device
def _next_windows(params, shape, od, oh, last, position, tensors):
    """The item after the one whose windows end at `last`."""
    if last < load_i64(shape, DST + 2):
        return od, oh, last
    if oh + 1 < load_i64(shape, DST + 1):
        return od, oh + 1, 0
    if od + 1 < load_i64(shape, DST):
        return od + 1, 0, 0
    advance(load_i64(params, NEST), position, tensors, 1)
    return 0, 0, 0


@device
def _place(params, places, d, h):
    """The bytes from an image's start to row (d, h)."""
    return load_i64(load_i64(params, places), d) + load_i64(load_i64(params, places + 1), h)


@device
def _source_row(params, shape, image, od, oh, tap):
    """The address of src's row under the tap's row of a kernel; 0 outside."""
    kh = load_i64(shape, KERNEL + 1)
    z = od * load_i64(shape, STRIDE) - load_i64(shape, PADDING)
    z += tap // kh * load_i64(shape, DILATION)
    y = oh * load_i64(shape, STRIDE + 1) - load_i64(shape, PADDING + 1)
    y += tap % kh * load_i64(shape, DILATION + 1)
    if z < 0 or z >= load_i64(shape, SRC) or y < 0 or y >= load_i64(shape, SRC + 1):
        return 0
    return image + _place(params, SRC_PLACES, z, y)


@device
def _clear(best, taps, count):
    """What a window gets that has no cell inside src; whole vectors, as they will be read."""
    for i in range((count + _LANES - 1) // _LANES * _LANES):
        store_f32(best, i, _LOWEST)
        store_i32(taps, i, 0)


@device
def _take(value, best, taps, i, tap, new):
    """Keep the larger value; the first of equals, and the first NaN for good."""
    old = load_f32(best, i)
    larger = new | ((value > old) | (value != value)) & (old == old)  # no branches
    store_f32(best, i, value if larger else old)
    store_i32(taps, i, tap if larger else load_i32(taps, i))


@device
def _take_row(cells, distance, best, taps, tap, low, fresh, high):
    """`_take` for windows [low, high), whose cells are `distance` elements apart.

    Those below `fresh` are new. Vectors begin at the same windows for every tap: a load that
    straddles two earlier stores would wait for them.
    """
    if distance > 2:
        for i in range(low, high):
            _take(load_f32(cells, i * distance), best, taps, i, tap, i < fresh)
        return
    for i in range(0, high, _LANES):
        at, full = 4 * i, low <= i and i + _LANES <= high and not i < fresh < i + _LANES
        values, b, t = cells + distance * at, best + at, taps + at
        if full and distance == 1:
            _take_lanes(values, b, t, tap, 0, fresh - i, _LANES)
        elif full:
            _take_even_lanes(values, b, t, tap, 0, fresh - i, _LANES)
        elif distance == 1:
            _take_some_lanes(values, b, t, tap, low - i, fresh - i, high - i)
        else:
            _take_some_even_lanes(values, b, t, tap, low - i, fresh - i, high - i)


@device
def _finish(params, tensors, best, taps, od, oh, first, last):
    """Write an item's windows to dst and the workspace."""
    columns, size = load_i64(params, COLUMNS), load_i64(params, WS_SIZE)
    dst = load_i64(tensors, 0) + _place(params, DST_PLACES, od, oh)
    places, stride = load_i64(params, DST_PLACES + 2), load_i64(params, DST_COLUMN)
    rows, row, stride = _runs(places, first, last, columns, stride, 4)
    for window in range(rows):
        start = dst + load_i64(places, first + window)
        for i in range(row):
            store_f32(start, i * stride, load_f32(best, window * row + i))
    if size == 0:
        return
    ws = load_i64(tensors, 2) + _place(params, WS_PLACES, od, oh)
    places, stride = load_i64(params, WS_PLACES + 2), load_i64(params, WS_COLUMN)
    rows, row, stride = _runs(places, first, last, columns, stride, size)
    for window in range(rows):
        start = ws + load_i64(places, first + window)
        if size == 1:
            for i in range(row):
                store_i8(start, i * stride, load_i32(taps, window * row + i))
        else:
            for i in range(row):
                store_i32(start, i * stride, load_i32(taps, window * row + i))


@device
def _runs(places, first, last, columns, stride, size):
    """How many runs of how many elements the windows are, and how far apart those are."""
    windows = last - first
    if windows > 1:
        distance = load_i64(places, first + 1) - load_i64(places, first)
        even = load_i64(places, last - 1) - load_i64(places, first) == distance * (windows - 1)
        if even and columns == 1:
            return 1, windows, distance // size
        if even and distance == columns * stride * size:
            return 1, windows * columns, stride
    return windows, columns, stride


@device
def _zero_image(params, shape, image, columns, stride):
    """Zero some columns of an image of src's shape."""
    heights, width = load_i64(shape, SRC + 1), load_i64(shape, SRC + 2)
    w_places = load_i64(params, SRC_PLACES + 2)
    for row in range(load_i64(shape, SRC) * heights):
        start = image + _place(params, SRC_PLACES, row // heights, row % heights)
        for x in range(width):
            cell = start + load_i64(w_places, x)
            for c in range(columns):
                store_f32(cell, c * stride, _ZERO)


@device
def _winner(address, i, size):
    return load_u8(address, i) if size == 1 else load_i32(address, i)


@device
def _step(params, dim):
    """The elements between src's places along a dim."""
    size = load_i64(load_i64(params, SHAPE), SRC + dim)
    return _column_step(params, SRC_PLACES + dim, size, 4)


@device
def _column_step(params, places, size, itemsize):
    return load_i64(load_i64(params, places), 1) // itemsize if size > 1 else 0


# -- 16 lanes at once ------------------------------------------------------------------------------

_I32 = ir.IntType(32)
_F32S = ir.VectorType(ir.FloatType(), _LANES)
_I32S = ir.VectorType(_I32, _LANES)
_I8S = ir.VectorType(ir.IntType(8), _LANES)
_I1S = ir.VectorType(ir.IntType(1), _LANES)


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder, address, kind):
    return builder.load(_at(builder, address, kind), align=1)


def _load_masked(builder, address, kind, mask):
    """Load the lanes of the mask; the others are zero and not touched in memory."""
    suffix = "f32" if kind is _F32S else f"i{kind.element.width}"
    arguments = [kind.as_pointer(), _I32, _I1S, kind]
    load = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, arguments),
        f"llvm.masked.load.v{_LANES}{suffix}.p0",
    )
    none = ir.Constant(kind, None)
    return builder.call(load, [_at(builder, address, kind), _I32(1), mask, none])


def _store(builder, value, address):
    builder.store(value, _at(builder, address, value.type), align=1)


def _splat(builder, integer):
    """A number in all lanes."""
    number = builder.trunc(integer, _I32)
    one = builder.insert_element(ir.Constant(_I32S, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(_I32S, [0] * _LANES))


def _lanes(builder, low, high):
    """The mask of the lanes in [low, high)."""
    lanes = ir.Constant(_I32S, list(range(_LANES)))
    above = builder.icmp_signed(">=", lanes, _splat(builder, low))
    return builder.and_(above, builder.icmp_signed("<", lanes, _splat(builder, high)))


def _taker(load, *, every):
    """The intrinsic that does `_take` for lanes [low, high); those below `fresh` are new.

    every: for all lanes, and all or none of them new.
    """

    @intrinsic
    def take(typingctx, values, best, taps, tap, low, fresh, high):
        def codegen(context, builder, signature, args):
            values, best, taps, tap, low, fresh, high = args
            value, old = load(builder, values, low, high), _load(builder, best, _F32S)
            larger = builder.fcmp_unordered(">", value, old)
            larger = builder.and_(larger, builder.fcmp_ordered("==", old, old))
            if every:
                new = builder.icmp_signed(">", fresh, low)
                larger = builder.select(new, ir.Constant(_I1S, [1] * _LANES), larger)
            else:
                larger = builder.or_(larger, _lanes(builder, low, fresh))
                larger = builder.and_(larger, _lanes(builder, low, high))
            _store(builder, builder.select(larger, value, old), best)
            kept = _load(builder, taps, _I32S)
            _store(builder, builder.select(larger, _splat(builder, tap), kept), taps)

        return types.void(*[types.int64] * 7), codegen

    return take


def _load_all(builder, address, low, high):
    return _load(builder, address, _F32S)


def _load_some(builder, address, low, high):
    return _load_masked(builder, address, _F32S, _lanes(builder, low, high))


def _even(load):
    """Elements 0, 2, ... of twice as many; none before the first or behind the last is read."""
    number = ir.IntType(64)
    even = [*range(0, _LANES, 2), *range(_LANES + 1, 2 * _LANES, 2)]

    def load_even(builder, address, low, high):
        low, shift = builder.add(low, low), number(_LANES - 1)
        high = builder.sub(builder.add(high, high), number(1))
        lower = load(builder, address, low, high)
        address = builder.add(address, number(4 * (_LANES - 1)))
        upper = load(builder, address, builder.sub(low, shift), builder.sub(high, shift))
        return builder.shuffle_vector(lower, upper, ir.Constant(_I32S, even))

    return load_even


_take_lanes, _take_some_lanes = _taker(_load_all, every=True), _taker(_load_some, every=False)
_take_even_lanes = _taker(_even(_load_all), every=True)
_take_some_even_lanes = _taker(_even(_load_some), every=False)


def _giver(kind):
    """The intrinsic that adds up to 16 gradients to the cells that are the winners."""

    @intrinsic
    def give(typingctx, gradients, winners, cells, tap, count):
        def codegen(context, builder, signature, args):
            gradients, winners, cells, tap, count = args
            mask = _lanes(builder, ir.IntType(64)(0), count)
            winner = _load_masked(builder, winners, kind, mask)
            winner = winner if kind is _I32S else builder.zext(winner, _I32S)
            wins = builder.icmp_signed("==", winner, _splat(builder, tap))
            wins = builder.and_(wins, mask)
            cell = _load_masked(builder, cells, _F32S, wins)
            cell = builder.fadd(cell, _load_masked(builder, gradients, _F32S, wins))
            arguments = [_F32S, _F32S.as_pointer(), _I32, _I1S]
            store = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), arguments),
                f"llvm.masked.store.v{_LANES}f32.p0",
            )
            builder.call(store, [cell, _at(builder, cells, _F32S), _I32(1), wins])

        return types.void(*[types.int64] * 5), codegen

    return give


_give_bytes, _give_words = _giver(_I8S), _giver(_I32S)
