"""The algorithms that operations and post-ops share, as OpenCL C on scalars and vectors alike.

An algorithm is a chain of expressions, each of the last one's value {x}. A comparison of vectors
gives a mask per lane, which ?: takes.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BINARY", "eltwise", "eltwise_gradient"]

Number = Callable[[float], str]  # gives the text of a number: a literal, or a kernel argument

ELTWISE = {
    "relu": ("{x} > 0.0f ? {x} : {alpha} * {x}",),
    "tanh": ("tanh({x})",),
    "logistic": ("1.0f / (1.0f + exp(-{x}))",),
    "linear": ("{alpha} * {x} + {beta}",),
}

# The slope of the logistic function is even: with e = exp(-|s|) it is e / (1 + e)^2, without
# overflow or cancellation; that of tanh(s) is four times the logistic one's at 2 s.
ELTWISE_GRADIENT = {  # {d}: the gradient, {s}: the forward argument
    "relu": ("{s} > 0.0f ? {d} : {alpha} * {d}",),
    "tanh": ("exp(-2.0f * fabs({s}))", "{d} * (4.0f * {x} / ((1.0f + {x}) * (1.0f + {x})))"),
    "logistic": ("exp(-fabs({s}))", "{d} * ({x} / ((1.0f + {x}) * (1.0f + {x})))"),
    "linear": ("{alpha} * {d}",),
}

BINARY = {
    "add": "{} + {}",
    "mul": "{} * {}",
}

KEEPS_ZERO = {"relu": True, "tanh": True, "logistic": False}


def eltwise(algorithm: str, alpha: float, beta: float, x: str, number: Number) -> list[str]:
    """Return the expressions that compute the algorithm of `x`."""
    if algorithm == "relu" and alpha == 0:
        return [f"{x} <= 0.0f ? 0.0f : {x}"]  # 0 * -inf would be NaN
    return _filled(ELTWISE[algorithm], alpha, beta, number, x=x)


def eltwise_gradient(
    algorithm: str, alpha: float, beta: float, s: str, d: str, number: Number
) -> list[str]:
    """Return the expressions that compute d times the algorithm's slope at s."""
    return _filled(ELTWISE_GRADIENT[algorithm], alpha, beta, number, s=s, d=d, x="x")


def keeps_zero(algorithm: str, beta: float) -> bool:
    """Whether the algorithm of 0 is 0."""
    return KEEPS_ZERO.get(algorithm, beta == 0)


def _filled(
    chain: tuple[str, ...], alpha: float, beta: float, number: Number, **names: str
) -> list[str]:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if any(f"{{{name}}}" in text for text in chain):
            names[name] = number(value)
    return [text.format(**names) for text in chain]
