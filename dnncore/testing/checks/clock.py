"""The division of a case's time: reference, building, running."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Seconds by name; the time of a `with clock(name)` block counts only for that name."""

    def __init__(self) -> None:
        self.seconds = {"reference": 0.0, "building": 0.0, "running": 0.0}
        self._name = "running"
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the block's time for `name` and not for the surrounding block."""
        outer = self._turn(name)
        try:
            yield
        finally:
            self._turn(outer)

    def stop(self) -> dict[str, float]:
        """Return all seconds so far."""
        self._turn(self._name)
        return dict(self.seconds)

    def _turn(self, name: str) -> str:
        now = time.perf_counter()
        self.seconds[self._name] += now - self._since
        self._since = now
        before, self._name = self._name, name
        return before
