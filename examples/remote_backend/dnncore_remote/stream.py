"""Streams and events. Each stream has a thread, which waits for events and sends requests."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from dnncore.backend import DnnError, Engine, Event, ExecutionError, Stream

Work = Callable[[], tuple[float, float]]
"""Executes a command and returns its start and its end on the device's clock."""


class RemoteEvent(Event):
    """One command. The thread of its stream completes it."""

    __slots__ = ("_ended", "_engine", "_error", "_is_done", "_times")

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._is_done = False
        self._error: DnnError | None = None
        self._times: tuple[float | None, float | None] = (None, None)
        self._ended = threading.Lock()
        self._ended.acquire()

    def complete(self, error: DnnError | None, start: float | None, end: float | None) -> None:
        """Let all waits return."""
        self._error, self._times = error, (start, end)
        self._is_done = True
        self._ended.release()

    def settle(self, timeout: float | None = None) -> None:
        """Block until the command has ended, successfully or not."""
        if self._is_done:  # do not acquire the lock: a signal handler's own thread may hold it
            return
        if self._engine.is_forked:  # the stream's thread is in the parent
            self._engine.check()
        limit = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        if not self._ended.acquire(timeout=limit):
            raise TimeoutError(f"remote: the command has not ended after {timeout:g} s")
        self._ended.release()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the command has ended; raise its error."""
        self.settle(timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)

    @property
    def done(self) -> bool:
        """Whether the command has ended."""
        return self._is_done

    @property
    def error(self) -> DnnError | None:
        """The error of the command, or None."""
        return self._error

    @property
    def start(self) -> float | None:
        """The time at which the device began; None without profiling, and before the end."""
        return self._times[0]

    @property
    def end(self) -> float | None:
        """The time at which the device ended; None as for `start`."""
        return self._times[1]


class RemoteStream(Stream):
    """An in-order queue of commands, which its thread executes. The thread ends with the stream."""

    engine: Any
    lag: float | None = 0.0

    def __init__(self, engine: Engine, *, profiling: bool = False) -> None:
        super().__init__(engine, "in", profiling=profiling)
        self._errors: list[DnnError] = []  # the first one since the last wait
        self._last: RemoteEvent | None = None
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_execute, args=(self._commands,), daemon=True).start()
        weakref.finalize(self, self._commands.put, None).atexit = False

    def submit(self, work: Work, wait_for: Sequence[Event] = ()) -> RemoteEvent:
        """Queue a command. `work` keeps the memories alive until the command has ended."""
        self.engine.check()
        event, errors, lag = RemoteEvent(self.engine), self._errors, self.lag or 0.0
        is_timed = self.profiling

        def command() -> None:
            error, times = _outcome(work, wait_for, lag)
            if error is not None and not errors:
                errors.append(error)
            event.complete(error, *(times if is_timed else (None, None)))

        self._last = event
        self._commands.put(command)
        return event

    def wait(self, timeout: float | None = None) -> None:
        """Block until all commands have ended; raise the first error since the last wait."""
        if self._last is not None:
            self._last.settle(timeout)
        if self._errors:
            raise self._errors.pop().with_traceback(None)


def _execute(commands: SimpleQueue[Any]) -> None:
    while (command := commands.get()) is not None:
        command()
        del command  # and with it the memories, before the next one comes


def _outcome(
    work: Work, wait_for: Sequence[Event], lag: float
) -> tuple[DnnError | None, tuple[float | None, float | None]]:
    try:
        for event in wait_for:
            event.wait()
    except Exception as cause:
        error = ExecutionError(f"remote: a command was not run; one before it failed: {cause}")
        error.__cause__ = cause
        return error, (None, None)
    time.sleep(lag)
    try:
        return None, work()
    except DnnError as failure:
        return failure, (None, None)
    except Exception as failure:  # without this, a wait for the command would never end
        return ExecutionError(f"remote: {type(failure).__name__}: {failure}"), (None, None)
