"""Conversions between data types in registers, emitted as LLVM IR.

Kernels compute with float32. They read elements of any type with `load_as_f32` and write them with
`store_from_f32`. `as_f32` and `from_f32` convert values in registers. Values are vectors or
scalars. Stored bf16, f16 and f8 values are integers with their bits. Each s4 or u4 has one byte.

Conversions use float32, or float64 if only float64 represents the values of both types. They round
once, half to even. Conversions to integers saturate, and NaN becomes 0. Conversions to floats
preserve NaN and subnormal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import BEST, Isa
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, Builder, Value, constant, kind_of

I8, I16, F64, HALF = ir.IntType(8), ir.IntType(16), ir.DoubleType(), ir.HalfType()
HALVES = ("f16", "bf16")
FLOATS = ("f32", *HALVES)
F8 = ("f8_e4m3", "f8_e5m2")
INTEGERS = ("s8", "u8", "s32")
PACKED = ("s4", "u4")
LIMITS = {
    "s8": (-128.0, 127.0), "u8": (0.0, 255.0), "s32": (-(2.0**31), 2.0**31 - 1),
    "s4": (-8.0, 7.0), "u4": (0.0, 15.0),
}  # fmt: skip
MANTISSA = {"f16": 10, "bf16": 7, "f8_e4m3": 3, "f8_e5m2": 2}  # fraction bits
BELOW_2_31 = 2.0**31 - 128  # the largest float32 below 2**31
STORED = {
    "f32": F32, "f64": F64, "f16": I16, "bf16": I16, "f8_e4m3": I8, "f8_e5m2": I8,
    "s32": I32, "s8": I8, "u8": I8, "s4": I8, "u4": I8,
}  # fmt: skip
"""The LLVM type of elements in memory. For the smaller floating types, it is an integer."""


def load_as_f32(
    builder: Builder, pointer: Value, data_type: str, lanes: int, mask: Value | None = None,
    isa: Isa = BEST,
) -> Value:  # fmt: skip
    """Load a vector of a data type as float32. mask: the lanes to load; others become 0."""
    stored = vir.load(builder, pointer, ir.VectorType(STORED[data_type], lanes), mask)
    return as_f32(builder, stored, data_type, isa)


def store_from_f32(
    builder: Builder, value: Value, pointer: Value, data_type: str, mask: Value | None = None,
    isa: Isa = BEST,
) -> Value:  # fmt: skip
    """Store a vector of float32 as a data type. mask: the lanes to store. Returns the store."""
    return vir.store(builder, from_f32(builder, value, data_type, isa), pointer, mask)


def as_f32(builder: Builder, x: Value, source: str, isa: Isa = BEST) -> Value:
    """Convert stored elements to float32. A signalling NaN may remain signalling."""
    if source == "f32":
        return x
    return _to_real(builder, _widened(builder, x, source, "f32", isa), "f32", isa)


def from_f32(builder: Builder, x: Value, target: str, isa: Isa = BEST) -> Value:
    """Convert float32 to stored elements."""
    return converted(builder, x, "f32", target, isa)


def converted(builder: Builder, x: Value, source: str, target: str, isa: Isa = BEST) -> Value:
    """Convert stored elements of one type to another. NaN becomes quiet."""
    if source == target:
        return x
    wide = _widened(builder, x, source, target, isa)
    if (source, target) == ("bf16", "f32"):
        return _quiet(builder, wide)
    if target in LIMITS:
        return _to_integer(builder, wide, target)
    return _to_real(builder, wide, target, isa)


def _widened(builder: Builder, x: Value, source: str, target: str, isa: Isa) -> Value:
    """Convert exactly to float32 or float64. Only s32 to f32 is rounded."""
    pair = {source, target}
    wide = "f64" in pair or ("s32" in pair and "f32" not in pair)
    real = kind_of(x, F64 if wide else F32)
    if source in LIMITS:
        return builder.uitofp(x, real) if source == "u8" else builder.sitofp(x, real)
    if source == "bf16":
        x = _from_bf16(builder, x)
    elif source in _SMALL:
        x = _from_small(builder, x, source, isa)
    return x if x.type == real else builder.fpext(x, real)


def _to_integer(builder: Builder, x: Value, target: str) -> Value:
    """Clip to the type's range, then round.

    LLVM 22 would implement its saturating conversions lane by lane.
    """
    lowest, highest = LIMITS[target]
    is_beyond = None
    if target == "s32" and x.type == kind_of(x, F32):  # float32 cannot represent the limit
        is_beyond = builder.fcmp_ordered(">", x, constant(x.type, BELOW_2_31))
        highest = BELOW_2_31
    low, high = constant(x.type, lowest), constant(x.type, highest)
    if lowest:  # the next comparison makes NaN the lowest number
        is_nan = builder.fcmp_unordered("uno", x, x)
        x = builder.select(is_nan, constant(x.type, 0.0), x)
    x = builder.select(builder.fcmp_ordered(">", x, low), x, low)
    x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
    wide = _rounded(builder, x)
    if is_beyond is not None:
        return builder.select(is_beyond, constant(wide.type, 2**31 - 1), wide)
    return wide if target == "s32" else builder.trunc(wide, kind_of(x, STORED[target]))


def _rounded(builder: Builder, x: Value) -> Value:
    """Convert numbers in the range of s32 to s32, rounded half to even."""
    kind = kind_of(x, I32)
    if x.type == kind_of(x, F32) and isinstance(x.type, ir.VectorType):  # one instruction
        name = f"llvm.lrint.{vir.suffix_of(kind)}.{vir.suffix_of(x.type)}"
        return vir.intrinsic(builder, name, kind, [x])
    return builder.fptosi(vir.lanewise(builder, "rint", x), kind)


def _to_real(builder: Builder, x: Value, target: str, isa: Isa) -> Value:
    if target == "f64":
        return x
    narrow = kind_of(x, F32)
    if x.type != narrow:
        x = builder.fptrunc(x, narrow) if target == "f32" else _rounded_to_odd(builder, x)
    if target in _SMALL:
        return _to_small(builder, x, target, isa)
    return _to_bf16(builder, x, isa) if target == "bf16" else x


# -- bf16 ------------------------------------------------------------------------------------------


def _from_bf16(builder: Builder, x: Value) -> Value:
    """Convert bf16 to float32. A bf16 is the upper half of a float32."""
    bits = kind_of(x, I32)
    x = builder.shl(builder.zext(x, bits), constant(bits, 16))
    return builder.bitcast(x, kind_of(x, F32))


def _quiet(builder: Builder, x: Value) -> Value:
    """Return float32 with quiet NaN. Other conversions make NaN quiet themselves."""
    kind = kind_of(x, I32)
    quiet = builder.or_(builder.bitcast(x, kind), constant(kind, 0x400000))
    is_nan = builder.fcmp_unordered("uno", x, x)
    return builder.select(is_nan, builder.bitcast(quiet, x.type), x)


def _to_bf16(builder: Builder, x: Value, isa: Isa) -> Value:
    """Convert float32 to bf16.

    The processor's instruction is not used because it flushes subnormal numbers.
    """
    rounded = _rounded_to_bf16(builder, x)
    if "avx512bw" in isa.x86 and x.type == vir.vector_of(2 * isa.lanes):
        halves = builder.bitcast(rounded, ir.VectorType(I16, 2 * x.type.count))
        order = ir.Constant(rounded.type, [2 * lane + 1 for lane in range(x.type.count)])
        return builder.shuffle_vector(halves, halves, order)  # one instruction, LLVM makes five
    return builder.trunc(builder.lshr(rounded, constant(rounded.type, 16)), kind_of(x, I16))


def _rounded_to_bf16(builder: Builder, x: Value) -> Value:
    """Return the bits of float32 rounded so that the upper half is the bf16. NaN becomes quiet."""
    kind = kind_of(x, I32)
    bits = builder.bitcast(x, kind)
    odd = builder.and_(builder.lshr(bits, constant(kind, 16)), constant(kind, 1))
    carried = builder.add(bits, builder.add(odd, constant(kind, 0x7FFF)))
    quiet = builder.or_(bits, constant(kind, 0x400000))
    return builder.select(builder.fcmp_unordered("uno", x, x), quiet, carried)


def pair_as_f32(builder: Builder, pair: Value) -> tuple[Value, Value]:
    """Return the two bf16 in each i32 as float32, the lower half first."""
    kind, real = pair.type, kind_of(pair, F32)
    low = builder.shl(pair, constant(kind, 16))
    high = builder.and_(pair, constant(kind, -(1 << 16)))
    return builder.bitcast(low, real), builder.bitcast(high, real)


def pair_from_f32(builder: Builder, low: Value, high: Value) -> Value:
    """Return two float32 as two bf16 in an i32."""
    kind = kind_of(low, I32)
    low = builder.lshr(_rounded_to_bf16(builder, low), constant(kind, 16))
    high = builder.and_(_rounded_to_bf16(builder, high), constant(kind, -(1 << 16)))
    return builder.or_(low, high)


# -- f16 and f8 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Small:
    """A type with fewer bits than float32.

    mantissa: fraction bits. bias: of the exponent. special: the least magnitude that is infinity or
    NaN. limit: the bits of the least float32 that becomes infinity or NaN. nan: bits that are set
    in every NaN.
    """

    bits: int
    mantissa: int
    bias: int
    special: int
    limit: int
    nan: int

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def least(self) -> float:
        """The smallest positive number. Subnormal numbers are multiples of it."""
        return float(2.0 ** (1 - self.bias - self.mantissa))

    @property
    def shift(self) -> int:
        """The number of fraction bits that float32 has in addition."""
        return 23 - self.mantissa

    @property
    def rebias(self) -> int:
        """The difference of the exponent biases, at the exponent's position in float32."""
        return (127 - self.bias) << 23


