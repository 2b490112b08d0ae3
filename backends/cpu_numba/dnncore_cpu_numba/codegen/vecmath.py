"""Elementary functions of float32. LLVM can vectorise loops over them.

Most functions are a range reduction and a polynomial, without branches. NaN gives NaN, and
infinities give the limits. No intermediate value overflows if the result is finite. The largest
errors in units in the last place, measured for every 64th float32 and including denormal results,
are: exp 1.0, expm1 0.9, log 0.8, tanh 2.5, logistic 2.5, tanh_slope 4.2, logistic_slope 4.2,
softplus 3.5, swish 4.5, power 0.6. The error of mish is 5 for normal results. The errors of
gelu_tanh, gelu_erf and the slopes that cross 0 are at most 5 units of roundoff times |x|, or times
1 for slopes.

The polynomials of exp and log are from the Cephes library (S. L. Moshier, 1989, single precision).
The others are separate minimax fits. Their errors are stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types

from dnncore_cpu_numba.codegen.exponentials import (
    EXP_LARGEST,
    EXP_SMALLEST,
    EXP_TAIL,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROUNDER,
    ROUNDER_BITS,
)
from dnncore_cpu_numba.codegen.pointers import (
    bits_to_f32,
    bits_to_f64,
    emitted,
    f32_to_bits,
    f64_to_bits,
)
from dnncore_cpu_numba.codegen.task import exact
from dnncore_cpu_numba.codegen.vector_ir import F32, intrinsic

_F, _D = np.float32, np.float64
_ZERO, _HALF, _ONE, _TWO, _FOUR = _F(0), _F(0.5), _F(1), _F(2), _F(4)
_NAN, _INFINITY = _F("nan"), _F("inf")
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(LOG2_E), _F(LN2_HIGH), _F(LN2_LOW)
_ROUNDER, _ROUNDER_BITS = _F(ROUNDER), np.int32(ROUNDER_BITS)
_EXP_LARGEST, _EXP_SMALLEST = _F(EXP_LARGEST), _F(EXP_SMALLEST)
_EXPM1_SMALLEST = _F(-20.0)  # beyond: -1
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_SMALLEST_NORMAL = _F(1.17549435e-38)
_TWO_23 = _F(8388608.0)
_TWO_MINUS_64 = _F(2.0**-64)
_TAIL_STEP = _F(0.3 * 0.5**0.5)
_ROOT_2_PI = _F(0.3989422804014327)  # 1 / sqrt(2 * pi)
_GATE, _GATE_CUBE = _F(1.5957691216057308), _F(0.07135481627)  # 2 * sqrt(2 / pi), this * 0.044715
_GELU_TANH_END = _F(12.0)  # beyond: the slope is 0 or 1
_SWISH_END = _F(110.0)
_MISH_END = _F(20.0)
_POWER_END = _D(1000.0)  # limit of a binary exponent: beyond float32, within float64
_WIDE_ROUNDER = _D(6755399441055744.0)  # 1.5 * 2**52
_WIDE_ROUNDER_BITS = np.int64(0x4338000000000000)
_WIDE_NAN, _WIDE_INFINITY, _WIDE_ZERO, _WIDE_ONE = _D("nan"), _D("inf"), _D(0), _D(1)


def _polynomial(coefficients: Sequence[float], kind: type = np.float32) -> Callable[[Any], Any]:
    """Horner's rule, highest power first."""
    first, *rest = map(kind, coefficients)
    following = tuple(rest)

    def value(x):
        y = first
        for coefficient in following:
            y = y * x + coefficient
        return y

    compiled: Callable[[Any], Any] = exact(value)
    return compiled


_exp_tail = _polynomial(EXP_TAIL)
_log_tail = _polynomial((
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
))  # fmt: skip
# exp(z**2) * erfc(z) / 2 / t for t = 1 / (1 + 0.3 * z), z <= 11; error 2e-8
_tail = _polynomial((
    -0.06477797182961517, 0.2428683345789245, -0.25633424128239, 0.274105624847839,
    -0.04751404411254157, 0.10755350368048938, 0.07414318215841995, 0.08536189438147367,
    0.0845937077588802,
))  # fmt: skip
# 2 * atanh(w) / w in w**2, w <= 1/3; error 1e-10
_log1p_tail = _polynomial((
    0.2441306588019042, 0.2139325128239843, 0.286207220437542, 0.3999869090562241,
    0.6666667930739837, 1.9999999998028135,
))  # fmt: skip
# 2 * atanh(w) / w / log(2) in w**2, w <= (sqrt(2) - 1) / (sqrt(2) + 1); error 4e-12
_log2_tail = _polynomial((
    0.34074901977896466, 0.4116717437495153, 0.5770836003627529, 0.9617966732661372,
    2.885390081790143,
), np.float64)  # fmt: skip
# 2**x, |x| <= 1/2; error 2e-9
_exp2 = _polynomial((
    0.0001534580749932182, 0.0013399931182802548, 0.009618488973924854, 0.055503287770787335,
    0.24022646890477448, 0.6931472057371959, 1.0000000005541898,
), np.float64)  # fmt: skip


