"""Streams, which are queues of commands, and events, which mark the end of a command."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dnncore.engines.scratchpads import Scratchpads
from dnncore.errors import DescriptorError

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine

__all__ = [
    "COMPLETED",
    "Event",
    "HostStream",
    "Order",
    "Stream",
    "TimedEvent",
    "checked_events",
    "wait_all",
]

Order = Literal["in", "out"]


class Event:
    """One command of a stream.

    `start` and `end` are seconds on the stream's own clock and exist on profiling streams only.
    The base class represents a completed command; streams that run commands in the calling thread
    need no other.
    """

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the command has ended, `timeout` seconds at most.

        Raises `ExecutionError` if the command failed and `TimeoutError` if it has not ended.
        """

    @property
    def done(self) -> bool:
        """Whether the command has ended, with or without an error."""
        return True

    @property
    def error(self) -> BaseException | None:
        """The exception with which the command failed, or None."""
        return None

    @property
    def is_held_up(self) -> bool:
        """Whether the command waits, directly or indirectly, for an event of another engine.

        Then only commands with its event in `wait_for` may wait for it.
        """
        return False

    @property
    def start(self) -> float | None:
        """The time at which the command began, in seconds; None without profiling."""
        return None

    @property
    def end(self) -> float | None:
        """The time at which the command ended, in seconds; None without profiling."""
        return None


COMPLETED = Event()
"""The event of a command that has ended before its call returns."""


class TimedEvent(Event):
    """A completed command of a profiling stream."""

    __slots__ = ("_end", "_start")

    def __init__(self, start: float, end: float) -> None:
        self._start = start
        self._end = end

    @property
    def start(self) -> float | None:
        """The time at which the command began, in seconds of `time.perf_counter`."""
        return self._start

    @property
    def end(self) -> float | None:
        """The time at which the command ended, in seconds of `time.perf_counter`."""
        return self._end


class Stream:
    """An ordered queue of commands on one engine; used by one thread at a time.

    A stream owns the scratchpad of the primitives that run on it. An in-order stream has one
    buffer, `scratchpad`, which grows to the largest request and never shrinks. On an out-of-order
    stream commands may overlap, and each launch gets one of `scratchpads`. `native` is the
    runtime's queue object, if any.
    """

    def __init__(
        self, engine: Engine, order: Order = "in", *, profiling: bool = False, native: Any = None
    ) -> None:
        self.engine = engine
        self.order = order
        self.profiling = profiling
        self.native = native
        self.scratchpad: Any = None
        self.scratchpads = Scratchpads(engine) if order == "out" else None
        self._scratchpad_bytes = 0
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> None:
        """Block until all commands have ended, `timeout` seconds at most if the engine supports it.

        Raises `ExecutionError` if one failed and `TimeoutError` if they have not ended.
        """

    def reserve(self, nbytes: int) -> Any:
        """Enlarge `scratchpad` to at least `nbytes` bytes and return it; None while it has 0 bytes.

        On an out-of-order stream it stays None: use `scratchpads.launch`.
        """
        if nbytes > self._scratchpad_bytes and self.scratchpads is None:
            with self._lock:
                if nbytes > self._scratchpad_bytes:
                    self.scratchpad = self.engine.allocate(nbytes)
                    self._scratchpad_bytes = nbytes
        return self.scratchpad

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.engine.name}, order={self.order!r}>"


class HostStream(Stream):
    """An in-order stream whose commands run in the calling thread and are done on return."""


def wait_all(events: Iterable[Event]) -> None:
    """Block until every event has ended."""
    for event in events:
        event.wait()


def checked_events(events: object) -> Sequence[Event]:
    """Return the events to wait for; None means none. Raises `DescriptorError` for other types."""
    if events is None or (type(events) is tuple and not events):  # the common case, at no cost
        return ()
    if not isinstance(events, Sequence) or not all(isinstance(e, Event) for e in events):
        raise DescriptorError(f"wait_for must be a sequence of events; got {events!r}")
    return events
