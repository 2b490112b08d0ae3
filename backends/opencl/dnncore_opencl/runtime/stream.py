"""Streams are command queues."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from dnncore.backend import DescriptorError, Event, Order, Stream
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.devices.handles import handles
from dnncore_opencl.runtime.device import OpenedDevice
from dnncore_opencl.runtime.events import (
    Bridged,
    Observed,
    OpenCLEvent,
    Pause,
    Point,
    bridge,
    may_fail,
)
from dnncore_opencl.runtime.in_flight import UnderWay, writers
from dnncore_opencl.runtime.pinned import Landing
from dnncore_opencl.runtime.raw_queue import enqueue_function


@handles("native", "raw_queue", "under_way", of_calls=True)
class OpenCLStream(Stream):
    """A command queue; `native` is the pyopencl queue.

    under_way: copies, and commands that wait for other runtimes, until they have ended. has_points:
    whether a launch returns the point after it instead of its own event. point: the current point,
    whose marker is not queued yet. raw_enqueue, raw_queue: the driver's launch function and its
    queue. is_direct: whether kernels follow each other without events. A wrapped queue keeps its
    order and its profiling.
    """

    engine: OpenedDevice

    def __init__(
        self,
        engine: OpenedDevice,
        order: Order = "in",
        *,
        profiling: bool = False,
        native: Any = None,
    ) -> None:
        native = native or _queue(engine, order, profiling)
        _check_queue(engine, native)
        flags = pyopencl().command_queue_properties
        is_out_of_order = native.properties & flags.OUT_OF_ORDER_EXEC_MODE_ENABLE
        super().__init__(
            engine,
            "out" if is_out_of_order else "in",
            profiling=bool(native.properties & flags.PROFILING_ENABLE),
            native=native,
        )
        self.under_way = UnderWay(in_order=self.order == "in")
        self.raw_enqueue = enqueue_function()
        self.raw_queue = ctypes.c_void_p(native.int_ptr)
        self.point: Point | None = None
        self.is_direct = self.order == "in"
        self._lag = 0.0
        self.has_points = (
            self.order == "in"
            and not self.profiling
            and not engine.is_cpu  # CPU drivers create events at no cost
            and self.raw_enqueue is not None
        )

    @property
    def lag(self) -> float | None:
        """Delay of each command in seconds."""
        return self._lag

    @lag.setter
    def lag(self, seconds: float | None) -> None:
        self._lag = seconds or 0.0
        self.is_direct = self.order == "in" and not seconds

    def hold(self) -> None:
        """Delay the next command until `lag` seconds after the end of the queued commands."""
        if self._lag:
            if self.point is not None:
                self.point.native  # noqa: B018 - queues the marker, which must not be delayed
            cl = pyopencl()
            before = OpenCLEvent(self, cl.enqueue_marker(self.native))
            pause = bridge(Pause(before, self._lag), self.engine, math.inf)
            cl.enqueue_barrier(self.native, wait_for=[pause])
            self.native.flush()

    def wait(self, timeout: float | None = None) -> None:
        """Block until all commands have ended. Raise the first error of a command.

        Raises `TimeoutError` after `timeout` seconds, by default the engine's limit.
        """
        timeout = self.engine.wait_timeout if timeout is None else timeout
        try:
            if timeout is not None:
                self.marker().poll(timeout)
            self.native.finish()
        except pyopencl().Error as error:
            raise self.engine.failure("the queue failed", error) from error
        errors = self.under_way.errors()
        point, self.point = self.point, None
        if point is not None:
            point.settle()
        if self.scratchpads is not None:
            self.scratchpads.settle()
        if errors:
            raise errors[0]

    def new_point(self) -> Point:
        """Create the next point."""
        self.point = Point(self)
        return self.point

    def leave(self, point: Point) -> None:
        """Queue no more commands before the point."""
        if self.point is point:
            self.point = None

    def is_behind(self, event: Event) -> bool:
        """Whether the next command needs no wait to follow `event`, which has not failed."""
        if isinstance(event, Point) and event.stream is self:
            return True
        return event.done and event.error is None

    def behind_writers(
        self, host: Any, wait_for: Sequence[Event], *, reads: bool = False
    ) -> Sequence[Event]:
        """Return the events that a copy from or to a host array must wait for.

        They include copies that write to the array. Copies of this stream that reach the array only
        when a caller waits are waited for here. reads: whether the copy reads the array.
        """
        for event in writers(host):
            if isinstance(event, Landing) and event in self.under_way.events:
                event.wait()
            elif isinstance(event, OpenCLEvent) and reads and not self.engine.is_cpu:
                wait_for = (*wait_for, Observed(event))
            else:
                wait_for = (*wait_for, event)
        return wait_for

    def submit(
        self, enqueue: Any, wait_for: Sequence[Event], what: str, *, copies_to: Any = None
    ) -> OpenCLEvent:
        """Queue a command behind `wait_for` by calling `enqueue(native_events)`.

        enqueue: queues the command on `native` after these pyopencl events (None: no events), and
        returns its pyopencl event. wait_for: events of any engine. what: the beginning of an error
        message, such as "cannot launch". copies_to: the target of a copy.

        Raises `ExecutionError` if OpenCL refuses the command.
        """
        native: Any = None
        causes: Sequence[Event] = ()
        try:
            self.hold()
            if wait_for:
                if self.point is not None:
                    self.point.native  # noqa: B018 - queues the marker, which must not wait for these
                native, causes = self._native_events(wait_for)
            event = OpenCLEvent(self, enqueue(native), causes)
        except pyopencl().Error as error:
            raise self.engine.failure(what, error) from error
        if causes or copies_to is not None:
            self.under_way.keep(event, copies_to)
        return event

    def marker(self, wait_for: Sequence[Event] = ()) -> OpenCLEvent:
        """Queue a command that does nothing and ends after `wait_for` and all earlier commands."""
        cl = pyopencl()
        return self.submit(
            lambda events: cl.enqueue_marker(self.native, wait_for=events),
            wait_for,
            "cannot queue a marker",
        )

    def nothing(self, wait_for: Sequence[Event] = ()) -> OpenCLEvent:
        """Queue a command that does nothing and ends after `wait_for`.

        With profiling it is a kernel, because the times of NVIDIA's markers are 0 or too early.
        """
        if not self.profiling:
            return self.marker(wait_for)
        cl, kernel = pyopencl(), self.engine.idle_kernel
        return self.submit(
            lambda events: cl.enqueue_nd_range_kernel(
                self.native, kernel, (1,), (1,), wait_for=events
            ),
            wait_for,
            "cannot launch",
        )

    def _native_events(self, events: Sequence[Event]) -> tuple[list[Any], list[Event]]:
        """Return the pyopencl events to wait for, and the foreign events that may fail."""
        native: list[Any] = []
        causes: list[Event] = []
        for event in events:
            if isinstance(event, OpenCLEvent) and event.stream.engine.shares_context(self.engine):
                native.append(event.native)  # may queue the marker of a point
                if event.stream is not self:
                    event.stream.native.flush()
                causes += filter(may_fail, event.causes)
            elif may_fail(event):
                # The engine's timeout applies only to waits of callers.
                is_ours = isinstance(event, (OpenCLEvent, Landing, Observed))
                timeout = math.inf if is_ours else None
                cause = Bridged(event)
                native.append(bridge(cause, self.engine, timeout))
                causes.append(cause)
        return native, causes


def _queue(engine: OpenedDevice, order: str, profiling: bool) -> Any:
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
        what = f"cannot open a stream with order {order!r}, profiling={profiling}"
        raise engine.failure(what, error) from error


def _check_queue(engine: OpenedDevice, queue: Any) -> None:
    """Refuse a queue that does not belong to the engine's context and device."""
    mine, cl = engine.native, pyopencl()
    if not isinstance(queue, cl.CommandQueue):
        raise DescriptorError(
            f"{engine.name}: native must be a pyopencl.CommandQueue; got {type(queue).__name__}"
        )
    try:
        context, device = queue.context, queue.device
    except cl.Error as error:  # the queue's context has been released
        raise engine.failure("the queue cannot be used", error) from error
    if (context, device) != (mine.context, mine.device):
        raise DescriptorError(
            f"{engine.name}: the queue must be of this engine's context and device, {mine.context};"
            f" got one of {context}; wrap that: OpenCLEngine.from_native(context, device)"
        )
