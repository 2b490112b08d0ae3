"""The eltwise algorithms: y = f(s), with parameters alpha and beta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import POWER, Array, Error, of_argument, of_one, of_result
from dnncore.algorithms.rules import check_algorithm, check_finite
from dnncore.errors import DescriptorError

__all__ = ["ELTWISE", "USE_DST", "EltwiseAlgorithm", "check_eltwise", "eltwise_names"]

USE_DST = "_use_dst_for_bwd"
"""The suffix of an algorithm whose gradient is computed from dst, not from src."""

Parameters = tuple[float, float]  # alpha, beta
Oracle = Callable[[Any, Any, float, float], Any]


def _nowhere(_alpha: float, _beta: float) -> tuple[float, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class EltwiseAlgorithm:
    """One algorithm.

    formula, slope: texts of f(s) and f'(s), in Python's syntax with the names of `math`. An empty
        slope means that there is no gradient.
    slope_of_dst: text of f' as a function of d = f(s). Empty if there is no variant `USE_DST`.
    error, slope_error, slope_of_dst_error: error bounds of these three formulas.
    oracle: torch's result, as oracle(torch, s, alpha, beta). torch's autograd gives the gradient.
    inverse: s computed from d, as inverse(torch, d, alpha, beta). It is required if there is a
        variant `USE_DST`.
    defaults: alpha, or alpha and beta, in one-line calls; None if the caller must give them.
    probes: the parameters that the conformance kit tests.
    rule: a text and a test of alpha and beta.
    variant_rule: an additional rule of the variant.
    corners: the values of s at which f' jumps, computed from alpha and beta.
    is_positive: whether f is defined only for positive s.
    keeps_integers: whether whole s, alpha and beta give whole y.
    """

    formula: str
    error: Error
    oracle: Oracle
    slope: str = ""
    slope_error: Error | None = None
    slope_of_dst: str = ""
    slope_of_dst_error: Error | None = None
    inverse: Oracle | None = None
    defaults: tuple[float, ...] | None = ()
    probes: tuple[Parameters, ...] = ((0.0, 0.0),)
    rule: tuple[str, Callable[[float, float], bool]] | None = None
    variant_rule: tuple[str, Callable[[float, float], bool]] | None = None
    corners: Callable[[float, float], tuple[float, ...]] = _nowhere
    is_positive: bool = False
    keeps_integers: bool = False


def _at_zero(_alpha: float, _beta: float) -> tuple[float, ...]:
    return (0.0,)


def _at_limits(alpha: float, beta: float) -> tuple[float, ...]:
    return (alpha, beta)


def _at_ramp_ends(alpha: float, beta: float) -> tuple[float, ...]:
    return (-beta / alpha, (1 - beta) / alpha) if alpha else ()


def _of_exponent(s: Array, y: Array, alpha: float, _beta: float) -> Array:
    size: Array = np.abs(y) * (1 + np.abs(alpha * s))
    return size


def _of_logarithm(y: Array, exponent: float, s: Array) -> Array:
    size: Array = np.abs(y) * (1 + np.abs(exponent * np.nan_to_num(np.log(np.abs(s)), nan=0.0)))
    return size


def _ramp(torch: Any, x: Any) -> Any:
    """A ramp from 0 to 1 with slope 0 at both ends, where torch's clamp has slope 1."""
    return torch.where(x <= 0, 0.0, torch.where(x >= 1, 1.0, x))


def _clip(torch: Any, s: Any, alpha: float, beta: float) -> Any:
    """A clip with slope 0 at the lower limit, where torch's clamp has slope 1."""
    low, high = _rounded(alpha), _rounded(beta)
    return torch.where(s <= low, low, torch.where(s > high, high, s))


def _clip_v2(torch: Any, s: Any, alpha: float, beta: float) -> Any:
    """A clip with slope 0 at both limits."""
    low, high = _rounded(alpha), _rounded(beta)
    return torch.where(s <= low, low, torch.where(s >= high, high, s))


def _rounded(limit: float) -> float:
    """Return a limit rounded to float32, as stored in dst."""
    return float(np.float32(limit))


def _power(torch: Any, s: Any, alpha: float, beta: float) -> Any:
    """Compute the power as C does.

    If the exponent is the number 0.5, torch computes a square root. Its square root of -inf is NaN.
    A tensor of exponents avoids this.
    """
    return alpha * torch.pow(s, torch.full_like(s, beta))