# -- exponentials and logarithms -------------------------------------------------------------------


@exact
def exp(x):
    """e**x."""
    x = _EXP_LARGEST if x > _EXP_LARGEST else x
    x = _EXP_SMALLEST if x < _EXP_SMALLEST else x
    power, less_one = _split(x)
    # Multiply twice by half the power, because 2**power may not be a normal number.
    half = np.int32(power >> 1)
    scale = _power_of_two(half)
    return (less_one * scale + scale) * _power_of_two(np.int32(power - half))


@exact
def decay(x):
    """e**x for x <= 0. Faster than `exp`."""
    x = _EXP_SMALLEST if x < _EXP_SMALLEST else x
    power, less_one = _split(x)
    scale = _power_of_two(np.int32(power + 64))
    return (less_one * scale + scale) * _TWO_MINUS_64


@exact
def expm1(x):
    """e**x - 1 for x <= 0, accurate also near 0."""
    x = _ZERO if x > _ZERO else x
    x = _EXPM1_SMALLEST if x < _EXPM1_SMALLEST else x
    power, less_one = _split(x)
    scale = _power_of_two(power)
    return less_one * scale + (scale - _ONE)


@exact
def _split(x):
    """(n, y) with e**x = 2**n * (1 + y)."""
    rounded = x * _LOG2_E + _ROUNDER
    n = rounded - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    return np.int32(f32_to_bits(rounded) - _ROUNDER_BITS), _exp_tail(r) * (r * r) + r


@exact
def _power_of_two(n):
    """2**n for a normal result."""
    return bits_to_f32(np.int32(np.int32(n + 127) << 23))


@exact
def log(x):
    """The natural logarithm."""
    n, mantissa = _mantissa(x)
    r = mantissa - _ONE
    square = r * r
    y = _log_tail(r) * r * square + n * _LN2_LOW - _HALF * square + r + n * _LN2_HIGH
    y = x if x == _INFINITY else y
    y = -_INFINITY if x == _ZERO else y
    return y if x >= _ZERO else _NAN


@exact
def _mantissa(x):
    """(n, m) with x = 2**n * m for a positive x, where m is from sqrt(1/2) to sqrt(2)."""
    tiny = x < _SMALLEST_NORMAL
    scaled = x * _TWO_23 if tiny else x
    bits = np.int32(f32_to_bits(scaled) - _SQRT_HALF_BITS)
    power = np.int32(bits >> 23)
    mantissa = bits_to_f32(np.int32(np.int32(bits & 0x7FFFFF) + _SQRT_HALF_BITS))
    return _F(power) - (_F(23) if tiny else _ZERO), mantissa


@exact
def softplus(x):
    """log(1 + e**x) for x <= 0."""
    e = decay(x)
    w = e / (_TWO + e)
    return w * _log1p_tail(w * w)


@exact
def power(x, alpha, beta):
    """alpha * x**beta, in float64, because the power amplifies errors of the logarithm.

    As in IEEE 754, x**0 is 1, and the power is NaN for a negative x unless beta is an integer.
    """
    size = _absolute(x)
    n, mantissa = _mantissa(size)
    m = _D(mantissa)
    w = (m - _WIDE_ONE) / (m + _WIDE_ONE)
    t = _D(beta) * (w * _log2_tail(w * w) + _D(n))
    t = _POWER_END if t > _POWER_END else t
    t = -_POWER_END if t < -_POWER_END else t
    rounded = t + _WIDE_ROUNDER
    biased = f64_to_bits(rounded) - _WIDE_ROUNDER_BITS + 1023
    y = _exp2(t - (rounded - _WIDE_ROUNDER)) * bits_to_f64(biased << 52)
    y = (_WIDE_ZERO if beta > _ZERO else _WIDE_INFINITY) if size == _ZERO else y
    y = (_WIDE_INFINITY if beta > _ZERO else _WIDE_ZERO) if size == _INFINITY else y
    whole = np.floor(beta) == beta
    odd = np.floor(_HALF * beta) * _TWO != beta
    y = _WIDE_NAN if (x < _ZERO) & (size < _INFINITY) & (not whole) else y
    y = -y if (f32_to_bits(x) < 0) & whole & odd else y
    y = _WIDE_NAN if x != x else y
    y = _WIDE_ONE if beta == _ZERO else y
    return _F(_D(alpha) * y)


