"""Engines hold memories and run primitives. The core provides the CPU engine, and no other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from dnncore.engines.device import Device
from dnncore.engines.peaks import Peaks
from dnncore.engines.stream import COMPLETED, Event, HostStream, Order, Stream, wait_all
from dnncore.engines.threads import get_num_threads, set_num_threads
from dnncore.errors import DescriptorError, EngineUnavailable, ExecutionError, ExportError
from dnncore.forking import import_held
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "Buffer", "CpuEngine", "Device", "Engine", "HostEngine", "Peaks", "Wrapped", "aligned_bytes",
    "check_size",
]  # fmt: skip

Buffer = Any
"""A block of an engine's memory, opaque to the core; a 1-D uint8 array on host engines."""

ALIGNMENT = 128  # bytes: two cache lines; OpenCL CPU devices require it of shared memory


class Wrapped(NamedTuple):
    """A buffer that the user created.

    buffer: None if the tensor is empty.
    desc: the layout of the tensor in the buffer, if it is known.
    owner: the object that must live as long as the buffer is used.
    """

    buffer: Buffer | None
    desc: MemoryDesc | None = None
    owner: object = None


class Engine:
    """A computational device. Engines of backends derive from this class or from `HostEngine`.

    kind: the engine kind, the part of its name before the colon.
    is_host: whether a buffer is a 1-D uint8 array in this process.
    buffer_kind: a description of a buffer, for messages.
    native: the runtime's own objects, documented by the backend.
    is_lost: whether the device can no longer be used, for example because its process has died. The
        engine sets it; a program may set it, too. The next `dnncore.engine(name)` opens a new
        engine.

    Threads. Any thread may call any method, and several threads may call methods at once. One
    thread at a time uses a stream. A signal handler may call any method while the main thread is in
    another method, so locks must be reentrant, such as `threading.RLock`. Ctrl-C raises
    `KeyboardInterrupt` at any place of the main thread. An exchange with the device that must not
    be interrupted must run in another thread, or by `uninterrupted`.

    A device in a separate process. Start the process as a program. `multiprocessing` with the
    method "spawn" would import the main module of the user's program again.

    A lost device. All its commands end with an `ExecutionError`, including those that are running,
    and no wait hangs. Each later launch, copy and allocation raises `ExecutionError`, whose message
    says how to open the engine again; `free` does nothing. Other engines are not affected.

    Forks. In a child that `os.fork` created, an engine of the parent must work, or be lost, or
    raise `EngineUnavailable` in each call. The child uses neither threads nor connections of the
    parent. If no new engine can be opened in the child, the constructor raises `EngineUnavailable`.
    """

    kind: ClassVar[str]
    is_host: ClassVar[bool] = False
    buffer_kind: ClassVar[str] = "a buffer of the engine's own kind"
    native: Any = None
    is_lost: bool = False

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
        """The device's rates, by which implementations are ranked."""
        raise NotImplementedError

    def measure_peaks(self) -> Peaks:
        """Return the rates. Measure them again, if this engine measures rates."""
        return self.peaks

    def prove(self, flops: float, nbytes: float, data_type: str, seconds: float) -> None:
        """Correct the peaks if an execution that took `seconds` shows that they are too low."""

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate at least `nbytes` bytes, 0 allowed; raises `ExecutionError` if out of memory.

        The core calls this method for memories and for scratchpads, in the thread that needs them.
        If it raises `ExecutionError`, the core collects garbage and calls it once more. A backend
        that needs a separate buffer creates a `Memory`. It calls neither `allocate` nor `free`.
        """
        raise NotImplementedError

    def free(self, buffer: Buffer) -> None:
        """Free a buffer of `allocate`; called exactly once, when nothing refers to it any more.

        Commands that use the buffer may still be running. Free the buffer after they have ended, or
        let each command keep its memories until its end. On a host engine, arrays that
        `Memory.numpy` returned may still be views of the buffer. Then free it only when no array
        uses it.

        The method is called in the thread that drops the last reference. This may be a thread of
        the engine that drops a command. The method is never called during a garbage collection: if
        an owner is collected, its buffer is freed when the program next allocates or maps a memory.
        The method must not raise. At the end of the process, buffers that are still in use are not
        freed.
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

    @contextmanager
    def map(
        self, stream: Stream, buffer: Buffer, nbytes: int, mode: str
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Show the start of a buffer as a 1-D uint8 host array for the time of a `with` block.

        stream: a stream of the engine. All of its commands have ended.
        mode: "r", "w" or "rw". With "w" the block writes all bytes.

        The array need not be valid after the block. This implementation copies the bytes.
        """
        host = np.zeros(nbytes, np.uint8)
        if "r" in mode and nbytes:
            self.copy_out(stream, buffer, host).wait()
        yield host
        if "w" in mode and nbytes:
            self.copy_in(stream, host, buffer).wait()

    def wrap(self, native: Any) -> Wrapped | None:
        """Return the buffer of an object of the runtime, and its layout if it has one.

        `Memory.wrap` calls this method for buffers and arrays that the program created with the
        runtime. Returns None for any other object. Raises `DescriptorError` with the reason if the
        object cannot be a memory of this engine.
        """
        return None

    def place(self, buffer: Buffer) -> tuple[Hashable, int]:
        """Return the object that contains a buffer, and the byte of this object where the buffer
        begins.

        The core calls this method only for the user's buffers, to find buffers that overlap.
        """
        return id(buffer), 0

    def is_read_only(self, buffer: Buffer) -> bool:
        """Whether kernels must not write to a buffer. Primitives refuse it as an output.

        The core calls this method only for buffers that it has not allocated.
        """
        return False

    @property
    def dlpack_device(self) -> tuple[int, int] | None:
        """The type and number of the device in DLPack's terms; None if buffers have no handles.

        An engine that returns a device must implement `to_dlpack` and `from_dlpack`.
        """
        return None

    def to_dlpack(self, buffer: Buffer) -> int:
        """Return the handle of a buffer, such as an address, which DLPack passes as `data`."""
        raise ExportError(f"{self.name}: buffers of this engine have no handles")

    def from_dlpack(self, handle: int, nbytes: int) -> Buffer:
        """Return a buffer for a handle on this device; raises `DescriptorError` if that is
        impossible.

        The core keeps the exporter's tensor alive.
        """
        raise DescriptorError(f"{self.name}: this engine makes no buffers of handles")

    def stream(self, order: Order = "in", *, profiling: bool = False) -> Stream:
        """Open a new stream. Programs open many, so this must take less than a millisecond.

        Raises `DescriptorError` for an order, or for `profiling`, that the engine does not support.
        """
        raise NotImplementedError

    def __copy__(self) -> Self:
        """Return the engine itself, also for a deep copy: an engine represents a device."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name. A process that unpickles it opens its own engine of this name."""
        if self.is_lost:
            raise DescriptorError(
                f"engine {self.name}: a lost engine cannot be pickled; open it again with"
                f" dnncore.engine({self.name!r})"
            )
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
        """Approximate rates of one CPU core. Override this with measured rates."""
        return Peaks({"f32": 50e9, "f64": 25e9}, bandwidth=10e9, launch=5e-6)

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate an uninitialised uint8 array, aligned to 128 bytes."""
        check_size(self.name, nbytes)
        return aligned_bytes(self.name, nbytes)

    def owns(self, buffer: object, nbytes: int) -> bool:
        """Whether `buffer` is a 1-D uint8 array of at least `nbytes` bytes."""
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
        """Copy the bytes. The copy has ended when the call returns."""
        return _copy(host, buffer[: host.size], wait_for)

    def copy_out(
        self,
        stream: Stream,
        buffer: Buffer,
        host: np.ndarray[Any, Any],
        wait_for: Sequence[Event] = (),
    ) -> Event:
        """Copy the bytes. The copy has ended when the call returns."""
        return _copy(buffer[: host.size], host, wait_for)

    @contextmanager
    def map(
        self, stream: Stream, buffer: Buffer, nbytes: int, mode: str
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Return the buffer itself."""
        yield buffer[:nbytes]

    @property
    def dlpack_device(self) -> tuple[int, int] | None:
        """Return host memory as the device."""
        return (1, 0)

    def stream(self, order: Order = "in", *, profiling: bool = False) -> Stream:
        """Open an in-order stream that runs in the calling thread."""
        if not isinstance(order, str) or order != "in":  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"{self.name}: streams of this engine must have order 'in'; got {order!r}"
            )
        return HostStream(self, order, profiling=profiling)


