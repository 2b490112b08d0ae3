"""The native loops of max pooling.

A tensor's image is addressed through tables of the byte offsets of its places along d, h and w, so
that any layout works; a column is one of some neighbouring channels. Going forward, a work item is
some windows in a row, with all columns, and the best values and their taps lie in contiguous
buffers, as [window][column]. One task goes through a window's taps in registers; the other, for
kernels and layouts that the first does not serve, has the tap as its outer loop. Going backward, an
item is a whole image of some columns.

The parameters begin with the nest over batch and channels, the columns, the table `SHAPE` and the
place tables; then follow the strides of a column and, last, the addresses: dst, src, workspace.
"""

from __future__ import annotations

import numpy as np

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
    store_i64,
)
from dnncore_cpu_numba.pooling_lanes import (
    ENTRY,
    LANES,
    give_bytes,
    give_words,
    pick,
    pick_even,
    pick_even_within_spans,
    pick_some,
    pick_within_spans,
    take_lanes,
    take_some_lanes,
)
from dnncore_cpu_numba.task import device, task

__all__ = [
    "MOST_TAPS",
    "TILE",
    "backward_columns",
    "backward_planes",
    "forward_columns",
    "forward_taps",
]

TILE = 1024  # windows x columns of an item: two buffers of 4 KB
# int64 of a buffer. The last vector may reach over the end. Half a page more than whole pages: a
# processor takes a load for one of what was just stored 4096 bytes away, and waits.
_BUFFER = TILE // 2 + 256
_ZERO = np.float32(0)
_LOWEST = np.finfo(np.float32).min
_MINUS_INFINITY = np.float32("-inf")
MOST_TAPS = 512  # of a table
_TABLE = MOST_TAPS * ENTRY

# The slots of the table SHAPE, each for d, h and w; then windows per item.
DST, SRC, KERNEL, STRIDE, DILATION, PADDING = range(0, 18, 3)
WINDOWS = 18
# The slots of the parameters.
NEST, COLUMNS, SHAPE = range(3)
DST_PLACES, SRC_PLACES, WS_PLACES = range(3, 12, 3)  # three tables each
WS_SIZE, DST_COLUMN, SRC_COLUMN, WS_COLUMN, ADDRESSES = range(12, 17)
# Of `forward_taps` alone, behind the addresses: whether vectors are of windows; for each tap along
# w the first and behind the last of the windows that have it; for each window its first tap along
# w, or -1; the first and behind the last of the windows that have all.
BY_WINDOWS, SPANS, FIRSTS, INNER = range(19, 23)


@task
def forward_columns(params, begin, end):
    """Max pooling, vectorised over columns where they are neighbours; for any layout."""
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    src_w, stride = load_i64(params, SRC_PLACES + 2), load_i64(params, SRC_COLUMN)
    whole = columns // LANES * LANES if stride == 1 else 0
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
                    for c in range(0, whole, LANES):
                        take_lanes(cell + 4 * c, b + 4 * c, t + 4 * c, index, 0, new, LANES)
                    if whole < by_lanes:
                        at, rest = 4 * whole, columns - whole
                        take_some_lanes(cell + at, b + at, t + at, index, 0, new * rest, rest)
                    for c in range(by_lanes, columns):
                        _take(load_f32(cell, c * stride), b, t, c, index, new)
            taken = True
        _finish(params, tensors, best, taps, od, oh, first, last)
        od, oh, first = _next_windows(params, shape, od, oh, last, position, tensors)


