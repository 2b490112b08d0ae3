"""Rows of resampled images, forward and backward: sums of input rows by tables of taps.

A row of the result depends on a few input rows. First their weighted sum is computed, then each
pixel of the result from a few pixels of this sum. A pixel is a run of `inner` elements, such as
channels. The sum is kept in a window of at most `ROOM_SIZE` elements, which moves along the row.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.pointers import (
    load_f32,
    load_i32,
    load_i64,
    stack,
    store_f32,
    store_i32,
)
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.reformat import TENSORS
from dnncore_cpu_numba.copies.typed_rows import convert_row

ROOM_SIZE = 4096  # elements of a window
ZERO, ONE = np.float32(0), np.float32(1)
_SLOTS = ROOM_SIZE // 2
TAPS = Record(
    "taps of a dim",
    ("firsts starts", "address", "per result: its first input, its first weight; int64"),
    ("weights", "address", "f32"),
    ("taps", "count", "of every result, in the tables below: 1 for copies, 2, or 0"),
    ("places", "address", "inputs; int32; per tap those of all results"),
    ("shares", "address", "weights of these inputs; f32"),
    ("pixels", "count", "results in the tables"),
)
IMAGE = Record(
    "image", ("plane row pixel", "bytes"), ("size", "bytes", "of an element"),
    ("convert", "address", "of a kernel from or to f32; 0 for f32"),
)  # fmt: skip


@task(Record(
    "resampled rows",
    ("nest", Pointer(NEST), "of images and channels"),
    ("planes rows pixels", "count", "of an image of the result"),
    ("inner", "elements", "of a pixel"),
    ("into source", IMAGE),
    ("along_planes along_rows along_pixels", TAPS),
    ("starts", TENSORS),
))  # fmt: skip
def resample_rows(params, begin, end):
    """Compute some rows of the result."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    nest, into, source = params.nest, params.into, params.source
    d_taps, h_taps, w_taps = params.along_planes, params.along_rows, params.along_pixels
    total, temporary, result = stack(_SLOTS), stack(_SLOTS), stack(_SLOTS)
    rows, pixels, inner = params.rows, params.pixels, params.inner
    per_image = params.planes * rows
    seek(nest, begin // per_image, position, params.starts, tensors, 1)
    most = ROOM_SIZE // inner
    for item in range(begin, end):
        place = item % per_image
        d, h = place // rows, place % rows
        target = tensors.dst + d * into.plane + h * into.row
        d0, dn = load_i64(d_taps.starts, d), load_i64(d_taps.starts, d + 1)
        h0, hn = load_i64(h_taps.starts, h), load_i64(h_taps.starts, h + 1)
        origin = tensors.src + load_i64(d_taps.firsts, d) * source.plane
        origin += load_i64(h_taps.firsts, h) * source.row
        is_one = dn - d0 == 1 and hn - h0 == 1
        if is_one:
            weight = load_f32(d_taps.weights, d0) * load_f32(h_taps.weights, h0)
            is_one = weight == ONE
        x = 0
        while x < pixels:
            first = load_i64(w_taps.firsts, x)
            stop, last = x, first
            while stop < pixels and stop - x < most:
                taps = load_i64(w_taps.starts, stop + 1) - load_i64(w_taps.starts, stop)
                upper = load_i64(w_taps.firsts, stop) + taps
                if upper - first > most:
                    break
                last = max(last, upper)
                stop += 1
            start = origin + first * source.pixel
            if stop > x:
                if is_one:
                    window = _dense(start, source, temporary, last - first, inner)
                else:
                    window = total
                    _sum_rows(
                        start, source, d_taps.weights, d0, dn, h_taps.weights, h0, hn,
                        total, temporary, last - first, inner,
                    )  # fmt: skip
                _pixels(w_taps, x, stop, first, window, inner, into, target, result)
            else:  # one pixel with more taps than the window has
                stop = x + 1
                w0, wn = load_i64(w_taps.starts, x), load_i64(w_taps.starts, stop)
                pixel = target + x * into.pixel if into.convert == 0 else result
                for i in range(inner):
                    store_f32(pixel, i, ZERO)
                for w in range(w0, wn, most):
                    width = min(most, wn - w)
                    _sum_rows(
                        start + (w - w0) * source.pixel, source, d_taps.weights, d0, dn,
                        h_taps.weights, h0, hn, total, temporary, width, inner,
                    )  # fmt: skip
                    _add_taps(w_taps.weights, w, w + width, total, pixel, inner)
            _store_pixels(result, into, target, x, stop, inner)
            x = stop
        if place == per_image - 1:
            advance(nest, position, tensors, 1)


@device
def _sum_rows(origin, source, d_weights, d0, dn, h_weights, h0, hn, total, temporary, width, inner):
    """Write the weighted sum of `width` pixels of all rows to `total`."""
    count = width * inner
    is_first = True
    for d in range(d0, dn):
        for h in range(h0, hn):
            weight = load_f32(d_weights, d) * load_f32(h_weights, h)
            place = origin + (d - d0) * source.plane + (h - h0) * source.row
            row = _dense(place, source, temporary, width, inner)
            if is_first:
                for i in range(count):
                    store_f32(total, i, weight * load_f32(row, i))
            else:
                for i in range(count):
                    store_f32(total, i, load_f32(total, i) + weight * load_f32(row, i))
            is_first = False
    if is_first:
        for i in range(count):
            store_f32(total, i, ZERO)


@device
def _dense(place, source, temporary, width, inner):
    """Return the address of `width` pixels as dense f32."""
    size, kernel = source.size, source.convert
    if source.pixel == size * inner:
        if kernel == 0:
            return place
        convert_row(kernel, place, size, temporary, 4, width * inner)
    elif kernel == 0:
        for x in range(width):
            for i in range(inner):
                store_f32(temporary, x * inner + i, load_f32(place + x * source.pixel, i))
    elif inner == 1:
        convert_row(kernel, place, source.pixel, temporary, 4, width)
    else:
        for x in range(width):
            row = temporary + 4 * x * inner
            convert_row(kernel, place + x * source.pixel, size, row, 4, inner)
    return temporary


@device
def _pixels(taps, x, stop, first, window, inner, into, target, result):
    """Sum pixels of the window for the results from x to stop.

    Results of f32 are written directly, others to `result`.
    """
    direct = into.convert == 0
    if inner == 1 and taps.taps > 0 and (not direct or into.pixel == 4):
        start = target + 4 * x if direct else result
        _by_tables(taps, x, stop, window - 4 * first, start)
        return
    for p in range(x, stop):
        w0, wn = load_i64(taps.starts, p), load_i64(taps.starts, p + 1)
        pixel = target + p * into.pixel if direct else result + 4 * (p - x) * inner
        row = window + 4 * inner * (load_i64(taps.firsts, p) - first)
        if wn - w0 == 1 and load_f32(taps.weights, w0) == ONE:
            for i in range(inner):  # the bits, which may be an s32
                store_i32(pixel, i, load_i32(row, i))
        elif inner == 1:
            value = ZERO
            for w in range(w0, wn):
                value += load_f32(taps.weights, w) * load_f32(row, w - w0)
            store_f32(pixel, 0, value)
        elif wn == w0:
            for i in range(inner):
                store_f32(pixel, i, ZERO)
        elif wn - w0 == 2:
            a, b = load_f32(taps.weights, w0), load_f32(taps.weights, w0 + 1)
            other = row + 4 * inner
            for i in range(inner):
                store_f32(pixel, i, a * load_f32(row, i) + b * load_f32(other, i))
        else:
            weight = load_f32(taps.weights, w0)
            for i in range(inner):
                store_f32(pixel, i, weight * load_f32(row, i))
            _add_taps(taps.weights, w0 + 1, wn, row + 4 * inner, pixel, inner)


@device
def _by_tables(taps, x, stop, row, result):
    """Sum two elements of a row, or copy one. row: the address of element 0."""
    count = stop - x
    places, shares = taps.places + 4 * x, taps.shares + 4 * x
    step = 4 * taps.pixels
    if taps.taps == 1:
        for p in range(count):
            store_i32(result, p, load_i32(row, load_i32(places, p)))
    else:
        others, rest = places + step, shares + step
        for p in range(count):
            value = load_f32(shares, p) * load_f32(row, load_i32(places, p))
            value += load_f32(rest, p) * load_f32(row, load_i32(others, p))
            store_f32(result, p, value)


@device
def _add_taps(weights, w0, wn, row, pixel, inner):
    """Add the weighted pixels of a row to a pixel."""
    for w in range(w0, wn):
        weight = load_f32(weights, w)
        tap = row + 4 * inner * (w - w0)
        for i in range(inner):
            store_f32(pixel, i, load_f32(pixel, i) + weight * load_f32(tap, i))


@device
def _store_pixels(result, into, target, x, stop, inner):
    """Convert results that are not f32 to their type."""
    size, kernel = into.size, into.convert
    if kernel == 0:
        return
    place = target + x * into.pixel
    if into.pixel == size * inner:
        convert_row(kernel, result, 4, place, size, (stop - x) * inner)
    elif inner == 1:
        convert_row(kernel, result, 4, place, into.pixel, stop - x)
    else:
        for p in range(stop - x):
            convert_row(kernel, result + 4 * p * inner, 4, place + p * into.pixel, size, inner)
