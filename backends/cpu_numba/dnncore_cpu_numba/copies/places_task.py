"""Elements moved along one axis by tables of places, for any layout of this axis."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.pointers import (
    load_i32,
    load_i64,
    load_s8,
    load_s16,
    stack,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
)
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.reformat import TENSORS


@task(Record(
    "moves by tables",
    ("nest", Pointer(NEST), "of all dims except the axis"),
    ("count", "count", "elements along the axis"),
    ("size", "bytes", "of an element"),
    ("targets sources", "address", "of tables of their places in bytes"),
    ("starts", TENSORS),
))  # fmt: skip
def move_by_places(params, begin, end):
    """Move the elements of the axis, for some steps of the nest."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    nest, count, size = params.nest, params.count, params.size
    targets, sources = params.targets, params.sources
    seek(nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        _move(tensors.dst, tensors.src, targets, sources, count, size)
        advance(nest, position, tensors, 1)


@device
def _move(dst, src, targets, sources, count, size):
    if size == 4:
        for i in range(count):
            store_i32(dst + load_i64(targets, i), 0, load_i32(src + load_i64(sources, i), 0))
    elif size == 2:
        for i in range(count):
            store_i16(dst + load_i64(targets, i), 0, load_s16(src + load_i64(sources, i), 0))
    elif size == 1:
        for i in range(count):
            store_i8(dst + load_i64(targets, i), 0, load_s8(src + load_i64(sources, i), 0))
    else:
        for i in range(count):
            store_i64(dst + load_i64(targets, i), 0, load_i64(src + load_i64(sources, i), 0))
