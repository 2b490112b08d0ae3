"""Memory in tasks: loads and stores through 64-bit integer addresses.

Each access is one LLVM instruction or a few. Its index counts elements. Nothing checks bounds, so
LLVM vectorises loops over these accesses. Integers are widened to 64 bits on load and cut on store.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dnncore_cpu_numba.codegen.call_typing import room

_I8, _I32, _I64 = (ir.IntType(width) for width in (8, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def _pointer(builder, address, index, element):
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def _loader(numba_type, element):
    """An intrinsic (address, index) that returns the element there."""

    @intrinsic
    def load(typingctx, address, index):
        def codegen(context, builder, signature, args):
            address, index = args
            value = builder.load(_pointer(builder, address, index, element))
            value.align = element.get_abi_size(context.target_data)
            return builder.sext(value, _I64) if element in (_I8, _I32) else value

        return numba_type(types.int64, types.int64), codegen

    return load


def _storer(numba_type, element):
    """An intrinsic (address, index, value) that stores the element there."""

    @intrinsic
    def store(typingctx, address, index, value):
        def codegen(context, builder, signature, args):
            address, index, value = args
            value = builder.trunc(value, element) if element in (_I8, _I32) else value
            made = builder.store(value, _pointer(builder, address, index, element))
            made.align = element.get_abi_size(context.target_data)

        return types.void(types.int64, types.int64, numba_type), codegen

    return store


def _bitcast(source, target, element):
    """An intrinsic that returns the bits of a value as another type."""

    @intrinsic
    def cast(typingctx, value):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], element)

        return target(source), codegen

    return cast


load_f32 = _loader(types.float32, _F32)
load_i64 = _loader(types.int64, _I64)
load_i32 = _loader(types.int64, _I32)
load_s8 = _loader(types.int64, _I8)

store_f32 = _storer(types.float32, _F32)
store_i64 = _storer(types.int64, _I64)
store_i32 = _storer(types.int64, _I32)
store_i8 = _storer(types.int64, _I8)

f32_to_bits = _bitcast(types.float32, types.int32, _I32)
bits_to_f32 = _bitcast(types.int32, types.float32, _F32)
f64_to_bits = _bitcast(types.float64, types.int64, _I64)
bits_to_f64 = _bitcast(types.int64, types.float64, _F64)


@intrinsic
def address(typingctx, record):
    """The address of a record, or of many numbers, as a number."""

    def codegen(context, builder, signature, args):
        return args[0]

    return types.int64(types.int64), codegen


@intrinsic
def stack(typingctx, count):
    """The address of `count` int64, a literal number, that live until the task returns."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    size = count.literal_value

    def codegen(context, builder, signature, args):
        return room(builder, size)

    return types.int64(count), codegen
