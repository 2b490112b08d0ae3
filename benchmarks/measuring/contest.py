"""One problem measured: all contestants verified, the strongest of each side timed in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contestants.by_dnncore import copying
from benchmarks.contestants.contestant import Array, Contestant, LeftOut, Terms, is_arithmetic, side
from benchmarks.measuring.checkout import engine, runs_on_cores
from benchmarks.measuring.sampling import SAMPLES, in_turn
from dnncore.problem import Problem

__all__ = ["CHOOSING", "Outcome", "allowed_error", "measure", "norm_wise_error"]

CHOOSING = 3  # samples of each contestant where a side has several
QUEUED = 20  # computations of a sample on a device, at least
EPSILONS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
EPSILON = EPSILONS["f32"]
ELEMENTARY = 1e-5  # of functions that the libraries approximate, relative to the largest result

NO_TERMS = Terms()

Outcome = dict[str, Any]
"""`problem`, and the figures of a row; or `left_out`, the reason; or `wrong`, what differs.

`refused`: whether it is dnncore that has left it out.
"""


@dataclass(frozen=True)
class Named:
    """A contestant of a peer."""

    peer: str
    contestant: Contestant


def measure(
    problem: Problem, peers: Sequence[str], terms: Terms = NO_TERMS, *, samples: int = SAMPLES
) -> Outcome:
    """One row.

    The strongest contestant of each side is found on one pass, and reported from another. Every
    result is compared with what is right; a wrong one has no speed. Where it is known that a peer's
    is the wrong one, its others count.
    """
    outcome: Outcome = {"problem": str(problem)}
    try:
        ours = list(side("ours")(problem, terms))
    except LeftOut as reason:
        return outcome | {"left_out": f"dnncore: {reason}", "refused": True}
    try:
        theirs = list(_of_peers(problem, peers, terms))
    except LeftOut as reason:
        return outcome | {"left_out": str(reason)}
    verdict = _against_exact if terms.exact else _against_ours
    try:
        errors, wrong = verdict(problem, ours, theirs)
    except LeftOut as reason:
        return outcome | {"left_out": f"float64: {reason}"}
    right = [named for named in theirs if id(named.contestant) not in wrong]
    if any(id(contestant) in wrong for contestant in ours):
        return outcome | {"wrong": "; ".join(wrong.values()), "error": max(errors.values())}
    counted = {id(named.contestant) for named in right} | set(map(id, ours))
    outcome["error"] = max(error for contestant, error in errors.items() if contestant in counted)
    if wrong:
        outcome["peer_wrong"] = "; ".join(wrong.values())
        if not right:
            return outcome | {"left_out": outcome["peer_wrong"]}
        theirs = right
    best, second = _strongest(ours, [named.contestant for named in theirs], terms)
    peer = next(named.peer for named in theirs if named.contestant is second)
    copy = [copying(best.nbytes, terms.engine)] if _is_copy_bound(problem, terms) else []
    calls = [best.repeat, second.repeat, *copy]
    ours_seconds, peer_seconds, *rest = in_turn(calls, samples, **_how(terms))
    return outcome | {
        "impl": best.name,
        "peer": peer,
        "peer_impl": second.name,
        "ratio": peer_seconds / ours_seconds,
        **_figures("ours", problem.op, ours_seconds, best),
        **_figures("peer", problem.op, peer_seconds, second),
        "ours_error": errors.get(id(best)),
        "peer_error": errors.get(id(second)),
        "share": rest[0] / ours_seconds if rest else None,
    }


def _how(terms: Terms) -> dict[str, Any]:
    """How samples are taken: many calls in a queue, unless cores do the work."""
    return {} if runs_on_cores(terms.engine) else {"pause": 0.0, "least": QUEUED}


def _is_copy_bound(problem: Problem, terms: Terms) -> bool:
    """Whether a device's copy of as many bytes tells how quick it could be."""
    return not engine(terms.engine).is_host and not is_arithmetic(problem)


def _figures(who: str, op: Any, seconds: float, contestant: Contestant) -> Outcome:
    return {
        f"{who}_ms": seconds * 1e3,
        f"{who}_gflops": op.flops / seconds / 1e9,
        f"{who}_gbps": op.bytes / seconds / 1e9,
        f"{who}_scratchpad": contestant.scratchpad,
    }


