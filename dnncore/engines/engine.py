"""Engines hold memories and run primitives. The core provides the CPU engine, and no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np

from dnncore.engines.peaks import Peaks
from dnncore.engines.stream import COMPLETED, Event, HostStream, Order, Stream, wait_all
from dnncore.engines.threads import get_num_threads, set_num_threads
from dnncore.errors import DescriptorError, EngineUnavailable, ExecutionError

__all__ = [
    "DEVICE_TYPES", "Buffer", "CpuEngine", "Device", "Engine", "HostEngine", "Peaks",
    "aligned_bytes", "check_size",
]  # fmt: skip

Buffer = Any
"""A block of an engine's memory, opaque to the core; a 1-D uint8 array on host engines."""

ALIGNMENT = 128  # bytes: two cache lines; OpenCL CPU devices require it of shared memory

DEVICE_TYPES = ("cpu", "gpu", "accelerator")


@dataclass(frozen=True)
class Device:
    """One device that an engine kind can open; its place in the kind's list is its index.

    type: "cpu", "gpu", "accelerator" or another word; "" if unknown. `dnncore.engine` accepts it as
        a name.
    """

    name: str
    vendor: str = ""
    version: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "vendor", "version", "type"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise DescriptorError(f"device: {name} must be a string; got {value!r}")
        if not isinstance(self.limits, Mapping):
            raise DescriptorError(f"device: limits must be a mapping; got {self.limits!r}")


