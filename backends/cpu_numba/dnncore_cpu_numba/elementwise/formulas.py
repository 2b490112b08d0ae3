"""The functions of single elements for the algorithms in `dnncore.algorithms`.

They define the results for NaN: comparisons with NaN are false. m: the module of elementary
functions, `vecmath` for float32 or `precise_math` for float64.
"""

# ruff: noqa: ARG001, ARG005 - functions of a kind have the same parameters

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.task import exact, stepwise

Function: TypeAlias = Callable[..., Any]
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INFINITY = np.float32("inf")


@stepwise
def _line(x, alpha, beta):
    return alpha * x + beta


@stepwise
def _unit(x, alpha, beta):
    return vecmath.clipped(alpha * x + beta, _ZERO, _ONE)


@exact
def _hardswish_slope(x, alpha, beta):
    line = alpha * x + beta
    slope = _TWO * alpha * x + beta if line > _ZERO else _ZERO
    return _ONE if line >= _ONE else slope


@exact
def _hardsigmoid_slope(x, alpha, beta):
    line = alpha * x + beta
    return alpha if (line > _ZERO) & (line < _ONE) else _ZERO


@exact
def _inside(x, low, high):
    return _ONE if (np.float32(low) < x) & (x < np.float32(high)) else _ZERO


@stepwise
def scaled_sum(x, y, alpha, beta):
    """beta * x + alpha * y. Products are rounded."""
    return beta * x + alpha * y


@stepwise
def shifted_sum(x, y, alpha, beta):
    """x + alpha * (y - beta). The product is rounded."""
    return x + alpha * (y - beta)


def _root_of(m: Any) -> Function:
    """Return the function x**0.5 of IEEE 754. It is not the square root at -0 and -infinity."""

    def root(x):
        return abs(m.sqrt(_INFINITY if x == -_INFINITY else x))

    inlined: Function = exact(root)
    return inlined


def _softplus_of(m: Any) -> Function:
    """Return the function log(1 + e**(alpha * x)) / alpha. alpha * x may be infinite."""

    def softplus(x, alpha):
        z = alpha * x
        return (x if z > _ZERO else _ZERO) + m.softplus(-z if z > _ZERO else z) / alpha

    inlined: Function = exact(softplus)
    return inlined


def eltwise(m: Any) -> dict[str, Function]:
    """Return f(x, alpha, beta) for each algorithm of eltwise."""
    softplus = _softplus_of(m)
    return {
        "abs": lambda x, alpha, beta: abs(x),
        "clip": m.clipped,
        "clip_v2": m.clipped,
        "elu": lambda x, alpha, beta: x if x > _ZERO else alpha * m.expm1(x),
        "exp": lambda x, alpha, beta: m.exp(x),
        "gelu_erf": lambda x, alpha, beta: m.gelu_erf(x),
        "gelu_tanh": lambda x, alpha, beta: m.gelu_tanh(x),
        "hardsigmoid": _unit,
        "hardswish": lambda x, alpha, beta: x * _unit(x, alpha, beta),
        "linear": _line,
        "log": lambda x, alpha, beta: m.log(x),
        "logistic": lambda x, alpha, beta: m.logistic(x),
        "mish": lambda x, alpha, beta: m.mish(x),
        "pow": m.power,
        "relu": lambda x, alpha, beta: x if x > _ZERO else alpha * x,
        "relu_0": lambda x, alpha, beta: _ZERO if x <= _ZERO else x,  # alpha * -inf would be NaN
        "round": lambda x, alpha, beta: np.rint(x),
        "soft_relu": lambda x, alpha, beta: softplus(x, alpha),
        "sqrt": lambda x, alpha, beta: m.sqrt(x),
        "square": lambda x, alpha, beta: x * x,
        "swish": lambda x, alpha, beta: m.swish(x, alpha),
        "tanh": lambda x, alpha, beta: m.tanh(x),
    }


