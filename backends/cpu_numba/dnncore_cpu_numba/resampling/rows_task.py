"""Rows of resampled images, forward and backward: sums of input rows by tables of taps."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import load_i64, stack
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.copies.permuted_kernel import ROW_CALL
from dnncore_cpu_numba.copies.reformat import TENSORS

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
    ("shape", Many("address"), "of the kernel"),
))  # fmt: skip
def resample_rows(params, begin, end):
    """Compute some rows of the result."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    nest, of_planes, of_rows = params.nest, params.along_planes, params.along_rows
    rows = params.rows
    per_image = params.planes * rows
    seek(nest, begin // per_image, position, params.starts, tensors, 1)
    for item in range(begin, end):
        place = item % per_image
        d, h = place // rows, place % rows
        target = tensors.dst + d * params.dst_plane + h * params.dst_row
        source = tensors.src + load_i64(of_planes.firsts, d) * params.src_plane
        source += load_i64(of_rows.firsts, h) * params.src_row
        d0, h0 = load_i64(of_planes.starts, d), load_i64(of_rows.starts, h)
        streams = params.streamed != 0 and target % LINE == 0
        ROW_CALL.call(
            params.streamed if streams else params.kernel,
            src=source,
            dst=target,
            planes=load_i64(of_planes.starts, d + 1) - d0,
            rows=load_i64(of_rows.starts, h + 1) - h0,
            plane_weights=of_planes.weights + 4 * d0,
            row_weights=of_rows.weights + 4 * h0,
            shape=params.shape,
        )
        if place == per_image - 1:
            advance(nest, position, tensors, 1)
