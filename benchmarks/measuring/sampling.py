"""Times several calls in turn, so that a disturbance affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["PAUSE", "SAMPLES", "Repeat", "in_turn", "one_by_one"]

SAMPLES = 9  # samples per call
SAMPLE_SECONDS = 0.01  # least duration of a sample; short calls are repeated
LONG_SECONDS = 0.1  # duration of a sample from which on `least` does not apply
PAUSE = 0.02  # seconds between samples: OpenMP's threads stay active after their work

Repeat: TypeAlias = Callable[[int], int]
"""Repeats a computation at least n times, waits for the end and returns the actual number."""


def one_by_one(call: Callable[[], object]) -> Repeat:
    """A `Repeat` of a call that returns after its work is done."""

    def repeat(count: int) -> int:
        for _ in range(count):
            call()
        return count

    return repeat


def in_turn(
    calls: Sequence[Repeat], samples: int = SAMPLES, *, pause: float = PAUSE, least: int = 1
) -> list[float]:
    """The median seconds of each call. Before each sample the call runs once without timing.

    pause: seconds before each sample.
    least: the least number of repetitions per sample, unless this takes too long.
    """
    loops = [_loops(repeat, least) for repeat in calls]
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(samples):
        for repeat, count, times in zip(calls, loops, taken, strict=True):
            time.sleep(pause)
            repeat(1)
            times.append(_seconds(repeat, count))
    return [statistics.median(times) for times in taken]


def _loops(repeat: Repeat, least: int) -> int:
    repeat(1)
    seconds = _seconds(repeat, 1)
    return max(1, round(SAMPLE_SECONDS / seconds), min(least, round(LONG_SECONDS / seconds)))


def _seconds(repeat: Repeat, count: int) -> float:
    start = time.perf_counter()
    count = repeat(count)
    return (time.perf_counter() - start) / count
