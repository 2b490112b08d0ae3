"""Copies between host arrays and a device, piece by piece through pinned memory.

A device reads and writes pinned (page-locked) memory at the full speed of the bus. Copies of
ordinary memory are slower, because the driver copies them to pinned memory in one thread. Here
several threads fill or empty blocks of pinned memory while the device uses other blocks. A copy to
the device returns when all its data are in blocks. A copy from the device reaches its host array
when a caller waits for the copy.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.backend import ExecutionError
from dnncore_opencl.devices.discovery import Native, pyopencl
from dnncore_opencl.runtime.events import OpenCLEvent, Queue
from dnncore_opencl.runtime.in_flight import Command, tidy_all

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Bytes = np.ndarray[Any, Any]

# Measured on an H200 with 16 cores, copies of 64 MB to 1 GB: 23 to 44 GB/s to the device, 27 to 32
# from it. The driver reaches 6 to 9 and 9 to 16 GB/s, the bus 54. Half the threads are up to twice
# as slow, as are pieces of 1 or 16 MB. Below 16 MB, waking threads takes as long as they save.
PIECE = 1 << 22  # bytes of a block
SMALL_PIECE = 1 << 20  # bytes, for copies in one thread, so that filling and sending overlap
SMALL_COPY = 1 << 24  # bytes, below which one thread copies
BLOCKS = 24  # per copy, and kept for the next copy; other processes cannot use pinned memory
THREADS = 8  # threads that copy between blocks and ordinary memory
LEAST_BYTES = 1 << 17  # bytes; below, the driver's own copy is as fast


class Flight:
    """A piece of a copy in a block. target: the host memory of a piece from the device."""

    def __init__(self, event: OpenCLEvent, block: Bytes, target: Bytes | None = None) -> None:
        self.event = event
        self.target = target
        self._block: Bytes | None = block
        self._lock = threading.RLock()

    def land(self) -> Bytes | None:
        """Empty the block of an ended flight. Return the block to the first caller only."""
        with self._lock:
            block, self._block = self._block, None
            if block is not None and self.target is not None and self.event.error is None:
                np.copyto(self.target, block[: self.target.size])
            self.target = None
        return block

    def abandon(self) -> None:
        """Leave the target unchanged."""
        with self._lock:
            self.target = None


class Pinned:
    """The pinned memory of an engine, and copies through it on in-order streams.

    No copy waits for the blocks of another copy, which may depend on an event that never ends.
    """

    def __init__(self, native: Native) -> None:
        self._context = native.context
        self._queue = pyopencl().CommandQueue(native.context, native.device)
        self._lock = threading.RLock()
        self._idle: list[Bytes] = []
        self._sent: list[Flight] = []  # to the device, or abandoned; no caller waits for them
        self._workers = _new_workers()

    def copy_in(self, stream: Queue, host: Bytes, buffer: Any) -> OpenCLEvent:
        """Queue a copy of a 1-D uint8 array, which is free on return, to the start of a buffer."""
        flights: list[Flight] = []
        filling: deque[tuple[int, Bytes, Bytes, Callable[[], None]]] = deque()

        def send() -> None:
            start, part, block, filled = filling.popleft()
            filled()
            flight = self._depart(stream, buffer, part, None, block, dst_offset=start)
            flights.append(flight)
            with self._lock:
                self._sent.append(flight)

        alone = host.size < SMALL_COPY
        for number, (start, piece) in enumerate(_pieces(host)):
            if len(filling) >= THREADS:
                send()
            if number >= BLOCKS:
                flights[number - BLOCKS].event.wait()
            block = self._block()
            part = block[: piece.size]
            filled = self.work(np.copyto, part, piece, alone=alone)
            filling.append((start, part, block, filled))
        while filling:
            send()
        end = flights[-1].event
        end.causes = [flight.event for flight in flights[:-1]]
        return end

    def copy_out(self, stream: Queue, buffer: Any, host: Bytes) -> Landing:
        """Queue a copy of the start of a buffer to a 1-D uint8 array."""
        flights: list[Flight] = []
        landing: deque[Callable[[], None]] = deque()
        alone = host.size < SMALL_COPY
        try:
            for start, piece in _pieces(host):
                if len(flights) >= BLOCKS - THREADS:
                    oldest = flights[len(flights) - (BLOCKS - THREADS)]
                    oldest.event.wait()
                    if len(landing) >= THREADS:
                        landing.popleft()()
                    landing.append(self.work(self.settle, oldest, alone=alone))
                block = self._block()
                part = block[: piece.size]
                flights.append(self._depart(stream, part, buffer, piece, block, src_offset=start))
        except BaseException:
            self._abandon(flights)
            raise
        return Landing(self, flights, alone=alone)

    def settle(self, flight: Flight) -> None:
        """Land an ended flight and reclaim its block."""
        block = flight.land()
        if block is not None:
            with self._lock:
                self._keep(block)

    def work(
        self, function: Callable[..., None], *arguments: Any, alone: bool = False
    ) -> Callable[[], None]:
        """Call a function in another thread. Return a function that waits for its end.

        alone: whether to call it in this thread, because waking another thread takes as long.
        """
        if not alone and self._workers is not None:
            with contextlib.suppress(RuntimeError):  # the process ends
                return self._workers.submit(function, *arguments).result
        function(*arguments)
        return _nothing

    def _block(self) -> Bytes:
        """Return an unused block."""
        for take_back in (_nothing, self._reclaim, tidy_all):
            take_back()
            with self._lock:
                if self._idle:
                    return self._idle.pop()
        cl = pyopencl()
        flags, modes = cl.mem_flags, cl.map_flags
        buffer = cl.Buffer(self._context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, PIECE)
        both = modes.READ | modes.WRITE
        block: Bytes
        block, _ = cl.enqueue_map_buffer(self._queue, buffer, both, 0, (PIECE,), np.uint8)
        return block

    def _reclaim(self) -> None:
        """Reclaim the blocks whose data have reached the device."""
        with self._lock:
            over = [flight for flight in self._sent if flight.event.is_over]
            self._sent = [flight for flight in self._sent if flight not in over]
            for flight in over:
                self._keep(flight.land())

    def _abandon(self, flights: list[Flight]) -> None:
        """Keep flights until they have ended, but leave their targets unchanged."""
        for flight in flights:
            flight.abandon()
        with self._lock:
            self._sent += flights

    def _keep(self, block: Bytes | None) -> None:
        if block is not None and len(self._idle) < BLOCKS:
            self._idle.append(block)

    def _depart(
        self, stream: Queue, to: Any, source: Any, target: Bytes | None, block: Bytes, **offset: int
    ) -> Flight:
        """Queue the copy of a piece between its block and the device."""
        native = pyopencl().enqueue_copy(stream.native, to, source, is_blocking=False, **offset)
        stream.native.flush()
        return Flight(OpenCLEvent(stream, native), block, target)


class Landing(Command):
    """The end of a copy from a device.

    The host array has the values after a wait for this event or for a later command, or after
    `done` of one of these events was true.
    """

    __slots__ = ("_alone", "_flights", "_pinned")
    causes = ()

    def __init__(self, pinned: Pinned, flights: list[Flight], *, alone: bool) -> None:
        self._pinned = pinned
        self._flights = flights
        self._alone = alone

    def wait(self, timeout: float | None = None) -> None:
        """Empty each block when the device has filled it. Raise errors as other events do."""
        deadline = None if timeout is None else time.monotonic() + timeout
        errors, landing = [], []
        for flight in self._flights:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                flight.event.wait(left)
            except ExecutionError as error:
                errors.append(error)
            landing.append(self._pinned.work(self._pinned.settle, flight, alone=self._alone))
        for landed in landing:
            landed()
        if errors:
            raise errors[0]

    @property
    def done(self) -> bool:
        """Whether the copy has ended. If it has ended on the device, land it."""
        if not self._flights[-1].event.done:
            return False
        self.land()
        return True

    @property
    def is_over(self) -> bool:
        """Whether the copy has ended or failed on the device."""
        return all(flight.event.is_over for flight in reversed(self._flights))

    def land(self) -> None:
        """Empty the blocks that are still full."""
        full = [flight for flight in self._flights if flight.target is not None]
        landing = [
            self._pinned.work(self._pinned.settle, flight, alone=self._alone) for flight in full
        ]
        for landed in landing:
            landed()

    @property
    def error(self) -> BaseException | None:
        """The error of the first piece that failed."""
        return next(filter(None, (flight.event.error for flight in self._flights)), None)


def _new_workers() -> ThreadPoolExecutor | None:
    """Return threads for copies; None if the process ends."""
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return None
    return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "dnncore-opencl-copy")


def _nothing() -> None:
    """Do nothing."""


def _pieces(host: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Divide an array into pieces that fit into blocks. Yield each piece and its first byte."""
    size = _piece(host.size)
    for start in range(0, host.size, size):
        yield start, host[start : start + size]


def _piece(nbytes: int) -> int:
    return PIECE if nbytes >= SMALL_COPY else SMALL_PIECE


def waits_for_itself(nbytes: int) -> bool:
    """Whether a copy has more pieces than blocks, so its last pieces wait for its first."""
    return nbytes > (BLOCKS - THREADS) * _piece(nbytes)
