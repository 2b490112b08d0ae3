"""The native loops of attention, see `attention/implementations.py`.

A work item is a block of rows: queries, or keys in the gradients of keys and values. The columns
are the other side, in blocks. Scores of a block of rows and a block of columns are in a buffer.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.attention.product_kernel import PRODUCT
from dnncore_cpu_numba.attention.slopes_kernel import SLOPES
from dnncore_cpu_numba.attention.weights_kernel import STEP, WEIGHTS
from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_f32, load_input, stack, store_f32
from dnncore_cpu_numba.codegen.task import device, task

ROWS = 56  # most rows of a block
COLUMNS = 192  # columns of a block; a multiple of `STEP` and of the sides of all tiles
DEPTH = 256  # elements of a query, a key or a value; with more, blocks have fewer rows
_BUFFER, _ROOM = ROWS * COLUMNS // 2, ROWS * DEPTH // 2  # int64
_PER_ROW, _PER_COLUMN = ROWS // 2, COLUMNS // 2
_ZERO, _ONE, _LOWEST = np.float32(0), np.float32(1), np.float32("-inf")
_LARGEST = np.float32("inf")
_LEAST = np.float32(-3.4e38)  # to the base 2; its product by _LN2 and _LOG2_E is the same number
_LOG2_E, _LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)

STRIDES = Record("strides of a tensor", ("n head row column", "elements"))
COMMON = (
    ("tile_rows tile_columns", "count", "elements of a tile"),
    ("vector", "bytes"),
    ("rows columns", "count", "of a head"),
    ("block", "count", "rows of a block"),
    ("blocks", "count", "of rows of a head"),
    ("heads", "count", "of the rows"),
    ("share", "count", "heads of queries per head of keys"),
    ("diagonal", "index", "a query sees the keys up to its place plus this"),
    ("scale", "float32"),
    ("has_mask", "flag"),
    ("mask", "address"),
    ("mask_strides", STRIDES),
)
FORWARD = Record(
    "attention",
    *COMMON,
    ("depth width", "count", "elements of a key and of a value"),
    ("queries keys values dst lse", "address", "keys and values in panels"),
    ("query_strides dst_strides", STRIDES),
    ("key_head value_head value_panel", "elements", "from one to the next"),
    ("keeps", "flag", "lse is written"),
    ("kernel weights", "address", "the kernels of `PRODUCT` and `WEIGHTS`"),
    ("factor", "float32", "of the queries: the scale, to the base 2"),
)
BACKWARD = Record(
    "gradients of attention",
    *COMMON,
    ("by_keys", "flag", "rows are keys"),
    ("depth width", "count", "elements of a key and of a value"),
    ("x y", "address", "rows: factors of scores, factors of slopes"),
    ("x_strides y_strides", STRIDES),
    ("x_panels y_panels", "address", "columns, along which vectors lie"),
    ("x_head y_head", "elements", "from head to head"),
    ("x_lines y_lines", "address", "columns, one behind the other"),
    ("x_line_head y_line_head x_line_panel y_line_panel", "elements"),
    ("lse mean", "address", "(N, H, Q)"),
    ("dx dy", "address"),
    ("dx_strides dy_strides", STRIDES),
    ("span", "count", "blocks of an item; all blocks of a head if it also computes diff_queries"),
    ("kernel slopes", "address", "the kernels of `PRODUCT` and `SLOPES`"),
    ("across", "address", "the kernel whose left factor is transposed; 0 if span is 1"),
    ("factor", "float32", "of scores: the scale, to the base 2"),
    ("own_lines", "address", "keys, one behind the other"),
    ("own_line_head own_line_panel", "elements"),
    ("room", "address", "of diff_queries, heads of whole tiles"),
    ("room_head", "elements"),
    ("dq", "address"),
    ("dq_strides", STRIDES),
)
MEANS = Record(
    "means of attention",
    ("heads rows width", "count"),
    ("dst diff mean", "address"),
    ("dst_strides diff_strides", STRIDES),
)


@device
def place(strides, n, head, row):
    """Return the offset of a row in elements."""
    return n * strides.n + head * strides.head + row * strides.row


@device
def take(address, strides, n, head, first, count, width, factor, room):
    """Copy `count` rows times a factor to a buffer. The rows after them are left as they are."""
    step = strides.column
    for r in range(count):
        source, target = address + 4 * place(strides, n, head, first + r), room + 4 * r * width
        for i in range(width):
            store_f32(target, i, load_f32(source, i * step) * factor)


@device
def _give(room, factor, address, strides, n, head, row, width):
    """Copy a row times a factor from a buffer."""
    target, step = address + 4 * place(strides, n, head, row), strides.column
    for i in range(width):
        store_f32(target, i * step, load_f32(room, i) * factor)


@device
def clear(room, count):
    """Set numbers to 0."""
    for i in range(count):
        store_f32(room, i, _ZERO)


@device
def _multiply(params, a, a_row, rows, b, panel, panels, depth, c, c_row, accumulate):
    """Compute C = A B, or add it. a_row, panel, c_row: in bytes. depth: of the product.

    Rows and columns are rounded up to whole tiles.
    """
    high = params.tile_rows
    PRODUCT.call(
        params.kernel, a=a, b=b, c=c, a_row=a_row, b_panel=panel, c_row=c_row,
        tiles=(rows + high - 1) // high, panels=panels, depth=depth, accumulate=accumulate,
    )  # fmt: skip


@task(FORWARD)
def forward(params, begin, end):
    """Compute dst and lse of blocks of queries. Scores are in the base 2."""
    depth, width, wide = params.depth, params.width, params.tile_columns
    padded = (width + wide - 1) // wide * wide
    x, queries, sums = stack(_BUFFER), stack(_ROOM), stack(_ROOM)
    top, total = stack(_PER_ROW), stack(_PER_ROW)
    clear(queries, ROWS * DEPTH)
    for item in range(begin, end):
        first = item % params.blocks * params.block
        index = item // params.blocks
        head, n = index % params.heads, index // params.heads
        rows = min(params.block, params.rows - first)
        shared = n * (params.heads // params.share) + head // params.share
        take(params.queries, params.query_strides, n, head, first, rows, depth, params.factor,
              queries)  # fmt: skip
        clear(sums, params.block * padded)
        for r in range(rows):
            store_f32(top, r, _LOWEST)
            store_f32(total, r, _ZERO)
        seen = min(params.columns, first + rows + params.diagonal)
        for start in range(0, seen, COLUMNS):
            count = min(COLUMNS, seen - start)
            panels = (count + wide - 1) // wide
            keys = params.keys + 4 * (shared * params.key_head + start * depth)
            _multiply(params, queries, 4 * depth, rows, keys, 4 * wide * depth, panels, depth, x,
                      4 * COLUMNS, 0)  # fmt: skip
            adjust(params, x, rows, n, head, first, start, count)
            WEIGHTS.call(
                params.weights, x=x, rows=rows, row=4 * COLUMNS, steps=(count + STEP - 1) // STEP,
                top=top, total=total, sums=sums, sum_row=4 * padded,
                sum_vectors=4 * padded // params.vector,
            )  # fmt: skip
            values = params.values + 4 * (shared * params.value_head + start * wide)
            _multiply(params, x, 4 * COLUMNS, rows, values, 4 * params.value_panel,
                      padded // wide, count, sums, 4 * padded, 1)  # fmt: skip
        for r in range(rows):
            own, sum_ = load_f32(top, r), load_f32(total, r)
            factor = _ZERO if sum_ == _ZERO else _ONE / sum_
            _give(sums + 4 * padded * r, factor, params.dst, params.dst_strides, n, head,
                  first + r, width)  # fmt: skip
            if params.keeps:
                lse = _LOWEST if sum_ == _ZERO else own * _LN2 + vecmath.log(sum_)
                store_f32(params.lse, index * params.rows + first + r, lse)


@device
def _to_base_2(x):
    """Return a mask or lse to the base 2. Finite numbers stay finite."""
    return x if x == _LOWEST else max(x * _LOG2_E, _LEAST)


@device
def adjust(params, x, rows, n, head, first, start, count):
    """Add the mask to scores. Those of keys that a query does not see become -inf."""
    step = params.mask_strides.column
    for r in range(rows):
        row, query = x + 4 * COLUMNS * r, first + r
        visible = max(0, min(count, query + params.diagonal + 1 - start))
        if params.has_mask:
            mask = params.mask + 4 * (place(params.mask_strides, n, head, query) + start * step)
            for c in range(visible):
                store_f32(row, c, load_f32(row, c) + _to_base_2(load_input(mask, c * step)))
        for c in range(visible, (count + STEP - 1) // STEP * STEP):
            store_f32(row, c, _LOWEST)


@task(MEANS)
def means(params, begin, end):
    """Compute the sum of diff_dst * dst of each query, for all queries of heads."""
    width = params.width
    for item in range(begin, end):
        head, n = item % params.heads, item // params.heads
        for row in range(params.rows):
            x = params.dst + 4 * place(params.dst_strides, n, head, row)
            y = params.diff + 4 * place(params.diff_strides, n, head, row)
            step, other = params.dst_strides.column, params.diff_strides.column
            total = _ZERO
            for i in range(width):
                total += load_f32(x, i * step) * load_f32(y, i * other)
            store_f32(params.mean, item * params.rows + row, total)


@task(BACKWARD)
def backward(params, begin, end):
    """Compute diff_queries of blocks of queries, or diff_keys and diff_values of blocks of keys."""
    depth, width, wide = params.depth, params.width, params.tile_columns
    by_keys, share, diagonal = params.by_keys, params.share, params.diagonal
    deep, broad = (depth + wide - 1) // wide * wide, (width + wide - 1) // wide * wide
    weights, slopes = stack(_BUFFER), stack(_BUFFER)
    x, y, dx, dy = stack(_ROOM), stack(_ROOM), stack(_ROOM), stack(_ROOM)
    lse, mean = stack(_PER_COLUMN), stack(_PER_COLUMN)
    clear(x, ROWS * DEPTH)
    clear(y, ROWS * DEPTH)
    for place in range(begin * params.span, end * params.span):
        first = place % params.blocks * params.block
        index = place // params.blocks
        head, n = index % params.heads, index // params.heads
        rows = min(params.block, params.rows - first)
        whole = params.across != 0
        if whole and first == 0:
            clear(params.room + 4 * index * share * params.room_head, share * params.room_head)
        take(params.x, params.x_strides, n, head, first, rows, depth, _ONE, x)
        take(params.y, params.y_strides, n, head, first, rows, width, _ONE, y)
        clear(dx, params.block * deep)
        clear(dy, params.block * broad)
        low, high = 0, min(params.columns, first + rows + diagonal)
        if by_keys:
            low, high = max(0, first - diagonal) // COLUMNS * COLUMNS, params.columns
        for turn in range(share if by_keys else 1):
            query_head = head * share + turn if by_keys else head
            other = n * params.heads * share + query_head
            queries = other * params.columns
            if by_keys == 0:
                other = n * (params.heads // share) + head // share
                _numbers(params, index * params.rows + first, rows, lse, mean)
            for start in range(low, high, COLUMNS):
                count = min(COLUMNS, high - start)
                panels = (count + wide - 1) // wide
                _multiply(params, x, 4 * depth, rows,
                          params.x_panels + 4 * (other * params.x_head + start * depth),
                          4 * wide * depth, panels, depth, weights, 4 * COLUMNS, 0)  # fmt: skip
                _multiply(params, y, 4 * width, rows,
                          params.y_panels + 4 * (other * params.y_head + start * width),
                          4 * wide * width, panels, width, slopes, 4 * COLUMNS, 0)  # fmt: skip
                if by_keys:
                    _numbers(params, queries + start, count, lse, mean)
                factor = params.factor
                if params.has_mask:
                    factor = _ONE
                    _add_mask(params, weights, rows, n, query_head, first, start, count)
                SLOPES.call(
                    params.slopes, weights=weights, slopes=slopes, rows=rows, row=4 * COLUMNS,
                    vectors=4 * wide * panels // params.vector, lse=lse, mean=mean, factor=factor,
                )  # fmt: skip
                _hide(params, weights, slopes, rows, first, start, count)
                _multiply(params, slopes, 4 * COLUMNS, rows,
                          params.x_lines + 4 * (other * params.x_line_head + start * wide),
                          4 * params.x_line_panel, deep // wide, count, dx, 4 * deep,
                          1)  # fmt: skip
                if by_keys:
                    _multiply(params, weights, 4 * COLUMNS, rows,
                              params.y_lines + 4 * (other * params.y_line_head + start * wide),
                              4 * params.y_line_panel, broad // wide, count, dy, 4 * broad,
                              1)  # fmt: skip
                if whole:
                    tiles = (count + params.tile_rows - 1) // params.tile_rows * params.tile_rows
                    for r in range(rows):
                        for c in range(count, tiles):
                            store_f32(slopes, COLUMNS * r + c, _ZERO)
                    PRODUCT.call(
                        params.across, a=slopes,
                        b=params.own_lines
                        + 4 * (index * params.own_line_head + first * wide),
                        c=params.room + 4 * (other * params.room_head + start * deep),
                        a_row=4 * COLUMNS, b_panel=4 * params.own_line_panel, c_row=4 * deep,
                        tiles=tiles // params.tile_rows, panels=deep // wide, depth=rows,
                        accumulate=1,
                    )  # fmt: skip
        for r in range(rows):
            _give(dx + 4 * deep * r, params.scale, params.dx, params.dx_strides, n, head,
                  first + r, depth)  # fmt: skip
            if by_keys:
                _give(dy + 4 * broad * r, _ONE, params.dy, params.dy_strides, n, head,
                      first + r, width)  # fmt: skip
        if whole and first + rows == params.rows:
            for turn in range(share):
                own = params.room + 4 * (index * share + turn) * params.room_head
                for r in range(params.columns):
                    _give(own + 4 * deep * r, params.scale, params.dq, params.dq_strides, n,
                          head * share + turn, r, depth)  # fmt: skip


@device
def _numbers(params, place, count, lse, mean):
    """Copy lse, to the base 2, and the means of queries. -inf becomes inf: weights are 0."""
    for i in range(count):
        own = load_f32(params.lse, place + i)
        store_f32(lse, i, _LARGEST if own == _LOWEST else _to_base_2(own))
        store_f32(mean, i, load_f32(params.mean, place + i))


@device
def _add_mask(params, weights, rows, n, head, first, start, count):
    """Scale scores, to the base 2, and add the mask."""
    strides, factor = params.mask_strides, params.factor
    row_step, step = strides.row, strides.column
    if params.by_keys:
        row_step, step = strides.column, strides.row
    for r in range(rows):
        row = weights + 4 * COLUMNS * r
        mask = params.mask + 4 * (n * strides.n + head * strides.head)
        mask += 4 * ((first + r) * row_step + start * step)
        for c in range(count):
            own = _to_base_2(load_input(mask, c * step))
            store_f32(row, c, load_f32(row, c) * factor + own)


@device
def _hide(params, weights, slopes, rows, first, start, count):
    """Set weights and slopes to 0 where the query does not see the key."""
    for r in range(rows):
        low, high, row = 0, count, first + r
        if params.by_keys:
            low = max(0, min(count, row - params.diagonal - start))
        else:
            high = max(0, min(count, row + params.diagonal + 1 - start))
        for c in range(low):
            store_f32(weights, COLUMNS * r + c, _ZERO)
            store_f32(slopes, COLUMNS * r + c, _ZERO)
        for c in range(high, count):
            store_f32(weights, COLUMNS * r + c, _ZERO)
            store_f32(slopes, COLUMNS * r + c, _ZERO)
