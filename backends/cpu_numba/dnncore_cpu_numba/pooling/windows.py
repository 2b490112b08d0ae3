"""Windows along one spatial dim, forward and backward: the taps of each result.

Forward, a result is a window and its taps read src; backward, a result is a cell of diff_src and
its taps read the windows that see it. Either way the taps of a place are evenly spaced, and so are
the places that they read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Places = np.ndarray[Any, Any]


@dataclass
class WindowSegment:
    """Results `first`, `first + period`, ... with as many taps.

    source: where the first tap of the first result reads; of the next ones `source_step` further.
    tap: the first tap's number; those of the next ones are the same, or of no interest.
    """

    first: int
    count: int
    source: int
    source_step: int
    tap: int
    taps: int


@dataclass(frozen=True, eq=False)
class Along:
    """One dim: for each result its first tap, how many it has, and where the first one reads.

    tap_step, source_step: from one tap to the next. period: the results so far apart have the taps
    of each other, but for the borders.
    """

    tap: Places
    taps: Places
    source: Places
    tap_step: int
    source_step: int
    period: int

    def reads(self, first: int, last: int) -> tuple[int, int]:
        """The first place that the results [first, last) read, and behind the last."""
        source, taps = self.source[first:last], self.taps[first:last]
        source, taps = source[taps > 0], taps[taps > 0]
        if not len(source):
            return 0, 0
        ends = source, source + (taps - 1) * self.source_step
        return int(np.minimum(*ends).min()), int(np.maximum(*ends).max()) + 1

    def segments(
        self, first: int = 0, last: int | None = None, *, by_tap: bool = True
    ) -> list[WindowSegment]:
        """The results [first, last) in segments; by_tap: where the taps' numbers matter."""
        last, found = len(self.taps) if last is None else last, []
        for start in range(first, min(first + self.period, last)):
            part = slice(start, last, self.period)
            source, tap, taps = self.source[part], self.tap[part], self.taps[part]
            changes = np.diff(taps) != 0
            if by_tap:
                changes |= np.diff(tap) != 0
            starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(taps)]
            for i, end in itertools.pairwise(starts):
                for place, count, step in _evenly_spaced(source[i:end]):
                    at = i + place
                    found.append(
                        WindowSegment(
                            start + at * self.period, count, int(source[at]), step,
                            int(tap[at]), int(taps[at]),
                        )
                    )  # fmt: skip
        return found


def _evenly_spaced(values: Places) -> Iterator[tuple[int, int, int]]:
    """(first, count, step) of runs of evenly spaced values, in order."""
    first, steps = 0, np.diff(values)
    ends = (np.flatnonzero(np.diff(steps)) + 2).tolist()  # behind them a step is another one
    for last in (*ends, len(values)):
        count = last - first
        yield first, count, int(steps[first]) if count > 1 else 0
        first = last


def forward(
    results: int, sources: int, kernel: int, stride: int, dilation: int, padding: int
) -> Along:
    """The cells of each window; dilation 1 is dense."""
    start = np.arange(results) * stride - padding
    low = np.maximum(0, -(start // dilation))
    high = np.minimum(kernel - 1, (sources - 1 - start) // dilation)
    return _along(low, high, start + low * dilation, (1, dilation), 1)


def backward(
    results: int, sources: int, kernel: int, stride: int, dilation: int, padding: int
) -> Along:
    """The windows that see each cell: of tap k the one at (cell + padding - k * dilation) / stride.

    results: cells. sources: windows.
    """
    cell = np.arange(results) + padding
    shared = math.gcd(stride, dilation)
    step = stride // shared
    first = np.full(stride, kernel)  # the first tap of each remainder; some have none
    for tap in range(min(step, kernel)):
        first[tap * dilation % stride] = tap
    first = first[cell % stride]
    behind = np.maximum(0, cell - (sources - 1) * stride - first * dilation)
    low = first + -(-behind // (step * dilation)) * step
    high = np.minimum(kernel - 1, cell // dilation)
    source = (cell - low * dilation) // stride
    return _along(low, high, source, (step, -(dilation // shared)), stride)


def _along(low: Places, high: Places, source: Places, steps: tuple[int, int], period: int) -> Along:
    taps = np.maximum(0, (high - low) // steps[0] + 1)
    some = taps > 0
    return Along(low * some, taps, source * some, *steps, period)
