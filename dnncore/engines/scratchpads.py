"""Scratchpads of an out-of-order stream: commands that may overlap do not share a scratchpad."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnncore.engines.allocation import Allocation
from dnncore.errors import ExecutionError
from dnncore.interrupts import locked

if TYPE_CHECKING:
    from dnncore.engines.engine import Buffer, Engine
    from dnncore.engines.stream import Event

__all__ = ["MOST", "Scratchpad", "Scratchpads"]

MOST = 4  # scratchpads of a stream; more commands with scratchpads seldom overlap


@dataclass(eq=False, slots=True)
class Scratchpad:
    """A buffer of `nbytes` bytes, and the event of the last command that uses it, if any."""

    allocation: Allocation
    nbytes: int
    event: Event | None = None

    @property
    def buffer(self) -> Buffer:
        """The engine's buffer."""
        return self.allocation.buffer

    def is_free(self, wait_for: Sequence[Event]) -> bool:
        """Whether a command that waits for these events can use the scratchpad."""
        return self.event is None or self.event in wait_for or self.event.done


class Scratchpads:
    """The scratchpads of one stream.

    A launch gets a scratchpad whose last command has ended or is among the events that the launch
    waits for. If there is none, the launch gets a new scratchpad. If there are already `MOST`
    scratchpads, or memory is exhausted, the launch gets the scratchpad of an older command and
    waits for it on the device. A launch never waits for a command that itself waits for an event of
    another engine, because this command may fail, or may not end before the launch. The launch gets
    a new scratchpad instead.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._most = MOST
        self._pads: list[Scratchpad] = []  # ordered by their last launches
        self._lock = threading.RLock()

    def launch(
        self,
        nbytes: int,
        wait_for: Sequence[Event],
        launch: Callable[[Buffer, Sequence[Event]], Event],
    ) -> Event:
        """Return the event of `launch(buffer, wait_for)` with a buffer of at least `nbytes` bytes.

        Raises `ExecutionError` when out of memory. If `launch` raises, its scratchpad is not used
        again, since some of its kernels may be queued.
        """
        pad, wait_for = locked(self._lock, self._take, nbytes, wait_for)
        pad.event = event = launch(pad.buffer, wait_for)
        self._pads.append(pad)
        return event

    def settle(self) -> None:
        """Drop the events of ended commands, because events keep their stream alive."""
        locked(self._lock, self._settle)

    def _settle(self) -> None:
        for pad in self._pads:
            if pad.is_free(()):
                pad.event = None

    def _take(self, nbytes: int, wait_for: Sequence[Event]) -> tuple[Scratchpad, Sequence[Event]]:
        """Remove a scratchpad from the list. Return it and the events to wait for."""
        pad = self._take_free(nbytes, wait_for)
        if pad is not None:
            return pad, wait_for
        busy = (p for p in self._pads if p.nbytes >= nbytes and p.event and not p.event.is_held_up)
        older = next(busy, None)
        if older is None or len(self._pads) < self._most:
            try:
                return Scratchpad(Allocation(self._engine, nbytes), nbytes), wait_for
            except ExecutionError:
                if older is None:
                    raise
                self._most = len(self._pads)
        assert older.event is not None
        self._pads.remove(older)
        return older, (*wait_for, older.event)

    def _take_free(self, nbytes: int, wait_for: Sequence[Event]) -> Scratchpad | None:
        """Remove and return the smallest free scratchpad that is large enough, or None.

        Free scratchpads are dropped if there are more than `_most`. If all free scratchpads are too
        small, the largest is dropped, because a new scratchpad replaces it.
        """
        free = [pad for pad in self._pads if pad.is_free(wait_for)]
        free.sort(key=lambda pad: pad.nbytes)
        while free and len(self._pads) > self._most:
            self._pads.remove(free.pop(0))
        if not free:
            return None
        pad = next((pad for pad in free if pad.nbytes >= nbytes), free[-1])
        self._pads.remove(pad)
        return pad if pad.nbytes >= nbytes else None
