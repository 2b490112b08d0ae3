"""Windows along one spatial dim, forward and backward: the taps of each result.

Forward, a result is a window, and its taps read cells of src. Backward, a result is a cell of
diff_src, and its taps read the windows that contain it. In both directions the taps of a result
are evenly spaced, and so are the positions that they read.
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
    """Results `first`, `first + period`, ... that have the same number of taps.

    source: the position that the first tap of the first result reads. From result to result it
    moves by `source_step`. tap: the number of the first result's first tap. Later results have the
    same number, unless tap numbers do not matter.
    """

    first: int
    count: int
    source: int
    source_step: int
    tap: int
    taps: int


@dataclass(frozen=True, eq=False)
class Along:
    """One dim: for each result its first tap, its tap count, and the position the first tap reads.

    tap_step, source_step: the steps of tap number and position from tap to tap. period: except at
    the borders, results at this distance have the same taps.
    """

    tap: Places
    taps: Places
    source: Places
    tap_step: int
    source_step: int
    period: int

    def reads(self, first: int, last: int) -> tuple[int, int]:
        """Return the range [start, stop) of positions that the results [first, last) read."""
        source, taps = self.source[first:last], self.taps[first:last]
        source, taps = source[taps > 0], taps[taps > 0]
        if not len(source):
            return 0, 0
        ends = source, source + (taps - 1) * self.source_step
        return int(np.minimum(*ends).min()), int(np.maximum(*ends).max()) + 1

    def segments(
        self, first: int = 0, last: int | None = None, *, by_tap: bool = True
    ) -> list[WindowSegment]:
        """Divide the results [first, last) into segments. by_tap: tap numbers matter."""
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
    """Yield (first, count, step) of each run of evenly spaced values, in order."""
    first, steps = 0, np.diff(values)
    ends = (np.flatnonzero(np.diff(steps)) + 2).tolist()  # where the step changes
    for last in (*ends, len(values)):
        count = last - first
        yield first, count, int(steps[first]) if count > 1 else 0
        first = last


def forward(
    results: int, sources: int, kernel: int, stride: int, dilation: int, padding: int
) -> Along:
    """Return the cells of each window. Dilation 1 is dense."""
    start = np.arange(results) * stride - padding
    low = np.maximum(0, -(start // dilation))
    high = np.minimum(kernel - 1, (sources - 1 - start) // dilation)
    return _along(low, high, start + low * dilation, (1, dilation), 1)


def backward(
    results: int, sources: int, kernel: int, stride: int, dilation: int, padding: int
) -> Along:
    """Return the windows that contain each cell.

    Tap k of a cell reads window (cell + padding - k * dilation) / stride. results: the number of
    cells. sources: the number of windows.
    """
    cell = np.arange(results) + padding
    shared = math.gcd(stride, dilation)
    step = stride // shared
    first = np.full(stride, kernel)  # first tap per remainder; `kernel` if there is none
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
