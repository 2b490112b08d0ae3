"""Memory: a descriptor, an engine and a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np

from dnncore.engines.allocation import Allocation, free_collected
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError, ExecutionError, printable
from dnncore.tensors.datatypes import data_type, from_numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Memory"]

MapMode = Literal["r", "w", "rw"]
Array = np.ndarray[Any, Any]


class Memory:
    """A tensor: `buffer` on `engine`, laid out as `desc` describes.

    Without `buffer`, a buffer is allocated, and freed with the memory. Its elements are
    uninitialised. The padding of a blocked format is zero. With `buffer`, the memory uses this
    buffer. It must belong to the engine and have at least `desc.nbytes` bytes; on host engines it
    is a 1-D uint8 array. `nbytes` is the layout's number of bytes from the buffer's start. `owner`
    frees the buffer when the last memory that has it is gone; it is None for a user's buffer.

    Raises `DescriptorError` for a descriptor without a concrete layout or a buffer that does not
    fit, `ExecutionError` if there is not enough memory.
    """

    __slots__ = ("__weakref__", "_span", "buffer", "desc", "engine", "nbytes", "owner")

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
        self.owner: Allocation | None = None
        if buffer is None:
            self.owner = Allocation(self.engine, desc.nbytes)
            self.buffer = self.owner.buffer
            if desc.has_padding:
                self._zero()
        else:
            self.buffer = self._checked(buffer)

    @classmethod
    def from_numpy(
        cls, array: Any, desc: MemoryDesc | None = None, engine: Engine | None = None
    ) -> Memory:
        """Make a memory with the values of `array`, which has the descriptor's dims.

        desc: by default the array's type and row-major order.

        On a host engine, the memory shares the array's storage if the array has the descriptor's
        strides and is contiguous and writable. Otherwise the values are copied. A copy to a device
        has ended when this returns. Raises `DescriptorError` for other dims or another type.
        """
        array = np.asarray(array)
        if desc is None:
            desc = MemoryDesc(array.shape, from_numpy_dtype(array.dtype))
        if not isinstance(desc, MemoryDesc):
            way = "; pass engine=..." if isinstance(desc, Engine) else ""
            raise DescriptorError(
                f"memory: desc must be a MemoryDesc; got {type(desc).__name__}{way}"
            )
        if array.shape != desc.dims:
            raise DescriptorError(
                f"memory: the array must have the descriptor's dims {desc.dims}; got {array.shape}"
            )
        if array.dtype != desc.dtype:
            raise DescriptorError(
                f"memory: the array must be of type {desc.data_type} ({desc.dtype});"
                f" got {array.dtype}; convert it with astype"
            )
        engine = _checked_engine(engine)
        storage = _storage(array, desc)
        if storage is not None and engine.is_host and array.flags.writeable:
            return cls(desc, engine, storage)
        memory = cls(desc, engine)
        if storage is not None and not engine.is_host:
            engine.copy_in(engine.stream(), storage, memory.buffer).wait()
            return memory
        with memory.map(mode="w") as buffer:
            desc.pack(array, buffer)
        return memory

    @classmethod
    def over(
        cls, desc: MemoryDesc, engine: Engine, buffer: Buffer, nbytes: int, start: int | None = None
    ) -> Self:
        """Make a memory over a buffer that is known to fit.

        nbytes: those of the descriptor. start: the address of a host buffer.
        """
        memory = object.__new__(cls)
        memory.engine = engine
        memory.desc = desc
        memory.buffer = buffer
        memory.owner = None
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

        mode: "r" reads the buffer, and changes are lost on a device. "w" writes all of the buffer.
            "rw" reads and writes.

        The call waits for `stream`, by default a new one, before the block. If the block writes, it
        also waits after the block.
        """
        if mode not in ("r", "w", "rw"):
            raise DescriptorError(f"memory: map's mode must be 'r', 'w' or 'rw'; got {mode!r}")
        stream = self.engine.stream() if stream is None else stream
        if not isinstance(stream, Stream) or stream.engine is not self.engine:  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"memory: the stream must be one of {self.engine.name}; got {stream!r};"
                " open one with engine.stream()"
            )
        free_collected()
        stream.wait()
        if self.engine.is_host:
            yield self.buffer[: self.desc.nbytes]
            return
        host = np.zeros(self.desc.nbytes, np.uint8)
        keeps = "r" in mode or self.desc.has_neighbours  # bytes outside the tensor must not change
        if keeps and host.size:
            self.engine.copy_out(stream, self.buffer, host).wait()
        yield host
        if "w" in mode and host.size:
            self.engine.copy_in(stream, host, self.buffer).wait()

    def numpy(self, stream: Stream | None = None) -> Array:
        """The values in logical order: a view if this is a plain host memory, else a copy.

        Waits for `stream`, if given; pass the stream that wrote the memory.
        """
        with self.map(stream, "r") as buffer:
            return self.desc.unpack(buffer)

    def physical(self, stream: Stream | None = None) -> Array:
        """The values in the order of memory, with shape `desc.physical_shape`; a view on hosts."""
        with self.map(stream, "r") as buffer:
            return self.desc.view(buffer)

    def fill(self, value: float, stream: Stream | None = None) -> None:
        """Set every element to `value`; padding stays zero.

        A value too large for a floating-point type becomes infinity. Raises `DescriptorError` for a
        value that is no real number, or that an integer type cannot hold.
        """
        array = np.full(self.desc.dims, self._element(value), self.desc.dtype)
        with self.map(stream, "w") as buffer:
            self.desc.pack(array, buffer)

    def submemory(self, dims: tuple[int, ...], offsets: tuple[int, ...]) -> Memory:
        """Return a part of this memory: `desc.submemory(dims, offsets)` on the same buffer."""
        part = Memory(self.desc.submemory(dims, offsets), self.engine, self.buffer)
        part.owner = self.owner
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Implement `numpy.asarray(memory)`."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __copy__(self) -> Memory:
        """Return a new memory on the same engine with the same bytes, as numpy's arrays do.

        Commands of streams that still write this memory must have ended.
        """
        with self.map(mode="r") as buffer:
            return _with_bytes(self.desc, self.engine, buffer)

    def __deepcopy__(self, memo: object) -> Memory:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the descriptor, the engine's name and the bytes."""
        with self.map(mode="r") as buffer:
            return _with_bytes, (self.desc, self.engine, buffer.copy())

    def _element(self, value: object) -> Any:
        """The value in the memory's type. Numpy would take texts, None and complex numbers, too."""
        name, dtype = self.desc.data_type, self.desc.dtype
        try:
            if isinstance(value, str | bytes | bytearray | complex | np.complexfloating):
                raise TypeError("not a real number")
            if np.ndim(value) != 0:  # type: ignore[arg-type]  # callers pass anything
                raise TypeError("not a single number")
            number = float(value)  # type: ignore[arg-type]  # callers pass anything
            with np.errstate(over="ignore", invalid="raise"):
                element = np.asarray(number).astype(dtype)[()]
            if not data_type(name).is_float and float(element) != number:
                raise ValueError("out of range, or not a whole number")
        except Exception as error:  # a value of any class may raise anything
            raise DescriptorError(
                f"memory: fill needs a number that {name} can hold, such as 0; got"
                f" {printable(repr(value))}"
            ) from error
        return element

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


