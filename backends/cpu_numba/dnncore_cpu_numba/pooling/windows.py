"""Windows along one spatial dim, forward and backward: the taps of each result.

Forward, a result is a window and its taps read src; backward, a result is a cell of diff_src and
its taps read the windows that see it. Either way the taps of a place are evenly spaced, and so are
the places that they read.
"""

from __future__ import annotations

import math
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
            segment = None
            for place in range(start, last, self.period):
                source, tap, taps = (int(x[place]) for x in (self.source, self.tap, self.taps))
                if segment and taps == segment.taps and (tap == segment.tap or not by_tap):
                    step = source - segment.source - (segment.count - 1) * segment.source_step
                    if segment.count == 1 or step == segment.source_step:
                        segment.count, segment.source_step = segment.count + 1, step
                        continue
                segment = WindowSegment(place, 1, source, 0, tap, taps)
                found.append(segment)
        return found


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
