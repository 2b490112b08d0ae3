"""The reduction algorithms: y = f(all elements s along the reduced dims)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnncore.algorithms.rounding import POWER
from dnncore.algorithms.rules import check_finite
from dnncore.errors import DescriptorError

__all__ = ["REDUCTION", "ReductionAlgorithm", "check_power"]


@dataclass(frozen=True, kw_only=True)
class ReductionAlgorithm:
    """One algorithm.

    formula: text; `sum`, `max` and similar functions apply to the elements s.
    is_sum: whether the algorithm adds up elements or their powers.
    roundings: a function of the number of elements. It returns the error in addition to the error
        of the sum. The unit is one rounding of the result for absolute values.
    oracle: torch's result, as oracle(torch, src, dims, p, eps).
    is_norm: whether the algorithm reads p and eps.
    keeps_integers: whether whole numbers give whole numbers.
    is_linear: whether f(a + b) is f(a) + f(b).
    """

    formula: str
    roundings: Callable[[float], float] = lambda _terms: 0
    is_sum: bool = False
    oracle: Callable[[Any, Any, tuple[int, ...], float, float], Any]
    is_norm: bool = False
    keeps_integers: bool = False
    is_linear: bool = False


def _product(_torch: Any, src: Any, dims: tuple[int, ...], _p: float, _eps: float) -> Any:
    for dim in dims:
        src = src.prod(dim, keepdim=True)
    return src


def _powers(src: Any, dims: tuple[int, ...], p: float) -> Any:
    return (src.abs() ** p).sum(dims, keepdim=True)


def _norm(formula: str, oracle: Callable[..., Any]) -> ReductionAlgorithm:
    """Return a norm. It computes a power of each term, and at most one power of their sum."""
    return ReductionAlgorithm(
        formula=formula,
        is_sum=True,
        roundings=lambda _terms: 2 * POWER,
        oracle=oracle,
        is_norm=True,
    )


# NaN among the elements gives NaN.
REDUCTION = {
    "max": ReductionAlgorithm(
        formula="max(s)",
        oracle=lambda torch, src, dims, _p, _eps: torch.amax(src, dims, keepdim=True),
        keeps_integers=True,
    ),
    "min": ReductionAlgorithm(
        formula="min(s)",
        oracle=lambda torch, src, dims, _p, _eps: torch.amin(src, dims, keepdim=True),
        keeps_integers=True,
    ),
    "sum": ReductionAlgorithm(
        formula="sum(s)",
        is_sum=True,
        oracle=lambda torch, src, dims, _p, _eps: torch.sum(src, dims, keepdim=True),
        keeps_integers=True,
        is_linear=True,
    ),
    "mul": ReductionAlgorithm(
        formula="prod(s)", roundings=lambda terms: terms, oracle=_product
    ),  # products of integers often exceed 2**24
    "mean": ReductionAlgorithm(
        formula="sum(s) / count",
        is_sum=True,
        oracle=lambda torch, src, dims, _p, _eps: torch.mean(src, dims, keepdim=True),
        is_linear=True,
    ),
    "norm_lp_max": _norm(
        "max(sum(abs(s)**p), eps)**(1 / p)",
        lambda _, src, dims, p, eps: _powers(src, dims, p).clamp(min=eps) ** (1 / p),
    ),
    "norm_lp_sum": _norm(
        "(sum(abs(s)**p) + eps)**(1 / p)",
        lambda _, src, dims, p, eps: (_powers(src, dims, p) + eps) ** (1 / p),
    ),
    "norm_lp_power_p_max": _norm(
        "max(sum(abs(s)**p), eps)",
        lambda _, src, dims, p, eps: _powers(src, dims, p).clamp(min=eps),
    ),
    "norm_lp_power_p_sum": _norm(
        "sum(abs(s)**p) + eps", lambda _, src, dims, p, eps: _powers(src, dims, p) + eps
    ),
}


def check_power(what: str, p: float) -> None:
    """Raise `DescriptorError` unless p is the power of a norm: a finite number, at least 1."""
    check_finite(what, p=p)
    if p < 1:
        raise DescriptorError(f"{what}: p must be at least 1; got {p}")
