"""The task of `gemm/decompression.py`: decompresses units of elements by tables of places."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Record
from dnncore_cpu_numba.codegen.pointers import load_i64
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.gemm.decompression_kernel import RUN

AXIS = Record(
    "axis of a decompression",
    ("extent", "count"),
    ("src zero scale dst", "address", "of tables of places"),
)


@task(Record(
    "decompression",
    ("kernel", "address", "of `RUN`"),
    ("src zero scale dst", "address"),
    ("src_start", "elements"),
    ("src_step zero_step scale_step dst_step", "elements"),
    ("units", "count", "of a row"),
    ("unit", "count", "elements"),
    ("inner", AXIS),
    ("outer_axes", "count"),
    ("outer", Many(AXIS), "innermost first"),
))  # fmt: skip
def decompress(params, begin, end):
    """Decompress the units [begin, end) of all rows. A row runs along the inner axis."""
    for item in range(begin, end):
        row = item // params.units
        first = item % params.units * params.unit
        src = params.src_start + load_i64(params.inner.src, first)
        zero = load_i64(params.inner.zero, first)
        scale = load_i64(params.inner.scale, first)
        dst = load_i64(params.inner.dst, first)
        for i in range(params.outer_axes):
            axis = params.outer[i]
            place = row % axis.extent
            row //= axis.extent
            src += load_i64(axis.src, place)
            zero += load_i64(axis.zero, place)
            scale += load_i64(axis.scale, place)
            dst += load_i64(axis.dst, place)
        RUN.call(
            params.kernel, src=params.src, zero=params.zero, scale=params.scale, dst=params.dst,
            src_place=src, zero_place=zero, scale_place=scale, dst_place=dst,
            src_step=params.src_step, zero_step=params.zero_step, scale_step=params.scale_step,
            dst_step=params.dst_step, count=params.unit,
        )  # fmt: skip
