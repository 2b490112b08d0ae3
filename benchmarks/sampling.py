"""Times of several calls, taken in turn, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

__all__ = ["PAUSE", "SAMPLES", "in_turn"]

SAMPLES = 9
SAMPLE_SECONDS = 0.01  # at least; short calls are repeated
PAUSE = 0.02  # seconds between the sides: the threads of OpenMP spin for a while after their work

Call = Callable[[], object]


def in_turn(calls: Sequence[Call], samples: int = SAMPLES) -> list[float]:
    """The median seconds of each call. Before each sample the call is run once, not timed."""
    loops = [_loops(call) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(samples):
        for call, count, times in zip(calls, loops, taken, strict=True):
            time.sleep(PAUSE)
            call()
            times.append(_seconds(call, count))
    return [statistics.median(times) for times in taken]


def _loops(call: Call) -> int:
    call()
    return max(1, round(SAMPLE_SECONDS / _seconds(call, 1)))


def _seconds(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
