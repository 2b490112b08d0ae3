"""One problem measured: all contestants verified, the strongest of each side timed in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contestants import Array, Contestant, LeftOut, side
from benchmarks.sampling import SAMPLES, in_turn
from dnncore.problem import Problem

__all__ = ["CHOOSING", "Outcome", "allowed_error", "measure", "norm_wise_error"]

CHOOSING = 3  # samples of each contestant where a side has several
EPSILON = float(np.finfo(np.float32).eps)
ELEMENTARY = 1e-5  # of functions that the libraries approximate, relative to the largest result

Outcome = dict[str, Any]
"""`problem`, and the figures of a row; or `left_out`, the reason; or `wrong`, what differs."""


@dataclass(frozen=True)
class Named:
    """A contestant of a peer."""

    peer: str
    contestant: Contestant


def measure(
    problem: Problem, peers: Sequence[str], *, reorders: bool = False, samples: int = SAMPLES
) -> Outcome:
    """One row.

    The strongest contestant of each side is found on one pass, and reported from another. Every
    result is compared with that of our first contestant; a wrong one has no speed.
    """
    outcome: Outcome = {"problem": str(problem)}
    try:
        ours = list(side("ours")(problem, reorders))
        theirs = list(_of_peers(problem, peers, reorders))
    except LeftOut as reason:
        return outcome | {"left_out": str(reason)}
    error, wrong = _verify(problem, ours, theirs)
    if wrong:
        return outcome | {"wrong": wrong, "error": error}
    best, second = _strongest(ours, [named.contestant for named in theirs])
    peer = next(named.peer for named in theirs if named.contestant is second)
    ours_seconds, peer_seconds = in_turn([best.run, second.run], samples)
    return outcome | {
        "impl": best.name,
        "peer": peer,
        "peer_impl": second.name,
        "ratio": peer_seconds / ours_seconds,
        **_figures("ours", problem.op, ours_seconds, best),
        **_figures("peer", problem.op, peer_seconds, second),
        "error": error,
    }


def _figures(who: str, op: Any, seconds: float, contestant: Contestant) -> Outcome:
    return {
        f"{who}_ms": seconds * 1e3,
        f"{who}_gflops": op.flops / seconds / 1e9,
        f"{who}_gbps": op.bytes / seconds / 1e9,
        f"{who}_scratchpad": contestant.scratchpad,
    }


def _of_peers(problem: Problem, peers: Sequence[str], reorders: bool) -> Iterator[Named]:
    """The contestants of all peers; raises `LeftOut` where none of them can compute it."""
    reasons = []
    for peer in peers:
        try:
            for contestant in side(peer)(problem, reorders):
                yield Named(peer, contestant)
        except LeftOut as reason:
            reasons.append(f"{peer}: {reason}")
    if len(reasons) == len(peers):
        raise LeftOut("; ".join(reasons))


def _strongest(*sides: list[Contestant]) -> list[Contestant]:
    """The quickest of each side, all of them sampled in turn; the rest are not kept."""
    everyone = [contestant for one in sides for contestant in one]
    if len(everyone) == len(sides):
        return everyone
    times = in_turn([contestant.run for contestant in everyone], CHOOSING)
    seconds = {id(contestant): time for contestant, time in zip(everyone, times, strict=True)}
    return [min(one, key=lambda contestant: seconds[id(contestant)]) for one in sides]


# -- right results ---------------------------------------------------------------------------------


def _verify(problem: Problem, ours: list[Contestant], theirs: list[Named]) -> tuple[float, str]:
    """The largest error of anyone beside our first contestant, and who is too far off."""
    first, *rest = [(f"ours: {c.name}", c) for c in ours] + [
        (f"{named.peer}: {named.contestant.name}", named.contestant) for named in theirs
    ]
    expected = _result(first[1])
    worst, wrong = 0.0, []
    for name, contestant in rest:
        error = norm_wise_error(_result(contestant), expected)
        factor = max(first[1].error_factor, contestant.error_factor)
        if not error <= factor * allowed_error(problem.op):
            wrong.append(f"{name} differs from {first[0]} by {error:.1e}")
        worst = max(worst, error)
    return worst, "; ".join(wrong)


def _result(contestant: Contestant) -> Mapping[str, Array]:
    contestant.run()
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


def allowed_error(op: Any) -> float:
    """How far results may be apart, relative to the largest of them.

    Sums of K products of normal values are about sqrt(K) large, and their rounding errors, which
    cancel, about eps * K / 6; the largest of many results is four times as large as that.
    """
    terms = 1 + op.flops / (2 * max(1, op.result.nelems))
    return ELEMENTARY + EPSILON * math.sqrt(terms)
