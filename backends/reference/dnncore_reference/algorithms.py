"""The formulas of the algorithms of operations and post-ops, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


def _erfc(s: Array) -> Array:
    """1 - erf(s) without cancellation. numpy lacks erfc; the standard library has a scalar one."""
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(s), np.float64)


def _sigmoid(s: Array) -> Array:
    return 1 / (1 + np.exp(-s))


def _unit(s: Array, alpha: float, beta: float) -> Array:
    """alpha * s + beta, clipped to [0, 1]."""
    return np.clip(alpha * s + beta, 0.0, 1.0)


def _gate(s: Array) -> Array:
    """The argument g of tanh in gelu_tanh. (1 + tanh(g)) / 2 equals the sigmoid of 2 g."""
    return ROOT_2_OVER_PI * (s + 0.044715 * s**3)


def _softplus(s: Array) -> Array:
    return np.logaddexp(0.0, s)


def _relu(s: Array, alpha: float, _beta: float) -> Array:
    # If alpha is 0, negative values become 0, including -inf, where alpha * -inf would be NaN.
    return np.where(s > 0, s, alpha * s) if alpha else np.maximum(s, 0)


ELTWISE: dict[str, Callable[..., Any]] = {
    "abs": lambda s, *_: np.abs(s),
    "clip": np.clip,
    "clip_v2": np.clip,
    "elu": lambda s, alpha, _beta: np.where(s > 0, s, alpha * np.expm1(s)),
    "exp": lambda s, *_: np.exp(s),
    "gelu_erf": lambda s, *_: s / 2 * _erfc(-s / math.sqrt(2)),
    "gelu_tanh": lambda s, *_: s * _sigmoid(2 * _gate(s)),
    "hardsigmoid": _unit,
    "hardswish": lambda s, alpha, beta: s * _unit(s, alpha, beta),
    "linear": lambda s, alpha, beta: alpha * s + beta,
    "log": lambda s, *_: np.log(s),
    "logistic": lambda s, *_: _sigmoid(s),
    "mish": lambda s, *_: s * np.tanh(_softplus(s)),
    "pow": lambda s, alpha, beta: alpha * np.float_power(s, beta),
    "relu": _relu,
    "round": lambda s, *_: np.rint(s),
    "soft_relu": lambda s, alpha, _beta: _softplus(alpha * s) / alpha,
    "sqrt": lambda s, *_: np.sqrt(s),
    "square": lambda s, *_: s * s,
    "swish": lambda s, alpha, _beta: s * _sigmoid(alpha * s),
    "tanh": lambda s, *_: np.tanh(s),
}


def _bell(s: Array) -> Array:
    """The slope of the sigmoid. It is even; with -|s|, exp does not overflow."""
    e = np.exp(-np.abs(s))
    bell: Array = e / (1 + e) ** 2
    return bell


def _gelu_erf_slope(s: Array, *_: float) -> Array:
    return _erfc(-s / math.sqrt(2)) / 2 + s * np.exp(-s * s / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(s: Array, *_: float) -> Array:
    # 1 - tanh(g)**2 is four times the sigmoid's slope at 2 g, which has no cancellation.
    gate_slope = ROOT_2_OVER_PI * (1 + 3 * 0.044715 * s * s)
    return _sigmoid(2 * _gate(s)) + s / 2 * 4 * _bell(2 * _gate(s)) * gate_slope


def _hardswish_slope(s: Array, alpha: float, beta: float) -> Array:
    line = alpha * s + beta
    return np.where(line >= 1, 1.0, np.where(line > 0, 2 * alpha * s + beta, 0.0))


def _mish_slope(s: Array, *_: float) -> Array:
    gate = _softplus(s)
    slope: Array = np.tanh(gate) + s * 4 * _bell(2 * gate) * _sigmoid(s)
    return slope


def _swish_slope(s: Array, alpha: float, _beta: float) -> Array:
    return _sigmoid(alpha * s) + alpha * s * _bell(alpha * s)


def _above(x: Array, limit: float) -> Array:
    """x > limit, with the limit as float32, because clipped values of dst are this float32."""
    return x > np.float32(limit)


def _below(x: Array, limit: float) -> Array:
    return x < np.float32(limit)


# f'(s)
ELTWISE_SLOPES: dict[str, Callable[..., Any]] = {
    "abs": lambda s, *_: np.sign(s),
    "clip": lambda s, alpha, beta: _above(s, alpha) & ~_above(s, beta),
    "clip_v2": lambda s, alpha, beta: _above(s, alpha) & _below(s, beta),
    "elu": lambda s, alpha, _beta: np.where(s > 0, 1.0, alpha * np.exp(s)),
    "exp": lambda s, *_: np.exp(s),
    "gelu_erf": _gelu_erf_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "hardsigmoid": lambda s, alpha, beta: np.where(
        (alpha * s + beta > 0) & (alpha * s + beta < 1), alpha, 0.0
    ),
    "hardswish": _hardswish_slope,
    "linear": lambda _s, alpha, _beta: alpha,
    "log": lambda s, *_: 1 / s,
    "logistic": lambda s, *_: _bell(s),
    "mish": _mish_slope,
    "pow": lambda s, alpha, beta: alpha * beta * np.float_power(s, beta - 1) if beta else 0.0,
    "relu": lambda s, alpha, _beta: np.where(s > 0, 1.0, alpha),
    "soft_relu": lambda s, alpha, _beta: _sigmoid(alpha * s),
    "sqrt": lambda s, *_: 1 / (2 * np.sqrt(s)),
    "square": lambda s, *_: 2 * s,
    "swish": _swish_slope,
    "tanh": lambda s, *_: 4 * _bell(2 * s),
}

# f' in terms of d = f(s)
ELTWISE_SLOPES_OF_DST: dict[str, Callable[..., Any]] = {
    "clip_v2": lambda d, alpha, beta: _above(d, alpha) & _below(d, beta),
    "elu": lambda d, alpha, _beta: np.where(d > 0, 1.0, d + alpha),
    "exp": lambda d, *_: d,
    "logistic": lambda d, *_: d * (1 - d),
    "relu": lambda d, alpha, _beta: np.where(d > 0, 1.0, alpha),
    "sqrt": lambda d, *_: 1 / (2 * d),
    "tanh": lambda d, *_: (1 - d) * (1 + d),
}


def _zero_or_one(compare: np.ufunc) -> Callable[..., Array]:
    """Return a comparison with results 0.0 and 1.0, on which further post-ops can compute."""
    return lambda src0, src1: compare(src0, src1).astype(np.float64)


BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "ge": _zero_or_one(np.greater_equal),
    "gt": _zero_or_one(np.greater),
    "le": _zero_or_one(np.less_equal),
    "lt": _zero_or_one(np.less),
    "eq": _zero_or_one(np.equal),
    "ne": _zero_or_one(np.not_equal),
    "select": lambda src0, src1, src2: np.where(src2 != 0, src0, src1),
}
