"""The native loops of softmax, see `softmax/implementations.py`.

An item is a tile of vectors along the axis. Three sweeps over it, in pieces of the axis, compute
the maxima, the sums of e**(x - maximum), and the results. If the kernels cannot read or write a
tile in memory, each piece is copied to a buffer as f32, and the results from it.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.pointers import load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.typed_rows import convert_row
from dnncore_cpu_numba.rows.apply_kernel import APPLY_CALL
from dnncore_cpu_numba.rows.sums_kernel import SUMS_CALL

VECTORS = 256  # most vectors of a tile
HELD = 1 << 15  # most elements of a tile that a buffer holds: 128 KB
COPIED = 1 << 13  # most elements of a piece of a gradient that is copied: 32 KB
_NUMBERS = VECTORS // 2  # sizes in int64
_BUFFER, _COPIED_BUFFER = HELD // 2, COPIED // 2
_ZERO, _ONE, _LOWEST = np.float32(0), np.float32(1), np.float32("-inf")


def records(names: str, *, wide: bool = False) -> tuple[Record, Record]:
    """Return the record of tensors with these names, and of the parameters of their task.

    wide: for f64, without kernels.
    """
    tensors = Record(f"tensors {names}", (names, "address"))
    strides = Record(f"strides of {names}", (names, "bytes"))
    common = (
        ("nest", Pointer(NEST), "over tiles"),
        ("vectors", "count", "of a tile"),
        ("length", "count", "places of the axis"),
        ("log keeps", "flag", "keeps: lse is written"),
        ("starts", tensors),
        ("strides", strides, "from vector to vector"),
        ("places", tensors, "of tables of the axis' places in bytes"),
    )
    if wide:
        return tensors, Record(f"softmax of {names} in f64", *common)
    return tensors, Record(
        f"softmax of {names}",
        *common,
        ("piece", "count", "places that are computed at once"),
        ("along", "flag", "the kernels' rows are vectors; or else places of the axis"),
        ("held", "flag", "the buffer holds all terms of a tile"),
        ("copied", "flag", "pieces are copied"),
        ("rows", strides, "from row to row of the tiles that kernels read and write"),
        ("steps", strides, "from place to place of the axis in these tiles"),
        ("term_row", "bytes", "from row to row of the buffer"),
        ("term_step", "bytes", "from place to place of the axis in the buffer"),
        ("copies", tensors, "kernels that copy rows to f32 or, for the first one, from f32"),
        ("largest sums", "address", "`SUMS_CALL`"),
        ("apply", "address", "`APPLY_CALL`"),
        ("ahead", "bytes", "prefetch distance: of the next tile"),
    )


FORWARD_TENSORS, FORWARD = records("dst src lse")
BACKWARD_TENSORS, BACKWARD = records("diff_src dst diff_dst")


# -- forward: dst, src -----------------------------------------------------------------------------


@task(FORWARD)
def forward(params, begin, end):
    """Compute softmax or log-softmax."""
    length, piece, vectors = params.length, params.piece, params.vectors
    log, copied, held = params.log != 0, params.copied != 0, params.held != 0
    rows, steps, term_row = params.rows, params.steps, params.term_row
    step = params.term_step if held else 0
    position, tensors, room = stack(MAX_LOOPS), FORWARD_TENSORS.room(), stack(_BUFFER)
    top, total, found, rest = stack(_NUMBERS), stack(_NUMBERS), stack(_NUMBERS), stack(_NUMBERS)
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        dst, src = tensors.dst, tensors.src
        _fill(top, _LOWEST, vectors)
        _fill(total, _ZERO, vectors)
        for start in range(0, length, piece):
            count, terms = min(piece, length - start), room + step * start
            x = src + steps.src * start
            if copied:
                _copy_in(params, params.copies.src, src, params.places.src, params.strides.src,
                         start, count, terms)  # fmt: skip
                x = terms
            _sums(params, params.largest, x, rows.src, 0, 0, 0, 0, count, top, found)
            for v in range(vectors):
                value, largest = load_f32(found, v), load_f32(top, v)
                store_f32(top, v, value if value > largest else largest)
        for start in range(0, length, piece):
            count, terms = min(piece, length - start), room + step * start
            x = terms if copied else src + steps.src * start
            if copied and not held:
                _copy_in(params, params.copies.src, src, params.places.src, params.strides.src,
                         start, count, terms)  # fmt: skip
            _sums(params, params.sums, x, rows.src, 0, 0, terms, term_row, count, top, found)
            for v in range(vectors):
                store_f32(total, v, load_f32(total, v) + load_f32(found, v))
        _finish(params, tensors.lse, top, total, rest)
        for start in range(0, length, piece):
            count, terms = min(piece, length - start), room + step * start
            x, x_row = src + steps.src * start, rows.src
            y, y_row = dst + steps.dst * start, rows.dst
            if copied and not held:
                _copy_in(params, params.copies.src, src, params.places.src, params.strides.src,
                         start, count, terms)  # fmt: skip
            if copied:
                x, x_row, y, y_row = terms, term_row, terms, term_row
            elif held and not log:
                x, x_row = terms, term_row
            _apply(params, y, y_row, x, x_row, 0, 0, count, top, total, rest)
            if copied:
                _copy_out(params, params.copies.dst, terms, dst, params.places.dst,
                          params.strides.dst, start, count)  # fmt: skip
        advance(params.nest, position, tensors, 1)


@device
def _finish(params, lse, top, total, rest):
    """Compute lse, and the numbers of `ApplyKernel`: `top` becomes the mean, `total` the slope."""
    log, vectors = params.log != 0, params.vectors
    _fill(rest, _ZERO, vectors)
    if log or params.keeps != 0:
        for v in range(vectors):
            store_f32(rest, v, -vecmath.log(load_f32(total, v)))
    if params.keeps != 0:
        for v in range(vectors):
            store_f32(lse + v * params.strides.lse, 0, load_f32(top, v) - load_f32(rest, v))
    if log:
        _fill(total, _ONE, vectors)
    else:
        _fill(rest, _ZERO, vectors)
        for v in range(vectors):
            store_f32(total, v, _ONE / load_f32(total, v))
        if params.held != 0:
            _fill(top, _ZERO, vectors)


# -- backward: diff_src, dst, diff_dst -------------------------------------------------------------


@task(BACKWARD)
def backward(params, begin, end):
    """Compute the gradient of softmax or log-softmax."""
    length, piece, vectors = params.length, params.piece, params.vectors
    log, copied = params.log != 0, params.copied != 0
    copies, places, strides = params.copies, params.places, params.strides
    rows, steps = params.rows, params.steps
    position, tensors = stack(MAX_LOOPS), BACKWARD_TENSORS.room()
    y_room, g_room = stack(_COPIED_BUFFER), stack(_COPIED_BUFFER)
    total, found = stack(_NUMBERS), stack(_NUMBERS)
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst, diff_dst = tensors.diff_src, tensors.dst, tensors.diff_dst
        _fill(total, _ZERO, vectors)
        for start in range(0, length, piece):
            count = min(piece, length - start)
            y, g = dst + steps.dst * start, diff_dst + steps.diff_dst * start
            if copied:
                y, g = y_room, g_room
                _copy_in(params, copies.dst, dst, places.dst, strides.dst, start, count, y)
                _copy_in(params, copies.diff_dst, diff_dst, places.diff_dst, strides.diff_dst,
                         start, count, g)  # fmt: skip
            x, x_row = (g, rows.diff_dst) if log else (y, rows.dst)
            _sums(params, params.sums, x, x_row, g, rows.diff_dst, 0, 0, count, 0, found)
            for v in range(vectors):
                store_f32(total, v, load_f32(total, v) + load_f32(found, v))
        for start in range(0, length, piece):
            count = min(piece, length - start)
            y, g = dst + steps.dst * start, diff_dst + steps.diff_dst * start
            to = diff_src + steps.diff_src * start
            if copied:
                y, g, to = y_room, g_room, g_room
                _copy_in(params, copies.dst, dst, places.dst, strides.dst, start, count, y)
                _copy_in(params, copies.diff_dst, diff_dst, places.diff_dst, strides.diff_dst,
                         start, count, g)  # fmt: skip
            _apply(params, to, rows.diff_src, g, rows.diff_dst, y, rows.dst, count, total, 0, 0)
            if copied:
                _copy_out(params, copies.diff_src, to, diff_src, places.diff_src,
                          strides.diff_src, start, count)  # fmt: skip
        advance(params.nest, position, tensors, 1)


# -- parts -----------------------------------------------------------------------------------------


@device
def _fill(x, value, count):
    for i in range(count):
        store_f32(x, i, value)


@device
def _copy_in(params, kernel, source, places, stride, start, count, x):
    """Copy the places of a piece to a buffer."""
    for j in range(count):
        place = source + load_i64(places, start + j)
        convert_row(kernel, place, stride, x + params.term_step * j, 4, params.vectors)


@device
def _copy_out(params, kernel, x, target, places, stride, start, count):
    for j in range(count):
        place = target + load_i64(places, start + j)
        convert_row(kernel, x + params.term_step * j, 4, place, stride, params.vectors)


@device
def _sums(params, kernel, x, x_row, diff, diff_row, y, y_row, count, means, sums):
    rows, columns = count, params.vectors
    if params.along != 0:
        rows, columns = columns, rows
    SUMS_CALL.call(
        kernel, y=y, x=x, diff=diff, mask=0, y_row=y_row, x_row=x_row, diff_row=diff_row,
        mask_row=0, rows=rows, columns=columns, means=means, sums=sums, ahead=params.ahead,
    )  # fmt: skip


@device
def _apply(params, y, y_row, x, x_row, other, other_row, count, mean, slope, rest):
    rows, columns = count, params.vectors
    if params.along != 0:
        rows, columns = columns, rows
    APPLY_CALL.call(
        params.apply, y=y, x=x, other=other, mask=0, y_row=y_row, x_row=x_row,
        other_row=other_row, mask_row=0, rows=rows, columns=columns, mean=mean, slope=slope,
        share=0, rest=rest, weight=0, step=4, ahead=params.ahead,
    )  # fmt: skip
