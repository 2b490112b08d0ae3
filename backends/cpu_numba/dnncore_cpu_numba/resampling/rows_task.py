"""Rows of resampled images, forward and backward: sums of input rows by tables of taps.

Several input rows may be summed to one row first. The row's kernel then has fewer products. An item
is then a group of rows of the result, whose sums lie in a buffer.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import load_i64, stack
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.copies.permuted_kernel import PERMUTED, ROW_CALL
from dnncore_cpu_numba.copies.reformat import TENSORS

MOST_SUMMED = 8192  # elements of rows that are summed first
_ROOM = MOST_SUMMED // 2  # in int64

TAPS = Record(
    "taps of a dim",
    ("firsts starts", "address", "per result: its first input, its first weight; int64"),
    ("weights", "address", "f32"),
)


@task(Record(
    "resampled rows",
    ("nest", Pointer(NEST), "of images and channels"),
    ("planes rows", "count", "of an image of the result"),
    ("dst_plane dst_row src_plane src_row", "bytes"),
    ("along_planes along_rows", TAPS),
    ("kernel streamed", "address", "`ROW_CALL`; the second one for aligned rows"),
    ("starts", TENSORS),
    ("group", "count", "rows of an item; a divisor of their number"),
    ("at_once", "count", "rows of a call of the kernel"),
    ("summed_row", "bytes", "from row to row of sums"),
    ("first", "address", "`ROW_CALL` that sums input rows to a row of f32 first; or 0"),
    ("first_shape", Many("address", PERMUTED.size), "`PERMUTED` or `PIXELS`"),
    ("one", "address", "a weight of 1"),
    ("shape", Many("address"), "of the kernel"),
))  # fmt: skip
def resample_rows(params, begin, end):
    """Compute some rows of the result."""
    position, tensors, summed = stack(MAX_LOOPS), TENSORS.room(), stack(_ROOM)
    nest, of_planes, of_rows = params.nest, params.along_planes, params.along_rows
    rows, group = params.rows, params.group
    per_image = params.planes * rows // group
    seek(nest, begin // per_image, position, params.starts, tensors, 1)
    for item in range(begin, end):
        place = item % per_image * group
        d, first = place // rows, place % rows
        target = tensors.dst + d * params.dst_plane + first * params.dst_row
        plane = tensors.src + load_i64(of_planes.firsts, d) * params.src_plane
        d0 = load_i64(of_planes.starts, d)
        deep, by_planes = load_i64(of_planes.starts, d + 1) - d0, of_planes.weights + 4 * d0
        source, high, by_rows = plane, 1, params.one
        for h in range(first, first + group):
            h0 = load_i64(of_rows.starts, h)
            high, by_rows = load_i64(of_rows.starts, h + 1) - h0, of_rows.weights + 4 * h0
            source = plane + load_i64(of_rows.firsts, h) * params.src_row
            if params.first != 0:
                ROW_CALL.call(
                    params.first, src=source, dst=summed + (h - first) * params.summed_row,
                    planes=deep, rows=high, plane_weights=by_planes, row_weights=by_rows,
                    shape=params.first_shape,
                )  # fmt: skip
        if params.first != 0:
            source, deep, high, by_planes, by_rows = summed, 1, 1, params.one, params.one
        streams = params.streamed != 0 and target % LINE == 0
        for h in range(0, group, params.at_once):
            ROW_CALL.call(
                params.streamed if streams else params.kernel, src=source + h * params.summed_row,
                dst=target + h * params.dst_row, planes=deep, rows=high, plane_weights=by_planes,
                row_weights=by_rows, shape=params.shape,
            )  # fmt: skip
        if place == (per_image - 1) * group:
            advance(nest, position, tensors, 1)