def _of_peers(problem: Problem, peers: Sequence[str], terms: Terms) -> Iterator[Named]:
    """The contestants of all peers; raises `LeftOut` where none of them can compute it."""
    reasons = []
    for peer in peers:
        try:
            for contestant in side(peer)(problem, terms):
                yield Named(peer, contestant)
        except LeftOut as reason:
            reasons.append(f"{peer}: {reason}")
    if len(reasons) == len(peers):
        raise LeftOut("; ".join(reasons))


def _strongest(ours: list[Contestant], theirs: list[Contestant], terms: Terms) -> list[Contestant]:
    """The quickest of each side, all of them sampled in turn; the rest are not kept."""
    sides = ours, theirs
    everyone = [*ours, *theirs]
    if len(everyone) == len(sides):
        return everyone
    how = {**_how(terms), "least": 1}
    times = in_turn([contestant.repeat for contestant in everyone], CHOOSING, **how)
    seconds = {id(contestant): time for contestant, time in zip(everyone, times, strict=True)}
    return [min(one, key=lambda contestant: seconds[id(contestant)]) for one in sides]


# -- right results ---------------------------------------------------------------------------------


Verdict = tuple[dict[int, float], dict[int, str]]
"""By a contestant's id: the error, of each that has one; what is wrong, of those too far off."""


def _against_ours(problem: Problem, ours: list[Contestant], theirs: list[Named]) -> Verdict:
    """Everyone beside our first contestant, by the largest difference, which is laid to ours."""
    first, *rest = _named(ours, theirs)
    expected = _result(first[1])
    errors, differ = {id(first[1]): 0.0}, []
    for name, contestant in rest:
        error = norm_wise_error(_result(contestant), expected)
        factor = max(first[1].error_factor, contestant.error_factor)
        if not error <= factor * allowed_error(problem.op):
            differ.append(f"{name} differs from {first[0]} by {error:.1e}")
        errors[id(contestant)] = error
    return errors, {id(first[1]): "; ".join(differ)} if differ else {}


def _against_exact(problem: Problem, ours: list[Contestant], theirs: list[Named]) -> Verdict:
    """Everyone beside float64, by the norm of the difference."""
    from benchmarks.measuring.accuracy import Exact  # imports torch

    exact = Exact(problem)
    errors, wrong = {}, {}
    for name, contestant in _named(ours, theirs):
        found = exact.errors(_result(contestant))
        allowed = allowed_error(problem.op, exact=True)
        if not found.largest <= contestant.error_factor * allowed:
            wrong[id(contestant)] = f"{name} differs from float64 by {found.largest:.1e}"
        errors[id(contestant)] = found.norm
    return errors, wrong


def _named(ours: list[Contestant], theirs: list[Named]) -> list[tuple[str, Contestant]]:
    return [(f"ours: {c.name}", c) for c in ours] + [
        (f"{named.peer}: {named.contestant.name}", named.contestant) for named in theirs
    ]


def _result(contestant: Contestant) -> Mapping[str, Array]:
    contestant.repeat(1)
    return contestant.outputs()


def norm_wise_error(got: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference over the largest value, of the outputs that both sides know.

    Infinite where one of them is not finite and the other is not the same.
    """
    return max(_error(got[name], expected[name]) for name in got.keys() & expected.keys())


def _error(got: Array, expected: Array) -> float:
    if np.array_equal(got, expected):
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    worst = float(difference.max(initial=0.0, where=~same))
    largest = float(np.abs(expected).max(initial=0.0, where=np.isfinite(expected)))
    return worst / largest if worst and largest else (math.inf if worst else 0.0)


def allowed_error(op: Any, *, exact: bool = False) -> float:
    """How far results may be apart, relative to the largest of them.

    exact: from float64, where the rounding of the result, which is of floats, counts.

    Sums of K products of normal values are about sqrt(K) large, and their rounding errors, which
    cancel, about eps * K / 6; the largest of many results is four times as large as that.
    """
    terms = 1 + op.flops / (2 * max(1, op.result.nelems))
    rounding = EPSILONS[op.result.data_type] if exact else 0.0
    return ELEMENTARY + EPSILON * math.sqrt(terms) + rounding
