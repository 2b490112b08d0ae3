"""Raw memory in tasks: loads and stores through 64-bit integer addresses.

Each is an LLVM instruction or a few, with an index in elements: no bounds, no wrap-around, so that
loops over them are vectorised. Integers are widened to 64 bits on load and cut on store; f16 and
bf16 are widened to float32 and rounded half to even.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dnncore_cpu_numba.codegen.call_typing import room

__all__ = [
    "address",
    "bits_to_f32",
    "bits_to_f64",
    "f32_to_bits",
    "f64_to_bits",
    "load_bf16",
    "load_f16",
    "load_f32",
    "load_f64",
    "load_i32",
    "load_i64",
    "load_s8",
    "load_u8",
    "stack",
    "store_bf16",
    "store_f16",
    "store_f32",
    "store_f64",
    "store_i8",
    "store_i32",
    "store_i64",
]

_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _pointer(builder, address, index, element):
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def _loader(numba_type, element, widen=None):
    """An intrinsic (address, index) -> the element there."""

    @intrinsic
    def load(typingctx, address, index):
        def codegen(context, builder, signature, args):
            pointer = _pointer(builder, *args, element)
            value = builder.load(pointer)
            value.align = element.get_abi_size(context.target_data)
            return widen(builder, value) if widen else value

        return numba_type(types.int64, types.int64), codegen

    return load


def _storer(numba_type, element, narrow=None):
    """An intrinsic (address, index, value) that stores the element there."""

    @intrinsic
    def store(typingctx, address, index, value):
        def codegen(context, builder, signature, args):
            address, index, value = args
            value = narrow(builder, value, element) if narrow else value
            made = builder.store(value, _pointer(builder, address, index, element))
            made.align = element.get_abi_size(context.target_data)

        return types.void(types.int64, types.int64, numba_type), codegen

    return store


def _widen_signed(builder, value):
    return builder.sext(value, _I64)


def _widen_unsigned(builder, value):
    return builder.zext(value, _I64)


def _cut(builder, value, element):
    return builder.trunc(value, element)


def _widen_f16(builder, value):
    return builder.fpext(value, ir.FloatType())


def _round_f16(builder, value, element):
    return builder.fptrunc(value, element)


def _widen_bf16(builder, value):
    """A bf16 is the upper half of a float32; NaN becomes quiet, as by any other conversion."""
    bits = builder.shl(builder.zext(value, _I32), _I32(16))
    plain = builder.bitcast(bits, ir.FloatType())
    quiet = builder.bitcast(builder.or_(bits, _I32(0x400000)), ir.FloatType())
    return builder.select(builder.fcmp_unordered("uno", plain, plain), quiet, plain)


def _round_bf16(builder, value, element):
    """Add what carries into the upper half; NaN keeps its own, made quiet."""
    bits = builder.bitcast(value, _I32)
    upper = builder.lshr(bits, _I32(16))
    odd = builder.and_(upper, _I32(1))
    carried = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    quiet = builder.or_(upper, _I32(0x40))
    rounded = builder.select(is_nan, quiet, builder.lshr(carried, _I32(16)))
    return builder.trunc(rounded, element)


load_f32 = _loader(types.float32, ir.FloatType())
load_f64 = _loader(types.float64, ir.DoubleType())
load_f16 = _loader(types.float32, ir.HalfType(), _widen_f16)
load_bf16 = _loader(types.float32, _I16, _widen_bf16)
load_i64 = _loader(types.int64, _I64)
load_i32 = _loader(types.int64, _I32, _widen_signed)
load_s8 = _loader(types.int64, ir.IntType(8), _widen_signed)
load_u8 = _loader(types.int64, ir.IntType(8), _widen_unsigned)

store_f32 = _storer(types.float32, ir.FloatType())
store_f64 = _storer(types.float64, ir.DoubleType())
store_f16 = _storer(types.float32, ir.HalfType(), _round_f16)
store_bf16 = _storer(types.float32, _I16, _round_bf16)
store_i64 = _storer(types.int64, _I64)
store_i32 = _storer(types.int64, _I32, _cut)
store_i8 = _storer(types.int64, ir.IntType(8), _cut)


@intrinsic
def f32_to_bits(typingctx, value):
    """The bit pattern of a float32 as an int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), codegen


@intrinsic
def bits_to_f32(typingctx, bits):
    """The float32 of an int32 bit pattern."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def f64_to_bits(typingctx, value):
    """The bit pattern of a float64 as an int64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), codegen


@intrinsic
def bits_to_f64(typingctx, bits):
    """The float64 of an int64 bit pattern."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


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
