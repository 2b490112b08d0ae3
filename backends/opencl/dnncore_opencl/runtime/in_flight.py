"""Commands that have not ended: objects that a stream keeps, and work that is left at the end.

There are three reasons to keep a command:

- If the pyopencl event of a copy is dropped, it waits for the copy with the interpreter lock held.
  The thread that ends what the copy waits for may need this lock.
- A copy through pinned memory must reach its host array after the device has done its part.
- A wait for a stream raises the error of a command that failed.
"""

from __future__ import annotations

import itertools
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dnncore.backend import Event, holding
from dnncore_opencl.devices.handles import locks

_busy: set[UnderWay] = set()  # those with commands
_lock = threading.RLock()  # one for all: a command of one stream may wait for one of another
locks.append(_lock)
_of_parent: list[UnderWay] = []  # of a forked child; if it dropped a copy, it would wait for it


def _after_fork() -> None:
    _lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does
    _of_parent.extend(_busy)
    _busy.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
    """The commands of a stream that are kept, in the order of the queue.

    events: each with the target of its copy, a buffer or a host array; None if it copies nothing.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.events: dict[Command, Any] = {}
        self._in_order = in_order
        self._errors: list[BaseException] = []

    @holding(_lock)
    def keep(self, event: Command, target: Any = None) -> None:
        """Keep a command until it is over."""
        self.tidy()
        self.events[event] = target
        _busy.add(self)

    @holding(_lock)
    def tidy(self) -> None:
        """Land commands that are over and drop them, except for their errors."""
        events = self.events.copy()  # a signal handler may tidy, too
        ended: Iterator[bool] = (event.is_over for event in events)
        if self._in_order:  # commands after the first that is not over are not over
            ended = itertools.takewhile(bool, ended)
        over = list(itertools.compress(events, ended))
        for event in over:
            event.land()
        for event in over:
            if self.events.pop(event, self) is not self and event.error is not None:
                self._errors.append(event.error)
        if not self.events:
            _busy.discard(self)

    @holding(_lock)
    def errors(self) -> list[BaseException]:
        """Return the errors of commands since the last call."""
        self.tidy()
        errors, self._errors = self._errors, []
        return errors

    @property
    @holding(_lock)
    def is_held_up(self) -> bool:
        """Whether a command waits for an event of another runtime."""
        return any(event.causes and not event.is_over for event in self.events.copy())


def tidy_all() -> None:
    """Land all commands that are over; one that has ended may have waited for any stream."""
    if _busy:
        _tidy_all()


@holding(_lock)
def _tidy_all() -> None:
    for one in _busy.copy():
        one.tidy()


@holding(_lock)
def writers(host: np.ndarray[Any, Any]) -> list[Command]:
    """Return the copies of all streams that still write to memory of a host array."""
    tidy_all()
    return [
        event
        for one in _busy.copy()
        for event, target in one.events.copy().items()
        if isinstance(target, np.ndarray) and np.may_share_memory(target, host)
    ]
