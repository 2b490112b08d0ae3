"""Times of several calls, taken in turn, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["PAUSE", "SAMPLES", "Repeat", "in_turn", "one_by_one"]

SAMPLES = 9
SAMPLE_SECONDS = 0.01  # at least; short calls are repeated
LONG_SECONDS = 0.1  # of a sample, beyond which nobody asks for more repetitions
PAUSE = 0.02  # seconds between the sides: the threads of OpenMP spin for a while after their work

Repeat: TypeAlias = Callable[[int], int]
"""Does something at least so many times, returns when all is done, and tells how often it was."""


def one_by_one(call: Callable[[], object]) -> Repeat:
    """Repeat a call that returns when it is done."""

    def repeat(count: int) -> int:
        for _ in range(count):
            call()
        return count

    return repeat


def in_turn(
    calls: Sequence[Repeat], samples: int = SAMPLES, *, pause: float = PAUSE, least: int = 1
) -> list[float]:
    """The median seconds of each call. Before each sample the call is run once, not timed.

    pause: seconds before each sample. least: how often a sample repeats a call, unless it is long.
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
