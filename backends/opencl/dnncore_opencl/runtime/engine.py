"""OpenCL engines: one device with its context, buffers and programs."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dnncore.backend import (
    COMPLETED,
    DescriptorError,
    Device,
    Engine,
    EngineUnavailable,
    Event,
    ExecutionError,
    Peaks,
    check_size,
)
from dnncore_opencl.devices.discovery import cl_devices, describe, device_type, pyopencl
from dnncore_opencl.runtime import tuning
from dnncore_opencl.runtime.build import Builder
from dnncore_opencl.runtime.faults import OUT_OF_MEMORY, failure
from dnncore_opencl.runtime.memory_account import Account, MemoryInfo
from dnncore_opencl.runtime.pinned import LEAST_BYTES, Pinned, waits_for_itself
from dnncore_opencl.runtime.stream import OpenCLStream

if TYPE_CHECKING:
    from dnncore.backend import Order
    from dnncore_opencl.runtime.program import Launch

SMALLEST_BUFFER = 128  # bytes; OpenCL has no empty buffers


@dataclass(frozen=True)
class Native:
    """The pyopencl objects of an engine."""

    platform: Any
    device: Any
    context: Any


class OpenCLEngine(Engine):
    """An OpenCL device; `native` holds its pyopencl `platform`, `device` and `context`.

    Indices count the devices of all platforms, platforms as the OpenCL loader lists them, GPUs
    first within a platform. A buffer is a `pyopencl.Buffer`.

    wait_timeout: the seconds after which waits that have no timeout of their own raise
    `TimeoutError`; None, which is the default, for no limit. DNNCORE_WAIT_TIMEOUT sets it first.
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
        self.account = Account(device.global_mem_size)
        try:
            context = context or cl.Context([device])
        except cl.Error as error:
            told = failure(self, f"no context on {device.name}", error)
            raise EngineUnavailable(str(told)) from error
        self.native = Native(device.platform, device, context)
        self.device_type = device_type(device)
        self._device = describe(device)
        self.wait_timeout = _wait_timeout()
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
            from dnncore_opencl.runtime.peaks import measure

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

    def tuning_table(self, name: str, package: str = tuning.PACKAGE) -> tuning.Table:
        """Return named parameters by problem that were measured to be best on this device.

        They are read from `tuning/<device>.json` in an importable package, such as a stranger's
        own, whose kernels say what keys and parameters mean; the file's name is the device's in
        lower case with `_` between words. Empty where there is no file: fall back to a rule.
        """
        return tuning.table(self, name, package)

    def launchable(self, launch: Launch) -> Any:
        """Return the pyopencl program of a launch, with all of its code generated."""
        return self._builder.launchable(launch)

    # -- memory ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """Allocate an uninitialised pyopencl buffer; raises `ExecutionError` when out of memory."""
        check_size(self.name, nbytes)
        size = max(nbytes, SMALLEST_BUFFER)
        limit = self._device.limits["max_allocation"]
        if size > limit:
            raise ExecutionError(
                f"{self.name}: a buffer of {nbytes} bytes is over the device's limit of {limit}"
            )
        buffer = self._new_buffer(size)
        self.account.add(buffer, size)
        return buffer

    def _new_buffer(self, size: int) -> Any:
        """Allocate, if need be after garbage is collected: cycles may hold memories.

        More than the device has is refused here, since drivers find out at the first use.
        """
        cl = pyopencl()
        for last_try in (False, True):
            if self.account.has_room(size):
                try:
                    return _buffer_class()(self.native.context, cl.mem_flags.READ_WRITE, size)
                except cl.Error as error:
                    if last_try or error.code not in OUT_OF_MEMORY:
                        raise failure(self, f"cannot allocate {size} bytes", error) from error
            if not last_try:
                gc.collect()
        raise ExecutionError(f"{self.name}: cannot allocate {size} bytes: {self.account.text()}")

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether `buffer` is a pyopencl buffer of this engine's context that holds `nbytes`."""
        return (
            isinstance(buffer, pyopencl().Buffer)
            and buffer.context == self.native.context
            and buffer.size >= nbytes
        )

    def memory_info(self) -> MemoryInfo:
        """Count the buffers that this engine allocated and that are still alive."""
        return self.account.info

    def copy_in(
        self,
        stream: Any,
        host: np.ndarray[Any, Any],
        buffer: Any,
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Queue a copy of a 1-D uint8 host array to the start of a buffer."""
        wait_for = stream.behind_writers(host, wait_for, reads=True)
        if self._goes_pinned(stream, host.size, wait_for):
            return self._copying(host.size, self._pinned.copy_in, stream, host, buffer)
        return self._copy(stream, buffer, host, host.size, wait_for)

    def copy_out(
        self,
        stream: Any,
        buffer: Any,
        host: np.ndarray[Any, Any],
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Queue a copy of the start of a buffer to a 1-D uint8 host array."""
        wait_for = stream.behind_writers(host, wait_for)
        if self._goes_pinned(stream, host.size, wait_for):
            landing = self._copying(host.size, self._pinned.copy_out, stream, buffer, host)
            stream.under_way.keep(landing, host)
            return landing
        return self._copy(stream, host, buffer, host.size, wait_for)

    def stream(
        self, order: Order = "in", *, profiling: bool = False, native: Any = None
    ) -> OpenCLStream:
        """Open a command queue, or wrap the pyopencl queue `native` of this engine's context."""
        return OpenCLStream(self, order, profiling=profiling, native=native)

    @functools.cached_property
    def _pinned(self) -> Pinned:
        return Pinned(self)

    def _goes_pinned(self, stream: Any, nbytes: int, wait_for: Sequence[Event]) -> bool:
        """Whether a copy goes through pinned memory.

        A CPU's memory is the host's. What must wait is left to the driver, since the host array is
        read at once; so is what would have the caller wait for another runtime; and so is what is
        timed, since pieces have no common start and end.
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
        """Copy as the driver does."""
        if not nbytes:
            return stream.marker(wait_for) if wait_for else COMPLETED

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
            raise failure(self, _cannot_copy(nbytes), error) from error


def _cannot_copy(nbytes: int) -> str:
    return f"cannot copy {nbytes} bytes"


_serials = itertools.count()


@functools.cache
def _buffer_class() -> Any:
    class Buffer(pyopencl().Buffer):  # type: ignore[misc]
        """A device buffer that can be referred to weakly, so that living ones are counted.

        serial: a number that no other has, also after it has died.
        """

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.serial = next(_serials)

    return Buffer


def _wait_timeout() -> float | None:
    """DNNCORE_WAIT_TIMEOUT in seconds; None if waits have no limit."""
    text = os.environ.get("DNNCORE_WAIT_TIMEOUT", "")
    try:
        seconds = float(text or "inf")
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise DescriptorError(
            f"DNNCORE_WAIT_TIMEOUT must be a number of seconds above 0; got {text!r}"
        )
    return seconds if math.isfinite(seconds) else None
