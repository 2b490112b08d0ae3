"""Memories from arrays and tensors of other libraries, and back."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.engines import dlpack
from dnncore.engines.arrays import (
    checked_values,
    desc_of,
    native_copy,
    refuse_copy,
    shared_bytes,
)
from dnncore.engines.engine import CpuEngine, Engine
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError, ExportError, printable
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.engines.memory import Memory

__all__ = ["as_array", "exported", "from_dlpack", "from_numpy", "wrapped"]

Array = np.ndarray[Any, Any]


def from_numpy(
    cls: type[Memory], values: Any, desc: MemoryDesc | None, engine: Engine, copy: bool | None
) -> Memory:
    """Implement `Memory.from_numpy` on a checked engine."""
    _check_copy(copy)
    array = checked_values(values)
    if copy is False and isinstance(values, int | float | list | tuple | np.generic):
        refuse_copy(f"the elements of {type(values).__name__} are not in an array")
    if desc is None:
        desc = desc_of(array, own_layout=copy is False, may_repeat=True)
    return _from_array(cls, array, desc, engine, copy)


def _from_array(
    cls: type[Memory], array: Array, desc: MemoryDesc, engine: Engine, copy: bool | None
) -> Memory:
    if not isinstance(desc, MemoryDesc):
        way = "; pass engine=..." if isinstance(desc, Engine) else ""
        raise DescriptorError(f"memory: desc must be a MemoryDesc; got {type(desc).__name__}{way}")
    array = array.reshape(array.shape or (1,))
    if array.shape != desc.dims:
        raise DescriptorError(
            f"memory: the array must have the descriptor's dims {desc.dims}; got {array.shape}"
        )
    if array.dtype.newbyteorder("=") != desc.dtype:
        raise DescriptorError(
            f"memory: the array must be of type {desc.data_type} ({desc.dtype});"
            f" got {array.dtype}; convert it with astype"
        )
    shared = shared_bytes(array, desc, engine)
    if isinstance(shared, np.ndarray) and not copy:
        return cls(desc, engine, shared)
    if copy is False and isinstance(shared, str):
        refuse_copy(shared)
    memory = cls(desc, engine)
    array = native_copy(array)
    if not engine.is_host and desc.is_plain and array.flags.c_contiguous and array.size:
        plain = MemoryDesc(desc.dims, desc.data_type)
        if desc == plain and array.nbytes == desc.nbytes:
            data = array.reshape(-1).view(np.uint8)
            engine.copy_in(engine.stream(), data, memory.buffer).wait()
            return memory
    with memory.map(mode="w") as buffer:
        desc.pack(array, buffer)
    return memory


def from_dlpack(
    cls: type[Memory], exporter: Any, desc: MemoryDesc | None, engine: Engine, copy: bool | None
) -> Memory:
    """Implement `Memory.from_dlpack` on a checked engine."""
    _check_copy(copy)
    tensor = dlpack.take(exporter)
    if not tensor.is_on_host and tensor.device != engine.dlpack_device:
        if not copy:
            raise DescriptorError(
                f"memory: the tensor is on DLPack's device {tensor.device}, not on {engine.name};"
                " pass copy=True, which copies it, or the engine of this device"
            )
        tensor = dlpack.take(exporter, to_host=True)
    if not tensor.is_on_host:
        return _on_device(cls, tensor, desc, engine, copy)
    if tensor.is_packed:
        return _packed(cls, tensor, desc, engine, copy)
    array = tensor.array()
    if desc is None:
        desc = desc_of(array, own_layout=not copy, may_repeat=copy is False)
    return _from_array(cls, array, desc, engine, copy)


def _described(tensor: dlpack.ImportedTensor, desc: MemoryDesc | None, width: int) -> MemoryDesc:
    """Return the tensor's own descriptor. If a descriptor is given, it must be equal."""
    start, rest = divmod(tensor.offset, width)
    if rest:
        raise DescriptorError(
            f"memory: a tensor must begin at a whole element; it begins at byte {tensor.offset}"
        )
    own = MemoryDesc(tensor.dims, tensor.data_type, strides=tensor.strides, offset0=start)
    if desc is not None and desc != own:
        raise DescriptorError(
            f"memory: desc must be the tensor's own, {own}; got {desc}; reorder the memory"
        )
    return own


def _on_device(
    cls: type[Memory],
    tensor: dlpack.ImportedTensor,
    desc: MemoryDesc | None,
    engine: Engine,
    copy: bool | None,
) -> Memory:
    own = _described(tensor, desc, MemoryDesc((1,), tensor.data_type).itemsize)
    buffer = engine.from_dlpack(tensor.address, own.nbytes) if own.nbytes else None
    memory = cls(own, engine, buffer)
    if buffer is not None:
        memory.owner = tensor
        memory.is_read_only |= tensor.is_read_only
    return memory.__copy__() if copy else memory


