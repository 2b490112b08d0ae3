"""Commands that have not ended, kept by a stream, and the host work that remains after them.

There are three reasons to keep a command:

- The pyopencl event of a copy waits for the copy when it is released, with the interpreter lock
  held. The thread that ends the copy's dependency may need this lock.
- After a copy through pinned memory has ended on the device, its data must still be moved to the
  host array.
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

_busy: set[UnderWay] = set()  # the streams with kept commands
_lock = threading.RLock()  # one for all streams: a command may wait for a command of another stream
locks.append(_lock)
_of_parent: list[UnderWay] = []  # kept in a forked child: release would wait for the copy


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
        """Whether the command has ended or failed on the device."""

    def land(self) -> None:
        """Do the host work that remains after the command has ended on the device."""


class UnderWay:
    """The commands that a stream keeps, in queue order.

    events: each command with the target of its copy, a buffer or a host array; None if not a copy.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.events: dict[Command, Any] = {}
        self._in_order = in_order
        self._errors: list[BaseException] = []

    @holding(_lock)
    def keep(self, event: Command, target: Any = None) -> None:
        """Keep a command until it has ended."""
        self.tidy()
        self.events[event] = target
        _busy.add(self)

    @holding(_lock)
    def tidy(self) -> None:
        """Land and drop the commands that have ended. Store their errors."""
        events = self.events.copy()  # a signal handler may call tidy too
        ended: Iterator[bool] = (event.is_over for event in events)
        if self._in_order:  # after the first unfinished command, none has ended
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
        """Return the errors of commands since the previous call."""
        self.tidy()
        errors, self._errors = self._errors, []
        return errors

    @property
    @holding(_lock)
    def is_held_up(self) -> bool:
        """Whether a kept command depends on an event of another runtime."""
        return any(event.causes and not event.is_over for event in self.events.copy())


def tidy_all() -> None:
    """Land all ended commands of all streams: an ended command may have waited for any stream."""
    if _busy:
        _tidy_all()


@holding(_lock)
def _tidy_all() -> None:
    for one in _busy.copy():
        one.tidy()


@holding(_lock)
def writers(host: np.ndarray[Any, Any]) -> list[Command]:
    """Return the copies, of all streams, that still write to the memory of a host array."""
    tidy_all()
    return [
        event
        for one in _busy.copy()
        for event, target in one.events.copy().items()
        if isinstance(target, np.ndarray) and np.may_share_memory(target, host)
    ]
