"""Copies that convert the data type, tile by tile through float64, which holds every type exactly.

To an integer type they round half to even and saturate; NaN becomes 0.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.nest import MAX_LOOPS, advance, nests, seek
from dnncore_cpu_numba.pointers import (
    call,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    load_s8,
    load_u8,
    stack,
    store_f32,
    store_f64,
    store_i8,
    store_i32,
    store_i64,
)
from dnncore_cpu_numba.post_ops import TENSOR
from dnncore_cpu_numba.program import Arg, Step, Table
from dnncore_cpu_numba.task import Task, device, task

__all__ = ["convert_steps"]

_LARGEST = 1024  # elements of a tile: a buffer of 8 KB
_ROOM = 2 * TENSOR
_GRAIN = 4096  # elements of a part at least


def convert_steps(dst: MemoryDesc, src: MemoryDesc, arguments: Sequence[int]) -> list[Step]:
    """The steps of dst = src; arguments: their memories' places in binding order."""
    reader, writer = _READERS[src.data_type].address, _WRITERS[dst.data_type].address
    itemsizes = (dst.itemsize, src.itemsize)
    steps = []
    for nest in nests(dst.dims, (dst, src)):
        for part in nest.ordered().tiles(_LARGEST):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            params = [Table(outer.table(itemsizes)), rows.extent, columns.extent, writer, reader]
            params += [columns.strides[0], rows.strides[0], columns.strides[1], rows.strides[1]]
            offsets = [o * n for o, n in zip(part.offsets, itemsizes, strict=True)]
            params += [Arg(a, o) for a, o in zip(arguments, offsets, strict=True)]
            grain = -(-_GRAIN // (rows.extent * columns.extent))
            steps.append(Step(_convert, params, outer.size, grain=grain))
    return steps


@task
def _convert(params, begin, end):
    """Copy the tiles of a nest through a buffer of float64."""
    table, rows, columns = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    writer, reader = load_i64(params, 3), load_i64(params, 4)
    buffer, position, tensors = stack(_LARGEST), stack(MAX_LOOPS), stack(_ROOM)
    for t in range(2):
        store_i64(tensors, TENSOR * t + 1, load_i64(params, 5 + 2 * t))
        store_i64(tensors, TENSOR * t + 2, load_i64(params, 6 + 2 * t))
    seek(table, begin, position, params + 8 * 9, tensors, TENSOR)
    for _ in range(begin, end):
        call(reader, (tensors + 8 * TENSOR, buffer, rows, columns))
        call(writer, (tensors, buffer, rows, columns))
        advance(table, position, tensors, TENSOR)


def _reader(name: str, load: Callable[..., object]) -> Task:
    """The native function that reads a tile into the buffer."""

    def read(tensor, buffer, rows, columns):
        start, column, row = load_i64(tensor, 0), load_i64(tensor, 1), load_i64(tensor, 2)
        for r in range(rows):
            for c in range(columns):
                value = np.float64(load(start, r * row + c * column))
                store_f64(buffer, r * columns + c, value)

    read.__name__ = f"read_{name}"
    return task(read, arity=4)


def _writer(name: str, store: Callable[..., None], convert: Callable[[float], object]) -> Task:
    """The native function that writes a tile of a floating-point type."""

    def write(tensor, buffer, rows, columns):
        start, column, row = load_i64(tensor, 0), load_i64(tensor, 1), load_i64(tensor, 2)
        for r in range(rows):
            for c in range(columns):
                value = convert(load_f64(buffer, r * columns + c))
                store(start, r * row + c * column, value)

    write.__name__ = f"write_{name}"
    return task(write, arity=4)


def _to_integer(dtype: type) -> Callable[[float], object]:
    """The conversion of a real to an integer type, as an int32."""
    low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)

    @device
    def convert(x):
        x = _round_half_even(x)
        x = low if x < low else x
        x = high if x > high else x
        return np.int32(x if x == x else 0.0)

    return convert


@intrinsic
def _round_half_even(typingctx, value):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
        rint = cgutils.get_or_insert_function(builder.module, kind, "llvm.rint.f64")
        return builder.call(rint, args)

    return types.float64(types.float64), codegen


_READERS = {
    "f32": _reader("f32", load_f32),
    "f64": _reader("f64", load_f64),
    "s32": _reader("s32", load_i32),
    "s8": _reader("s8", load_s8),
    "u8": _reader("u8", load_u8),
}
_WRITERS = {
    "f32": _writer("f32", store_f32, np.float32),
    "f64": _writer("f64", store_f64, np.float64),
    "s32": _writer("s32", store_i32, _to_integer(np.int32)),
    "s8": _writer("s8", store_i8, _to_integer(np.int8)),
    "u8": _writer("u8", store_i8, _to_integer(np.uint8)),
}