def _packed(
    cls: type[Memory],
    tensor: dlpack.ImportedTensor,
    desc: MemoryDesc | None,
    engine: Engine,
    copy: bool | None,
) -> Memory:
    """Return elements of 4 bits, two in a byte as in a memory."""
    own = _described(tensor, None, 1)
    data = tensor.packed_bytes(own.nbytes)
    can_share = engine.is_host and not tensor.is_read_only and desc in (None, own)
    if can_share and not copy:
        return cls(own, engine, data)
    if copy is False:
        refuse_copy("the tensor is read-only, in another layout, or not on this engine")
    return _from_array(cls, own.unpack(data), desc or own, engine, True)


def wrapped(cls: type[Memory], native: Any, desc: MemoryDesc | None, engine: Engine) -> Memory:
    """Implement `Memory.wrap` on a checked engine."""
    found = engine.wrap(native)
    if found is None:
        raise DescriptorError(
            f"memory: {engine.name} has no buffers such as {type(native).__name__}; pass"
            " engine=..., the engine of its device; Memory.from_numpy and Memory.from_dlpack take"
            " arrays in host memory"
        )
    desc = found.desc if desc is None else desc
    if desc is None:
        raise DescriptorError(
            f"memory: {type(native).__name__} has no layout; pass desc=MemoryDesc(...)"
        )
    memory = cls(desc, engine, found.buffer)
    if found.buffer is not None:
        memory.owner = found.owner
    return memory


def as_array(memory: Memory, dtype: Any, copy: bool | None) -> Array:
    """Implement `Memory.__array__`."""
    _check_copy(copy)
    desc = memory.desc
    is_view = memory.engine.is_host and desc.is_plain and not desc.is_packed
    try:
        wanted = desc.dtype if dtype is None else np.dtype(dtype)
        if copy is False and not (is_view and wanted == desc.dtype):
            raise DescriptorError(
                f"memory: numpy shares plain memories of host engines only, in their own type; got"
                f" {memory!r} as {wanted}; use copy=None"
            )
        return np.array(memory.numpy(), dtype=wanted, copy=copy if is_view else None)
    except (TypeError, ValueError) as error:
        if isinstance(error, DescriptorError):
            raise
        raise DescriptorError(
            f"memory: the array's dtype must be one to which numpy converts {desc.dtype}; got"
            f" {printable(repr(dtype))}"
        ) from error


def _check_copy(copy: object) -> None:
    if copy is not None and not isinstance(copy, bool | np.bool_):
        raise DescriptorError(f"memory: copy must be True, False or None; got {copy!r}")


def _pair(what: str, value: Any) -> tuple[int, int]:
    try:
        first, second = map(operator.index, value)
    except (TypeError, ValueError):
        raise ExportError(f"memory: {what} must be two integers; got {value!r}") from None
    return first, second


def exported(
    memory: Memory,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """Implement `Memory.__dlpack__`."""
    _check_copy(copy)
    engine, desc = memory.engine, memory.desc
    if not desc.is_plain:
        raise ExportError(
            f"memory: DLPack describes plain layouts only; got {desc}; export memory.physical(), or"
            " reorder the memory to a plain format"
        )
    if stream is not None:
        if not isinstance(stream, Stream) or stream.engine is not engine:
            raise ExportError(
                f"memory: stream must be None or a stream of {engine.name}; got {stream!r}"
            )
        stream.wait()
    own = memory.__dlpack_device__()
    if dl_device is None and own[0] not in dlpack.HOST_TYPES:
        # torch 2.13 frees a tensor twice if torch does not support its device. Then the process
        # crashes.
        raise ExportError(
            f"memory: a consumer must name the device of a memory of {engine.name}, because not all"
            f" have it: __dlpack__(dl_device={own}); for a copy in host memory, export"
            " memory.numpy()"
        )
    asked = own if dl_device is None else _pair("dl_device", dl_device)
    if asked not in (own, dlpack.HOST):
        raise ExportError(
            f"memory: a memory of {engine.name} can be exported to DLPack's devices {own} and"
            f" {dlpack.HOST}, the host; got {asked}"
        )
    if asked != own:
        if copy is False:
            raise ExportError(
                f"memory: a memory of {engine.name} is not in host memory; export a copy: copy=None"
            )
        copy, memory = True, type(memory).from_numpy(memory.numpy(), None, CpuEngine())
    elif copy:
        memory = memory.__copy__()
    engine = memory.engine
    handle = memory.address if engine.is_host else engine.to_dlpack(memory.buffer)
    is_versioned = max_version is not None and _pair("max_version", max_version)[0] >= 1
    return dlpack.export(memory, handle, is_versioned=is_versioned, is_copy=bool(copy))