_SMALL = {
    "f16": _Small(16, 10, 15, 0x7C00, 0x477FF000, 0x7E00),  # infinity from 65520
    "f8_e5m2": _Small(8, 2, 15, 0x7C, 0x47700000, 0x7E),  # infinity from 61440
    "f8_e4m3": _Small(8, 3, 7, 0x7F, 0x43E80001, 0x7F),  # NaN above 464
}
_INFINITY = 0x7F800000  # the bits of a float32


def _from_small(builder: Builder, x: Value, name: str, isa: Isa) -> Value:
    """Convert a small type to float32, with shifts if the processor has no instruction.

    An f8_e5m2 is the upper half of an f16. A subnormal number is a multiple of the least number.
    """
    real, kind, own = kind_of(x, F32), kind_of(x, I32), _SMALL[name]
    if isa.converts_f16 and own.bias == _SMALL["f16"].bias:
        half = kind_of(x, I16)
        if own.bits == 8:
            x = builder.shl(builder.zext(x, half), constant(half, 8))
        return builder.fpext(builder.bitcast(x, kind_of(x, HALF)), real)
    bits = builder.zext(x, kind)
    magnitude = builder.and_(bits, constant(kind, own.sign - 1))
    sign = builder.and_(bits, constant(kind, own.sign))
    sign = builder.shl(sign, constant(kind, 32 - own.bits))
    shifted = builder.shl(magnitude, constant(kind, own.shift))
    normal = builder.add(shifted, constant(kind, own.rebias))
    special = builder.icmp_signed(">=", magnitude, constant(kind, own.special))
    normal = builder.select(special, builder.or_(shifted, constant(kind, _INFINITY)), normal)
    small = builder.fmul(builder.sitofp(magnitude, real), constant(real, own.least))
    is_small = builder.icmp_signed("<", magnitude, constant(kind, 1 << own.mantissa))
    found = builder.select(is_small, builder.bitcast(small, kind), normal)
    return builder.bitcast(builder.or_(found, sign), real)


