"""The engine of an OpenCL device: its streams, its copies and its measured rates."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from dnncore.backend import (
    COMPLETED,
    DescriptorError,
    Device,
    Engine,
    EngineUnavailable,
    Event,
    Order,
    Peaks,
    Wrapped,
    uninterrupted,
)
from dnncore_opencl.devices.discovery import cl_devices, describe, pyopencl
from dnncore_opencl.devices.handles import handles
from dnncore_opencl.runtime import wrapping
from dnncore_opencl.runtime.device import OpenedDevice
from dnncore_opencl.runtime.peaks import measure
from dnncore_opencl.runtime.pinned import LEAST_BYTES, Pinned, waits_for_itself
from dnncore_opencl.runtime.stream import OpenCLStream


@handles("_pinned")
class OpenCLEngine(OpenedDevice):
    """An OpenCL device.

    Implementations in other distributions may use `program`, `tuning_table`, `native`, `device`,
    `is_cpu`, `failure` and `OpenCLStream.submit`. An example is `examples/opencl_kernel`.

    Indices count the devices of all platforms, in the order of the OpenCL loader. Within a
    platform, GPUs come first.
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
        _contexts[self.native.context.int_ptr, devices[index].int_ptr] = self

    @classmethod
    def from_native(cls, context: Any, device: Any = None) -> OpenCLEngine:
        """Return a new engine for a program's own pyopencl context.

        device: one of the context's devices, by default the first.

        `Memory.wrap(array, engine=engine)` takes buffers and arrays of the context, and
        `engine.stream(native=queue)` uses a queue of it.
        """
        engine = cls.__new__(cls)
        device = device or context.devices[0]
        devices = cl_devices()
        Engine.__init__(engine, devices.index(device) if device in devices else -1)
        engine._open(device, context)
        _contexts[context.int_ptr, device.int_ptr] = engine
        return engine

    @classmethod
    def of_context(cls, context: Any, device: Any) -> OpenCLEngine | None:
        """Return the engine of a context that is open in this process, the last of several.

        Returns None if there is none.
        """
        return _contexts.get((context.int_ptr, device.int_ptr))

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """Return all OpenCL devices. Raises `EngineUnavailable` with a reason if there is none."""
        return [describe(device) for device in cl_devices()]

    @functools.cached_property
    def peaks(self) -> Peaks:
        """The device's rates, measured once per device and driver and stored."""
        return uninterrupted(measure, self)

    def measure_peaks(self) -> Peaks:
        """Measure the device's rates again and store them."""
        self.__dict__["peaks"] = measure(self, again=True)
        return self.peaks

    def copy_in(
        self, stream: Any, host: np.ndarray[Any, Any], buffer: Any, wait_for: Sequence[Event] = ()
    ) -> Event:
        """Queue a copy of a 1-D uint8 host array to the start of a buffer."""
        wait_for = stream.behind_writers(host, wait_for, reads=True)
        if self._goes_pinned(stream, host.size, wait_for):
            stream.hold()
            copied: Event = self._copying(host.size, self._pinned.copy_in, stream, host, buffer)
            return copied
        return self._copy(stream, buffer, host, host.size, wait_for)

    def copy_out(
        self, stream: Any, buffer: Any, host: np.ndarray[Any, Any], wait_for: Sequence[Event] = ()
    ) -> Event:
        """Queue a copy of the start of a buffer to a 1-D uint8 host array."""
        wait_for = stream.behind_writers(host, wait_for)
        if self._goes_pinned(stream, host.size, wait_for):
            stream.hold()
            landing: Event = self._copying(host.size, self._pinned.copy_out, stream, buffer, host)
            stream.under_way.keep(landing, host)
            return landing
        return self._copy(stream, host, buffer, host.size, wait_for)

    @contextlib.contextmanager
    def map(self, stream: Any, buffer: Any, nbytes: int, mode: str) -> Iterator[Any]:
        """Map the buffer if the device uses host memory; otherwise copy it."""
        is_shared = self.is_cpu and nbytes and stream.order == "in"
        way = wrapping.mapped(self, stream, buffer, nbytes, mode) if is_shared else None
        with way or super().map(stream, buffer, nbytes, mode) as host:
            yield host

    def wrap(self, native: Any) -> Wrapped | None:
        """Wrap a pyopencl buffer, sub-buffer, array or SVM (shared virtual memory) allocation."""
        return wrapping.wrapped(self, native)

    def place(self, buffer: Any) -> tuple[Hashable, int]:
        """Return the memory that holds the buffer, and the buffer's offset in it."""
        return wrapping.place(buffer)

    def is_read_only(self, buffer: Any) -> bool:
        """Whether the program created the buffer with the flag READ_ONLY."""
        return wrapping.is_read_only(buffer)

    @property
    def dlpack_device(self) -> tuple[int, int] | None:
        """Return kDLOpenCL and the engine's index. The handle of a buffer is its cl_mem."""
        return None if self.index < 0 else (KDL_OPENCL, self.index)

    def to_dlpack(self, buffer: Any) -> int:
        """Return the cl_mem of a buffer."""
        handle: int = buffer.int_ptr
        return handle

    def from_dlpack(self, handle: int, nbytes: int) -> Any:
        """Return the buffer of a cl_mem of this context."""
        buffer = wrapping.of_handle(handle)
        if not self.owns(buffer, nbytes):
            raise DescriptorError(
                f"{self.name}: the tensor must be a buffer of this engine's context with"
                f" {nbytes} bytes; got {buffer.size} bytes of {buffer.context}; copy it by the host"
            )
        return buffer

    def stream(
        self, order: Order = "in", *, profiling: bool = False, native: Any = None
    ) -> OpenCLStream:
        """Open a command queue, or wrap the pyopencl queue `native` of this engine's context."""
        return OpenCLStream(self, order, profiling=profiling, native=native)

    @functools.cached_property
    def _pinned(self) -> Pinned:
        return Pinned(self.native)

    def _goes_pinned(self, stream: Any, nbytes: int, wait_for: Sequence[Event]) -> bool:
        """Whether a copy goes through pinned memory. The driver does all other copies.

        These copies are left to the driver:
        - copies of a CPU, whose memory is the host's;
        - copies that must wait, because a pinned copy reads its host array at once;
        - copies that would make the caller wait for another runtime;
        - timed copies, because the pieces of a pinned copy have no common start and end.
        """
        return (
            not self.is_cpu
            and nbytes >= LEAST_BYTES
            and stream.order == "in"
            and not stream.profiling
            and all(stream.is_behind(event) for event in wait_for)
            and not (waits_for_itself(nbytes) and stream.under_way.is_held_up)
        )

    def _copy(
        self, stream: Any, target: Any, source: Any, nbytes: int, wait_for: Sequence[Event]
    ) -> Event:
        """Copy by the driver's own function."""
        if not nbytes:
            return stream.nothing(wait_for) if wait_for else COMPLETED

        def enqueue(events: Any) -> Any:
            return pyopencl().enqueue_copy(
                stream.native, target, source, wait_for=events, is_blocking=False
            )

        what = _cannot_copy(nbytes)
        event: Event = stream.submit(enqueue, wait_for, what, copies_to=target)
        return event

    def _copying(self, nbytes: int, copy: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return copy(*arguments)
        except pyopencl().Error as error:
            raise self.failure(_cannot_copy(nbytes), error) from error


_contexts: weakref.WeakValueDictionary[tuple[int, int], OpenCLEngine]
_contexts = weakref.WeakValueDictionary()  # by context and device
KDL_OPENCL = 4  # DLPack's code for OpenCL devices


def _cannot_copy(nbytes: int) -> str:
    return f"cannot copy {nbytes} bytes"