@emitted(types.float32, types.float32)
def sqrt(builder, x):
    """The square root. `numpy.sqrt` would call a scalar library function."""
    return intrinsic(builder, "llvm.sqrt.f32", F32, [x])


@exact
def scaled_square(x, alpha):
    """alpha * x * x, computed in float64 to avoid overflow of x * x."""
    return _F(_D(alpha) * (_D(x) * _D(x)))


@exact
def _absolute(x):
    return bits_to_f32(np.int32(f32_to_bits(x) & 0x7FFFFFFF))


@exact
def clipped(x, low, high):
    """x limited to [low, high]; NaN stays NaN."""
    x = high if x > high else x
    return low if x < low else x


# -- sigmoids --------------------------------------------------------------------------------------


@exact
def tanh(x):
    """The hyperbolic tangent."""
    less = expm1(-_TWO * _absolute(x))
    y = less / (-_TWO - less)
    return -y if x < _ZERO else _absolute(y)  # 0 for 0, not -0


@exact
def tanh_slope(x):
    """The derivative of tanh, 1 / cosh(x)**2. 1 - tanh(x)**2 is inexact for small results."""
    return _FOUR * logistic_slope(x + x)


@exact
def logistic(x):
    """1 / (1 + e**-x)."""
    e = decay(-_absolute(x))
    return (e if x < _ZERO else _ONE) / (_ONE + e)


@exact
def logistic_slope(x):
    """The derivative of logistic, e**-x / (1 + e**-x)**2."""
    e = decay(-_absolute(x))
    scale = _ONE / (_ONE + e)
    return e * (scale * scale)


@exact
def swish(x, alpha):
    """x / (1 + e**(-alpha * x))."""
    z = alpha * x
    root = decay(_absolute(z) * -_HALF)  # root * root may underflow if x * root * root does not
    return (x if z > _ZERO else x * root * root) / (_ONE + root * root)


@exact
def swish_slope(x, alpha):
    """The derivative of swish."""
    return _gated_slope(clipped(alpha * x, -_SWISH_END, _SWISH_END), _ONE)


@exact
def _gated_slope(z, growth):
    """The derivative of x * logistic(z). growth: z'(x) * x / z."""
    e = decay(-_absolute(z))
    scale = _ONE / (_ONE + e)
    part = e * scale
    return (part if z < _ZERO else scale) + z * growth * part * scale


@exact
def mish(x):
    """x * tanh(log(1 + e**x)). The tanh is a quotient of polynomials in e**x."""
    e = exp(_MISH_END if x > _MISH_END else x)
    n = e * (e + _TWO)
    return x * (n / (n + _TWO))


@exact
def mish_slope(x):
    """The derivative of mish."""
    x = _MISH_END if x > _MISH_END else x
    e = exp(x)
    n = e * (e + _TWO)
    scale = _ONE / (n + _TWO)
    return (n + x * (_FOUR * e * (e + _ONE) * scale)) * scale


@exact
def gelu_tanh(x):
    """x / 2 * (1 + tanh(g)), which is x * logistic(2 * g)."""
    return x * logistic(x * (_GATE + _GATE_CUBE * (x * x)))


@exact
def gelu_tanh_slope(x):
    """The derivative of gelu_tanh."""
    x = clipped(x, -_GELU_TANH_END, _GELU_TANH_END)
    square = x * x
    gate = _GATE + _GATE_CUBE * square
    growth = _ONE + _TWO * _GATE_CUBE * square / gate
    return _gated_slope(x * gate, growth)


@exact
def gelu_erf(x):
    """x times the normal distribution function."""
    tail = _normal_tail(x, decay(x * x * -_HALF))
    return x * (_ONE - tail if x > _ZERO else tail)


@exact
def gelu_erf_slope(x):
    """The derivative of gelu_erf."""
    e = decay(x * x * -_HALF)
    tail = _normal_tail(x, e)
    return (_ONE - tail if x > _ZERO else tail) + x * e * _ROOT_2_PI


@exact
def _normal_tail(x, e):
    """The probability beyond |x|, erfc(|x| / sqrt(2)) / 2. e: e**(-x**2 / 2)."""
    t = _ONE / (_ONE + _TAIL_STEP * _absolute(x))
    return e * (t * _tail(t))
