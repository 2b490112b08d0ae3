"""Copies that convert the data type, tile by tile through float32 or float64.

Float64 holds every type exactly; float32 does all but f64 and s32, and is quicker. Each value is
rounded once, half to even. To an integer type it saturates, and NaN becomes 0.
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
from dnncore_cpu_numba.plan import moved
from dnncore_cpu_numba.pointers import (
    bits_to_f32,
    call,
    f32_to_bits,
    load_bf16,
    load_f16,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    load_s8,
    load_u8,
    stack,
    store_bf16,
    store_f16,
    store_f32,
    store_f64,
    store_i8,
    store_i32,
    store_i64,
)
from dnncore_cpu_numba.post_ops import TENSOR
from dnncore_cpu_numba.program import Arg, Scratch, Step, Table
from dnncore_cpu_numba.task import Task, device, exact, task

__all__ = ["convert_steps"]

_LARGEST = 1024  # elements of a tile: a buffer of 8 KB
_ROOM = 2 * TENSOR
_GRAIN = 4096  # elements of a part at least
_ONLY_WIDE = ("f64", "s32")  # types that float32 does not hold


def convert_steps(
    dst: MemoryDesc, src: MemoryDesc, addresses: Sequence[Arg | Scratch]
) -> list[Step]:
    """The steps of dst = src; addresses: of the two tensors."""
    wide = not {dst.data_type, src.data_type}.isdisjoint(_ONLY_WIDE)
    reader, writer = _READERS[src.data_type, wide].address, _WRITERS[dst.data_type, wide].address
    itemsizes = (dst.itemsize, src.itemsize)
    steps = []
    for nest in nests(dst.dims, (dst, src)):
        for part in nest.ordered().tiles(_LARGEST):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            params = [Table(outer.table(itemsizes)), rows.extent, columns.extent, writer, reader]
            params += [columns.strides[0], rows.strides[0], columns.strides[1], rows.strides[1]]
            offsets = [o * n for o, n in zip(part.offsets, itemsizes, strict=True)]
            params += [moved(a, o) for a, o in zip(addresses, offsets, strict=True)]
            grain = -(-_GRAIN // (rows.extent * columns.extent))
            steps.append(Step(_convert, params, outer.size, grain=grain))
    return steps


@task
def _convert(params, begin, end):
    """Copy the tiles of a nest through a buffer."""
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


def _reader(name: str, load: Callable[..., object], *, wide: bool) -> Task:
    """The native function that reads a tile into the buffer."""
    kind, keep = (np.float64, store_f64) if wide else (np.float32, store_f32)

    def read(tensor, buffer, rows, columns):
        start, column, row = load_i64(tensor, 0), load_i64(tensor, 1), load_i64(tensor, 2)
        for r in range(rows):
            if column == 1:
                for c in range(columns):
                    keep(buffer, r * columns + c, kind(load(start, r * row + c)))
            else:
                for c in range(columns):
                    keep(buffer, r * columns + c, kind(load(start, r * row + c * column)))

    read.__name__ = f"read_{name}_{'wide' if wide else 'narrow'}"
    return task(read, arity=4)


def _writer(
    name: str, store: Callable[..., None], convert: Callable[[float], object], *, wide: bool
) -> Task:
    """The native function that writes a tile from the buffer."""
    kept = load_f64 if wide else load_f32

    def write(tensor, buffer, rows, columns):
        start, column, row = load_i64(tensor, 0), load_i64(tensor, 1), load_i64(tensor, 2)
        for r in range(rows):
            if column == 1:
                for c in range(columns):
                    store(start, r * row + c, convert(kept(buffer, r * columns + c)))
            else:
                for c in range(columns):
                    value = convert(kept(buffer, r * columns + c))
                    store(start, r * row + c * column, value)

    write.__name__ = f"write_{name}_{'wide' if wide else 'narrow'}"
    return task(write, arity=4)


@exact
def _rounded_to_odd(x):
    """The float32 towards zero, made odd unless it is x: rounding it once more is right."""
    y = np.float32(x)
    back = np.float64(y)
    bits = f32_to_bits(y)
    bits = np.int32(bits - 1) if abs(back) > abs(x) else bits
    return bits_to_f32(np.int32(bits | 1) if back != x else bits)


def _to_integer(dtype: type, kind: type) -> Callable[[float], object]:
    """The conversion of a real of a kind to an integer type, as an int32."""
    low, high = kind(np.iinfo(dtype).min), kind(np.iinfo(dtype).max)
    zero = kind(0)

    @device
    def convert(x):
        x = _round_half_even(x)
        x = low if x < low else x
        x = high if x > high else x
        return np.int32(x if x == x else zero)

    return convert


@intrinsic
def _round_half_even(typingctx, value):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(args[0].type, [args[0].type])
        name = f"llvm.rint.{'f64' if signature.args[0] == types.float64 else 'f32'}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return value(value), codegen


_LOADS = {
    "f32": load_f32, "f64": load_f64, "f16": load_f16, "bf16": load_bf16,
    "s32": load_i32, "s8": load_s8, "u8": load_u8,
}  # fmt: skip
_STORES = {
    "f32": store_f32, "f64": store_f64, "f16": store_f16, "bf16": store_bf16,
    "s32": store_i32, "s8": store_i8, "u8": store_i8,
}  # fmt: skip
_INTEGERS = {"s32": np.int32, "s8": np.int8, "u8": np.uint8}


def _conversion(name: str, *, wide: bool) -> Callable[[float], object]:
    """What a value of the buffer becomes before it is stored."""
    if name in _INTEGERS:
        return _to_integer(_INTEGERS[name], np.float64 if wide else np.float32)
    if name in ("f16", "bf16") and wide:
        return _rounded_to_odd
    return np.float64 if name == "f64" else np.float32


_FORMS = [(name, wide) for name in _LOADS for wide in (True, False)]
_READERS = {(n, wide): _reader(n, _LOADS[n], wide=wide) for n, wide in _FORMS}
_WRITERS = {
    (n, wide): _writer(n, _STORES[n], _conversion(n, wide=wide), wide=wide) for n, wide in _FORMS
}