def _to_small(builder: Builder, x: Value, name: str, isa: Isa) -> Value:
    """Convert float32 to a small type, with integer sums if the processor has no instruction.

    Normal results are rounded like bf16. For subnormal results, a number is added whose last bit
    has the value of the least number; this sum is rounded correctly.
    """
    own, stored = _SMALL[name], kind_of(x, STORED[name])
    if name == "f16" and isa.converts_f16:
        return builder.bitcast(builder.fptrunc(x, kind_of(x, HALF)), stored)
    kind, real = kind_of(x, I32), x.type
    bits = builder.bitcast(x, kind)
    magnitude = builder.and_(bits, constant(kind, 0x7FFFFFFF))
    sign = builder.lshr(builder.sub(bits, magnitude), constant(kind, 32 - own.bits))
    odd = builder.and_(builder.lshr(magnitude, constant(kind, own.shift)), constant(kind, 1))
    half = (1 << (own.shift - 1)) - 1
    rounding = builder.add(odd, constant(kind, half - own.rebias))
    normal = builder.lshr(builder.add(magnitude, rounding), constant(kind, own.shift))
    beside = own.least * 2.0**23
    sum_ = builder.fadd(builder.bitcast(magnitude, real), constant(real, beside))
    beside_bits = (127 + 24 - own.bias - own.mantissa) << 23
    small = builder.sub(builder.bitcast(sum_, kind), constant(kind, beside_bits))
    is_small = builder.icmp_signed("<", magnitude, constant(kind, own.rebias + (1 << 23)))
    found = builder.select(is_small, small, normal)
    large = builder.icmp_signed(">=", magnitude, constant(kind, own.limit))
    found = builder.select(large, constant(kind, own.special), found)
    payload = builder.lshr(magnitude, constant(kind, own.shift))
    payload = builder.and_(payload, constant(kind, (1 << own.mantissa) - 1))
    nan = builder.or_(payload, constant(kind, own.nan))
    found = builder.select(builder.fcmp_unordered("uno", x, x), nan, found)
    return builder.trunc(builder.or_(found, sign), stored)


def _rounded_to_odd(builder: Builder, x: Value) -> Value:
    """Round float64 to odd: truncate to float32, and set the last bit if inexact.

    A second rounding of the result to a smaller type is then correct.
    """
    real, kind = (kind_of(x, element) for element in (F32, I32))
    near = builder.fptrunc(x, real)
    back = builder.fpext(near, x.type)
    bits = builder.bitcast(near, kind)
    beyond = builder.fcmp_ordered(">", *(vir.lanewise(builder, "fabs", v) for v in (back, x)))
    bits = builder.select(beyond, builder.sub(bits, constant(kind, 1)), bits)
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.bitcast(
        builder.select(inexact, builder.or_(bits, constant(kind, 1)), bits), real
    )
