"""Emitters of exponentials of vectors of float32, with the formulas of `vecmath`.

e**x = 2**n * (1 + y), where n is a whole number and y a polynomial.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, Builder, Value, constant

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
ROUNDER = 12582912.0  # 1.5 * 2**23; adding it rounds to an integer, in the low bits
ROUNDER_BITS = 0x4B400000
EXP_LARGEST, EXP_SMALLEST = 89.0, -104.0  # beyond: infinity and 0
EXP_TAIL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
"""The coefficients of (e**r - 1 - r) / r**2, highest power first, for |r| <= log(2) / 2."""
_MANTISSA, _BIAS = 23, 127  # bits of a mantissa; exponent of 1.0


def exp(builder: Builder, x: Value) -> Value:
    """e**x."""
    n, less_one = _split(builder, _at_least(builder, _at_most(builder, x, EXP_LARGEST)))
    # Multiply twice by half the power, because 2**n may not be a normal number.
    half = builder.ashr(n, constant(n.type, 1))
    first, second = (_power_of_two(builder, part) for part in (half, builder.sub(n, half)))
    return builder.fmul(vir.multiply_add(builder, less_one, first, first), second)


def decay(builder: Builder, x: Value) -> Value:
    """e**x for x <= 0. Faster than `exp`."""
    n, less_one = _split(builder, _at_least(builder, x))
    scale = _power_of_two(builder, builder.add(n, constant(n.type, 64)))
    scaled = vir.multiply_add(builder, less_one, scale, scale)
    return builder.fmul(scaled, constant(x.type, 2.0**-64))


def _at_least(builder: Builder, x: Value) -> Value:
    least = constant(x.type, EXP_SMALLEST)
    return builder.select(builder.fcmp_ordered("<", x, least), least, x)  # NaN remains


def _at_most(builder: Builder, x: Value, limit: float) -> Value:
    most = constant(x.type, limit)
    return builder.select(builder.fcmp_ordered(">", x, most), most, x)


def _split(builder: Builder, x: Value) -> tuple[Value, Value]:
    """Return (n, y) with e**x = 2**n * (1 + y)."""
    kind, integers = x.type, vir.kind_of(x, I32)
    rounder = constant(kind, ROUNDER)
    rounded = vir.multiply_add(builder, x, constant(kind, LOG2_E), rounder)
    n = builder.fsub(rounded, rounder)
    r = vir.multiply_add(builder, n, constant(kind, -LN2_HIGH), x)
    r = vir.multiply_add(builder, n, constant(kind, -LN2_LOW), r)
    tail, *rest = (constant(kind, coefficient) for coefficient in EXP_TAIL)
    for coefficient in rest:
        tail = vir.multiply_add(builder, tail, r, coefficient)
    power = builder.sub(builder.bitcast(rounded, integers), constant(integers, ROUNDER_BITS))
    return power, vir.multiply_add(builder, tail, builder.fmul(r, r), r)


def _power_of_two(builder: Builder, n: Value) -> Value:
    """Return 2**n for a normal result."""
    biased = builder.add(n, constant(n.type, _BIAS))
    bits = builder.shl(biased, constant(n.type, _MANTISSA))
    return builder.bitcast(bits, vir.kind_of(n, F32))