@task
def forward_taps(params, begin, end):
    """Max pooling, vectorised over columns or windows; src's places along w are even.

    The taps of a row of windows are tabulated, and a vector goes through all of them in registers.
    """
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    best, taps = stack(_BUFFER), stack(_BUFFER)
    table, inside = stack(_TABLE), stack(_TABLE)
    position, tensors = stack(MAX_LOOPS), stack(3)
    od, oh, first = _seek_windows(params, shape, begin, position, tensors)
    for _ in range(begin, end):
        last = min(load_i64(shape, DST + 2), first + load_i64(shape, WINDOWS))
        count = _tabulate(params, shape, load_i64(tensors, 1), od, oh, table)
        if load_i64(params, BY_WINDOWS):
            _pick_along_windows(params, shape, table, count, first, last, best, taps)
        else:
            for window in range(first, last):
                start = 4 * (window - first) * columns
                b, t = best + start, taps + start
                _pick_along_columns(params, shape, table, count, inside, window, b, t)
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
                        for c in range(0, by_lanes, LANES):
                            g_c, out_c, ws_c = gradient + 4 * c, cell + 4 * c, winner + ws_size * c
                            if ws_size == 1:
                                give_bytes(g_c, ws_c, out_c, index, columns - c)
                            else:
                                give_words(g_c, ws_c, out_c, index, columns - c)
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
    for i in range((count + LANES - 1) // LANES * LANES):
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
def _tabulate(params, shape, image, od, oh, table):
    """Write down the taps whose row is inside src, and return how many they are.

    An entry is the address of window 0's cell, which need not exist, the tap, and the first and
    behind the last of the windows that have such a cell.
    """
    spans, width = load_i64(params, SPANS), load_i64(shape, SRC + 2)
    kw, dw, pw = (
        load_i64(shape, KERNEL + 2),
        load_i64(shape, DILATION + 2),
        load_i64(shape, PADDING + 2),
    )
    step = _column_step(params, SRC_PLACES + 2, width, 4)
    count = 0
    for tap in range(load_i64(shape, KERNEL) * load_i64(shape, KERNEL + 1)):
        row = _source_row(params, shape, image, od, oh, tap)
        if row != 0:
            for s in range(kw):
                entry = ENTRY * (count + s)
                store_i64(table, entry, row + 4 * step * (s * dw - pw))
                store_i64(table, entry + 1, tap * kw + s)
                store_i64(table, entry + 2, load_i64(spans, 2 * s))
                store_i64(table, entry + 3, load_i64(spans, 2 * s + 1))
            count += kw
    return count


@device
def _pick_along_columns(params, shape, table, count, inside, window, best, taps):
    """The best cells of one window and their taps, for all columns."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, SRC_COLUMN)
    step = _column_step(params, SRC_PLACES + 2, load_i64(shape, SRC + 2), 4)
    shift = 4 * window * load_i64(shape, STRIDE + 2) * step
    if window < load_i64(params, INNER) or window >= load_i64(params, INNER + 1):
        count = _entries_of(table, count, window, inside)
        table = inside
    if count == 0:
        _clear(best, taps, columns)
        return
    lanes = LANES if stride == 1 else 1
    for c in range(0, columns, lanes):
        at = shift + 4 * c * stride
        if c + LANES <= columns and lanes == LANES:
            pick(table, count, at, best + 4 * c, taps + 4 * c, 0, 0)
        else:
            some = min(lanes, columns - c)
            pick_some(table, count, at, best + 4 * c, taps + 4 * c, some, 0)


@device
def _entries_of(table, count, window, inside):
    """Copy the entries of the taps that a window has, and return how many they are."""
    found = 0
    for i in range(count):
        entry = table + 8 * ENTRY * i
        if load_i64(entry, 2) <= window < load_i64(entry, 3):
            store_i64(inside, ENTRY * found, load_i64(entry, 0))
            store_i64(inside, ENTRY * found + 1, load_i64(entry, 1))
            found += 1
    return found


@device
def _pick_along_windows(params, shape, table, count, first, last, best, taps):
    """The best cells of some windows and their taps, for one column."""
    sw, firsts = load_i64(shape, STRIDE + 2), load_i64(params, FIRSTS)
    distance = sw * _column_step(params, SRC_PLACES + 2, load_i64(shape, SRC + 2), 4)
    low, high = load_i64(params, INNER), load_i64(params, INNER + 1)
    for group in range(first, last, LANES):
        start = max(first, min(group, last - LANES))  # again, rather than in part
        some = min(LANES, last - start)
        at, b, t = 4 * start * distance, best + 4 * (start - first), taps + 4 * (start - first)
        if count > 0 and some == LANES and low <= start and start + LANES <= high:
            if distance == 1:
                pick(table, count, at, b, t, 0, 0)
            else:
                pick_even(table, count, at, b, t, 0, 0)
            continue
        for i in range(some):
            tap = load_i64(firsts, start + i)
            nothing = count == 0 or tap < 0
            store_f32(b, i, _LOWEST if nothing else _MINUS_INFINITY)
            store_i32(t, i, 0 if nothing else load_i64(table, 1) + tap)
        if distance == 1:
            pick_within_spans(table, count, at, b, t, start, some)
        else:
            pick_even_within_spans(table, count, at, b, t, start, some)


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
    rows, row, stride = _runs(w_places, 0, width, columns, stride, 4)
    for place in range(load_i64(shape, SRC) * heights):
        start = image + _place(params, SRC_PLACES, place // heights, place % heights)
        for x in range(rows):
            cells = start + load_i64(w_places, x)
            if stride == 1:
                for i in range(row):
                    store_f32(cells, i, _ZERO)
            else:
                for i in range(row):
                    store_f32(cells, i * stride, _ZERO)


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
