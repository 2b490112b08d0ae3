"""Measures a problem: verifies all contestants, and times the fastest one of each side in turn."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants.by_dnncore import copying
from benchmarks.contestants.contestant import (
    SIDES,
    Contestant,
    LeftOut,
    Terms,
    is_arithmetic,
    side,
)
from benchmarks.measuring.checkout import engine, runs_on_cores
from benchmarks.measuring.cores import thread_count
from benchmarks.measuring.sampling import SAMPLES, in_turn, sampled
from benchmarks.measuring.verification import Judge, Named, impossible
from dnncore.problem import Problem

__all__ = ["CHOOSING", "Outcome", "measure"]

CHOOSING = 3  # samples of each contestant to find the fastest of a side
QUEUED = 20  # least number of computations per sample on a device

NO_TERMS = Terms()

Outcome = dict[str, Any]
"""`problem`, and the figures of a row, or `left_out` with a reason, or `wrong` with the difference.

`refused`: whether dnncore left the problem out.
`absent`: the peers that left the problem out, with their reasons.
`peer_wrong`: the wrong results of peers, which do not count.
`verified`: the number of draws of the inputs for which results were compared with float64.
`untuned_...`: figures without the device's tuning table, if the table changes the implementation.
"""


def measure(
    problem: Problem, peers: Sequence[str], terms: Terms = NO_TERMS, *, samples: int = SAMPLES
) -> Outcome:
    """Measure one problem.

    One pass finds the fastest contestant of each side, and another pass measures it. Every result
    is verified. A contestant with a wrong result does not count. Then the peers' other contestants
    count. If all contestants of the peers are wrong, the sides named in `Maker.otherwise` replace
    them.
    """
    outcome: Outcome = {"problem": str(problem)}
    try:
        ours = [("ours", contestant) for contestant in side("ours")(problem, terms)]
    except LeftOut as reason:
        return outcome | {"left_out": f"dnncore: {reason}", "refused": True}
    theirs, absent = _of_peers(problem, peers, terms)
    if absent:
        outcome["absent"] = absent
    if not theirs:
        return outcome | {"left_out": absent}
    judge = Judge(problem)
    try:
        judge.first([*ours, *theirs])
    except LeftOut as reason:
        return outcome | {"left_out": f"float64: {reason}"}
    return outcome | _contest(judge, ours, theirs, terms, samples)


def _contest(
    judge: Judge, ours: list[Named], theirs: list[Named], terms: Terms, samples: int
) -> Outcome:
    """The figures of the first race in which all contestants are right."""
    problem, outcome = judge.problem, Outcome()
    untuned = _untuned(judge, terms)
    for draw in itertools.count(1):
        if judge.reasons(ours):
            everyone = [*ours, *theirs]
            return outcome | {"wrong": judge.reasons(everyone), "error": _error(judge, everyone)}
        right = judge.right(theirs)
        if judge.reasons(theirs):
            outcome["peer_wrong"] = judge.reasons(theirs)
        if not right:
            more = _replacements(judge, theirs, terms)
            if not more:
                return outcome | {"left_out": outcome["peer_wrong"]}
            theirs += more
            continue
        best, second = _strongest(ours, right, terms)
        runners = [best, second, *untuned]
        *race, copy = _race(judge, runners, terms, samples, draw)
        judge.again(runners, draw)
        queued = not engine(terms.engine).is_host
        doubts = [impossible(problem, times, _cores(terms), queued=queued) for times in race]
        for named, reason in zip(runners, doubts, strict=True):
            if reason:
                judge.doubt(named, reason)
        if not any(doubts) and not judge.reasons(runners):
            outcome["error"] = _error(judge, [*ours, *right])
            return outcome | _row(judge, runners, [times.median for times in race], copy)
    raise AssertionError("the loop ends with a return")


def _row(judge: Judge, runners: list[Named], seconds: list[float], copy: float | None) -> Outcome:
    """The figures of dnncore, of the peer and, if measured, of dnncore without a tuning table."""
    (_, best), (peer, second), *rest = runners
    row = {
        "impl": best.name,
        "peer": peer,
        "peer_impl": second.name,
        "ratio": seconds[1] / seconds[0],
        "share": copy / seconds[0] if copy else None,
        "verified": 2,
    }
    sides = ("ours", "peer", "untuned")
    for name, (_, contestant), time in zip(sides, runners, seconds, strict=False):
        row |= _figures(name, judge, time, contestant)
    if rest:
        row |= {"untuned_impl": rest[0][1].name, "untuned_ratio": seconds[1] / seconds[2]}
    return row


def _error(judge: Judge, named: list[Named]) -> float:
    return max(judge.errors[id(contestant)] for _, contestant in named)


def _figures(side: str, judge: Judge, seconds: float, contestant: Contestant) -> Outcome:
    return {
        f"{side}_ms": seconds * 1e3,
        f"{side}_gflops": judge.problem.op.flops / seconds / 1e9,
        f"{side}_gbps": judge.problem.op.bytes / seconds / 1e9,
        f"{side}_scratchpad": contestant.scratchpad,
        f"{side}_error": judge.errors[id(contestant)],
    }


# -- contestants -----------------------------------------------------------------------------------


def _of_peers(problem: Problem, peers: Sequence[str], terms: Terms) -> tuple[list[Named], str]:
    """The contestants of all peers, and the reasons of peers that have no contestant."""
    found: list[Named] = []
    reasons = []
    for peer in peers:
        try:
            found += [(peer, contestant) for contestant in side(peer)(problem, terms)]
        except LeftOut as reason:
            reasons.append(f"{peer}: {reason}")
    return found, "; ".join(reasons)


def _replacements(judge: Judge, theirs: list[Named], terms: Terms) -> list[Named]:
    """The verified contestants of sides that replace the present ones; see `Maker.otherwise`."""
    known = [name for name, _ in theirs]
    names = {SIDES[name].otherwise for name in known if name in SIDES} - {"", *known}
    found, _ = _of_peers(judge.problem, sorted(names), terms)
    judge.first(found)
    return found


def _strongest(ours: list[Named], theirs: list[Named], terms: Terms) -> list[Named]:
    """The fastest contestant of each side. All contestants are sampled in turn."""
    sides = ours, theirs
    every = [*ours, *theirs]
    if len(every) == len(sides):
        return every
    how = {**_how(terms), "least": 1}
    times = in_turn([contestant.repeat for _, contestant in every], CHOOSING, **how)
    seconds = {id(named[1]): time for named, time in zip(every, times, strict=True)}
    return [min(found, key=lambda named: seconds[id(named[1])]) for found in sides]


def _untuned(judge: Judge, terms: Terms) -> list[Named]:
    """dnncore's verified contestant without the device's tuning table, if the table changes it."""
    if engine(terms.engine).is_host:
        return []
    found, _ = _of_peers(judge.problem, ["untuned"], terms)
    judge.first(found)
    return judge.right(found)


def _race(judge: Judge, runners: list[Named], terms: Terms, samples: int, draw: int) -> list[Any]:
    """The times of contestants, and the seconds of a copy if the problem is bound by memory.

    Just before the last sample, the inputs get the values of `draw`.
    """
    calls = [contestant.repeat for _, contestant in runners]
    refills = [functools.partial(judge.refill, named, draw) for named in runners]
    is_copied = _is_copy_bound(judge.problem)
    if is_copied:
        moved = max(runners[0][1].nbytes, int(judge.problem.op.bytes))
        calls.append(copying(moved, terms.engine))
        refills.append(lambda: None)
    race = sampled(calls, samples, refills=refills, **_how(terms))
    return [*race[:-1], race[-1].median] if is_copied else [*race, None]


def _how(terms: Terms) -> dict[str, Any]:
    """Settings of samples: many queued calls without pauses, except on the cores of a CPU."""
    return {} if runs_on_cores(terms.engine) else {"pause": 0.0, "least": QUEUED}


def _cores(terms: Terms) -> int:
    return thread_count() if runs_on_cores(terms.engine) else 0


def _is_copy_bound(problem: Problem) -> bool:
    """Whether a copy of the same number of bytes bounds the problem's time."""
    return not is_arithmetic(problem) and problem.op.bytes > 0
