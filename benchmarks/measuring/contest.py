"""Measures a problem: verifies all contestants and times the fastest of each side in turn."""

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

CHOOSING = 3  # samples of each contestant to find the fastest of a side
QUEUED = 20  # least number of computations per sample on a device
EPSILONS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
EPSILON = EPSILONS["f32"]
ELEMENTARY = 1e-5  # permitted error of approximated functions, relative to the largest result

NO_TERMS = Terms()

Outcome = dict[str, Any]
"""`problem`, and the figures of a row, or `left_out` with a reason, or `wrong` with the difference.

`refused`: whether dnncore left the problem out.
"""


@dataclass(frozen=True)
class Named:
    """A contestant and the name of its peer."""

    peer: str
    contestant: Contestant


def measure(
    problem: Problem, peers: Sequence[str], terms: Terms = NO_TERMS, *, samples: int = SAMPLES
) -> Outcome:
    """Measure one problem.

    One pass finds the fastest contestant of each side, and another pass measures it. Every result
    is verified; a wrong one has no speed. If the exact result is known and a peer's contestant is
    wrong, the peers' other contestants count.
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
    """Settings of samples: many calls in a queue, except on the cores of a CPU."""
    return {} if runs_on_cores(terms.engine) else {"pause": 0.0, "least": QUEUED}


def _is_copy_bound(problem: Problem, terms: Terms) -> bool:
    """Whether the time of a copy of the same number of bytes limits the problem's time."""
    return not engine(terms.engine).is_host and not is_arithmetic(problem)


def _figures(side: str, op: Any, seconds: float, contestant: Contestant) -> Outcome:
    return {
        f"{side}_ms": seconds * 1e3,
        f"{side}_gflops": op.flops / seconds / 1e9,
        f"{side}_gbps": op.bytes / seconds / 1e9,
        f"{side}_scratchpad": contestant.scratchpad,
    }


def _of_peers(problem: Problem, peers: Sequence[str], terms: Terms) -> Iterator[Named]:
    """The contestants of all peers. Raises `LeftOut` if no peer can compute the problem."""
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
    """The fastest contestant of each side. All contestants are sampled in turn."""
    sides = ours, theirs
    contestants = [*ours, *theirs]
    if len(contestants) == len(sides):
        return contestants
    how = {**_how(terms), "least": 1}
    times = in_turn([contestant.repeat for contestant in contestants], CHOOSING, **how)
    seconds = {id(contestant): time for contestant, time in zip(contestants, times, strict=True)}
    return [min(one, key=lambda contestant: seconds[id(contestant)]) for one in sides]


# -- right results ---------------------------------------------------------------------------------


Verdict = tuple[dict[int, float], dict[int, str]]
"""Errors by the id of a contestant, and descriptions of too large errors by id."""


def _against_ours(problem: Problem, ours: list[Contestant], theirs: list[Named]) -> Verdict:
    """Compare all with our first contestant. A large difference counts as our error."""
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
    """Compare all contestants with float64."""
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
    """The largest difference divided by the largest value, over the common outputs.

    Infinite if one side has a value that is not finite and the other side has another value.
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
    """The permitted difference of results, relative to the largest of them.

    exact: whether the other result is in float64. The rounding of the result then counts.

    Sums of K products of normal values are about sqrt(K) large. Their rounding errors cancel in
    part and are about eps * K / 6. The largest of many results is about four times as large.
    """
    terms = 1 + op.flops / (2 * max(1, op.result.nelems))
    rounding = EPSILONS[op.result.data_type] if exact else 0.0
    return ELEMENTARY + EPSILON * math.sqrt(terms) + rounding
