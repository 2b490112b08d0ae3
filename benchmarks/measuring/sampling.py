"""Times several calls in turn, so that a disturbance affects all calls alike."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["PAUSE", "SAMPLES", "Repeat", "Times", "in_turn", "one_by_one", "sampled", "timed"]

SAMPLES = 9  # samples per call
SAMPLE_SECONDS = 0.01  # least duration of a sample; short calls are repeated
LONG_SECONDS = 0.1  # if `least` repetitions would take longer than this, fewer are made
PAUSE = 0.02  # seconds between samples: OpenMP's threads stay active after their work

Repeat: TypeAlias = Callable[[int], float]
"""Repeats a computation at least n times, waits for the end, returns the seconds of one."""


@dataclass(frozen=True)
class Times:
    """The seconds of one computation, by sample.

    count: the number of computations in a sample.
    many: the samples of `count` computations in a row. The median is computed from these.
    single: the samples of one computation that directly follows another one.
    """

    count: int
    many: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of `many`."""
        return statistics.median(self.many)


def timed(run: Callable[[int], int]) -> Repeat:
    """A `Repeat` of a function that repeats at least n times and returns the actual number."""

    @functools.wraps(run)
    def repeat(count: int) -> float:
        start = time.perf_counter()
        done = run(count)
        return (time.perf_counter() - start) / done

    return repeat


def one_by_one(call: Callable[[], object]) -> Repeat:
    """A `Repeat` of a call that returns after its work is done."""

    def run(count: int) -> int:
        for _ in range(count):
            call()
        return count

    return timed(run)


def in_turn(
    calls: Sequence[Repeat], samples: int = SAMPLES, *, pause: float = PAUSE, least: int = 1
) -> list[float]:
    """The median seconds of each call. The parameters are those of `sampled`."""
    return [times.median for times in sampled(calls, samples, pause=pause, least=least)]


def sampled(
    calls: Sequence[Repeat],
    samples: int = SAMPLES,
    *,
    pause: float = PAUSE,
    least: int = 1,
    refills: Sequence[Callable[[], object]] = (),
) -> list[Times]:
    """The times of each call. Before each sample, the call runs twice; `single` times the second.

    pause: seconds before each sample.
    least: the least number of repetitions per sample, unless this takes too long.
    refills: for each call a function that changes its inputs. It is called just before the last
        sample, so the final outputs are those of the last sample.
    """
    taken = [Times(_loops(repeat, least)) for repeat in calls]
    for sample in range(samples):
        for i, (repeat, times) in enumerate(zip(calls, taken, strict=True)):
            time.sleep(pause)
            repeat(1)
            times.single.append(repeat(1))
            if refills and sample == samples - 1:
                refills[i]()
            times.many.append(repeat(times.count))
    return taken


def _loops(repeat: Repeat, least: int) -> int:
    repeat(1)
    seconds = repeat(1)
    return max(1, round(SAMPLE_SECONDS / seconds), min(least, round(LONG_SECONDS / seconds)))
