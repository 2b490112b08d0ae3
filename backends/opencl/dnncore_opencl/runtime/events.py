"""Events: commands of a queue, points of a queue, and bridges to events of other runtimes."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from dnncore.backend import Event, ExecutionError, locked
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.devices.handles import handles, is_forked
from dnncore_opencl.runtime.device import OpenedDevice
from dnncore_opencl.runtime.faults import FAILED_DEPENDENCY
from dnncore_opencl.runtime.in_flight import Command, tidy_all


class Queue(Protocol):
    """The members of a stream that an event uses."""

    engine: OpenedDevice
    native: Any
    profiling: bool

    def leave(self, point: Point) -> None:
        """Queue no more commands before the point."""


@handles("native", of_calls=True)
class OpenCLEvent(Command):
    """One command of a queue. `native` is the pyopencl event.

    The command runs even if one of `causes` failed. Then its error names that cause.
    """

    __slots__ = ("causes", "native", "stream")

    def __init__(self, stream: Queue, native: Any, causes: Sequence[Event] = ()) -> None:
        self.stream = stream
        self.native = native
        self.causes = causes

    def wait(self, timeout: float | None = None) -> None:
        """Block until the command has ended.

        timeout: seconds; the default is the engine's limit, `math.inf` means no limit. Raises the
        error of the command, or `TimeoutError`.
        """
        error: BaseException | None = None
        timeout = self.stream.engine.wait_timeout if timeout is None else timeout
        if timeout is not None and timeout < math.inf:
            self.poll(timeout)
        else:
            try:
                self.native.wait()
            except pyopencl().Error as raised:
                error = self._failure(raised.code)
            tidy_all()
        error = self.error or error
        if error is not None:
            raise error

    @property
    def done(self) -> bool:
        """Whether the command has ended or failed. If so, earlier copies have landed."""
        if self.status > 0:
            return False
        tidy_all()
        return True

    @property
    def status(self) -> int:
        """The OpenCL status; for a lost device, the code of the error that the query raises."""
        try:
            status = int(self.native.command_execution_status)  # may queue the marker of a point
            if status > 0:
                self.stream.native.flush()
            return status
        except pyopencl().Error as error:
            return int(error.code)

    @property
    def is_over(self) -> bool:
        """Whether the command has ended or failed on the device."""
        return self.status <= 0

    @property
    def error(self) -> BaseException | None:
        """The command's error, with the name of its OpenCL status; None if it did not fail."""
        status = self.status
        cause = next(filter(None, (event.error for event in self.causes if event.done)), None)
        if cause is None:
            return self._failure(status) if status < 0 else None
        error = self._failure(FAILED_DEPENDENCY)
        error.__cause__ = cause
        return error

    @property
    def is_held_up(self) -> bool:
        """Whether a cause, an event of another runtime, has not ended or has failed."""
        return any(map(may_fail, self.causes))

    @property
    def start(self) -> float | None:
        """Start time on the device's clock in seconds; None without profiling.

        Raises `ExecutionError` if the command has not ended or has failed.
        """
        return self._time("start")

    @property
    def end(self) -> float | None:
        """End time on the device's clock; otherwise as `start`."""
        return self._time("end")

    def _time(self, which: str) -> float | None:
        if not self.stream.profiling:
            return None
        if self.status > 0:
            name = self.stream.engine.name
            raise ExecutionError(f"{name}: a command has no {which} yet; wait for it first")
        try:
            return float(getattr(self.native.profile, which) * 1e-9)
        except pyopencl().Error as error:
            raise self.stream.engine.failure(f"a command has no {which}", error) from error

    def _failure(self, status: int) -> ExecutionError:
        return self.stream.engine.failure("a command failed", status)

    def poll(self, timeout: float) -> None:
        """Query repeatedly until the command has ended; `TimeoutError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        pause = 1e-5
        while not self.done:
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{self.stream.engine.name}: not done after {timeout:g} s: a kernel is slow or"
                    " hangs, or what it waits for has not happened; wait longer, with a timeout or"
                    " engine.wait_timeout, or end the process"
                )
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)


@handles("native", of_calls=True)
class Point(OpenCLEvent):
    """A point of an in-order queue, after the commands that returned it.

    Its pyopencl event is a marker, queued when the event is first needed, and at the latest before
    the queue's next command that waits for an event. So the marker never waits for that event.
    """

    __slots__ = ("_is_over", "_lock", "_marker")

    def __init__(self, stream: Queue) -> None:
        self.stream = stream
        self.causes = ()
        self._marker: Any = None
        self._is_over = False
        self._lock = threading.RLock()

    @property
    def native(self) -> Any:
        """The marker. Commands queued later return another point."""
        return locked(self._lock, self._queued_marker, self.stream.native)

    def _queued_marker(self, queue: Any) -> Any:
        if self._marker is None:
            self.stream.leave(self)
            self._marker = pyopencl().enqueue_marker(queue)
        return self._marker

    def settle(self) -> None:
        """Record that all commands before the point have ended."""
        self._is_over = True

    def wait(self, timeout: float | None = None) -> None:
        """Wait as for any event. Return at once after a wait for the stream."""
        if not self._is_over:
            super().wait(timeout)

    @property
    def done(self) -> bool:
        """Whether all commands before the point have ended or failed."""
        return self._is_over or super().done

    @property
    def error(self) -> BaseException | None:
        """The error of the marker; None if it has none."""
        return None if self._is_over else super().error


class Observed(Event):
    """A command's event that a queue waits for by a bridge, as for an event of another runtime.

    NVIDIA's driver may read the host array of a small copy before the copy's dependencies in other
    queues have ended. It does not read the array before a bridge has ended.
    """

    __slots__ = ("_event",)

    def __init__(self, event: OpenCLEvent) -> None:
        self._event = event

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the command."""
        self._event.wait(timeout)

    @property
    def done(self) -> bool:
        """Whether the command has ended or failed."""
        return self._event.done

    @property
    def error(self) -> BaseException | None:
        """The command's error."""
        return self._event.error


