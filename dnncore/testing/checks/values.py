"""Checks of values: results are correct for integers and random numbers, and repeatable."""

from __future__ import annotations

from dnncore.testing.checks.case import FillName, Trial, equal, unequal
from dnncore.testing.checks.results import CheckFailed

__all__ = ["integers", "random", "repeatable"]


def integers(trial: Trial) -> None:
    """Results for integers are correct, and exact if the implementation claims this."""
    _right(trial, "integers")


def random(trial: Trial) -> None:
    """Errors for random numbers are within the error bound times the claimed error factor."""
    _right(trial, "random")


def _right(trial: Trial, fill: FillName) -> None:
    outputs = trial.outputs(fill)
    wrong = trial.wrong(trial.case.round(fill), outputs)
    if wrong:
        raise CheckFailed(wrong)


def repeatable(trial: Trial) -> None:
    """A second execution has bit-equal results if the implementation claims determinism."""
    if not trial.pd.deterministic:
        return
    first = trial.outputs("random")
    second = trial.execute(trial.case.round("random").inputs)
    if not equal(first, second):
        raise CheckFailed(
            f"claims to be deterministic, but a second run differs: {unequal(first, second)}"
        )
