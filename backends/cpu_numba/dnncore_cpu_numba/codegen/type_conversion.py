"""Conversions between data types in vector registers, emitted as LLVM IR.

A value goes through float32, or through float64 where that alone holds both types' values, and is
rounded once, half to even. To an integer type it saturates, and NaN becomes 0.
"""

from __future__ import annotations

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, Builder, Value, constant, suffix_of

I16, F64, HALF = ir.IntType(16), ir.DoubleType(), ir.HalfType()
HALVES = ("f16", "bf16")
FLOATS = ("f32", *HALVES)
INTEGERS = ("s8", "u8", "s32")
STORED = {
    "f32": F32, "f64": F64, "f16": HALF, "bf16": I16,
    "s32": I32, "s8": ir.IntType(8), "u8": ir.IntType(8),
}  # fmt: skip
"""The elements of a vector as it is loaded and stored; of a bf16, its bits."""


def converted(builder: Builder, x: Value, source: str, target: str) -> Value:
    """A vector of one stored type as one of another, of as many lanes."""
    if source == target:
        return x
    if target in INTEGERS:
        return _to_integer(builder, _widened(builder, x, source, target), target)
    return _to_real(builder, _widened(builder, x, source, target), target)


def _widened(builder: Builder, x: Value, source: str, target: str) -> Value:
    """The exact values as float32 or float64, but s32 rounded where it becomes f32."""
    pair = {source, target}
    wide = "f64" in pair or ("s32" in pair and "f32" not in pair)
    real = ir.VectorType(F64 if wide else F32, x.type.count)
    if source in INTEGERS:
        return builder.uitofp(x, real) if source == "u8" else builder.sitofp(x, real)
    if source == "bf16":
        x = _from_bf16(builder, x)
    elif source == "f16":  # processors widen it to float32 only
        x = builder.fpext(x, ir.VectorType(F32, x.type.count))
    return x if x.type == real else builder.fpext(x, real)


def _to_integer(builder: Builder, x: Value, target: str) -> Value:
    kind = ir.VectorType(STORED[target], x.type.count)
    way = "fptoui" if target == "u8" else "fptosi"
    name = f"llvm.{way}.sat.{suffix_of(kind)}.{suffix_of(x.type)}"
    return vir.intrinsic(builder, name, kind, [vir.lanewise(builder, "rint", x)])


def _to_real(builder: Builder, x: Value, target: str) -> Value:
    if target == "f64":
        return x
    narrow = ir.VectorType(F32, x.type.count)
    if x.type.element == F64:
        x = builder.fptrunc(x, narrow) if target == "f32" else _rounded_to_odd(builder, x)
    if target == "f16":
        return builder.fptrunc(x, ir.VectorType(HALF, x.type.count))
    return _to_bf16(builder, x) if target == "bf16" else x


def _from_bf16(builder: Builder, x: Value) -> Value:
    """A bf16 is the upper half of a float32; NaN becomes quiet, as by any other conversion."""
    bits, real = (ir.VectorType(kind, x.type.count) for kind in (I32, F32))
    x = builder.shl(builder.zext(x, bits), constant(bits, 16))
    plain = builder.bitcast(x, real)
    quiet = builder.bitcast(builder.or_(x, constant(bits, 0x400000)), real)
    return builder.select(builder.fcmp_unordered("uno", plain, plain), quiet, plain)


def _to_bf16(builder: Builder, x: Value) -> Value:
    """Add what carries into the upper half; NaN keeps its own, made quiet."""
    kind = ir.VectorType(I32, x.type.count)
    bits = builder.bitcast(x, kind)
    upper = builder.lshr(bits, constant(kind, 16))
    odd = builder.and_(upper, constant(kind, 1))
    carried = builder.lshr(
        builder.add(bits, builder.add(odd, constant(kind, 0x7FFF))), constant(kind, 16)
    )
    quiet = builder.or_(upper, constant(kind, 0x40))
    is_nan = builder.fcmp_unordered("uno", x, x)
    return builder.trunc(builder.select(is_nan, quiet, carried), ir.VectorType(I16, x.type.count))


def _rounded_to_odd(builder: Builder, x: Value) -> Value:
    """The float32 towards zero, made odd unless it is x: rounding it once more is right."""
    real, kind = (ir.VectorType(element, x.type.count) for element in (F32, I32))
    near = builder.fptrunc(x, real)
    back = builder.fpext(near, x.type)
    bits = builder.bitcast(near, kind)
    beyond = builder.fcmp_ordered(">", *(vir.lanewise(builder, "fabs", v) for v in (back, x)))
    bits = builder.select(beyond, builder.sub(bits, constant(kind, 1)), bits)
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.bitcast(
        builder.select(inexact, builder.or_(bits, constant(kind, 1)), bits), real
    )