class Pause(Event):
    """An event some seconds after the end of another command."""

    def __init__(self, event: Event, seconds: float) -> None:
        self._event = event
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the command, then sleep."""
        self._event.wait(timeout)
        time.sleep(self._seconds)


class Bridged(Event):
    """An event of another runtime. It stores the error that a wait for it raised.

    So dependents can name the cause even if the event has no `error`.
    """

    __slots__ = ("_event", "_raised")

    def __init__(self, event: Event) -> None:
        self._event = event
        self._raised: BaseException | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the event. Store and raise the error that its wait raises."""
        try:
            self._event.wait(timeout)
        except Exception as error:
            self._raised = error
            raise

    @property
    def done(self) -> bool:
        """Whether the event has ended, or a wait for it has raised."""
        return self._raised is not None or self._event.done

    @property
    def error(self) -> BaseException | None:
        """The event's error, or the error that a wait raised."""
        return self._event.error or self._raised


def may_fail(event: Event) -> bool:
    """Whether an event has failed or not yet ended."""
    return not event.done or event.error is not None


def bridge(event: Event, engine: OpenedDevice, timeout: float | None) -> Any:
    """Return a user event that ends when `event` ends. A new thread waits for `event`.

    The user event ends successfully even if `event` fails, because drivers differ if a user event
    fails: PoCL 3.0 ends the process, and NVIDIA's later calls on the same queue fail without a
    cause.

    timeout: seconds of this wait, as for the `wait` of events.
    """
    user_event = pyopencl().UserEvent(engine.native.context)
    _bridges[user_event.int_ptr] = user_event

    def follow() -> None:
        with contextlib.suppress(Exception):  # stored by `event`; dependents find it in `causes`
            event.wait(timeout)
        _end(user_event.int_ptr)

    threading.Thread(target=follow, name="dnncore-opencl-bridge", daemon=True).start()
    return user_event


_bridges: dict[int, Any] = {}  # by handle


def _end(handle: int) -> None:
    user_event = _bridges.pop(handle, None)
    if user_event is not None:
        user_event.set_status(0)


@atexit.register
def _end_all() -> None:
    """End all bridges at exit. The events of copies wait for bridges when they are released."""
    for handle in () if is_forked() else tuple(_bridges):
        _end(handle)
