"""Commands under way: what must be kept until it is over, and what is left to do then.

A pyopencl event of a copy waits when it is dropped, and holds the interpreter lock, which whoever
ends what the copy waits for may need. A copy through pinned memory has still to reach its host
array when the device has done its part. And a stream tells what failed when it is waited for.
"""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import Event

__all__ = ["Command", "UnderWay", "tidy_all", "writers"]

_busy: set[UnderWay] = set()  # they keep their streams, too
_lock = threading.RLock()  # of all, since what one stream has landed another may have waited for


class Command(Event):
    """The event of a command of a queue.

    causes: the events of other runtimes that the command waits for, directly or not.
    """

    __slots__ = ()
    causes: Sequence[Event]

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the device has done its part, well or not."""

    def land(self) -> None:
        """Do what is left to do when the device has done its part."""


class UnderWay:
    """The commands of a stream that are kept, as they were queued.

    events: with where those that are copies copy to, a buffer or a host array.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.events: dict[Command, Any] = {}
        self._in_order = in_order
        self._errors: list[BaseException] = []

    def keep(self, event: Command, target: Any = None) -> None:
        """Keep a command until it is over."""
        with _lock:
            self.tidy()
            self.events[event] = target
            _busy.add(self)

    def tidy(self) -> None:
        """Land what is over and let go of it, except for its error."""
        with _lock:
            ended = (event.is_over for event in self.events)
            if self._in_order:  # all behind the first that is not over are not, either
                ended = itertools.takewhile(bool, ended)
            over = list(itertools.compress(self.events, ended))
            for event in over:
                event.land()
            for event in over:
                del self.events[event]
            self._errors += filter(None, [event.error for event in over])
            if not self.events:
                _busy.discard(self)

    def errors(self) -> list[BaseException]:
        """Return what commands have failed with since the last call."""
        with _lock:
            self.tidy()
            errors, self._errors = self._errors, []
        return errors

    @property
    def is_held_up(self) -> bool:
        """Whether a command waits for an event of another runtime."""
        with _lock:
            return any(event.causes and not event.is_over for event in self.events)


def tidy_all() -> None:
    """Land all that is over: a command that has ended may have waited for any stream."""
    if _busy:
        with _lock:
            for one in tuple(_busy):
                one.tidy()


def writers(host: np.ndarray[Any, Any]) -> list[Command]:
    """Return the copies of all streams, under way, that write to memory of a host array."""
    tidy_all()
    with _lock:
        return [
            event
            for one in _busy
            for event, target in one.events.items()
            if isinstance(target, np.ndarray) and np.may_share_memory(target, host)
        ]
