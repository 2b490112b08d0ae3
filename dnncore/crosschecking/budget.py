"""The limit of a cross-check's time in one thread.

With a slowdown of 15, a program may take 15 times as long as without the cross-check. The first
three launches of a primitive that write to one memory are always repeated. So every layer of a
network is compared. Beyond the limit, later launches are not repeated. A random half of the
launches within the limit is repeated, so that no launch of a loop is always left out.

The cross-check also delays the launches of the program itself, because both compete for caches and
processors. So the time without the cross-check is estimated. It is `UNOBSERVED` times the sum of
the pauses between launches and of the shortest time of each launch's primitive.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from dnncore.engines.memory import Memory
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Budget"]

FIRST = 3
"""Launches of a primitive that write to one memory and are always repeated."""

MOST_FIRST = 100
"""The largest number of such launches of a primitive. Some programs allocate new memories for each
launch.
"""

PAUSE = 0.1
"""The largest number of seconds that count for one pause: a program also loads modules and data."""

UNOBSERVED = 1 / 5
"""The share of the estimated time that a sequence of small calls takes without observers. Without
observers, the sequence is one native loop. Measured on the training of the digits.
"""


class Budget:
    """Decides which launches of a thread are repeated.

    slowdown: the limit, above 1; None to repeat every launch.
    """

    def __init__(self, slowdown: float | None) -> None:
        self._slowdown = slowdown
        self._end = time.perf_counter()  # end of the previous launch
        self._taken = 0.0  # seconds with the cross-check
        self._needed = 0.0  # seconds without the cross-check
        self._least: dict[PrimitiveDesc, float] = {}
        self._random = Random(0)  # noqa: S311 - reproducible
        self._firsts: Counter[PrimitiveDesc] = Counter()
        self._written: weakref.WeakKeyDictionary[Memory, Counter[PrimitiveDesc]] = (
            weakref.WeakKeyDictionary()
        )

    def arrive(self) -> None:
        """Count the pause before a launch that begins now."""
        now = time.perf_counter()
        pause = min(PAUSE, now - self._end)
        self._taken += pause
        self._needed += pause
        self._end = now

    def permits(self, pd: PrimitiveDesc, result: Memory) -> bool:
        """Whether to repeat a launch that writes this result."""
        self._needed += self._least.get(pd, 0.0)
        if self._slowdown is None or self._is_first(pd, result):
            return True
        limit = self._slowdown * UNOBSERVED * self._needed
        return self._taken < limit and self._random.random() < 1 / 2

    @contextmanager
    def spending(self, pd: PrimitiveDesc | None = None) -> Iterator[None]:
        """Count the time of the block. With `pd`, the block is one launch of the program."""
        start = time.perf_counter()
        try:
            yield
        finally:
            now = time.perf_counter()
            self._taken += now - self._end  # includes the observer's work before the block
            self._end = now
            if pd is not None:
                seconds = now - start
                self._least[pd] = min(seconds, self._least.get(pd, seconds))

    def _is_first(self, pd: PrimitiveDesc, result: Memory) -> bool:
        known = self._written.setdefault(result, Counter())
        if known[pd] == FIRST or self._firsts[pd] == MOST_FIRST:
            return False
        known[pd] += 1
        self._firsts[pd] += 1
        return True
