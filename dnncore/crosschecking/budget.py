"""The limit of the time that a cross-check takes in one thread.

With a slowdown of 15, a program may take 15 times as long as without the cross-check. A launch is
always repeated if its primitive writes to this memory for the first time. So every layer of a
network is compared. Beyond the limit, later launches are not repeated. Of the launches within the
limit, a random half is repeated, so that no launch of a loop is left out each time.
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

MOST_FIRST = 32
"""Memories per primitive that count as new ones. Some programs make new memories for each call."""


class Budget:
    """Decides which launches of a thread are repeated.

    slowdown: the limit, above 1; None to repeat every launch.
    """

    def __init__(self, slowdown: float | None) -> None:
        self._slowdown = slowdown
        self._start = time.perf_counter()
        self._spent = 0.0
        self._random = Random(0)  # noqa: S311 - reproducible
        self._firsts: Counter[PrimitiveDesc] = Counter()
        self._written: weakref.WeakKeyDictionary[Memory, set[PrimitiveDesc]] = (
            weakref.WeakKeyDictionary()
        )

    def permits(self, pd: PrimitiveDesc, result: Memory) -> bool:
        """Whether to repeat a launch that writes this result."""
        if self._slowdown is None or self._is_first(pd, result):
            return True
        own = time.perf_counter() - self._start - self._spent
        return self._spent < (self._slowdown - 1.0) * own and self._random.random() < 1 / 2

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - start

    def _is_first(self, pd: PrimitiveDesc, result: Memory) -> bool:
        known = self._written.setdefault(result, set())
        if pd in known or self._firsts[pd] == MOST_FIRST:
            return False
        known.add(pd)
        self._firsts[pd] += 1
        return True
