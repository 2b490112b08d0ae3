"""Judgement of precision: the claimed error factor, and the errors of results with few elements."""

from __future__ import annotations

from dnncore.comparison.error_bounds import believed_factor, error_factor
from dnncore.comparison.statistics import ENOUGH, LEAST, Errors, judge, pooled
from dnncore.problem import driver_of
from dnncore.testing.checks.case import Trial

__all__ = ["false_claim", "lost_precision"]

MOST_ROUNDS = 64
USUAL_ROUNDS = 8  # more rounds only for outputs that cannot be judged otherwise


def false_claim(trial: Trial) -> str:
    """Describe an error factor that the algorithm does not permit; "" if it permits it."""
    claimed, most = trial.pd.error_factor, error_factor(trial.pd.op)
    if claimed <= most:
        return ""
    return (
        f"claims the error factor {claimed:.3g}; the algorithm of the operation permits {most:.3g}"
    )


def lost_precision(trial: Trial) -> dict[str, str]:
    """Describe lost precision of outputs of products that have few elements, by name.

    Further rounds are executed until the errors of `ENOUGH` elements are known. After
    `USUAL_ROUNDS` rounds, `LEAST` elements suffice. Outputs with enough elements are
    judged when their values are compared.
    """
    if not driver_of(type(trial.pd.op)).has_products:
        return {}
    parts: dict[str, list[Errors]] = {}
    for draw in range(MOST_ROUNDS):
        for name, errors in _errors(trial, draw).items():
            parts.setdefault(name, []).append(errors)
        wanted = ENOUGH if draw + 1 < USUAL_ROUNDS else LEAST
        if not any(0 < _count(found) < wanted for found in parts.values()):
            break
    found = {name: judge(pooled(errors)) for name, errors in parts.items() if len(errors) > 1}
    return {name: text for name, text in found.items() if text}


def _errors(trial: Trial, draw: int) -> dict[str, Errors]:
    given = trial.case.round("random", draw=draw)
    if draw:
        outputs = trial.execute(given.inputs, in_place=trial.in_place)
    else:
        outputs = trial.outputs("random")
    factor = believed_factor(trial.pd)
    found = {
        name: right.errors(outputs[name], factor)
        for name, right in (trial.expected(given) or {}).items()
    }
    return {name: errors for name, errors in found.items() if errors is not None}


def _count(parts: list[Errors]) -> int:
    return sum(errors.count for errors in parts)
