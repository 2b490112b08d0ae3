"""Streams are command queues; events are theirs, with errors by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dnncore.backend import DescriptorError, Event, ExecutionError, Stream
from dnncore_opencl.devices import pyopencl

if TYPE_CHECKING:
    from dnncore.backend import Order
    from dnncore_opencl.engine import OpenCLEngine

FAILED_DEPENDENCY = -14  # CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, what dependents end with
KEPT_EVENTS = 64  # dependents remembered before those that have ended well are dropped


class OpenCLEvent(Event):
    """One command of a queue. `native` is the pyopencl event.

    causes: the events of other runtimes that the command hangs on, however indirectly; one that
    failed is its error, since not every driver tells.
    """

    __slots__ = ("causes", "native", "stream")

    def __init__(self, stream: OpenCLStream, native: Any, causes: Sequence[Event] = ()) -> None:
        self.stream = stream
        self.native = native
        self.causes = causes

    def wait(self, timeout: float | None = None) -> None:
        """Block until the command has ended, `timeout` seconds at most."""
        error = None
        if timeout is not None:
            self._poll(timeout)
        else:
            try:
                self.native.wait()
            except pyopencl().Error as raised:
                error = self._failure(raised.code)
        error = self.error or error
        if error is not None:
            raise error

    @property
    def done(self) -> bool:
        """Whether the command has ended, well or not."""
        self.stream.native.flush()
        return bool(self.native.command_execution_status <= 0)

    @property
    def error(self) -> BaseException | None:
        """What the command failed with, by the name of its OpenCL status."""
        status = self.native.command_execution_status
        cause = next(filter(None, (event.error for event in self.causes if event.done)), None)
        if cause is None:
            return self._failure(status) if status < 0 else None
        error = self._failure(FAILED_DEPENDENCY)
        error.__cause__ = cause
        return error

    @property
    def start(self) -> float | None:
        """When the device began, in seconds of its clock; None without profiling."""
        return self.native.profile.start * 1e-9 if self.stream.profiling else None

    @property
    def end(self) -> float | None:
        """When the device ended, in seconds of its clock; None without profiling."""
        return self.native.profile.end * 1e-9 if self.stream.profiling else None

    def _failure(self, status: int) -> ExecutionError:
        name = status_name(status)
        return ExecutionError(f"{self.stream.engine.name}: a command failed with {name}")

    def _poll(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = 1e-5
        while not self.done:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.stream.engine.name}: not done after {timeout} s")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)


class OpenCLStream(Stream):
    """A command queue; `native` is the pyopencl queue."""

    def __init__(
        self,
        engine: OpenCLEngine,
        order: Order = "in",
        *,
        profiling: bool = False,
        native: Any = None,
    ) -> None:
        super().__init__(
            engine, order, profiling=profiling, native=native or _queue(engine, order, profiling)
        )
        self._dependents: list[OpenCLEvent] = []

    def wait(self) -> None:
        """Block until all commands have ended; raises the first error of one."""
        dependents, self._dependents = self._dependents, []
        try:
            self.native.finish()
        except pyopencl().Error as error:
            name = status_name(error.code)
            raise ExecutionError(
                f"{self.engine.name}: the queue failed with {name}: {error}"
            ) from error
        for event in dependents:
            event.wait()

    def submit(self, enqueue: Any, wait_for: Sequence[Event]) -> OpenCLEvent:
        """Queue a command behind `wait_for` by calling `enqueue(native_events)`."""
        if not wait_for:
            return OpenCLEvent(self, enqueue(None))
        native, causes = self._native_events(wait_for)
        event = OpenCLEvent(self, enqueue(native), causes)
        if causes:
            self._remember(event)
        return event

    def marker(self, wait_for: Sequence[Event] = ()) -> OpenCLEvent:
        """Queue a command that does nothing and ends after `wait_for` and all that came before."""
        cl = pyopencl()
        return self.submit(lambda events: cl.enqueue_marker(self.native, wait_for=events), wait_for)

    def _native_events(self, events: Sequence[Event]) -> tuple[list[Any], list[Event]]:
        """The pyopencl events to wait for, and the foreign ones that may fail."""
        native, causes = [], []
        for event in events:
            if isinstance(event, OpenCLEvent) and event.stream.engine.shares_context(self.engine):
                if event.stream is not self:
                    event.stream.native.flush()
                native.append(event.native)
                causes += filter(_may_fail, event.causes)
            elif _may_fail(event):
                native.append(_bridge(event, self.engine.native.context))
                causes.append(event)
        return native, causes

    def _remember(self, event: OpenCLEvent) -> None:
        """Keep a command that may fail, for `wait` to raise that."""
        if len(self._dependents) >= KEPT_EVENTS:
            self._dependents = [e for e in self._dependents if not e.done or e.error]
        self._dependents.append(event)


def _may_fail(event: Event) -> bool:
    """Whether an event has failed or not yet ended."""
    return not event.done or event.error is not None


def status_name(status: int) -> str:
    """The name of an OpenCL status, such as OUT_OF_RESOURCES."""
    return str(pyopencl().status_code.to_string(status, "status %d"))


def _queue(engine: OpenCLEngine, order: str, profiling: bool) -> Any:
    cl = pyopencl()
    if order not in ("in", "out"):
        raise DescriptorError(
            f"{engine.name}: a stream's order must be 'in' or 'out'; got {order!r}"
        )
    flags = cl.command_queue_properties
    properties = flags.PROFILING_ENABLE if profiling else 0
    if order == "out":
        properties |= flags.OUT_OF_ORDER_EXEC_MODE_ENABLE
    try:
        return cl.CommandQueue(engine.native.context, engine.native.device, properties=properties)
    except cl.Error as error:
        raise ExecutionError(
            f"{engine.name}: cannot open a stream with order {order!r}, profiling={profiling}:"
            f" {status_name(error.code)}"
        ) from error


def _bridge(event: Event, context: Any) -> Any:
    """Return a user event that a thread of its own ends as the foreign `event` ends."""
    user_event = pyopencl().UserEvent(context)

    def follow() -> None:
        status = 0
        try:
            event.wait()
        except Exception:  # kept by the event; dependents find it in their causes
            status = FAILED_DEPENDENCY
        user_event.set_status(status)

    threading.Thread(target=follow, name="dnncore-opencl-bridge", daemon=True).start()
    return user_event
