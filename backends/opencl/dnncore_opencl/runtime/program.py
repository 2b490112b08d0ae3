"""Executables that launch kernels, and bound calls."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dnncore.backend import BuildError, Event, Executable, Memory, Run, remark, uninterrupted
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.runtime.device import OpenedDevice
from dnncore_opencl.runtime.events import OpenCLEvent
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.raw_queue import launch_arguments
from dnncore_opencl.runtime.schema import Arg, Constant, Scratch
from dnncore_opencl.runtime.turns import Turns


class LaunchProgram(Executable):
    """Kernels launched in order. Without kernels, the command does nothing."""

    def __init__(self, engine: OpenedDevice, launches: Sequence[Launch]) -> None:
        built = [_built(engine, launch) for launch in launches]
        self.launches = tuple(launch for launch, _ in built)
        self._constants = {
            arg: engine.constant(arg.values)
            for launch in self.launches
            for arg in launch.args
            if isinstance(arg, Constant)
        }
        self._programs = [program for _, program in built]
        self._turns = engine.turns
        self._own = threading.local()  # per thread: the call that `execute` fills

    def bind(self, memories: Sequence[Memory], scratchpad: Any) -> Run:
        """Create kernel objects for this call, because a kernel object holds its arguments."""
        call = self._call([list(memories), scratchpad, self._constants])
        for one in call.ready:
            one.set_buffers(memories, scratchpad)
        return call

    def execute(
        self, stream: Any, memories: Sequence[Memory], scratchpad: Any, wait_for: Sequence[Event]
    ) -> Event:
        """Launch with the thread's own kernel objects. OpenCL copies arguments at each launch."""
        try:
            call: BoundCall = self._own.call
        except AttributeError:
            call = self._own.call = self._call(None)
        for one in call.ready:
            one.set_buffers(memories, scratchpad)
        return call(stream, wait_for)

    def _call(self, owned: Any) -> BoundCall:
        """Create kernel objects, whose buffers are not set.

        pyopencl queries a database for each, under a lock that a signal handler would wait for.
        """
        ready = functools.partial(_Ready, self._constants, self._turns)
        return BoundCall(uninterrupted(list, map(ready, self._programs, self.launches)), owned)

    @staticmethod
    def chain(runs: Sequence[Any]) -> Run:  # type: ignore[override]  # a field for mypy
        """Return one call for several calls, with one loop over all kernels."""
        return BoundCall([one for run in runs for one in run.ready], [run.owned for run in runs])


class BoundCall:
    """Kernels whose arguments are set. A call with a stream queues them.

    owned: objects that must live as long as the call, because a kernel does not keep buffers alive.
    """

    __slots__ = ("owned", "ready")

    def __init__(self, ready: list[_Ready], owned: Any) -> None:
        self.ready = ready
        self.owned = owned

    def __call__(self, stream: Any, wait_for: Sequence[Event] = ()) -> Event:
        """Queue all kernels. Return the event of the last one."""
        try:
            if wait_for or not stream.is_direct or not self.ready:
                return self._queue_behind(stream, wait_for)
            if stream.has_points:
                return self._queue_to_point(stream)
            for one in self.ready:
                native = _enqueue(one, stream)
        except pyopencl().Error as error:
            raise stream.engine.failure("cannot launch", error) from error
        return OpenCLEvent(stream, native)

    def _queue_to_point(self, stream: Any) -> Event:
        """Queue all kernels, without events of their own. Return the point after them."""
        enqueue, queue = stream.raw_enqueue, stream.raw_queue
        for one in self.ready:
            if one.turns:
                _enqueue(one, stream)
                continue
            status = enqueue(queue, *one.raw)
            if status:
                raise stream.engine.failure("cannot launch", status)
        point: Event = stream.point or stream.new_point()
        return point

    def _queue_behind(self, stream: Any, wait_for: Sequence[Event]) -> Event:
        """Queue all kernels after other events; on an out-of-order queue one after the other."""
        event: OpenCLEvent | None = None
        causes: Sequence[Event] = ()
        for one in self.ready:
            enqueue = functools.partial(_enqueue, one, stream)
            event = stream.submit(enqueue, wait_for, "cannot launch")
            event.causes = causes = event.causes or causes
            wait_for = () if stream.order == "in" else (event,)
        return event or stream.nothing(wait_for)


def _enqueue(one: _Ready, stream: Any, events: Sequence[Any] | None = None) -> Any:
    """Queue a kernel behind pyopencl events, and a persistent one in its turn."""
    arguments = stream.native, one.kernel, one.global_size, one.local_size
    if one.turns is None:
        return one.enqueue(*arguments, wait_for=events)

    def enqueue(before: Sequence[Any]) -> Any:
        return one.enqueue(*arguments, wait_for=[*(events or ()), *before])

    return one.turns.launch(stream.native, enqueue, is_in_order=stream.order == "in")


def _built(engine: OpenedDevice, launch: Launch) -> tuple[Launch, Any]:
    """Build the program of a launch or, if this fails, of its `instead`."""
    try:
        return launch, engine.builder.launchable(launch)
    except BuildError as error:
        if launch.instead:
            remark(engine, f"kernel {launch.kernel}.cl: another one instead, as {error}")
            return _built(engine, launch.instead)
        raise BuildError(f"kernel {launch.kernel}.cl: {error}") from error


class _Ready:
    """A kernel object with its scalars and constants set, and the places of its buffers."""

    __slots__ = (
        "_buffers",
        "_serials",
        "enqueue",
        "global_size",
        "kernel",
        "local_size",
        "raw",
        "turns",
    )

    def __init__(
        self, constants: Mapping[Constant, Any], turns: Turns, program: Any, launch: Launch
    ) -> None:
        cl = pyopencl()
        self.turns = turns if launch.is_persistent else None
        self.kernel = cl.Kernel(program, launch.kernel)
        self.global_size = launch.global_size
        self.local_size = launch.local_size
        self.enqueue = cl.enqueue_nd_range_kernel
        self.raw = launch_arguments(self.kernel, self.global_size, self.local_size)
        self._buffers: list[tuple[int, int | None]] = []
        for place, arg in enumerate(launch.args):
            if isinstance(arg, Arg | Scratch):
                self._buffers.append((place, arg.index if isinstance(arg, Arg) else None))
            else:
                self.kernel.set_arg(place, constants[arg] if isinstance(arg, Constant) else arg)
        self._serials: list[int | None] = [None] * len(launch.args)

    def set_buffers(self, memories: Sequence[Memory], scratchpad: Any) -> None:
        """Set the buffers that have changed, and always the buffers that the user created."""
        serials = self._serials
        for place, index in self._buffers:
            buffer = scratchpad if index is None else memories[index].buffer
            serial = getattr(buffer, "serial", None)
            if serial is None or serial != serials[place]:
                self.kernel.set_arg(place, buffer)
                serials[place] = serial
