"""An opened device: its context, its memory and its programs.

Streams, events and executables use this part of an engine.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import (
    DescriptorError,
    Device,
    Engine,
    EngineUnavailable,
    ExecutionError,
    check_size,
    uninterrupted,
)
from dnncore_opencl.devices.discovery import Native, describe, device_type, pyopencl
from dnncore_opencl.devices.handles import begin_use, handles
from dnncore_opencl.runtime import tuning
from dnncore_opencl.runtime.build import Builder
from dnncore_opencl.runtime.faults import failure
from dnncore_opencl.runtime.memory_account import Account, MemoryInfo
from dnncore_opencl.runtime.turns import turns_of

SMALLEST_BUFFER = 128  # bytes; OpenCL has no empty buffers


@handles("native", "builder", of_calls=True)
class OpenedDevice(Engine):
    """The part of an engine that does not depend on queues.

    `native` holds the pyopencl `platform`, `device` and `context`. Buffers are `pyopencl.Buffer`s.

    wait_timeout: default timeout of waits in seconds; then they raise `TimeoutError`. None means no
    limit. The initial value is DNNCORE_WAIT_TIMEOUT.
    """

    def _open(self, device: Any, context: Any) -> None:
        cl = pyopencl()
        begin_use()
        self.account = Account(device.global_mem_size)
        try:
            context = context or cl.Context([device])
        except cl.Error as error:
            reason = self.failure(f"no context on {device.name}", error)
            raise EngineUnavailable(str(reason)) from error
        self.native = Native(device.platform, device, context)
        self.device_type = device_type(device)
        self._device = describe(device)
        self.wait_timeout = _wait_timeout()
        self.builder = Builder(self.native)
        self.turns = turns_of(context)

    @property
    def device(self) -> Device:
        """The device and its limits."""
        return self._device

    def failure(self, what: str, error: Any) -> ExecutionError:
        """Return the exception for a failed command. `error` is a status or a pyopencl error."""
        return failure(self.name, self.account, what, error)

    def constant(self, values: np.ndarray[Any, Any]) -> Any:
        """Return a buffer with a copy of an array, which kernels only read."""
        cl = pyopencl()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        try:
            return cl.Buffer(self.native.context, flags, hostbuf=values)
        except cl.Error as error:
            raise self.failure(f"cannot allocate {values.nbytes} bytes", error) from error

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: few work-items with much work each, no local memory."""
        return self.device_type == "cpu"

    def shares_context(self, other: Engine) -> bool:
        """Whether this device can wait for the other engine's events."""
        mine, theirs = self.native.context, getattr(other.native, "context", None)
        return other is self or mine == theirs

    def program(self, source: str, options: Sequence[str] = ()) -> Any:
        """Return the pyopencl program of `source`: built, or loaded from the disk store.

        options: compiler options in addition to OpenCL C 1.2 and fused multiply-adds. Raises
        `BuildError` with the compiler's log.
        """
        return self.builder.program(source, options)

    @functools.cached_property
    def idle_kernel(self) -> Any:
        """A kernel that does nothing. It has no arguments, so all threads may launch it."""
        program = self.program("__kernel void idle(void) {}")
        return uninterrupted(pyopencl().Kernel, program, "idle")

    def tuning_table(self, name: str, package: str = tuning.PACKAGE) -> tuning.Table:
        """Return the table `name`: the parameters that were measured to be best, by problem.

        The file is `tuning/<device>.json` in an importable package, such as a plugin. `<device>` is
        the device's name in lower case with `_` between words. The package defines the keys and the
        parameters. The table is empty if there is no file.
        """
        return tuning.table(self, name, package)

    def allocate(self, nbytes: int) -> Any:
        """Allocate an uninitialised pyopencl buffer. Raises `ExecutionError` when out of memory."""
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
        """Allocate a buffer. Refuse what does not fit, because drivers report it only at first use.

        On a refusal the core collects garbage and tries again.
        """
        if not self.account.has_room(size):
            raise ExecutionError(
                f"{self.name}: cannot allocate {size} bytes: {self.account.text()}"
            )
        cl = pyopencl()
        try:
            return _buffer_class()(self.native.context, cl.mem_flags.READ_WRITE, size)
        except cl.Error as error:
            raise self.failure(f"cannot allocate {size} bytes", error) from error

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether `buffer` is a pyopencl buffer of this engine's context that holds `nbytes`."""
        return (
            isinstance(buffer, pyopencl().Buffer)
            and buffer.context == self.native.context
            and buffer.size >= nbytes
        )

    def memory_info(self) -> MemoryInfo:
        """Return the number and the bytes of this engine's buffers that are still alive."""
        return self.account.info


_serials = itertools.count()


@functools.cache
def _buffer_class() -> Any:
    class Buffer(pyopencl().Buffer):  # type: ignore[misc]
        """A device buffer that supports weak references, so that live buffers can be counted.

        serial: a number unique among all buffers.
        """

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.serial = next(_serials)

    return Buffer


def _wait_timeout() -> float | None:
    """Return DNNCORE_WAIT_TIMEOUT in seconds; None for no limit."""
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
