"""Streams, which are queues of commands, and events, which mark the end of a command."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from dnncore.engines.allocation import Allocation
from dnncore.engines.scratchpads import Scratchpads
from dnncore.errors import DescriptorError
from dnncore.interrupts import locked

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine

__all__ = [
    "COMPLETED",
    "Event",
    "HostStream",
    "Order",
    "Stream",
    "TimedEvent",
    "checked_event",
    "checked_events",
    "wait_all",
]

Order = Literal["in", "out"]


class Event:
    """One command of a stream.

    A command with an event in its `wait_for` begins after that event's end. If that event has
    failed, the command fails, too: its call raises, or its event has an error, which names the
    cause. It may or may not have run, and its results are undefined. Later commands of the same
    stream that do not wait for this event do not fail.

    `start` and `end` exist on profiling streams only. They are seconds of one clock per engine: all
    streams of the engine share it, it never runs backwards, and its zero is arbitrary. The clocks
    of two engines cannot be compared, except that engines whose commands run in this process use
    `time.perf_counter`. Read the times after the end of the command.

    The base class represents a completed command; streams that run commands in the calling thread
    need no other class.
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
        """The exception with which the command failed, or None.

        An event of another engine may have no error although its command failed. Only `wait`
        reports the failure.
        """
        return None

    @property
    def is_held_up(self) -> bool:
        """Whether the command waits, directly or indirectly, for an event of another engine.

        Such a command may wait for long. The core does not give its scratchpad to another command,
        because that command would have to wait, too. Engines without out-of-order streams need not
        override this.
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

    def __repr__(self) -> str:
        if not self.done:
            return "<event of a command that has not ended>"
        return f"<event of a failed command: {self.error}>" if self.error else "<ended event>"

    def __copy__(self) -> Self:
        """Return the event itself, also for a deep copy: an event represents one command."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> str:
        if type(self) is Event:
            return "COMPLETED"
        raise DescriptorError(
            "event: an event belongs to its process and cannot be pickled; wait for it instead"
        )


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

    A failed command does not stop the stream. Later commands run, unless they wait for its event or
    the device is lost. The next `wait` of the stream raises the first error since the previous
    `wait`, and forgets all errors since then. A call that raises launches nothing, so its error is
    not raised again.

    A stream that waits for an event must not block other streams. The event may depend on their
    commands, even if it belongs to another engine. So one thread for the commands of all streams is
    not enough.

    A stream owns the scratchpad of the primitives that run on it. An in-order stream has one
    buffer, `scratchpad`, which grows to the largest request and never shrinks. On an out-of-order
    stream commands may overlap, and each launch gets one of `scratchpads`. `native` is the
    runtime's queue object, if any.

    lag: seconds by which each command is delayed after the end of the command before it; None if
        the engine cannot do this. Tests set it, so that a missing wait is always detected. A
        command that has ended when its call returns need not be delayed.
    """

    lag: float | None = None

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
        self._allocation: Allocation | None = None
        self._lock = threading.RLock()

    def wait(self, timeout: float | None = None) -> None:
        """Block until all commands have ended, `timeout` seconds at most if the engine supports it.

        Raises `ExecutionError` if one failed and `TimeoutError` if they have not ended.
        """

    def reserve(self, nbytes: int) -> Any:
        """Enlarge `scratchpad` to at least `nbytes` bytes and return it; None while it has 0 bytes.

        On an out-of-order stream the result is always None: use `scratchpads.launch` there.
        """
        if nbytes > self._scratchpad_bytes and self.scratchpads is None:
            locked(self._lock, self._enlarge, nbytes)
        return self.scratchpad

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a new stream of the engine, with the same order and profiling."""
        return _stream_of, (self.engine, self.order, self.profiling)

    def _enlarge(self, nbytes: int) -> None:
        if nbytes > self._scratchpad_bytes:
            self._set_scratchpad(Allocation(self.engine, nbytes), nbytes)

    def _set_scratchpad(self, allocation: Allocation | None, nbytes: int) -> None:
        """Replace the scratchpad. If this is interrupted, the scratchpad has 0 bytes."""
        self._scratchpad_bytes, self.scratchpad = 0, None
        self._allocation = allocation
        self.scratchpad = allocation and allocation.buffer
        self._scratchpad_bytes = nbytes

    @contextlib.contextmanager
    def own_scratchpad(self) -> Iterator[None]:
        """Protect the scratchpad in a `with` block from launches that a signal handler makes."""
        kept = self._allocation, self._scratchpad_bytes
        self._set_scratchpad(None, 0)
        try:
            yield
        finally:
            self._set_scratchpad(*kept)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.engine.name}, order={self.order!r}>"


class HostStream(Stream):
    """An in-order stream whose commands run in the calling thread and are done on return.

    `lag` delays `HostFunction`, because a backend may call it in another thread.
    """

    lag: float | None = 0.0


def _stream_of(engine: Engine, order: Order, profiling: bool) -> Stream:
    return engine.stream(order, profiling=profiling)


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


def checked_event(event: object) -> Event:
    """Return the result of a backend's run. Raises `TypeError` if it is not an event."""
    if isinstance(event, Event):
        return event
    got = "None" if event is None else type(event).__name__
    raise TypeError(f"run returned {got}, not an Event")
