"""Memory: a descriptor, an engine and a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np

from dnncore.engines import exchange
from dnncore.engines.allocation import Allocation, free_collected
from dnncore.engines.arrays import element_of
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError, ExecutionError, ExportError
from dnncore.forking import import_held
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Memory", "no_memory"]

MapMode = Literal["r", "w", "rw"]
Array = np.ndarray[Any, Any]


class Memory:
    """A tensor: `buffer` on `engine`, laid out as `desc` describes.

    Without `buffer`, a buffer is allocated, and freed with the memory. Its elements are
    uninitialised. The padding of a blocked format is zero. With `buffer`, the memory uses this
    buffer. It must belong to the engine and have at least `desc.nbytes` bytes; on host engines it
    is a 1-D uint8 array. `nbytes` is the layout's number of bytes from the buffer's start. `owner`
    frees or releases the buffer when no memory refers to `owner` any more. It is None for a user's
    buffer. `is_read_only` is whether kernels must not write to the user's buffer; primitives refuse
    such a memory as an output.

    Raises `DescriptorError` for a descriptor without a concrete layout or a buffer that does not
    fit, `ExecutionError` if there is not enough memory.
    """

    __slots__ = (
        "__weakref__", "_span", "buffer", "desc", "engine", "is_read_only", "nbytes", "owner",
    )  # fmt: skip

    def __init__(
        self, desc: MemoryDesc, engine: Engine | None = None, buffer: Buffer | None = None
    ) -> None:
        self.engine = _checked_engine(engine)
        if not isinstance(desc, MemoryDesc):
            raise DescriptorError(
                f"memory: desc must be a MemoryDesc; got {type(desc).__name__};"
                " use Memory.from_numpy for values"
            )
        if desc.format_kind in ("any", "undef"):
            raise DescriptorError(
                f"memory: the descriptor must have a concrete layout; got {desc.format_kind!r};"
                " query it from a primitive descriptor or give a format tag"
            )
        self.desc = desc
        self.nbytes = desc.nbytes
        self._span: tuple[int, int] | None = None
        self.owner: object = None
        self.is_read_only = False
        if buffer is None:
            allocation = self.owner = Allocation(self.engine, desc.nbytes)
            self.buffer = allocation.buffer
            if desc.has_padding:
                self._zero()
        else:
            self.buffer = self._checked(buffer)
            self.is_read_only = self.engine.is_read_only(buffer)

    @classmethod
    def from_numpy(
        cls,
        array: Any,
        desc: MemoryDesc | None = None,
        engine: Engine | None = None,
        copy: bool | None = None,
    ) -> Memory:
        """Make a memory with the values of `array`, which has the descriptor's dims.

        desc: by default the array's type and row-major order; with copy=False the array's strides.
        copy: None shares the array's storage if possible. True never shares it. False raises
            `DescriptorError` with the reason if the storage cannot be shared.

        An array can be shared with a host engine if it has the descriptor's strides and is
        writable. A copy to a device has ended when the call returns. Raises `DescriptorError` for
        other dims or another type, and for masked arrays, objects and records. A single number gets
        the dims (1,). Values in foreign byte order are converted.
        """
        return exchange.from_numpy(cls, array, desc, _checked_engine(engine), copy)

    @classmethod
    def from_dlpack(
        cls,
        tensor: Any,
        desc: MemoryDesc | None = None,
        engine: Engine | None = None,
        copy: bool | None = None,
    ) -> Memory:
        """Make a memory from a tensor of any library that supports `__dlpack__`.

        desc: by default the tensor's type and strides, or row-major order if no descriptor has
            these strides. Strides of 0 are kept only with copy=False; otherwise the tensor is
            copied, since a memory that repeats elements is read-only.
        copy: as in `from_numpy`. With copy=True, tensors of a device that is not the engine's are
            copied through host memory.

        Elements are shared if they are in the engine's memory and writable. The tensor then lives
        as long as the memory. Commands that write it must have ended. Raises `DescriptorError`.
        """
        return exchange.from_dlpack(cls, tensor, desc, _checked_engine(engine), copy)

    @classmethod
    def wrap(
        cls, native: Any, desc: MemoryDesc | None = None, engine: Engine | None = None
    ) -> Memory:
        """Make a memory over an object of the engine's runtime, such as a `pyopencl.Buffer`.

        desc: the layout of the tensor in the buffer; by default the layout of an array, or the
            bytes of a buffer.
        engine: the engine whose runtime made the object. For the program's own pyopencl context,
            `dnncore_opencl.OpenCLEngine.from_native(context)` returns one.

        Commands of other queues that write the object must have ended. The object lives as long as
        the memory. Raises `DescriptorError` for objects that are not the engine's, or too small.
        """
        return exchange.wrapped(cls, native, desc, _checked_engine(engine))

    @classmethod
    def over(
        cls, desc: MemoryDesc, engine: Engine, buffer: Buffer, nbytes: int, start: int | None = None
    ) -> Self:
        """Make a memory over a buffer that is known to fit.

        nbytes: the descriptor's number of bytes.
        start: the address of a host buffer.
        """
        memory = object.__new__(cls)
        memory.engine = engine
        memory.desc = desc
        memory.buffer = buffer
        memory.owner = None
        memory.is_read_only = False
        memory.nbytes = nbytes
        memory._span = None if start is None else (start, start + nbytes)
        return memory

    @property
    def address(self) -> int:
        """The address of the buffer's first byte; host engines only."""
        span = self._span
        return self.span[0] if span is None else span[0]

    @property
    def span(self) -> tuple[int, int]:
        """The addresses of the buffer's first byte and of the layout's end; host engines only."""
        span = self._span
        if span is None:
            if not self.engine.is_host:
                raise ExecutionError(f"memory: buffers of {self.engine.name} have no host address")
            start = int(self.buffer.ctypes.data)
            span = self._span = (start, start + self.nbytes)
        return span

    @contextmanager
    def map(self, stream: Stream | None = None, mode: MapMode = "rw") -> Iterator[Array]:
        """Return the buffer as a 1-D uint8 host array for the time of a `with` block.

        `desc.view(array)` shows its elements. Do not use the array after the block.

        mode: "r" reads the buffer, and changes are lost on a device. "w" writes all of the buffer.
            "rw" reads and writes.

        The call waits for `stream`, by default a new one, before the block. If the block writes, it
        also waits after the block.
        """
        if mode not in ("r", "w", "rw"):
            raise DescriptorError(f"memory: map's mode must be 'r', 'w' or 'rw'; got {mode!r}")
        stream = self._waited(stream)
        keeps = "rw" if mode == "w" and self.desc.has_neighbours else mode
        with self.engine.map(stream, self.buffer, self.desc.nbytes, keeps) as host:
            yield host

    def _waited(self, stream: Stream | None) -> Stream:
        """Return a stream of the engine whose commands have ended."""
        stream = self.engine.stream() if stream is None else stream
        if not isinstance(stream, Stream) or stream.engine is not self.engine:  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"memory: the stream must be one of {self.engine.name}; got {stream!r};"
                " open one with engine.stream()"
            )
        free_collected()
        stream.wait()
        return stream

    def _bytes(self, stream: Stream | None) -> Array:
        """Return the buffer of a host engine, or a copy of a device's buffer."""
        stream = self._waited(stream)
        if self.engine.is_host:
            return np.asarray(self.buffer[: self.desc.nbytes])
        host = np.empty(self.desc.nbytes, np.uint8)
        if host.size:
            self.engine.copy_out(stream, self.buffer, host).wait()
        return host

    def numpy(self, stream: Stream | None = None) -> Array:
        """Return the values in logical order: a view if this is a plain host memory, else a copy.

        Waits for `stream`, if given; pass the stream that wrote the memory.
        """
        return self.desc.unpack(self._bytes(stream))

    def physical(self, stream: Stream | None = None) -> Array:
        """Return the values in memory order, with shape `desc.physical_shape`; a view on host
        engines.
        """
        return self.desc.view(self._bytes(stream))

    def fill(self, value: float, stream: Stream | None = None) -> None:
        """Set every element to `value`; padding stays zero.

        A value too large for a floating-point type becomes infinity. Raises `DescriptorError` for a
        value that is no real number, or that an integer type cannot hold.
        """
        array = np.full(self.desc.dims, element_of(value, self.desc.data_type), self.desc.dtype)
        with self.map(stream, "w") as buffer:
            self.desc.pack(array, buffer)

    def submemory(self, dims: tuple[int, ...], offsets: tuple[int, ...]) -> Memory:
        """Return a part of this memory: `desc.submemory(dims, offsets)` on the same buffer."""
        part = Memory(self.desc.submemory(dims, offsets), self.engine, self.buffer)
        part.owner, part.is_read_only = self.owner, self.is_read_only
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Implement `numpy.asarray(memory)`: shared if `numpy()` is a view.

        With copy=False, raises `DescriptorError` if the elements cannot be shared.
        """
        return exchange.as_array(self, dtype, copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Export the elements, as the array API defines it: `torch.from_dlpack(memory)`.

        stream: None or a stream of the engine, for which this waits. Commands that write the memory
            must have ended. dl_device: the memory's own device, or (1, 0) for a copy in host
            memory. It may be omitted only for memories in host memory.

        Raises `ExportError`, a `BufferError`, for blocked and opaque formats and other requests.
        """
        return exchange.exported(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The memory's device in DLPack's terms; raises `ExportError` if it has none."""
        device = self.engine.dlpack_device
        if device is None:
            raise ExportError(
                f"memory: DLPack has no device such as {self.engine.name}; export memory.numpy()"
            )
        return device

    def __copy__(self) -> Memory:
        """Return a new memory on the same engine with the same bytes, as numpy's arrays do.

        Commands of streams that still write this memory must have ended.
        """
        return _with_bytes(self.desc, self.engine, self._bytes(None))

    def __deepcopy__(self, memo: object) -> Memory:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the descriptor, the engine's name and the bytes."""
        return _with_bytes, (self.desc, self.engine, self._bytes(None).copy())

    def _zero(self) -> None:
        with self.map(mode="w") as buffer:
            buffer[:] = 0

    def _checked(self, buffer: Buffer) -> Buffer:
        if not self.engine.owns(buffer, self.nbytes):
            got = (
                f"{buffer.dtype}{buffer.shape}" if isinstance(buffer, np.ndarray) else repr(buffer)
            )
            raise DescriptorError(
                f"memory: a buffer on {self.engine.name} must be {self.engine.buffer_kind} of at"
                f" least {self.nbytes} bytes; got {got}; use Memory.from_numpy for values"
            )
        return buffer

    def __repr__(self) -> str:
        return f"<memory {self.desc} on {self.engine.name}>"


def no_memory(name: str, got: object) -> str:
    """Describe an argument that should be a memory, and how to make one."""
    how = "Memory(desc, engine)" if isinstance(got, MemoryDesc) else "Memory.from_numpy"
    return f"{name} must be a Memory; got {type(got).__name__}; make one with {how}"


def _with_bytes(desc: MemoryDesc, engine: Engine, content: Array) -> Memory:
    memory = Memory(desc, engine)
    if content.size and engine.is_host:
        np.copyto(memory.buffer[: content.size], content)
    elif content.size:
        engine.copy_in(engine.stream(), np.ascontiguousarray(content), memory.buffer).wait()
    return memory


def _checked_engine(engine: Engine | None) -> Engine:
    """Check the engine; by default it is `dnncore.engine()`."""
    if engine is None:
        opened: Engine = import_held("dnncore.selection.plugins").engine()
        return opened
    if not isinstance(engine, Engine):
        raise DescriptorError(
            f"memory: engine must be an Engine; got {type(engine).__name__};"
            " open it with dnncore.engine(name)"
        )
    return engine