class CpuEngine(HostEngine):
    """The CPU with the host's memory. Backends provide its implementations.

    num_threads: the number of threads of every backend's implementations; see `set_num_threads`. An
        implementation reads it in `accept` or `build`, in the thread that calls them. If the
        implementation calls a library with its own threads, such as a BLAS, it limits the library's
        threads to this number during each call. It uses a setter that applies to the calling
        thread, such as `omp_set_num_threads`, or `threadpoolctl.threadpool_limits(count)`. If
        neither is possible, its documents must state this. The reference, which only defines
        results, ignores the number.
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
        limits = {"threads": get_num_threads()}
        return (Device(name=_cpu_peaks().processor_name(), limits=limits, type=cls.kind),)

    @property
    def name(self) -> str:
        """`cpu`; there is only one device."""
        return self.kind

    @property
    def peaks(self) -> Peaks:
        """The processor's rates, measured once per machine and stored."""
        found: Peaks = _cpu_peaks().cpu_peaks(self.num_threads)
        return found

    def measure_peaks(self) -> Peaks:
        """Measure the processor's rates again and store them."""
        _cpu_peaks().measure_again()
        return self.peaks

    def prove(self, flops: float, nbytes: float, data_type: str, seconds: float) -> None:
        """Raise the peaks that an execution exceeds."""
        _cpu_peaks().prove(self.num_threads, flops, nbytes, data_type, seconds)


def _cpu_peaks() -> ModuleType:
    return import_held("dnncore.engines.cpu_peaks")


def aligned_bytes(name: str, nbytes: int) -> np.ndarray[Any, Any]:
    """Return an uninitialised array of at least `nbytes` bytes, aligned to 128 bytes.

    name: the engine's. Raises `ExecutionError` if there is not enough memory.
    """
    try:
        raw = np.empty(max(nbytes, 1) + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # numpy limits the size of arrays
        raise ExecutionError(f"{name}: cannot allocate {nbytes} bytes: {error}") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(nbytes, 1)]


def _opened(name: str) -> Engine:
    engine: Engine = import_held("dnncore.selection.plugins").engine(name)
    return engine


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