def slopes(m: Any) -> dict[str, Function]:
    """Return the derivatives by x: f(x, alpha, beta)."""
    return {
        "abs": lambda x, alpha, beta: _ONE if x > _ZERO else (-_ONE if x < _ZERO else x),
        "clip": lambda x, alpha, beta: (
            _ONE if (np.float32(alpha) < x) & (x <= np.float32(beta)) else _ZERO
        ),
        "clip_v2": _inside,
        "elu": lambda x, alpha, beta: _ONE if x > _ZERO else alpha * m.exp(x),
        "exp": lambda x, alpha, beta: m.exp(x),
        "gelu_erf": lambda x, alpha, beta: m.gelu_erf_slope(x),
        "gelu_tanh": lambda x, alpha, beta: m.gelu_tanh_slope(x),
        "hardsigmoid": _hardsigmoid_slope,
        "hardswish": _hardswish_slope,
        "linear": lambda x, alpha, beta: alpha,
        "log": lambda x, alpha, beta: _ONE / x,
        "logistic": lambda x, alpha, beta: m.logistic_slope(x),
        "mish": lambda x, alpha, beta: m.mish_slope(x),
        "pow": lambda x, alpha, beta: (
            m.power(x, alpha * beta, beta - _ONE) if beta != _ZERO else _ZERO
        ),
        "relu": lambda x, alpha, beta: _ONE if x > _ZERO else alpha,
        "soft_relu": lambda x, alpha, beta: m.logistic(alpha * x),
        "sqrt": lambda x, alpha, beta: _HALF / m.sqrt(x),
        "square": lambda x, alpha, beta: _TWO * x,
        "swish": lambda x, alpha, beta: m.swish_slope(x, alpha),
        "tanh": lambda x, alpha, beta: m.tanh_slope(x),
    }


def powers(m: Any) -> dict[float, Function]:
    """Return the functions alpha * x**beta by beta."""
    root = _root_of(m)
    return {
        -1.0: lambda x, alpha, beta: alpha / x,
        -0.5: lambda x, alpha, beta: alpha / root(x),
        0.0: lambda x, alpha, beta: alpha,
        0.5: lambda x, alpha, beta: alpha * root(x),
        1.0: lambda x, alpha, beta: alpha * x,
        2.0: lambda x, alpha, beta: m.scaled_square(x, alpha),
    }


def slopes_of_dst(m: Any) -> dict[str, Function]:
    """Return the derivatives by x, computed from the value y: f(y, alpha, beta)."""
    return {
        "clip_v2": _inside,
        "elu": lambda y, alpha, beta: _ONE if y > _ZERO else y + alpha,
        "exp": lambda y, alpha, beta: y,
        "logistic": lambda y, alpha, beta: y * (_ONE - y),
        "relu": lambda y, alpha, beta: _ONE if y > _ZERO else alpha,
        "sqrt": lambda y, alpha, beta: _HALF / y,
        "tanh": lambda y, alpha, beta: (_ONE - y) * (_ONE + y),
    }


def binary(m: Any) -> dict[str, Function]:
    """Return f(x, y, alpha, beta) for each algorithm of binary except `select`."""
    return {
        "add": lambda x, y, alpha, beta: x + y,
        "sub": lambda x, y, alpha, beta: x - y,
        "mul": lambda x, y, alpha, beta: x * y,
        "div": lambda x, y, alpha, beta: x / y,
        "max": lambda x, y, alpha, beta: y if (y > x) | (y != y) else x,
        "min": lambda x, y, alpha, beta: y if (y < x) | (y != y) else x,
        "ge": lambda x, y, alpha, beta: _ONE if x >= y else _ZERO,
        "gt": lambda x, y, alpha, beta: _ONE if x > y else _ZERO,
        "le": lambda x, y, alpha, beta: _ONE if x <= y else _ZERO,
        "lt": lambda x, y, alpha, beta: _ONE if x < y else _ZERO,
        "eq": lambda x, y, alpha, beta: _ONE if x == y else _ZERO,
        "ne": lambda x, y, alpha, beta: _ONE if x != y else _ZERO,
    }
