"""Compares the matched calls of two runs.

Each call of the second run is repeated on the inputs of the first run. If the result is within the
bound of this one call, the difference between the runs is caused by different inputs: it is
accumulated rounding. Otherwise the call is wrong. The results of the first run are checked, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dnncore.comparison.compare import compare
from dnncore.crosschecking.call import Call
from dnncore.crosschecking.divergence import divergence_of
from dnncore.crosschecking.hidden import Hidden
from dnncore.crosschecking.judgement import Difference, are_equal, judge
from dnncore.crosschecking.repetition import REFERENCE, Repetition
from dnncore.crosschecking.report import counted
from dnncore.crosschecking.two_runs.matching import Match, match
from dnncore.crosschecking.two_runs.recording import CallRecord, Recorder, Recording
from dnncore.errors import describe
from dnncore.interrupts import pass_on
from dnncore.ops import Reorder

__all__ = ["Outcome", "compared"]

MOST_LISTED = 20


@dataclass
class Outcome:
    """The comparison of two runs of a program. `str` returns the text.

    accumulated: (norm-wise difference, call of the second run) of calls that differ only because
        their inputs differ.
    faults: texts about wrong calls.
    """

    engines: tuple[str, str]
    counts: tuple[int, int]
    match: Match
    equal: int = 0
    accumulated: list[tuple[float, CallRecord]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        first, second = self.engines
        yield (
            f"crosscheck of {first} ({counted(self.counts[0], 'call')}) and {second}"
            f" ({counted(self.counts[1], 'call')}): {len(self.match.pairs)} matched,"
            f" {self.equal} equal, {len(self.accumulated)} differ by accumulated rounding,"
            f" {counted(len(self.faults), 'fault')}"
        )
        if first == second:
            yield f"  both runs used {first}; the script must open its engine with dnncore.engine()"
        if self.match.departure:
            yield f"  the order departs: {self.match.departure}"
            yield from _alone(first, self.match.only_first)
            yield from _alone(second, self.match.only_second)
        if self.accumulated:
            error, call = max(self.accumulated, key=lambda pair: pair[0])
            yield (
                f"  accumulated rounding: norm-wise difference at most {error:.2g}, in call"
                f" {call.number} ({call.kind} by {call.implementation}); each call is within its"
                " bound on the same inputs"
            )
        for reason in self.left_out[:MOST_LISTED]:
            yield f"  not compared: {reason}"
        if len(self.left_out) > MOST_LISTED:
            yield f"  and {len(self.left_out) - MOST_LISTED} more that were not compared"
        yield from self.faults[:MOST_LISTED]


def _alone(engine: str, calls: list[CallRecord]) -> Iterator[str]:
    reorders = sum(call.kind == Reorder.KIND for call in calls)
    if calls:
        yield f"  only on {engine}: {counted(len(calls), 'call')}, {reorders} of them reorders"


def compared(first: Recording, recorder: Recorder, folder: Path) -> Outcome:
    """Compare the run of this process, recorded by `recorder`, with a first run.

    folder: where wrong calls of the second run are saved.
    """
    second = recorder.recording
    found = match(first.calls, second.calls)
    engines = (_engines(first), _engines(second))
    outcome = Outcome(engines, (len(first.calls), len(second.calls)), found)
    seen: set[tuple[str, str]] = set()
    for a, b in found.pairs:
        if a.reason or b.reason:
            outcome.left_out.append(f"call {b.number}, {b.kind}: {a.reason or b.reason}")
            continue
        try:
            _compare_pair(outcome, first, recorder, (a, b), folder, seen)
        except Exception as error:
            pass_on(error)
            outcome.left_out.append(f"call {b.number}, {b.kind}: {describe(error)}")
    return outcome


def _wrong_in_first(call: CallRecord, difference: Difference) -> str:
    return (
        f"crosscheck: call {call.number}: {difference.argument} of {call.implementation} on"
        f" {call.engine} is wrong: {difference.comparison}\n  {call.signature}"
    )


def _engines(recording: Recording) -> str:
    return ", ".join(dict.fromkeys(call.engine for call in recording.calls)) or "no engine"


def _compare_pair(
    outcome: Outcome,
    first: Recording,
    recorder: Recorder,
    pair: tuple[CallRecord, CallRecord],
    folder: Path,
    seen: set[tuple[str, str]],
) -> None:
    a, b = pair
    inputs, outputs = first.values(a.number)
    others, results = recorder.recording.values(b.number)
    common = {name: results[name] for name in results if name in outputs}
    if are_equal(common, outputs) and are_equal(others, inputs):
        outcome.equal += 1
        return
    pd = recorder.descriptors[b.number - 1]
    call = Call(b.number, pd, {}, inputs, alias=recorder.aliases[b.number])
    call.outputs.update(outputs)
    if wrong := judge(call, claims=a.claims).differences:
        outcome.faults += [_wrong_in_first(a, difference) for difference in wrong]
        return
    call.outputs.clear()
    call.outputs.update(Repetition(pd, Hidden(), call.alias).outputs(call))
    judgement = judge(call)
    if judgement.differences:
        key = a.signature, b.implementation
        divergence = divergence_of(
            call, judgement, None, None, REFERENCE, None if key in seen else folder
        )
        seen.add(key)
        outcome.faults.append(str(divergence))
        return
    error = max((compare(common[name], outputs[name]).error for name in common), default=0.0)
    outcome.accumulated.append((error, b))
