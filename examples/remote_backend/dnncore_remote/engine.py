"""The engine: it starts the device process, owns its buffers and copies bytes."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dnncore.backend import (
    DescriptorError,
    Device,
    Engine,
    EngineUnavailable,
    Event,
    ExecutionError,
    Order,
    Peaks,
    check_size,
)
from dnncore_remote.stream import RemoteStream

Array = np.ndarray[Any, Any]
PROGRAM = Path(__file__).with_name("device.py")
PATIENCE = 5.0  # seconds until a device process that does not end by itself is killed


@dataclass(frozen=True, eq=False)
class RemoteBuffer:
    """A buffer of the device process of `engine`."""

    engine: RemoteEngine
    number: int
    nbytes: int


class RemoteEngine(Engine):
    """A device process. `native` is its `subprocess.Popen`.

    Only threads of streams send requests to the process. So an interrupt of the main thread, such
    as Ctrl-C, cannot leave an incomplete request.
    """

    kind: ClassVar[str] = "remote"
    buffer_kind: ClassVar[str] = "a buffer of its device process"

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        command = [sys.executable, str(PROGRAM)]
        pipe = subprocess.PIPE
        try:  # in its own session, Ctrl-C in a terminal does not end the process
            self.native = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            raise EngineUnavailable(f"remote: cannot start {command}: {error}") from error
        self._parent = os.getpid()
        self._lock = threading.Lock()  # one request at a time
        self._numbers = itertools.count()
        self._freed: deque[int] = deque()  # numbers of buffers that the next request frees
        self._has_failed = False
        self._own = RemoteStream(self)  # for allocations by any thread
        weakref.finalize(self, _stop, self.native, self._parent)
        try:
            self.free(self.allocate(0))
        except ExecutionError as error:
            raise EngineUnavailable(f"remote: the device does not answer: {error}") from error

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """Return one device."""
        limits = {"threads": os.cpu_count() or 1, "fp16": False}
        return [Device("device process", "dnncore-remote", "0.1.0", limits, "accelerator")]

    @property
    def peaks(self) -> Peaks:
        """Rough rates. Each command takes about 100 us, and copies pass through two pipes."""
        return Peaks({"f32": 2e10}, bandwidth=5e8, launch=1e-4)

    # -- the process ------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        """Whether the engine belongs to the parent of this forked process."""
        return os.getpid() != self._parent

    @property
    def is_lost(self) -> bool:
        """Whether the device process has ended, or belongs to the parent of this process."""
        return self._has_failed or self.is_forked or self.native.poll() is not None

    @is_lost.setter
    def is_lost(self, value: bool) -> None:
        self._has_failed = value

    def check(self) -> None:
        """Raise `ExecutionError` if the device is lost."""
        if self.is_lost:
            status = self.native.poll()
            end = "was given up" if status is None else f"ended with exit status {status}"
            if self.is_forked:
                end = "belongs to the parent of this forked process"
            raise ExecutionError(
                f"{self.name}: the device process {end}, and its memories are lost; open the engine"
                f" again with dnncore.engine({self.name!r}) and make new memories"
            )

    def request(self, name: str, *arguments: Any) -> tuple[Any, tuple[float, float]]:
        """Let the device execute a request. Return the value, and the times of start and end.

        Threads of streams call this. Raises `ExecutionError` if the request fails or the process
        ends.
        """
        with self._lock:
            self.check()
            freed = [self._freed.popleft() for _ in range(len(self._freed))]
            message = pickle.dumps((freed, name, arguments))
            try:
                self.native.stdin.write(message)
                self.native.stdin.flush()
                is_well, value, *times = pickle.load(self.native.stdout)
            except Exception:  # the process has ended, or a pipe contains an incomplete message
                self._give_up()
                self.check()
        if not is_well:
            raise ExecutionError(f"{self.name}: {name} failed on the device: {value}")
        return value, tuple(times)

    def _give_up(self) -> None:
        self._has_failed = True
        self.native.kill()
        self.native.wait()
        with suppress(OSError):  # the pipe may hold the rest of a request
            self.native.stdin.close()

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> RemoteBuffer:
        """Allocate a buffer in the process, and wait for it."""
        check_size(self.name, nbytes)
        number = next(self._numbers)
        event = self._own.submit(lambda: self.request("allocate", number, nbytes)[1])
        try:
            event.wait()
        except BaseException:  # such as Ctrl-C
            self._freed.append(number)
            raise
        return RemoteBuffer(self, number, nbytes)

    def free(self, buffer: RemoteBuffer) -> None:
        """Free the buffer with the next request. Commands keep their memories until they end."""
        self._freed.append(buffer.number)

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether the buffer is in this engine's process."""
        return (
            isinstance(buffer, RemoteBuffer) and buffer.engine is self and buffer.nbytes >= nbytes
        )

    def copy_in(
        self, stream: Any, host: Array, buffer: RemoteBuffer, wait_for: Sequence[Event] = ()
    ) -> Event:
        """Queue a copy of a host array to a buffer."""
        event: Event = stream.submit(
            lambda: self.request("write", buffer.number, host.tobytes())[1], wait_for
        )
        return event

    def copy_out(
        self, stream: Any, buffer: RemoteBuffer, host: Array, wait_for: Sequence[Event] = ()
    ) -> Event:
        """Queue a copy of a buffer to a host array."""

        def copy() -> tuple[float, float]:
            data, times = self.request("read", buffer.number, host.size)
            host[:] = np.frombuffer(data, np.uint8)
            return times

        event: Event = stream.submit(copy, wait_for)
        return event

    def stream(self, order: Order = "in", *, profiling: bool = False) -> RemoteStream:
        """Open an in-order stream."""
        if order != "in":
            raise DescriptorError(f"{self.name}: streams must have order 'in'; got {order!r}")
        self.check()
        return RemoteStream(self, profiling=profiling)


def _stop(process: Any, parent: int) -> None:
    """End the process, unless this is a fork of its parent."""
    if os.getpid() != parent:
        return
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
