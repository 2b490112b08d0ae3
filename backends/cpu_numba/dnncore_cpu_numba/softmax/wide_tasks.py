"""The native loops of softmax for float64, see `softmax/implementations.py`: slabs in place."""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen import precise_math
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, advance, seek
from dnncore_cpu_numba.codegen.pointers import load_f64, load_i64, stack, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.softmax.tasks import VECTORS, records

FORWARD_TENSORS, FORWARD = records("dst src lse", wide=True)
BACKWARD_TENSORS, BACKWARD = records("diff_src dst diff_dst", wide=True)
_LOWEST = float("-inf")


@task(FORWARD)
def forward(params, begin, end):
    """Compute softmax of slabs."""
    nest, length, log, vectors = params.nest, params.length, params.log, params.vectors
    keeps, lse_stride = params.keeps, params.strides.lse
    dst_stride, src_stride = params.strides.dst, params.strides.src
    dst_places, src_places = params.places.dst, params.places.src
    position, tensors = stack(MAX_LOOPS), FORWARD_TENSORS.room()
    top, total = stack(VECTORS), stack(VECTORS)
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        dst, src = tensors.dst, tensors.src
        for c in range(vectors):
            store_f64(top, c, _LOWEST)
            store_f64(total, c, 0.0)
        for j in range(length):
            x = src + load_i64(src_places, j)
            for c in range(vectors):
                value, largest = load_f64(x + c * src_stride, 0), load_f64(top, c)
                store_f64(top, c, value if value > largest else largest)
        for j in range(length):
            x, y = src + load_i64(src_places, j), dst + load_i64(dst_places, j)
            for c in range(vectors):
                e = precise_math.exp(load_f64(x + c * src_stride, 0) - load_f64(top, c))
                store_f64(total, c, load_f64(total, c) + e)
                if not log:
                    store_f64(y + c * dst_stride, 0, e)
        if keeps:
            for c in range(vectors):
                value = load_f64(top, c) + precise_math.log(load_f64(total, c))
                store_f32(tensors.lse + c * lse_stride, 0, np.float32(value))
        if log:
            for c in range(vectors):
                store_f64(total, c, precise_math.log(load_f64(total, c)))
        for j in range(length):
            x, y = src + load_i64(src_places, j), dst + load_i64(dst_places, j)
            for c in range(vectors):
                if log:
                    shifted = precise_math.less(load_f64(x + c * src_stride, 0), load_f64(top, c))
                    value = precise_math.less(shifted, load_f64(total, c))
                else:
                    value = load_f64(y + c * dst_stride, 0) / load_f64(total, c)
                store_f64(y + c * dst_stride, 0, value)
        advance(nest, position, tensors, 1)


@task(BACKWARD)
def backward(params, begin, end):
    """Compute the gradient for slabs."""
    nest, length, log, vectors = params.nest, params.length, params.log, params.vectors
    strides, places = params.strides, params.places
    out_stride, y_stride, g_stride = strides.diff_src, strides.dst, strides.diff_dst
    position, tensors = stack(MAX_LOOPS), BACKWARD_TENSORS.room()
    total = stack(VECTORS)
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst, diff_dst = tensors.diff_src, tensors.dst, tensors.diff_dst
        for c in range(vectors):
            store_f64(total, c, 0.0)
        for j in range(length):
            y, g = dst + load_i64(places.dst, j), diff_dst + load_i64(places.diff_dst, j)
            for c in range(vectors):
                value = load_f64(g + c * g_stride, 0)
                if not log:
                    value *= load_f64(y + c * y_stride, 0)
                store_f64(total, c, load_f64(total, c) + value)
        for j in range(length):
            y, g = dst + load_i64(places.dst, j), diff_dst + load_i64(places.diff_dst, j)
            to = diff_src + load_i64(places.diff_src, j)
            for c in range(vectors):
                value, grad = load_f64(y + c * y_stride, 0), load_f64(g + c * g_stride, 0)
                sum_ = load_f64(total, c)
                plain, of_log = value * (grad - sum_), grad - precise_math.exp(value) * sum_
                result = of_log if log else plain
                store_f64(to + c * out_stride, 0, result)
        advance(nest, position, tensors, 1)