_LIMITS = (
    (-1.0, 0.5), (-1.0, 0.0), (-1.0, 6.0), (0.0, 0.0), (0.0, 0.5), (0.0, 6.0),
    (0.3, 0.7),  # float32 cannot store these limits: one becomes larger, the other smaller
)  # fmt: skip
_ORDERED = ("beta >= alpha", lambda alpha, beta: alpha <= beta)
# With a negative slope, dst would have the same sign on both sides of 0.
_NO_NEGATIVE_SLOPE = ("alpha >= 0", lambda alpha, _beta: alpha >= 0)
_SLOPES = ((0.25, 0.0), (0.0, 0.0), (2.0, 0.0), (-0.5, 0.0))
_RAMPS = ((0.25, 0.5), (1 / 6, 0.5), (-1.0, 0.5))
_RATES = ((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (-1.0, 0.0), (20.0, 0.0))
_POWERS = (
    *((a, beta) for a in (2.0, 1.0, -1.0) for beta in (1.5, 0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5)),
    *((1.0, -3.0), (2.0, -2.0), (-1.0, 5.0)),
)
_GATE = "tanh(sqrt(2 / pi) * (s + 0.044715 * s**3))"
_SOFTPLUS = "tanh(log(1 + exp(s)))"

# In all algorithms, NaN gives NaN.
ELTWISE = {
    "abs": EltwiseAlgorithm(
        formula="abs(s)",
        error=Error(0, of_result),
        slope="(s > 0) - (s < 0)",
        slope_error=Error(2, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.abs(s),
        corners=_at_zero,
        keeps_integers=True,
    ),
    "clip": EltwiseAlgorithm(
        formula="min(max(s, alpha), beta)",
        error=Error(0, of_result),
        slope="1 if alpha < s <= beta else 0",
        slope_error=Error(2, of_result),
        oracle=_clip,
        defaults=None,
        probes=_LIMITS,
        rule=_ORDERED,
        corners=_at_limits,
        keeps_integers=True,
    ),
    "clip_v2": EltwiseAlgorithm(
        formula="min(max(s, alpha), beta)",
        error=Error(0, of_result),
        slope="1 if alpha < s < beta else 0",
        slope_error=Error(2, of_result),
        slope_of_dst="1 if alpha < d < beta else 0",
        slope_of_dst_error=Error(2, of_result),
        oracle=_clip_v2,
        inverse=lambda _torch, d, _alpha, _beta: d,
        defaults=None,
        probes=_LIMITS,
        rule=_ORDERED,
        corners=_at_limits,
        keeps_integers=True,
    ),
    "elu": EltwiseAlgorithm(
        formula="s if s > 0 else alpha * (exp(s) - 1)",
        error=Error(8, lambda _s, y, alpha, _beta: np.abs(y) + abs(alpha)),
        slope="1 if s > 0 else alpha * exp(s)",
        slope_error=Error(10, of_result),
        slope_of_dst="1 if d > 0 else d + alpha",
        slope_of_dst_error=Error(4, lambda d, _y, alpha, _beta: np.abs(d) + abs(alpha) + 1),
        oracle=lambda torch, s, alpha, _beta: torch.nn.functional.elu(s, alpha),
        inverse=lambda torch, d, alpha, _beta: torch.where(
            d > 0, d, torch.log1p(d / alpha) if alpha else d - 1
        ),
        defaults=(1.0,),
        probes=_SLOPES,
        variant_rule=_NO_NEGATIVE_SLOPE,
        corners=_at_zero,
    ),
    "exp": EltwiseAlgorithm(
        formula="exp(s)",
        error=Error(8, of_result),
        slope="exp(s)",
        slope_error=Error(10, of_result),
        slope_of_dst="d",
        slope_of_dst_error=Error(2, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.exp(s),
        inverse=lambda torch, d, _alpha, _beta: torch.log(d),
    ),
    "gelu_erf": EltwiseAlgorithm(
        formula="s / 2 * (1 + erf(s / sqrt(2)))",
        error=Error(32, of_argument),
        slope="(1 + erf(s / sqrt(2))) / 2 + s * exp(-s * s / 2) / sqrt(2 * pi)",
        slope_error=Error(64, of_one),
        oracle=lambda torch, s, _alpha, _beta: torch.nn.functional.gelu(s),
    ),
    "gelu_tanh": EltwiseAlgorithm(
        formula=f"s / 2 * (1 + {_GATE})",
        error=Error(32, of_argument),
        slope=f"(1 + {_GATE}) / 2"
        f" + s / 2 * (1 - {_GATE}**2) * sqrt(2 / pi) * (1 + 0.134145 * s**2)",
        slope_error=Error(64, of_one),
        oracle=lambda torch, s, _a, _b: torch.nn.functional.gelu(s, approximate="tanh"),
    ),
    "hardsigmoid": EltwiseAlgorithm(
        formula="max(0, min(1, alpha * s + beta))",
        error=Error(4, lambda s, _y, _alpha, beta: np.full_like(s, 1 + 2 * abs(beta))),
        slope="alpha if 0 < alpha * s + beta < 1 else 0",
        slope_error=Error(2, of_result),
        oracle=lambda torch, s, alpha, beta: _ramp(torch, alpha * s + beta),
        defaults=(1 / 6, 0.5),
        probes=_RAMPS,
        corners=_at_ramp_ends,
    ),
    "hardswish": EltwiseAlgorithm(
        formula="s * max(0, min(1, alpha * s + beta))",
        error=Error(4, lambda s, _y, _alpha, beta: np.abs(s) * (1 + 2 * abs(beta))),
        slope="1 if alpha * s + beta >= 1 else 2 * alpha * s + beta if alpha * s + beta > 0 else 0",
        slope_error=Error(4, lambda s, _y, _alpha, beta: np.full_like(s, 2 + 3 * abs(beta))),
        oracle=lambda torch, s, alpha, beta: s * _ramp(torch, alpha * s + beta),
        defaults=(1 / 6, 0.5),
        probes=_RAMPS,
        corners=_at_ramp_ends,
    ),
    "linear": EltwiseAlgorithm(
        formula="alpha * s + beta",
        error=Error(2, lambda s, _y, alpha, beta: np.abs(alpha * s) + abs(beta)),
        slope="alpha",
        slope_error=Error(2, of_result),
        oracle=lambda _torch, s, alpha, beta: alpha * s + beta,
        defaults=None,
        probes=(
            (2.0, -3.0),
            (-2.5, 1.0),
            (-2.5, 0.0),
            (0.0, 0.0),
            (0.0, 1.0),
            (1.0, 0.0),
            (1.0, 1.0),
        ),
        keeps_integers=True,
    ),
    "log": EltwiseAlgorithm(
        formula="log(s)",
        error=Error(8, of_result),
        slope="1 / s",
        slope_error=Error(6, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.log(s),
        is_positive=True,
    ),
    "logistic": EltwiseAlgorithm(
        formula="1 / (1 + exp(-s))",
        error=Error(16, of_result),
        slope="exp(-s) / (1 + exp(-s))**2",
        slope_error=Error(16, of_result),
        slope_of_dst="d * (1 - d)",
        slope_of_dst_error=Error(6, lambda d, _y, _a, _b: np.abs(d) * (1 + np.abs(d))),
        oracle=lambda torch, s, _alpha, _beta: torch.sigmoid(s),
        inverse=lambda torch, d, _alpha, _beta: torch.logit(d),
    ),
    "mish": EltwiseAlgorithm(
        formula=f"s * {_SOFTPLUS}",
        error=Error(32, of_result),
        slope=f"{_SOFTPLUS} + s * (1 - {_SOFTPLUS}**2) / (1 + exp(-s))",
        slope_error=Error(64, of_one),
        oracle=lambda torch, s, _alpha, _beta: torch.nn.functional.mish(s),
    ),
    "pow": EltwiseAlgorithm(
        formula="alpha * s**beta",
        error=Error(POWER, lambda s, y, _alpha, beta: _of_logarithm(y, beta, s)),
        slope="alpha * beta * s**(beta - 1) if beta else 0",
        slope_error=Error(POWER + 4, lambda s, y, _alpha, beta: _of_logarithm(y, beta - 1, s)),
        oracle=_power,
        defaults=None,
        probes=_POWERS,
        is_positive=True,
    ),
    "relu": EltwiseAlgorithm(
        formula="s if s > 0 else alpha * s",
        error=Error(2, of_result),
        slope="1 if s > 0 else alpha",
        slope_error=Error(2, of_result),
        slope_of_dst="1 if d > 0 else alpha",
        slope_of_dst_error=Error(2, of_result),
        oracle=lambda torch, s, alpha, _beta: (
            torch.nn.functional.leaky_relu(s, alpha) if alpha else torch.relu(s)
        ),
        inverse=lambda torch, d, alpha, _beta: torch.where(d > 0, d, d / alpha if alpha else d - 1),
        defaults=(0.0,),
        probes=_SLOPES,
        variant_rule=_NO_NEGATIVE_SLOPE,
        corners=_at_zero,
        keeps_integers=True,
    ),
    "round": EltwiseAlgorithm(
        formula="round(s)",  # ties to even
        error=Error(0, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.round(s),
        keeps_integers=True,
    ),
    "soft_relu": EltwiseAlgorithm(
        formula="log(1 + exp(alpha * s)) / alpha",
        error=Error(16, _of_exponent),
        slope="1 / (1 + exp(-alpha * s))",
        slope_error=Error(16, _of_exponent),
        oracle=lambda torch, s, alpha, _beta: (
            torch.logaddexp(s * alpha, torch.zeros_like(s)) / alpha
        ),
        defaults=(1.0,),
        probes=_RATES,
        rule=("alpha != 0, as in log(1 + exp(alpha * s)) / alpha", lambda alpha, _: alpha != 0),
    ),
    "sqrt": EltwiseAlgorithm(
        formula="sqrt(s)",
        error=Error(6, of_result),
        slope="1 / (2 * sqrt(s))",
        slope_error=Error(10, of_result),
        slope_of_dst="1 / (2 * d)",
        slope_of_dst_error=Error(8, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.sqrt(s),
        inverse=lambda _torch, d, _alpha, _beta: d * d,
        is_positive=True,
    ),
    "square": EltwiseAlgorithm(
        formula="s * s",
        error=Error(2, of_result),
        slope="2 * s",
        slope_error=Error(4, of_result),
        oracle=lambda torch, s, _alpha, _beta: torch.square(s),
        keeps_integers=True,
    ),
    "swish": EltwiseAlgorithm(
        formula="s / (1 + exp(-alpha * s))",
        error=Error(16, _of_exponent),
        slope="1 / (1 + exp(-alpha * s)) + alpha * s * exp(-alpha * s) / (1 + exp(-alpha * s))**2",
        slope_error=Error(32, of_one),
        oracle=lambda torch, s, alpha, _beta: s * torch.sigmoid(alpha * s),
        defaults=(1.0,),
        probes=(*_RATES, (0.0, 0.0)),
    ),
    "tanh": EltwiseAlgorithm(
        formula="tanh(s)",
        error=Error(16, of_result),
        slope="1 - tanh(s)**2",
        slope_error=Error(16, of_result),
        slope_of_dst="1 - d * d",
        slope_of_dst_error=Error(6, lambda d, _y, _a, _b: 1 + d * d),
        oracle=lambda torch, s, _alpha, _beta: torch.tanh(s),
        inverse=lambda torch, d, _alpha, _beta: torch.atanh(d),
    ),
}


def eltwise_names(*, gradient: bool = False) -> list[str]:
    """Return the names of all functions; with `gradient`, of all algorithms with a gradient,
    variants included.
    """
    if not gradient:
        return list(ELTWISE)
    variants = [name + USE_DST for name, record in ELTWISE.items() if record.slope_of_dst]
    return [name for name, record in ELTWISE.items() if record.slope] + variants


def check_eltwise(what: str, algorithm: object, alpha: object, beta: object) -> str:
    """Return the name of the function, which is `algorithm` without the suffix `USE_DST`.

    Raises `DescriptorError` unless the algorithm exists and takes these parameters.
    """
    check_algorithm(what, algorithm, dict.fromkeys([*ELTWISE, *eltwise_names(gradient=True)]))
    check_finite(what, alpha=alpha, beta=beta)
    alpha, beta = float(alpha), float(beta)  # type: ignore[arg-type]  # checked to be numbers
    name = str(algorithm)
    function = name.removesuffix(USE_DST)
    record = ELTWISE[function]
    for rule in (record.rule, record.variant_rule if name != function else None):
        if rule is not None and not rule[1](alpha, beta):
            raise DescriptorError(f"{what}: {name} needs {rule[0]}; got alpha {alpha}, beta {beta}")
    return function
