"""Matches the calls of two runs by their order and signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dnncore.crosschecking.two_runs.recording import CallRecord

__all__ = ["Match", "match"]

WINDOW = 200
"""The number of calls of each run that are searched for the next matching calls."""


@dataclass
class Match:
    """Pairs of calls, and the calls that only one run has.

    departure: text about the first difference in the order of the runs; "" if there is none.
    """

    pairs: list[tuple[CallRecord, CallRecord]] = field(default_factory=list)
    only_first: list[CallRecord] = field(default_factory=list)
    only_second: list[CallRecord] = field(default_factory=list)
    departure: str = ""


def match(first: Sequence[CallRecord], second: Sequence[CallRecord]) -> Match:
    """Match both runs in order. Where they differ, leave out as few calls as possible of both."""
    found = Match()
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i].signature == second[j].signature:
            found.pairs.append((first[i], second[j]))
            i, j = i + 1, j + 1
            continue
        found.departure = found.departure or _departure(first[i], second[j])
        skip_i, skip_j = _nearest(first[i : i + WINDOW], second[j : j + WINDOW])
        found.only_first += first[i : i + skip_i]
        found.only_second += second[j : j + skip_j]
        i, j = i + skip_i, j + skip_j
    found.only_first += first[i:]
    found.only_second += second[j:]
    if found.only_first or found.only_second:
        found.departure = found.departure or _end(first, second)
    return found


def _nearest(first: Sequence[CallRecord], second: Sequence[CallRecord]) -> tuple[int, int]:
    """Return how many calls of each run to leave out before the next two that match."""
    places: dict[str, int] = {}
    for j, call in enumerate(second):
        places.setdefault(call.signature, j)
    known = [(i + places[c.signature], i) for i, c in enumerate(first) if c.signature in places]
    if not known:
        return len(first), len(second)
    total, i = min(known)
    return i, total - i


def _departure(a: CallRecord, b: CallRecord) -> str:
    return (
        f"call {a.number} on {a.engine} is {a.signature}; call {b.number} on {b.engine} is"
        f" {b.signature}"
    )


def _end(first: Sequence[CallRecord], second: Sequence[CallRecord]) -> str:
    return f"one run has {len(first)} calls, the other {len(second)}"
