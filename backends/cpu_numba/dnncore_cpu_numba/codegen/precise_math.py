"""Elementary functions of float64 by the C library, with the names of `vecmath.py`.

They call scalar functions. Arguments and parameters are float64.
"""

from __future__ import annotations

import math

import numpy as np

from dnncore_cpu_numba.codegen.task import exact

_ROOT_HALF = math.sqrt(0.5)
_GATE, _GATE_CUBE = math.sqrt(2 / math.pi), 0.044715
_ROOT_2_PI = 1 / math.sqrt(2 * math.pi)


@exact
def exp(x):
    """e**x."""
    return math.exp(x)


@exact
def expm1(x):
    """e**x - 1."""
    return math.expm1(x)


@exact
def log(x):
    """The natural logarithm."""
    if x > 0.0:
        return math.log(x)
    return -np.inf if x == 0.0 else np.nan


@exact
def less(x, y):
    """x - y. The difference is not reordered with other sums."""
    return x - y


@exact
def softplus(x):
    """log(1 + e**x) for x <= 0."""
    return math.log1p(math.exp(x))


@exact
def sqrt(x):
    """The square root."""
    return np.sqrt(x)


@exact
def power(x, alpha, beta):
    """alpha * x**beta."""
    return alpha * math.pow(x, beta)


@exact
def scaled_square(x, alpha):
    """alpha * (x * x)."""
    return alpha * (x * x)


@exact
def clipped(x, low, high):
    """x limited to [low, high]; NaN stays NaN."""
    x = high if x > high else x
    return low if x < low else x


@exact
def tanh(x):
    """The hyperbolic tangent."""
    return math.tanh(x)


@exact
def tanh_slope(x):
    """The derivative of tanh."""
    return 4.0 * logistic_slope(x + x)


@exact
def logistic(x):
    """1 / (1 + e**-x)."""
    e = math.exp(-abs(x))
    return (e if x < 0.0 else 1.0) / (1.0 + e)


@exact
def logistic_slope(x):
    """The derivative of logistic."""
    e = math.exp(-abs(x))
    scale = 1.0 / (1.0 + e)
    return e * (scale * scale)


@exact
def swish(x, alpha):
    """x * logistic(alpha * x)."""
    return x * logistic(alpha * x)


@exact
def swish_slope(x, alpha):
    """The derivative of swish."""
    z = alpha * x
    if z == np.inf:
        return 1.0
    return 0.0 if z == -np.inf else logistic(z) + z * logistic_slope(z)


@exact
def _gate(x):
    """log(1 + e**x)."""
    return (x if x > 0.0 else 0.0) + softplus(-abs(x))


@exact
def mish(x):
    """x * tanh(log(1 + e**x))."""
    return x * math.tanh(_gate(x))


@exact
def mish_slope(x):
    """The derivative of mish."""
    if abs(x) == np.inf:
        return 1.0 if x > 0.0 else 0.0
    gate = _gate(x)
    return math.tanh(gate) + x * tanh_slope(gate) * logistic(x)


@exact
def gelu_tanh(x):
    """x / 2 * (1 + tanh(g)), which is x * logistic(2 * g)."""
    return x * logistic(2.0 * _GATE * x * (1.0 + _GATE_CUBE * (x * x)))


@exact
def gelu_tanh_slope(x):
    """The derivative of gelu_tanh."""
    x = clipped(x, -100.0, 100.0)  # constant beyond these
    square = x * x
    gate = 2.0 * _GATE * x * (1.0 + _GATE_CUBE * square)
    growth = 2.0 * _GATE * (1.0 + 3.0 * _GATE_CUBE * square)
    return logistic(gate) + x * logistic_slope(gate) * growth


@exact
def gelu_erf(x):
    """x times the normal distribution function."""
    return 0.5 * x * math.erfc(-x * _ROOT_HALF)


@exact
def gelu_erf_slope(x):
    """The derivative of gelu_erf."""
    return 0.5 * math.erfc(-x * _ROOT_HALF) + _at_bell(x) * _ROOT_2_PI


@exact
def _at_bell(x):
    """x * e**(-x**2 / 2)."""
    x = clipped(x, -40.0, 40.0)  # 0 beyond these
    return x * math.exp(-0.5 * x * x)