class Engine:
    """A computational device. Engines of backends derive from this class or from `HostEngine`.

    kind: the engine kind, the part of its name before the colon.
    is_host: whether a buffer is a 1-D uint8 array in this process.
    buffer_kind: a description of a buffer, for messages.
    native: the runtime's own objects, documented by the backend.
    """

    kind: ClassVar[str]
    is_host: ClassVar[bool] = False
    buffer_kind: ClassVar[str] = "a buffer of the engine's own kind"
    native: Any = None

    def __init__(self, index: int = 0) -> None:
        self.index = index

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """Return the devices of this kind; raises `EngineUnavailable` with a reason if none."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The string that `dnncore.engine` takes: `kind:index`."""
        return f"{self.kind}:{self.index}"

    @property
    def device(self) -> Device:
        """The device that this engine runs on."""
        return self.devices()[self.index]

    @property
    def peaks(self) -> Peaks:
        """The device's rates, for ranking."""
        raise NotImplementedError

    def measure_peaks(self) -> Peaks:
        """Measure the rates again, if they are measured, and return them."""
        return self.peaks

    def prove(self, flops: float, nbytes: float, data_type: str, seconds: float) -> None:
        """Correct the peaks if an execution that took `seconds` shows that they are too low."""

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate at least `nbytes` bytes, 0 allowed; raises `ExecutionError` if out of memory."""
        raise NotImplementedError

    def free(self, buffer: Buffer) -> None:
        """Free a buffer of `allocate`; called exactly once, when nothing refers to it any more.

        Commands that use the buffer may still be under way. It may be called in any thread, by the
        collector of garbage. On a host engine, arrays that `Memory.numpy` returned may still be
        views of the buffer: then free it only when no array uses it. At the end of the process,
        buffers that are still in use are not freed.
        """

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether the user's `buffer` belongs to this engine and has at least `nbytes` bytes."""
        return True

    def copy_in(
        self,
        stream: Stream,
        host: np.ndarray[Any, Any],
        buffer: Buffer,
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Copy a 1-D uint8 host array to a buffer's start; `host` may change after the event."""
        raise NotImplementedError

    def copy_out(
        self,
        stream: Stream,
        buffer: Buffer,
        host: np.ndarray[Any, Any],
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Copy the start of a buffer to a 1-D uint8 host array."""
        raise NotImplementedError

    def stream(self, order: Order = "in", *, profiling: bool = False) -> Stream:
        """Open a new stream. Some engines do not support `order="out"` or `profiling`."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        """An engine stands for a device; its copy, also a deep one, is itself."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name. A process that unpickles it opens its own engine of this name."""
        if _opened(self.name) is not self:
            raise DescriptorError(
                f"engine {self.name}: only engines that dnncore.engine(name) opens can be pickled;"
                " this one wraps objects of the program; make it again in the other process"
            )
        return _opened, (self.name,)

    def __repr__(self) -> str:
        return f"<engine {self.name}>"


class HostEngine(Engine):
    """A complete engine. Its buffers are numpy arrays, and its work runs in the calling thread.

    Derive from it for a device whose kernels use host memory, and set `kind`.
    """

    is_host: ClassVar[bool] = True
    buffer_kind: ClassVar[str] = "a contiguous, writable 1-D uint8 array"

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """Return one device, this process."""
        return (Device(name="host memory", type="cpu"),)

    @property
    def peaks(self) -> Peaks:
        """Approximate rates of one CPU core; override with measured ones."""
        return Peaks({"f32": 50e9, "f64": 25e9}, bandwidth=10e9, launch=5e-6)

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate an uninitialised uint8 array, aligned to 128 bytes."""
        check_size(self.name, nbytes)
        return aligned_bytes(self.name, nbytes)

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether `buffer` is a 1-D uint8 array of at least `nbytes`."""
        return (
            isinstance(buffer, np.ndarray)
            and buffer.dtype == np.uint8
            and buffer.ndim == 1
            and buffer.size >= nbytes
            and buffer.flags.c_contiguous
            and buffer.flags.writeable
        )

    def copy_in(
        self,
        stream: Stream,
        host: np.ndarray[Any, Any],
        buffer: Buffer,
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Copy before returning."""
        return _copy(host, buffer[: host.size], wait_for)

    def copy_out(
        self,
        stream: Stream,
        buffer: Buffer,
        host: np.ndarray[Any, Any],
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Copy before returning."""
        return _copy(buffer[: host.size], host, wait_for)

    def stream(self, order: Order = "in", *, profiling: bool = False) -> Stream:
        """Open an in-order stream that runs in the calling thread."""
        if not isinstance(order, str) or order != "in":  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"{self.name}: streams of this engine must have order 'in'; got {order!r}"
            )
        return HostStream(self, order, profiling=profiling)


class CpuEngine(HostEngine):
    """The CPU with the host's memory. Backends provide its implementations.

    num_threads: the number of threads of every backend's implementations; see `set_num_threads`.
    """

    kind: ClassVar[str] = "cpu"

    def __init__(self, index: int = 0) -> None:
        if index:
            raise EngineUnavailable(f"cpu:{index}: there is one CPU engine; use 'cpu'")
        super().__init__(index)
        get_num_threads()  # raises for an invalid DNNCORE_NUM_THREADS

    @property
    def num_threads(self) -> int:
        """The number of threads; in `accept` and `build`, that of the primitive descriptor."""
        return get_num_threads()

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        set_num_threads(count)

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """Return one device, the processor."""
        from dnncore.engines.cpu_peaks import processor_name

        limits = {"threads": get_num_threads()}
        return (Device(name=processor_name(), limits=limits, type=cls.kind),)

    @property
    def name(self) -> str:
        """`cpu`; there is only one device."""
        return self.kind

    @property
    def peaks(self) -> Peaks:
        """The processor's rates, measured once per machine and stored."""
        from dnncore.engines.cpu_peaks import cpu_peaks

        return cpu_peaks(self.num_threads)

    def measure_peaks(self) -> Peaks:
        """Measure the processor's rates again and store them."""
        from dnncore.engines.cpu_peaks import measure_again

        measure_again()
        return self.peaks

    def prove(self, flops: float, nbytes: float, data_type: str, seconds: float) -> None:
        """Raise the peaks that an execution exceeds."""
        from dnncore.engines.cpu_peaks import prove

        prove(self.num_threads, flops, nbytes, data_type, seconds)


def aligned_bytes(name: str, nbytes: int) -> np.ndarray[Any, Any]:
    """Return an uninitialised array of at least `nbytes` bytes, aligned to 128 bytes.

    name: the engine's. Raises `ExecutionError` if there is not enough memory.
    """
    try:
        raw = np.empty(max(nbytes, 1) + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # numpy has a largest size
        raise ExecutionError(f"{name}: cannot allocate {nbytes} bytes: {error}") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(nbytes, 1)]


def _opened(name: str) -> Engine:
    from dnncore.selection.plugins import engine

    return engine(name)


def check_size(name: str, nbytes: object) -> None:
    """Raise `DescriptorError` unless `nbytes` is an integer of at least 0; name: the engine's."""
    if not isinstance(nbytes, Integral) or nbytes < 0:
        raise DescriptorError(
            f"{name}: a size in bytes must be an integer, at least 0; got {nbytes!r}"
        )


def _copy(
    source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], wait_for: Sequence[Event]
) -> Event:
    wait_all(wait_for)
    np.copyto(target, source)
    return COMPLETED
