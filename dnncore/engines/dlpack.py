"""DLPack: tensors pass between libraries without a copy.

numpy creates an exported capsule, for an array of bytes with the shape and the strides of the
tensor. Then type, device and address are set. So its deleter is numpy's, which also works while the
interpreter ends. A Python function would not.

An imported capsule is kept as long as its elements are used. Meanwhile its name marks it as
consumed. Afterwards its original name is restored, so that its destructor calls the exporter's
deleter.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dnncore.engines.arrays import ByteView
from dnncore.errors import DescriptorError, ExportError
from dnncore.interrupts import pass_on
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.strides import row_major

if TYPE_CHECKING:
    from dnncore.engines.memory import Memory

__all__ = ["HOST", "ImportedTensor", "export", "take"]

HOST = (1, 0)
"""The device of host memory, in DLPack's terms: type and number."""

HOST_TYPES = (1, 3, 11)  # host memory, including memory that CUDA or ROCm has pinned
READ_ONLY, COPIED, PADDED = 1, 2, 4  # flags

WITHOUT_PROTOCOL = (
    "use Memory.from_numpy for an array in host memory, and Memory.wrap(array, engine=...) with the"
    " engine of its device for another one"
)

CODES = {
    "s4": 0, "s8": 0, "s32": 0, "s64": 0, "u4": 1, "u8": 1, "f16": 2, "f32": 2, "f64": 2, "bf16": 4,
    "boolean": 6, "f8_e4m3": 10, "f8_e5m2": 12, "e8m0": 14, "f4_e2m1": 17,
}  # fmt: skip
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_NAMES = {(code, data_type(name).bits): name for name, code in CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Unversioned(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.argtypes, _name_of.restype = [ctypes.py_object], ctypes.c_void_p
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes, _rename.restype = [ctypes.py_object, ctypes.c_void_p], ctypes.c_int
_allocate = ctypes.pythonapi.PyMem_RawMalloc
_allocate.argtypes, _allocate.restype = [ctypes.c_size_t], ctypes.c_void_p


def _lasting(text: bytes) -> int:
    """Return the address of a text that is never freed: a capsule may outlive this module."""
    address = _allocate(len(text) + 1)
    ctypes.memmove(address, text + b"\0", len(text) + 1)
    return int(address)


_USED = {name: _lasting(b"used_" + name) for name in (b"dltensor", b"dltensor_versioned")}


class _Consumed:
    """A capsule that nobody else can consume while this object lives."""

    __slots__ = ("_capsule", "_name")

    def __init__(self, capsule: object) -> None:
        self._capsule, self._name = capsule, _name_of(capsule)
        _rename(capsule, _USED[ctypes.string_at(self._name)])

    def __del__(self, rename: Any = _rename) -> None:
        rename(self._capsule, self._name)


def _opened(capsule: object) -> tuple[_Tensor, _Versioned | None]:
    """Return the tensor of a capsule that is not consumed, and its versioned structure, if any."""
    for name, structure in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Unversioned)):
        if _is_valid(capsule, name):
            found = structure.from_address(_pointer(capsule, name))
            return found.tensor, found if isinstance(found, _Versioned) else None
    raise DescriptorError(
        f"memory: __dlpack__ must return a capsule named dltensor or dltensor_versioned; got"
        f" {capsule!r}"
    )


# -- import ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportedTensor:
    """A tensor of another library.

    address: the address of the first element in host memory; on a device, the handle of the buffer.
    offset: on a device, bytes from the buffer's start to the first element.
    keeps: the object that keeps the tensor alive.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: str
    device: tuple[int, int]
    address: int
    offset: int
    is_packed: bool
    is_read_only: bool
    keeps: object

    @property
    def is_on_host(self) -> bool:
        """Whether the elements are in host memory."""
        return self.device[0] in HOST_TYPES

    def array(self) -> np.ndarray[Any, Any]:
        """Return the elements as a numpy array. They must be whole bytes in host memory."""
        dtype = data_type(self.data_type).dtype
        width = dtype.itemsize
        view = ByteView(self.address, 0, self.keeps, writable=not self.is_read_only)
        view.__array_interface__ |= {
            "shape": self.dims,
            "typestr": f"|u{width}" if width == 1 else np.dtype(f"u{width}").str,
            "strides": tuple(step * width for step in self.strides),
        }
        if 0 in self.dims:
            return np.empty(self.dims, dtype)
        return np.asarray(view).view(dtype)

    def packed_bytes(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the bytes of elements of 4 bits."""
        view = ByteView(self.address, nbytes, self.keeps, writable=not self.is_read_only)
        return np.asarray(view) if nbytes else np.empty(1, np.uint8)


