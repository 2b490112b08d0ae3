"""Check of knobs: their values change no result."""

from __future__ import annotations

import random

from dnncore.knobs import KnobValue, write_knobs
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["knobs"]

MEASURED = 2.0  # allowed ratio of two estimates, because peaks may be measured again between them


def knobs(trial: Trial) -> None:
    """The defaults are the acceptance itself, and the problem is correct with other drawn values.

    The draw changes one knob after the other, and keeps values that the implementation accepts.
    Each case has its own draw.
    """
    if not trial.pd.knobs:
        return
    defaults = {knob.name: knob.default for knob in trial.pd.knobs}
    same = _chosen(trial, defaults)
    if same is None:
        raise CheckFailed(f"it refuses the defaults of its knobs, {write_knobs(defaults)}")
    for name in ("op", "seconds", "scratchpad_bytes", "notes", "detail", "deterministic", "exact"):
        own, got = getattr(trial.pd, name), getattr(same, name)
        if own != got and not (name == "seconds" and own / MEASURED < got < own * MEASURED):
            raise CheckFailed(
                f"the defaults of its knobs, {write_knobs(defaults)}, must mean the acceptance"
                f" itself; {name} is {got} with them and {own} without"
            )
    drawn = _drawn(trial)
    if drawn is None:
        return
    for fill in USUAL_FILLS:
        given = trial.case.round(fill)
        wrong = trial.wrong(given, trial.execute(given.inputs, pd=drawn))
        if wrong and not trial.wrong(given, trial.outputs(fill)):
            values = write_knobs(drawn.requested_knobs)
            raise CheckFailed(f"with --knobs={values}, {fill}: {wrong}")


def _drawn(trial: Trial) -> PrimitiveDesc | None:
    """Return the implementation with drawn values; None if it refuses all of them."""
    draw = random.Random(trial.case.seed)  # noqa: S311 - reproducible
    values: dict[str, KnobValue] = {}
    found = None
    for knob in draw.sample(trial.pd.knobs, len(trial.pd.knobs)):
        others = [value for value in knob.values if value != knob.default]
        if not others:
            continue
        tried = {**values, knob.name: draw.choice(others)}
        pd = _chosen(trial, tried)
        if pd is not None:
            found, values = pd, tried
    return found


def _chosen(trial: Trial, values: dict[str, KnobValue]) -> PrimitiveDesc | None:
    return trial.case.sibling(trial, trial.case.attr, knobs=values)
