"""The native loops of average pooling: windows are summed along one dim after another.

Forward, an item is some windows in a row. The rows of src under the kernel are added up, piece by
piece along w, and the windows add up what lies in a piece. Backward, an item is a piece of a row of
diff_src: the rows of windows that see it are added up, and its cells gather from these. Buffers
hold [place along w][column]; a column is one of some neighbouring channels, as in `pooling_tasks`.

A sum is divided by the number of cells that count along d, h and w, each from a table.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.pointers import load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.pooling_tasks import DILATION, DST, KERNEL, PADDING, SRC, STRIDE
from dnncore_cpu_numba.task import device, exact, task

__all__ = ["ROOM", "backward", "forward"]

ROOM = 4096  # floats of a buffer: places x columns
_BUFFER = ROOM // 2  # int64
_ZERO, _ONE = np.float32(0), np.float32(1)

# The slots of the parameters: the nest is over (dst, src); tables are three each, for d, h and w.
NEST, COLUMNS, SHAPE = range(3)
DST_PLACES, SRC_PLACES, COUNTS = range(3, 12, 3)
DST_COLUMN, SRC_COLUMN, ADDRESSES = range(12, 15)


@task
def forward(params, begin, end):
    """Averages of windows."""
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    room = ROOM // columns
    depths, heights = load_i64(shape, DST), load_i64(shape, DST + 1)
    windows, width = load_i64(shape, DST + 2), load_i64(shape, SRC + 2)
    kw, sw = load_i64(shape, KERNEL + 2), load_i64(shape, STRIDE + 2)
    dw, pw = load_i64(shape, DILATION + 2), load_i64(shape, PADDING + 2)
    chunks = (windows + room - 1) // room
    position, tensors, cells, sums = stack(MAX_LOOPS), stack(2), stack(_BUFFER), stack(_BUFFER)
    seek(load_i64(params, NEST), begin // (depths * heights * chunks), position,
         params + 8 * ADDRESSES, tensors, 1)  # fmt: skip
    for item in range(begin, end):
        row = item // chunks
        od, oh = row // heights % depths, row % heights
        first = item % chunks * room
        last = min(windows, first + room)
        _fill(sums, (last - first) * columns)
        low = max(0, first * sw - pw)
        high = min(width, (last - 1) * sw - pw + (kw - 1) * dw + 1)
        for start in range(low, high, room):
            stop = min(high, start + room)
            _fill(cells, (stop - start) * columns)
            _add_rows_of_src(params, shape, load_i64(tensors, 1), od, oh, start, stop, cells)
            _add_cells(cells, start, stop, sums, first, last, kw, sw, dw, pw, columns)
        _divide(params, od, oh, first, last, sums)
        dst = load_i64(tensors, 0) + _place(params, DST_PLACES, od, oh)
        _write(params, DST_PLACES, DST_COLUMN, dst, first, last, sums)
        if (item + 1) % (depths * heights * chunks) == 0:
            advance(load_i64(params, NEST), position, tensors, 1)


@task
def backward(params, begin, end):
    """Each cell's share in the windows that see it."""
    columns, shape = load_i64(params, COLUMNS), load_i64(params, SHAPE)
    room = ROOM // columns
    depths, heights = load_i64(shape, SRC), load_i64(shape, SRC + 1)
    windows, width = load_i64(shape, DST + 2), load_i64(shape, SRC + 2)
    kw, sw = load_i64(shape, KERNEL + 2), load_i64(shape, STRIDE + 2)
    dw, pw = load_i64(shape, DILATION + 2), load_i64(shape, PADDING + 2)
    chunks = (width + room - 1) // room
    position, tensors, cells, shares = stack(MAX_LOOPS), stack(2), stack(_BUFFER), stack(_BUFFER)
    seek(load_i64(params, NEST), begin // (depths * heights * chunks), position,
         params + 8 * ADDRESSES, tensors, 1)  # fmt: skip
    for item in range(begin, end):
        row = item // chunks
        z, y = row // heights % depths, row % heights
        start = item % chunks * room
        stop = min(width, start + room)
        _fill(cells, (stop - start) * columns)
        # the windows whose last cell is not before the piece, and whose first is not behind it
        low = max(0, -(((kw - 1) * dw - pw - start) // sw))
        high = min(windows, (stop - 1 + pw) // sw + 1)
        for first in range(low, high, room):
            last = min(high, first + room)
            _fill(shares, (last - first) * columns)
            _add_rows_of_windows(params, shape, load_i64(tensors, 0), z, y, first, last, shares)
            _share_along_w(params, first, last, shares)
            _give_shares(shares, first, last, cells, start, stop, kw, sw, dw, pw, columns)
        diff_src = load_i64(tensors, 1) + _place(params, SRC_PLACES, z, y)
        _write(params, SRC_PLACES, SRC_COLUMN, diff_src, start, stop, cells)
        if (item + 1) % (depths * heights * chunks) == 0:
            advance(load_i64(params, NEST), position, tensors, 1)


# -- sums along d and h ----------------------------------------------------------------------------


@device
def _add_rows_of_src(params, shape, image, od, oh, start, stop, cells):
    """Add the cells [start, stop) of all rows under the kernel at (od, oh)."""
    z = od * load_i64(shape, STRIDE) - load_i64(shape, PADDING)
    top = oh * load_i64(shape, STRIDE + 1) - load_i64(shape, PADDING + 1)
    for _ in range(load_i64(shape, KERNEL)):
        y = top
        for _ in range(load_i64(shape, KERNEL + 1)):
            if 0 <= z < load_i64(shape, SRC) and 0 <= y < load_i64(shape, SRC + 1):
                row = image + _place(params, SRC_PLACES, z, y)
                _add(params, SRC_PLACES, SRC_COLUMN, row, start, stop, _ONE, cells)
            y += load_i64(shape, DILATION + 1)
        z += load_i64(shape, DILATION)


@device
def _add_rows_of_windows(params, shape, image, z, y, first, last, shares):
    """Add the windows [first, last) of all rows that see row (z, y), divided along d and h."""
    sd, sh = load_i64(shape, STRIDE), load_i64(shape, STRIDE + 1)
    front = z + load_i64(shape, PADDING)
    for _ in range(load_i64(shape, KERNEL)):
        top = y + load_i64(shape, PADDING + 1)
        od = front // sd
        if front % sd == 0 and 0 <= od < load_i64(shape, DST):
            for _ in range(load_i64(shape, KERNEL + 1)):
                oh = top // sh
                if top % sh == 0 and 0 <= oh < load_i64(shape, DST + 1):
                    scale = _quotient(_ONE, _count(params, 0, od) * _count(params, 1, oh))
                    row = image + _place(params, DST_PLACES, od, oh)
                    _add(params, DST_PLACES, DST_COLUMN, row, first, last, scale, shares)
                top -= load_i64(shape, DILATION + 1)
        front -= load_i64(shape, DILATION)


@device
def _add(params, places, column, row, start, stop, scale, sums):
    """sums += scale * the places [start, stop) of a row."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, column)
    table = load_i64(params, places + 2)
    length, count, distance = _runs(table, start, stop, columns, stride)
    for run in range(count):
        origin, target = row + load_i64(table, start + run), sums + 4 * run * length
        if distance == 1:
            for i in range(length):
                store_f32(target, i, load_f32(target, i) + scale * load_f32(origin, i))
        else:
            for i in range(length):
                store_f32(target, i, load_f32(target, i) + scale * load_f32(origin, i * distance))


@device
def _write(params, places, column, row, start, stop, values):
    """Write the places [start, stop) of a row."""
    columns, stride = load_i64(params, COLUMNS), load_i64(params, column)
    table = load_i64(params, places + 2)
    length, count, distance = _runs(table, start, stop, columns, stride)
    for run in range(count):
        target, source = row + load_i64(table, start + run), values + 4 * run * length
        if distance == 1:
            for i in range(length):
                store_f32(target, i, load_f32(source, i))
        else:
            for i in range(length):
                store_f32(target, i * distance, load_f32(source, i))


@device
def _runs(table, start, stop, columns, stride):
    """How long the evenly spaced runs of elements are, how many, and how far apart the elements."""
    count = stop - start
    if count > 1:
        step = (load_i64(table, start + 1) - load_i64(table, start)) // 4
        even = load_i64(table, stop - 1) - load_i64(table, start) == 4 * step * (count - 1)
        if even and columns == 1:
            return count, 1, step
        if even and step == columns * stride:
            return count * columns, 1, stride
    return columns, count, stride


# -- sums along w ----------------------------------------------------------------------------------


@device
def _add_cells(cells, start, stop, sums, first, last, kw, sw, dw, pw, columns):
    """Add to each window its cells among [start, stop)."""
    if columns == 1 and last - first < kw and dw == 1:
        for window in range(first, last):
            x = window * sw - pw
            total = _ZERO
            for i in range(max(x, start), min(x + kw, stop)):
                total += load_f32(cells, i - start)
            store_f32(sums, window - first, load_f32(sums, window - first) + total)
        return
    for s in range(kw):
        low, high = _windows_of(s * dw - pw, sw, start, stop, first, last)
        x, to = low * sw + s * dw - pw - start, low - first
        if columns == 1 or sw == 1:
            _add_evenly(cells + 4 * x * columns, sw, sums + 4 * to * columns, 1,
                        (high - low) * columns)  # fmt: skip
        else:
            for i in range(high - low):
                source, target = (x + i * sw) * columns, (to + i) * columns
                _add_evenly(cells + 4 * source, 1, sums + 4 * target, 1, columns)


@device
def _give_shares(shares, first, last, cells, start, stop, kw, sw, dw, pw, columns):
    """Add to each of the cells [start, stop) the shares of the windows that see it."""
    for s in range(kw):
        low, high = _windows_of(s * dw - pw, sw, start, stop, first, last)
        x, to = low * sw + s * dw - pw - start, low - first
        if columns == 1 or sw == 1:
            _add_evenly(shares + 4 * to * columns, 1, cells + 4 * x * columns, sw,
                        (high - low) * columns)  # fmt: skip
        else:
            for i in range(high - low):
                target, source = (x + i * sw) * columns, (to + i) * columns
                _add_evenly(shares + 4 * source, 1, cells + 4 * target, 1, columns)


@device
def _windows_of(offset, sw, start, stop, first, last):
    """The windows among [first, last) whose cell at w * sw + offset is in [start, stop)."""
    low = max(first, -((offset - start) // sw))
    high = min(last, (stop - 1 - offset) // sw + 1)
    return low, max(low, high)


@device
def _add_evenly(x, x_step, y, y_step, count):
    """y += x."""
    if x_step == 1 and y_step == 1:
        for i in range(count):
            store_f32(y, i, load_f32(y, i) + load_f32(x, i))
    elif x_step == 2:
        for i in range(count):
            store_f32(y, i, load_f32(y, i) + load_f32(x, 2 * i))
    else:
        for i in range(count):
            store_f32(y, i * y_step, load_f32(y, i * y_step) + load_f32(x, i * x_step))


# -- parts -----------------------------------------------------------------------------------------


@device
def _divide(params, od, oh, first, last, sums):
    """Divide windows by the numbers of their cells."""
    columns = load_i64(params, COLUMNS)
    outer = _count(params, 0, od) * _count(params, 1, oh)
    if columns == 1:
        counts = load_i64(params, COUNTS + 2) + 4 * first
        for i in range(last - first):
            store_f32(sums, i, _quotient(load_f32(sums, i), outer * load_f32(counts, i)))
        return
    for window in range(first, last):
        divisor, start = outer * _count(params, 2, window), (window - first) * columns
        for i in range(start, start + columns):
            store_f32(sums, i, _quotient(load_f32(sums, i), divisor))


@device
def _share_along_w(params, first, last, shares):
    """Divide windows by the numbers of their cells along w."""
    columns = load_i64(params, COLUMNS)
    if columns == 1:
        counts = load_i64(params, COUNTS + 2) + 4 * first
        for i in range(last - first):
            store_f32(shares, i, _quotient(load_f32(shares, i), load_f32(counts, i)))
        return
    for window in range(first, last):
        start = (window - first) * columns
        scale = _quotient(_ONE, _count(params, 2, window))
        for i in range(start, start + columns):
            store_f32(shares, i, load_f32(shares, i) * scale)


@device
def _count(params, dim, place):
    """How many cells count along a dim for the windows at a place, as a float32."""
    return load_f32(load_i64(params, COUNTS + dim), place)


@exact
def _quotient(x, y):
    return x / y  # rounded once, not multiplied by the reciprocal


@device
def _place(params, places, d, h):
    """The bytes from an image's start to row (d, h)."""
    return load_i64(load_i64(params, places), d) + load_i64(load_i64(params, places + 1), h)


@device
def _fill(x, count):
    for i in range(count):
        store_f32(x, i, _ZERO)
