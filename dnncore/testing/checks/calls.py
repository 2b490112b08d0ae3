"""Checks of kinds of calls: bound, in sequences, in place, with the user's scratchpad."""

from __future__ import annotations

from dataclasses import replace

from dnncore.attributes import ScratchpadMode
from dnncore.execution.sequence import Sequence
from dnncore.testing.checks.case import FILLS, Trial

__all__ = ["bound", "in_place", "scratchpad", "sequence"]


def bound(trial: Trial) -> None:
    """Bound calls give the results of `execute`, for the present values of their memories."""
    _call_bound(trial, as_sequence=False)


def sequence(trial: Trial) -> None:
    """A `Sequence` of bound calls gives the results of `execute`."""
    _call_bound(trial, as_sequence=True)


def _call_bound(trial: Trial, *, as_sequence: bool) -> None:
    given = {fill: trial.arguments(trial.case.round(fill).inputs) for fill in FILLS}
    calls = [trial.primitive.bind(**arguments.memories) for arguments in given.values()]
    stream = trial.case.engine.stream()
    for (
        call
    ) in calls:  # resolves the calls; other values reveal data that is wrongly shared or kept
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
    """The output may be the memory of an input with the same format, if the operation permits."""
    descs = trial.pd.descs
    for source, target in trial.pd.op.IN_PLACE:
        if descs.get(source) is None or descs[source] != descs.get(target):
            continue
        for fill in FILLS:
            # With a sum in the chain the old value of dst is that of the input.
            alias = (source, target) if trial.case.attr.reads_dst else None
            given = trial.case.round(fill, alias=alias)
            apart = trial.execute(given.inputs) if alias else trial.outputs(fill)
            outputs = trial.execute(given.inputs, in_place=(source, target))
            trial.agree(given, outputs, apart, f"{target} in place of {source}, {fill}")


def scratchpad(trial: Trial) -> None:
    """The results with a user's scratchpad, filled with garbage, are the same."""
    attr = trial.case.attr
    other: ScratchpadMode = "library" if attr.scratchpad == "user" else "user"
    pd = trial.case.sibling(trial, replace(attr, scratchpad=other))
    if pd is not None:
        outputs = trial.execute(trial.case.round("random").inputs, pd=pd)
        trial.verify("random", outputs, f"scratchpad={other}")