def _with_bytes(desc: MemoryDesc, engine: Engine, content: Array) -> Memory:
    memory = Memory(desc, engine)
    if content.size and engine.is_host:
        np.copyto(memory.buffer[: content.size], content)
    elif content.size:
        engine.copy_in(engine.stream(), np.ascontiguousarray(content), memory.buffer).wait()
    return memory


def _storage(array: Array, desc: MemoryDesc) -> Array | None:
    """The array's storage as bytes if its layout is exactly `desc`, else None."""
    if not (desc.is_plain and desc.offset0 == 0 and array.size):
        return None
    strides = tuple(s * desc.itemsize for s in desc.strides)
    same = all(d == 1 or a == b for d, a, b in zip(desc.dims, array.strides, strides, strict=True))
    if not same or array.nbytes != desc.nbytes:
        return None
    order = np.argsort([-s for s in array.strides], kind="stable")
    dense = array.transpose(order)
    return dense.reshape(-1).view(np.uint8) if dense.flags.c_contiguous else None


def _checked_engine(engine: Engine | None) -> Engine:
    """Check the engine; by default it is `dnncore.engine()`."""
    if engine is None:
        from dnncore.selection.plugins import engine as open_engine

        return open_engine()
    if not isinstance(engine, Engine):
        raise DescriptorError(
            f"memory: engine must be an Engine; got {type(engine).__name__};"
            " open it with dnncore.engine(name)"
        )
    return engine
