"""The native loops of softmax, see `softmax/implementations.py`.

A vector is copied to a buffer and replaced by e**(x - maximum) there. It is scaled or shifted when
it is written to dst. A vector that does not fit into the buffer is read in pieces, three times. If
a slab does not fit into the buffer, each of its places is also read three times.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import prefetch, scaled, stream_row, stream_scaled
from dnncore_cpu_numba.codegen.pointers import (
    bits_to_f32,
    f32_to_bits,
    load_f32,
    load_i64,
    stack,
    store_f32,
)
from dnncore_cpu_numba.codegen.task import device, exact, task
from dnncore_cpu_numba.copies.typed_rows import convert_row, stream_row_as

COLUMNS = 256  # most columns of a slab
SLAB = 1 << 13  # elements of a slab that fits into the buffer: 32 KB
LINE_LENGTH = 16  # elements of a cache line
_MOST = 1 << 15  # most elements of a piece of a vector: a buffer of 128 KB
_PIECE = 256  # elements of a gradient that are computed before non-temporal stores; measured
_RUN = 256  # places whose sum is added to the total at once; longer runs lose precision
_TYPED = 2048  # elements of types other than f32 that are converted at a time
_TYPED_BUFFER = _TYPED // 2
_BUFFER, _SLAB_BUFFER, _VECTOR_BUFFER = COLUMNS // 2, SLAB // 2, _MOST // 2  # int64
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST, _LOWEST_KEY = np.float32("-inf"), np.int32(-0x7F800001)  # -inf and its `key`


def _records(names: str) -> tuple[Record, Record]:
    """Return the record of tensors with these names, and of the parameters of their task."""
    tensors = Record(f"tensors {names}", (names, "address"))
    sizes = Record(f"sizes of {names}", (names, "bytes"))
    return tensors, Record(
        f"softmax of {names}",
        ("nest", Pointer(NEST)),
        ("length", "count", "of the axis"),
        ("log streamed keeps", "flag"),
        ("columns", "count", "of a slab"),
        ("starts", tensors),
        ("strides", Record(f"strides of {names}", (names, "elements")), "from column to column"),
        ("places", tensors, "of tables of the axis' places in bytes"),
        ("sizes", sizes, "of elements"),
        ("kernels", tensors, "that convert rows to f32 or, of the first one, from it; 0 for f32"),
        ("past", "address", "like the first one past the caches"),
    )


FORWARD_TENSORS, FORWARD = _records("dst src lse")  # lse is written if `keeps` is set
BACKWARD_TENSORS, BACKWARD = _records("diff_src dst diff_dst")


# -- forward: dst, src -----------------------------------------------------------------------------


@task(FORWARD)
def forward_vectors(params, begin, end):
    """Compute softmax of vectors that are contiguous in memory, in a buffer."""
    nest, length, log, keeps = params.nest, params.length, params.log, params.keeps
    streamed = params.streamed != 0
    store, load, past = params.kernels.dst, params.kernels.src, params.past
    dst_size, src_size = params.sizes.dst, params.sizes.src
    position, tensors, x = stack(MAX_LOOPS), FORWARD_TENSORS.room(), stack(_VECTOR_BUFFER)
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        dst, src = tensors.dst, tensors.src
        top = _LOWEST_KEY
        for start in range(0, length, _MOST):
            count = min(_MOST, length - start)
            top = max(top, _take(load, src_size, src + src_size * start, x, count))
        largest = of_key(top)
        if streamed:
            prefetch(src + src_size * length, src_size * min(length, _MOST))
        total = _ZERO
        for start in range(0, length, _MOST):
            count = min(_MOST, length - start)
            if length > _MOST:
                _take(load, src_size, src + src_size * start, x, count)
            if log:
                total += _decays(x, largest, count, False)
            else:
                total += _decays(x, largest, count, True)
                if length > _MOST and store == 0:
                    _copy(x, 1, dst + 4 * start, 1, count)
        shift, factor, rest = _ZERO, _ONE / total, _ZERO
        if log:
            shift, factor, rest = largest, _ONE, vecmath.log(total)
        if keeps:
            store_f32(tensors.lse, 0, largest + vecmath.log(total))
        for start in range(0, length, _MOST):
            count, y = min(_MOST, length - start), dst + dst_size * start
            if length > _MOST:
                if log or store != 0:
                    _take(load, src_size, src + src_size * start, x, count)
                    if not log:
                        _decays(x, largest, count, True)
                else:
                    _copy(y, 1, x, 1, count)
            if store != 0:
                for i in range(count):
                    store_f32(x, i, scaled(load_f32(x, i), shift, factor, rest))
                _write(store, past, x, y, dst_size, count)
            elif streamed:
                stream_scaled(x, shift, factor, rest, y, count)
            else:
                for i in range(count):
                    store_f32(y, i, scaled(load_f32(x, i), shift, factor, rest))
        advance(nest, position, tensors, 1)


@task(FORWARD)
def forward_slabs(params, begin, end):
    """Compute softmax of slabs. Slabs that fit into the buffer are read and written once."""
    nest, length, log, keeps = params.nest, params.length, params.log, params.keeps
    columns, lse_stride = params.columns, params.strides.lse
    store, load = params.kernels.dst, params.kernels.src
    dst_stride, src_stride = params.strides.dst, params.strides.src
    dst_step, src_step = dst_stride * params.sizes.dst, src_stride * params.sizes.src
    dst_places, src_places = params.places.dst, params.places.src
    position, tensors, room = stack(MAX_LOOPS), FORWARD_TENSORS.room(), stack(_SLAB_BUFFER)
    top, total, run = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    held = length * columns <= SLAB
    step = 4 * columns if held else 0
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        dst, src = tensors.dst, tensors.src
        for c in range(columns):
            store_f32(top, c, _LOWEST)
            store_f32(total, c, _ZERO)
            store_f32(run, c, _ZERO)
        for j in range(length):
            x = room + j * step
            _read(load, src + load_i64(src_places, j), src_stride, src_step, x, columns)
            for c in range(columns):
                value, largest = load_f32(x, c), load_f32(top, c)
                store_f32(top, c, value if value > largest else largest)
        for j in range(length):
            x = room + j * step
            if not held:
                _read(load, src + load_i64(src_places, j), src_stride, src_step, x, columns)
            for c in range(columns):
                e = vecmath.decay(load_f32(x, c) - load_f32(top, c))
                store_f32(run, c, load_f32(run, c) + e)
                if not log:
                    store_f32(x, c, e)
            if (j + 1) % _RUN == 0:
                _add_run(run, total, columns)
            if not log and not held and store == 0:
                _copy(x, 1, dst + load_i64(dst_places, j), dst_stride, columns)
        _add_run(run, total, columns)
        if keeps:
            for c in range(columns):
                value = load_f32(top, c) + vecmath.log(load_f32(total, c))
                store_f32(tensors.lse, c * lse_stride, value)
        for c in range(columns):
            value = load_f32(total, c)
            store_f32(total, c, vecmath.log(value) if log else _ONE / value)
        for j in range(length):
            x, to = room + j * step, dst + load_i64(dst_places, j)
            if not held and (log or store != 0):
                _read(load, src + load_i64(src_places, j), src_stride, src_step, x, columns)
                if not log:
                    for c in range(columns):
                        store_f32(x, c, vecmath.decay(load_f32(x, c) - load_f32(top, c)))
            elif not held:
                _copy(to, dst_stride, x, 1, columns)
            for c in range(columns):
                value, rest = load_f32(x, c), load_f32(total, c)
                if log:
                    value = scaled(value, load_f32(top, c), _ONE, rest)
                else:
                    value *= rest
                store_f32(x, c, value)
            if store != 0:
                convert_row(store, x, 4, to, dst_step, columns)
            else:
                _copy(x, 1, to, dst_stride, columns)
        advance(nest, position, tensors, 1)


# -- backward: diff_src, dst, diff_dst -------------------------------------------------------------


@task(BACKWARD)
def backward_vectors(params, begin, end):
    """Compute the gradient for vectors that are contiguous in memory."""
    nest, length, log = params.nest, params.length, params.log
    streamed = params.streamed != 0
    kernels, sizes, past = params.kernels, params.sizes, params.past
    store, load_y, load_g = kernels.diff_src, kernels.dst, kernels.diff_dst
    size, y_size, g_size = sizes.diff_src, sizes.dst, sizes.diff_dst
    typed = (store | load_y | load_g) != 0
    whole = _TYPED if typed else length
    piece = _TYPED if typed else _PIECE if streamed else _MOST
    position, tensors, x = stack(MAX_LOOPS), BACKWARD_TENSORS.room(), stack(_VECTOR_BUFFER)
    y_room, g_room = stack(_TYPED_BUFFER), stack(_TYPED_BUFFER)
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst, diff_dst = tensors.diff_src, tensors.dst, tensors.diff_dst
        total = _ZERO
        for start in range(0, length, whole):
            count = min(whole, length - start)
            g = _loaded(load_g, diff_dst + g_size * start, g_size, g_room, count)
            if log:
                total += _sum(g, count)
            else:
                y = _loaded(load_y, dst + y_size * start, y_size, y_room, count)
                total += _dot(g, y, count)
        through = streamed or store != 0 or diff_src in (dst, diff_dst)
        for start in range(0, length, piece):
            count = min(piece, length - start)
            y, g = dst + y_size * start, diff_dst + g_size * start
            to = diff_src + size * start
            if streamed and start < _MOST:  # prefetch only what caches keep until the next vector
                prefetch(y + y_size * length, y_size * count)
                prefetch(g + g_size * length, g_size * count)
            y = _loaded(load_y, y, y_size, y_room, count)
            g = _loaded(load_g, g, g_size, g_room, count)
            if log:
                _log_gradient(y, g, total, x if through else to, count)
            else:
                _gradient(y, g, total, x if through else to, count)
            if store != 0:
                _write(store, past, x, to, size, count)
            elif streamed:
                stream_row(x, to, count)
            elif through:
                _copy(x, 1, to, 1, count)
        advance(nest, position, tensors, 1)


@task(BACKWARD)
def backward_slabs(params, begin, end):
    """Compute the gradient for slabs."""
    nest, length, log = params.nest, params.length, params.log
    columns, strides, places = params.columns, params.strides, params.places
    kernels, sizes = params.kernels, params.sizes
    store, load_y, load_g = kernels.diff_src, kernels.dst, kernels.diff_dst
    out_stride, y_stride, g_stride = strides.diff_src, strides.dst, strides.diff_dst
    out_places, y_places, g_places = places.diff_src, places.dst, places.diff_dst
    y_step, g_step = y_stride * sizes.dst, g_stride * sizes.diff_dst
    position, tensors = stack(MAX_LOOPS), BACKWARD_TENSORS.room()
    y, g, total, run = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst, diff_dst = tensors.diff_src, tensors.dst, tensors.diff_dst
        for c in range(columns):
            store_f32(total, c, _ZERO)
            store_f32(run, c, _ZERO)
        for j in range(length):
            _read(load_g, diff_dst + load_i64(g_places, j), g_stride, g_step, g, columns)
            if log:
                for c in range(columns):
                    store_f32(run, c, load_f32(run, c) + load_f32(g, c))
            else:
                _read(load_y, dst + load_i64(y_places, j), y_stride, y_step, y, columns)
                for c in range(columns):
                    product = load_f32(g, c) * load_f32(y, c)
                    store_f32(run, c, load_f32(run, c) + product)
            if (j + 1) % _RUN == 0:
                _add_run(run, total, columns)
        _add_run(run, total, columns)
        for j in range(length):
            _read(load_g, diff_dst + load_i64(g_places, j), g_stride, g_step, g, columns)
            _read(load_y, dst + load_i64(y_places, j), y_stride, y_step, y, columns)
            if log:
                for c in range(columns):
                    product = vecmath.exp(load_f32(y, c)) * load_f32(total, c)
                    store_f32(g, c, load_f32(g, c) - product)
            else:
                for c in range(columns):
                    centred = load_f32(g, c) - load_f32(total, c)
                    store_f32(g, c, load_f32(y, c) * centred)
            to = diff_src + load_i64(out_places, j)
            if store != 0:
                convert_row(store, g, 4, to, out_stride * sizes.diff_src, columns)
            else:
                _copy(g, 1, to, out_stride, columns)
        advance(nest, position, tensors, 1)


# -- parts -----------------------------------------------------------------------------------------


@device
def _copy(x, x_stride, y, y_stride, count):
    for i in range(count):
        store_f32(y, i * y_stride, load_f32(x, i * x_stride))


@exact
def key(x):
    """Return an integer that is larger for a larger x; any integer for NaN."""
    bits = f32_to_bits(x)
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & 0x7FFFFFFF))


@exact
def of_key(key):
    """Return the number with this key."""
    return bits_to_f32(np.int32(key ^ np.int32(np.int32(key >> 31) & 0x7FFFFFFF)))


@device
def _read(load, source, stride, step, x, count):
    """Copy elements to a buffer as f32. stride, step: their distance in elements and in bytes."""
    if load != 0:
        convert_row(load, source, step, x, 4, count)
    else:
        _copy(source, stride, x, 1, count)


@device
def _loaded(load, source, size, x, count):
    """Return the address of elements as f32: in place, or converted in the buffer x."""
    if load == 0:
        return source
    convert_row(load, source, size, x, 4, count)
    return x


@device
def _write(store, past, x, y, size, count):
    """Convert a buffer to y. past: the kernel with non-temporal stores, or 0."""
    if past != 0:
        stream_row_as(store, past, x, y, size, count)
    else:
        convert_row(store, x, 4, y, size, count)


@device
def _take(load, size, src, x, count):
    """Copy elements to a buffer as f32, and append -inf up to a whole line.

    Returns the largest key.
    """
    top = _LOWEST_KEY
    if load != 0:
        convert_row(load, src, size, x, 4, count)
        for i in range(count):
            top = max(top, key(load_f32(x, i)))
    else:
        for i in range(count):
            value = load_f32(src, i)
            store_f32(x, i, value)
            top = max(top, key(value))
    for i in range(count, LINE_LENGTH * -(-count // LINE_LENGTH)):
        store_f32(x, i, _LOWEST)
    return top


@device
def _decays(x, top, count, replace):
    """Return the sum of e**(x - top) over whole lines. replace: store the terms in x."""
    total = _ZERO
    for i in range(LINE_LENGTH * -(-count // LINE_LENGTH)):
        e = vecmath.decay(load_f32(x, i) - top)
        if replace:
            store_f32(x, i, e)
        total += e
    return total


@device
def _add_run(run, total, columns):
    """Add the sums of a run of places to the totals, and reset the sums."""
    for c in range(columns):
        store_f32(total, c, load_f32(total, c) + load_f32(run, c))
        store_f32(run, c, _ZERO)


@device
def _sum(x, count):
    total = _ZERO
    for i in range(count):
        total += load_f32(x, i)
    return total


@device
def _dot(x, y, count):
    total = _ZERO
    for i in range(count):
        total += load_f32(x, i) * load_f32(y, i)
    return total


@device
def _gradient(y, g, total, x, count):
    for i in range(count):
        store_f32(x, i, load_f32(y, i) * (load_f32(g, i) - total))


@device
def _log_gradient(y, g, total, x, count):
    for i in range(count):
        store_f32(x, i, load_f32(g, i) - vecmath.exp(load_f32(y, i)) * total)
