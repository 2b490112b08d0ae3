"""Wrapping of user memory: pyopencl buffers, sub-buffers, shared virtual memory and arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from dnncore.backend import DescriptorError, MemoryDesc, Wrapped, data_type_of
from dnncore_opencl.devices.discovery import pyopencl


class _Bytes:
    """The bytes of an allocation, which is kept alive: `numpy.asarray(_Bytes(...))`."""

    def __init__(self, address: int, nbytes: int, *keeps: object) -> None:
        self.keeps = keeps
        place = (address, False)
        shape = (nbytes,)
        self.__array_interface__ = {"shape": shape, "typestr": "|u1", "data": place, "version": 3}


def wrapped(engine: Any, native: Any) -> Wrapped | None:
    """Implement `Engine.wrap`."""
    if hasattr(native, "base_data") and hasattr(native, "strides"):
        return _array(engine, native)
    if hasattr(native, "svm_ptr"):
        return _svm(engine, native)
    if isinstance(native, pyopencl().MemoryObjectHolder):
        buffer = _buffer(engine, native)
        return Wrapped(buffer, MemoryDesc((buffer.size,), "u8"), native)
    return None


def _array(engine: Any, array: Any) -> Wrapped:
    """Wrap a `pyopencl.array.Array`, after its events."""
    name = data_type_of(array.dtype)
    shape, width = array.shape or (1,), array.dtype.itemsize
    if not array.size:
        return Wrapped(None, MemoryDesc(shape, name))
    places = [*array.strides, array.offset]
    if min(places) < 0 or any(place % width for place in places):
        raise DescriptorError(
            f"{engine.name}: the array's strides {array.strides} and its offset {array.offset} must"
            f" be multiples of {width} bytes, at least 0; pass an array that is not reversed"
        )
    strides = [step // width for step in array.strides] or [1]
    desc = MemoryDesc(shape, name, strides=strides, offset0=array.offset // width)
    for event in array.events:
        event.wait()
    data = wrapped(engine, array.base_data)
    if data is None:
        raise DescriptorError(
            f"{engine.name}: the array's data must be a buffer or shared virtual memory; got"
            f" {type(array.base_data).__name__}"
        )
    return Wrapped(data.buffer, desc, (array, data.owner))


def _svm(engine: Any, svm: Any) -> Wrapped:
    """Wrap shared virtual memory as a buffer over the same bytes."""
    cl = pyopencl()
    nbytes = svm.size
    if nbytes is None:
        raise DescriptorError(
            f"{engine.name}: the size of the shared virtual memory must be known; wrap an"
            " SVMAllocation or the SVM of an array"
        )
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    data = np.asarray(_Bytes(svm.svm_ptr, nbytes, svm))
    try:
        buffer = cl.Buffer(engine.native.context, flags, hostbuf=data)
        return Wrapped(buffer, MemoryDesc((nbytes,), "u8"), svm)
    except cl.Error as error:
        raise engine.failure("cannot wrap shared virtual memory", error) from error


def _buffer(engine: Any, memory: Any) -> Any:
    """Return a pyopencl buffer of the engine's context. Other classes (pools) are converted."""
    cl = pyopencl()
    try:
        buffer = memory if isinstance(memory, cl.Buffer) else of_handle(memory.int_ptr)
        context = buffer.context
    except cl.Error as error:
        raise engine.failure("the buffer cannot be used", error) from error
    if context != engine.native.context:
        raise DescriptorError(
            f"{engine.name}: the buffer must be of this engine's context, {engine.native.context};"
            f" got one of {context}; pass the engine of that context, which"
            " dnncore_opencl.OpenCLEngine.from_native(context) returns"
        )
    if buffer.get_info(cl.mem_info.TYPE) != cl.mem_object_type.BUFFER:
        raise DescriptorError(f"{engine.name}: images cannot be wrapped; copy it to a buffer")
    return buffer


def of_handle(handle: int) -> Any:
    """Return the buffer of a handle, which is retained."""
    return pyopencl().Buffer.from_int_ptr(handle, retain=True)


def place(buffer: Any) -> tuple[Hashable, int]:
    """Return the memory that contains a buffer (host memory or a parent buffer) and its offset."""
    cl = pyopencl()
    infos = cl.mem_info
    flags = buffer.get_info(infos.FLAGS)
    if flags & cl.mem_flags.USE_HOST_PTR:
        host = buffer.get_host_array((buffer.size,), np.uint8)
        return "host", int(host.ctypes.data)
    parent = buffer.get_info(infos.ASSOCIATED_MEMOBJECT)
    if parent is None:
        return buffer.int_ptr, 0
    return parent.int_ptr, int(buffer.get_info(infos.OFFSET))


def is_read_only(buffer: Any) -> bool:
    """Whether kernels must not write to a buffer."""
    cl = pyopencl()
    return bool(buffer.get_info(cl.mem_info.FLAGS) & cl.mem_flags.READ_ONLY)


@contextlib.contextmanager
def mapped(engine: Any, stream: Any, buffer: Any, nbytes: int, mode: str) -> Iterator[Any]:
    """Map a buffer that the device keeps in host memory, without a copy."""
    cl = pyopencl()
    kinds = cl.map_flags
    flags = {"r": kinds.READ, "w": kinds.WRITE, "rw": kinds.READ | kinds.WRITE}[mode]
    shape = (nbytes,)
    try:
        data, _ = cl.enqueue_map_buffer(stream.native, buffer, flags, 0, shape, np.uint8)
    except cl.Error as error:
        raise engine.failure(f"cannot map {nbytes} bytes", error) from error
    mapping = data.base
    try:
        # The array may be kept after the block, so it must not point to freed memory.
        yield np.asarray(_Bytes(data.ctypes.data, nbytes, buffer))
    finally:
        del data
        mapping.release(stream.native).wait()
