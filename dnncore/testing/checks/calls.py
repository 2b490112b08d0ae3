"""Checks of ways to call: bound, in sequences, in place, with the user's scratchpad."""

from __future__ import annotations

from dataclasses import replace

from dnncore.attributes import ScratchpadMode
from dnncore.execution.sequence import Sequence
from dnncore.testing.checks.case import FILLS, Trial

__all__ = ["bound", "in_place", "scratchpad", "sequence"]


def bound(trial: Trial) -> None:
    """Bound calls that live side by side give what `execute` gives, of what their memories hold
    when they are called.
    """
    _call_bound(trial, as_sequence=False)


def sequence(trial: Trial) -> None:
    """A `Sequence` of bound calls gives what `execute` gives."""
    _call_bound(trial, as_sequence=True)


def _call_bound(trial: Trial, *, as_sequence: bool) -> None:
    given = {fill: trial.arguments(trial.case.round(fill).inputs) for fill in FILLS}
    calls = [trial.primitive.bind(**arguments.memories) for arguments in given.values()]
    stream = trial.case.engine.stream()
    for call in calls:  # which resolves them; what they share or kept shows with other values
        call(stream).wait()
    first, second = given.values()
    first.exchange(second)
    for arguments in given.values():
        arguments.restore()
    if as_sequence:
        Sequence(calls)(stream).wait()
    else:
        for event in [call(stream) for call in calls]:
            event.wait()
    for fill, arguments in zip(FILLS, (second, first), strict=True):
        what = "in a sequence" if as_sequence else "bound"
        trial.verify(fill, trial.finish(arguments), what)


def in_place(trial: Trial) -> None:
    """The output may be the memory of an input, where the operation says so and formats agree."""
    descs = trial.pd.descs
    for source, target in trial.pd.op.IN_PLACE:
        if descs.get(source) is None or descs[source] != descs.get(target):
            continue
        for fill in FILLS:
            # With a sum in the chain the old value of dst is the input's.
            alias = (source, target) if trial.case.attr.reads_dst else None
            given = trial.case.round(fill, alias=alias)
            apart = trial.execute(given.inputs) if alias else trial.outputs(fill)
            outputs = trial.execute(given.inputs, in_place=(source, target))
            trial.agree(given, outputs, apart, f"{target} in place of {source}, {fill}")


def scratchpad(trial: Trial) -> None:
    """A scratchpad of the user's, full of garbage, serves as well as the stream's."""
    attr = trial.case.attr
    other: ScratchpadMode = "library" if attr.scratchpad == "user" else "user"
    pd = trial.case.sibling(trial, replace(attr, scratchpad=other))
    if pd is not None:
        outputs = trial.execute(trial.case.round("random").inputs, pd=pd)
        trial.verify("random", outputs, f"scratchpad={other}")
