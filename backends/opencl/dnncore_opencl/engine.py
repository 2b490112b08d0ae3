"""OpenCL engines: one device with its context, buffers and programs."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dnncore.backend import (
    COMPLETED,
    Device,
    Engine,
    EngineUnavailable,
    Event,
    ExecutionError,
    Peaks,
    Stream,
    check_size,
)
from dnncore_opencl.build import Builder
from dnncore_opencl.devices import cl_devices, describe, device_type, pyopencl
from dnncore_opencl.stream import OpenCLStream, status_name

if TYPE_CHECKING:
    from dnncore.backend import Order
    from dnncore_opencl.program import Launch

SMALLEST_BUFFER = 128  # bytes; OpenCL has no empty buffers


@dataclass(frozen=True)
class Native:
    """The pyopencl objects of an engine."""

    platform: Any
    device: Any
    context: Any


class MemoryInfo(NamedTuple):
    """Bytes and number of an engine's living buffers, scratchpads included."""

    allocated: int
    buffers: int


class OpenCLEngine(Engine):
    """An OpenCL device; `native` holds its pyopencl `platform`, `device` and `context`.

    Indices count the devices of all platforms, platforms as the OpenCL loader lists them, GPUs
    first within a platform. A buffer is a `pyopencl.Buffer`.
    """

    kind: ClassVar[str] = "opencl"
    buffer_kind: ClassVar[str] = "a pyopencl.Buffer of its context"

    def __init__(self, index: int = 0) -> None:
        devices = cl_devices()
        if not 0 <= index < len(devices):
            raise EngineUnavailable(
                f"opencl:{index}: there are {len(devices)} OpenCL devices, opencl:0 to"
                f" opencl:{len(devices) - 1}; `dnncore devices` lists them"
            )
        super().__init__(index)
        self._open(devices[index], None)

    @classmethod
    def from_native(cls, context: Any, device: Any = None) -> OpenCLEngine:
        """Wrap a pyopencl context, and one of its devices (the first by default)."""
        engine = cls.__new__(cls)
        device = device or context.devices[0]
        devices = cl_devices()
        Engine.__init__(engine, devices.index(device) if device in devices else -1)
        engine._open(device, context)
        return engine

    def _open(self, device: Any, context: Any) -> None:
        cl = pyopencl()
        try:
            context = context or cl.Context([device])
        except cl.Error as error:
            raise EngineUnavailable(f"{self.name}: no context on {device.name}: {error}") from error
        self.native = Native(device.platform, device, context)
        self.device_type = device_type(device)
        self._device = describe(device)
        self._lock = threading.Lock()
        self._bytes = 0
        self._buffers = 0
        self._builder = Builder(self.native)
        self._peaks: Peaks | None = None

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """All OpenCL devices; raises `EngineUnavailable` with the reason when there is none."""
        return [describe(device) for device in cl_devices()]

    @property
    def device(self) -> Device:
        """The device, with its limits."""
        return self._device

    @property
    def peaks(self) -> Peaks:
        """The device's rates, measured once per device and driver and stored."""
        if self._peaks is None:
            from dnncore_opencl.peaks import measure

            self._peaks = measure(self)
        return self._peaks

    @property
    def is_cpu(self) -> bool:
        """Whether kernels run on cores: few work-items with much work each, no local memory."""
        return self.device_type == "cpu"

    def shares_context(self, other: Engine) -> bool:
        """Whether the other engine's events can be waited for by this device."""
        mine, theirs = self.native.context, getattr(other.native, "context", None)
        return other is self or mine == theirs

    def program(self, source: str, options: Sequence[str] = ()) -> Any:
        """Return the pyopencl program of `source`: built, or loaded from the disk store.

        Raises `BuildError` with the compiler's log.
        """
        return self._builder.program(source, options)

    def launchable(self, launch: Launch) -> Any:
        """Return the pyopencl program of a launch, with all of its code generated."""
        return self._builder.launchable(launch)

    # -- memory ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """Allocate an uninitialised pyopencl buffer; raises `ExecutionError` when out of memory."""
        cl = pyopencl()
        check_size(self.name, nbytes)
        size = max(nbytes, SMALLEST_BUFFER)
        limit = self._device.limits["max_allocation"]
        if size > limit:
            raise ExecutionError(
                f"{self.name}: a buffer of {nbytes} bytes is over the device's limit of {limit}"
            )
        try:
            buffer = _buffer_class()(self.native.context, cl.mem_flags.READ_WRITE, size)
        except cl.Error as error:
            raise ExecutionError(
                f"{self.name}: cannot allocate {nbytes} bytes: {status_name(error.code)};"
                f" {self._bytes} bytes are in use"
            ) from error
        self._count(size, 1)
        weakref.finalize(buffer, self._count, -size, -1).atexit = False
        return buffer

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether `buffer` is a pyopencl buffer of this engine's context that holds `nbytes`."""
        return (
            isinstance(buffer, pyopencl().Buffer)
            and buffer.context == self.native.context
            and buffer.size >= nbytes
        )

    def memory_info(self) -> MemoryInfo:
        """Count the buffers that this engine allocated and that are still alive."""
        return MemoryInfo(self._bytes, self._buffers)

    def copy_in(
        self,
        stream: Stream,
        host: np.ndarray[Any, Any],
        buffer: Any,
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Queue a copy of a 1-D uint8 host array to the start of a buffer."""
        return self._copy(stream, buffer, host, host.size, wait_for)

    def copy_out(
        self,
        stream: Stream,
        buffer: Any,
        host: np.ndarray[Any, Any],
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Queue a copy of the start of a buffer to a 1-D uint8 host array."""
        return self._copy(stream, host, buffer, host.size, wait_for)

    def stream(
        self, order: Order = "in", *, profiling: bool = False, native: Any = None
    ) -> OpenCLStream:
        """Open a command queue, or wrap the pyopencl queue `native` of this engine's context."""
        return OpenCLStream(self, order, profiling=profiling, native=native)

    def _copy(
        self, stream: Any, target: Any, source: Any, nbytes: int, wait_for: Sequence[Event]
    ) -> Event:
        if not nbytes:
            return stream.marker(wait_for) if wait_for else COMPLETED
        cl = pyopencl()

        def enqueue(events: Any) -> Any:
            return cl.enqueue_copy(
                stream.native, target, source, wait_for=events, is_blocking=False
            )

        try:
            return stream.submit(enqueue, wait_for)
        except cl.Error as error:
            raise ExecutionError(
                f"{self.name}: cannot copy {nbytes} bytes: {status_name(error.code)}"
            ) from error

    def _count(self, nbytes: int, buffers: int) -> None:
        with self._lock:
            self._bytes += nbytes
            self._buffers += buffers


@functools.cache
def _buffer_class() -> Any:
    class Buffer(pyopencl().Buffer):  # type: ignore[misc]
        """A device buffer that can be referred to weakly, so that living ones are counted."""

    return Buffer
