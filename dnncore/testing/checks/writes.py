"""Checks of bytes: only outputs are written, and padding is zero.

They run last, because they examine all executions of a trial.
"""

from __future__ import annotations

from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["guards", "inputs", "padding"]


def guards(trial: Trial) -> None:
    """No byte around a tensor, or between its elements, is written."""
    _nothing_found(trial, "guards")


def inputs(trial: Trial) -> None:
    """No input is written."""
    _nothing_found(trial, "inputs")


def padding(trial: Trial) -> None:
    """The padding of blocked outputs is zero."""
    _nothing_found(trial, "padding")


def _nothing_found(trial: Trial, check: str) -> None:
    for fill in USUAL_FILLS:
        trial.outputs(fill)
    messages = dict.fromkeys(f.message for f in trial.findings if f.check == check)
    if messages:
        raise CheckFailed("; ".join(messages))