def take(exporter: Any, *, to_host: bool = False) -> ImportedTensor:
    """Return the tensor of an object with `__dlpack__`.

    to_host: whether the object may copy the tensor from another device.

    Raises `DescriptorError` for other objects, and for tensors whose type no descriptor has.
    """
    if not (hasattr(exporter, "__dlpack__") and hasattr(exporter, "__dlpack_device__")):
        raise DescriptorError(
            f"memory: from_dlpack needs an object with __dlpack__ and __dlpack_device__; got"
            f" {type(exporter).__name__}; {WITHOUT_PROTOCOL}"
        )
    is_negated = getattr(exporter, "is_neg", None)  # torch exports elements not negated
    if callable(is_negated) and is_negated():
        raise DescriptorError(
            "memory: the elements of this tensor are stored with the opposite sign; use"
            " tensor.resolve_neg()"
        )
    try:
        device = tuple(map(int, exporter.__dlpack_device__()))
        capsule = _asked(exporter, device, to_host)
    except DescriptorError:
        raise
    except Exception as error:  # exporters may raise anything
        pass_on(error)
        raise DescriptorError(
            f"memory: this {type(exporter).__name__} cannot be exported: {error}{_remedy(exporter)}"
        ) from error
    return _read(capsule, (HOST if to_host else device))


def _remedy(exporter: object) -> str:
    return "; use Memory.from_numpy" if isinstance(exporter, np.ndarray) else ""


def _asked(exporter: Any, device: tuple[int, ...], to_host: bool) -> object:
    if to_host and device[0] not in HOST_TYPES:
        return exporter.__dlpack__(max_version=(1, 1), dl_device=HOST, copy=True)
    try:
        return exporter.__dlpack__(max_version=(1, 1))
    except ExportError:  # raised by dnncore's own memories; see `exchange.exported`
        return exporter.__dlpack__(max_version=(1, 1), dl_device=device)
    except TypeError:  # exporters before version 1.0 know no versions
        return exporter.__dlpack__()


def _read(capsule: object, device: tuple[int, ...]) -> ImportedTensor:
    tensor, versioned = _opened(capsule)
    if versioned is not None and versioned.major > 1:
        raise DescriptorError(
            f"memory: DLPack must have version 1 or older; got {versioned.major}.{versioned.minor}"
        )
    flags = versioned.flags if versioned is not None else 0
    name = _NAMES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        kind = _KINDS.get(tensor.code, f"DLPack's code {tensor.code} with bits: ")
        vector = f" in vectors of {tensor.lanes}" if tensor.lanes != 1 else ""
        raise DescriptorError(
            f"memory: no data type has the elements {kind}{tensor.bits}{vector} of this tensor;"
            f" convert them to one of {', '.join(CODES)}"
        )
    dims = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else (1,)
    strides = row_major(dims)
    if tensor.ndim and tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    offset, address = tensor.byte_offset, tensor.data or 0
    if device[0] in HOST_TYPES:
        offset, address = 0, address + offset
    return ImportedTensor(
        dims, strides, name, (device[0], device[1]), address, offset,
        is_packed=tensor.bits < 8 and not flags & PADDED,
        is_read_only=bool(flags & READ_ONLY), keeps=_Consumed(capsule),
    )  # fmt: skip


# -- export ----------------------------------------------------------------------------------------


def export(memory: Memory, address: int, *, is_versioned: bool, is_copy: bool) -> object:
    """Return a capsule with the elements of a memory in a plain layout.

    address: the address of the buffer in host memory, or the handle of a device's buffer.
    is_copy: whether the memory is used nowhere else.
    """
    desc, engine = memory.desc, memory.engine
    bits = data_type(desc.data_type).bits
    offset = desc.offset0 * bits
    if offset % 8:
        _refuse(f"the first element begins inside a byte: {desc}")
    if desc.has_repeats and not is_versioned:
        _refuse("elements repeat, and the consumer knows no read-only tensors")
    capsule = _capsule(memory, is_versioned)
    tensor, versioned = _opened(capsule)
    tensor.code, tensor.bits = CODES[desc.data_type], bits
    tensor.device_type, tensor.device_id = engine.dlpack_device or HOST
    tensor.data, tensor.byte_offset = address, offset // 8
    if engine.is_host:
        tensor.data, tensor.byte_offset = address + offset // 8, 0
    if 0 in desc.dims:
        tensor.data, tensor.byte_offset = None, 0
    if versioned is not None:
        is_read_only = desc.has_repeats or memory.is_read_only
        versioned.flags = READ_ONLY * is_read_only | COPIED * is_copy
    return capsule


def _capsule(memory: Memory, is_versioned: bool) -> Any:
    """Return numpy's capsule of an array of bytes whose strides are counted in elements; never
    read.
    """
    view = ByteView(_BYTE.ctypes.data, 1, memory)
    empty = math.prod(memory.desc.dims) == 0
    strides = row_major(memory.desc.dims) if empty else memory.desc.strides
    view.__array_interface__ |= {"shape": memory.desc.dims, "strides": strides}
    array = np.asarray(view)
    return array.__dlpack__(max_version=(1, 0)) if is_versioned else array.__dlpack__()


_BYTE = np.zeros(1, np.uint8)


def _refuse(why: str) -> NoReturn:
    raise ExportError(f"memory: DLPack cannot describe this memory: {why}; copy it: copy=True")
