"""Attention of few queries, such as the last one of a text that grows: the keys are divided.

A work item computes the queries of a head with a part of the keys, which it reads in place. A
second step combines the parts of each query, weighted by their sums.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.attention.tasks import COMMON, STRIDES, adjust, clear, place, take
from dnncore_cpu_numba.attention.weights_kernel import STEP, WEIGHTS
from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_f32, stack, store_f32
from dnncore_cpu_numba.codegen.task import task

MOST = 4  # queries of a head; with more, keys and values are better copied to panels
COLUMNS = 192  # keys at once, as in `tasks.py`, whose buffers of scores have such rows
DEPTH = 256  # most elements of a query, a key or a value
_SCORES, _ROW, _ROWS = MOST * COLUMNS // 2, DEPTH // 2, MOST * DEPTH // 2  # int64
_ZERO, _ONE, _LOWEST = np.float32(0), np.float32(1), np.float32("-inf")
_LN2 = np.float32(0.6931471805599453)

PARTS = Record(
    "attention of few queries to parts of keys",
    *COMMON,
    ("depth width padded", "count", "elements of a key, of a value, of a partial sum"),
    ("queries keys values", "address"),
    ("query_strides key_strides value_strides", STRIDES),
    ("parts span", "count", "of the keys of a head; keys of a part"),
    ("sums", "address", "(N, H, parts, Q, padded)"),
    ("tops totals", "address", "(N, H, parts, Q)"),
    ("weights", "address", "the kernel of `WEIGHTS`"),
    ("factor", "float32", "of the queries: the scale, to the base 2"),
)
WHOLE = Record(
    "attention combined from parts of keys",
    ("rows heads width padded parts", "count"),
    ("sums tops totals dst lse", "address"),
    ("dst_strides", STRIDES),
    ("keeps", "flag", "lse is written"),
)


@task(PARTS)
def parts(params, begin, end):
    """Compute the maxima, the sums of weights and the weighted sums of values of parts."""
    depth, width, padded, rows = params.depth, params.width, params.padded, params.rows
    x, queries = stack(_SCORES), stack(_ROWS)
    key_step, value_step = params.key_strides.row, params.value_strides.row
    for item in range(begin, end):
        index = item // params.parts
        head, n = index % params.heads, index // params.heads
        shared = head // params.share
        take(params.queries, params.query_strides, n, head, 0, rows, depth, params.factor, queries)
        sums, at = params.sums + 4 * item * rows * padded, 4 * item * rows
        clear(sums, rows * padded)
        for r in range(rows):
            store_f32(params.tops + at, r, _LOWEST)
            store_f32(params.totals + at, r, _ZERO)
        first = item % params.parts * params.span
        last = min(params.columns, first + params.span, rows + params.diagonal)
        for start in range(first, last, COLUMNS):
            count = min(COLUMNS, last - start)
            keys = params.keys + 4 * place(params.key_strides, n, shared, start)
            values = params.values + 4 * place(params.value_strides, n, shared, start)
            for c in range(count):
                key = keys + 4 * c * key_step
                for r in range(rows):
                    query, score = queries + 4 * r * depth, _ZERO
                    for i in range(depth):
                        score += load_f32(query, i) * load_f32(key, i)
                    store_f32(x, COLUMNS * r + c, score)
            adjust(params, x, rows, n, head, 0, start, count)
            WEIGHTS.call(
                params.weights, x=x, rows=rows, row=4 * COLUMNS, steps=(count + STEP - 1) // STEP,
                top=params.tops + at, total=params.totals + at, sums=sums, sum_row=4 * padded,
                sum_vectors=4 * padded // params.vector,
            )  # fmt: skip
            for c in range(count):
                value = values + 4 * c * value_step
                for r in range(rows):
                    weight, own = load_f32(x, COLUMNS * r + c), sums + 4 * r * padded
                    for i in range(width):
                        store_f32(own, i, load_f32(own, i) + weight * load_f32(value, i))


@task(WHOLE)
def whole(params, begin, end):
    """Combine the parts of each query of heads."""
    rows, width, padded, count = params.rows, params.width, params.padded, params.parts
    sums = stack(_ROW)
    for item in range(begin, end):
        head, n = item % params.heads, item // params.heads
        for row in range(rows):
            at = item * count * rows + row
            top, total = _LOWEST, _ZERO
            for p in range(count):
                top = max(top, load_f32(params.tops, at + p * rows))
            shift = _ZERO if top == _LOWEST else top
            clear(sums, width)
            for p in range(count):
                own = at + p * rows
                factor = vecmath.exp((load_f32(params.tops, own) - shift) * _LN2)
                total += factor * load_f32(params.totals, own)
                values = params.sums + 4 * own * padded
                for i in range(width):
                    store_f32(sums, i, load_f32(sums, i) + factor * load_f32(values, i))
            divided = _ZERO if total == _ZERO else _ONE / total
            target = params.dst + 4 * place(params.dst_strides, n, head, row)
            step = params.dst_strides.column
            for i in range(width):
                store_f32(target, i * step, load_f32(sums, i) * divided)
            if params.keeps:
                lse = _LOWEST if total == _ZERO else top * _LN2 + vecmath.log(total)
                store_f32(params.lse, item * rows + row, lse)
