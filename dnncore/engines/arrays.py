"""Arrays become memories. Elements are shared if possible, else copied.

`copy` has the meaning of the array API. None copies if the elements cannot be shared. True always
copies. False never copies. If a copy would be necessary, it raises `DescriptorError` with the
reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.ma import MaskedArray  # else numpy imports it in a call, while a fork is possible

from dnncore.errors import DescriptorError, printable
from dnncore.interrupts import pass_on
from dnncore.tensors.datatypes import data_type, from_numpy_dtype, rounded
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine

__all__ = [
    "ByteView",
    "checked_values",
    "desc_of",
    "element_of",
    "native_copy",
    "refuse_copy",
    "shared_bytes",
]

Array = np.ndarray[Any, Any]


class ByteView:
    """Makes an array over bytes that another object owns, by `numpy.asarray(ByteView(...))`."""

    __slots__ = ("__array_interface__", "__weakref__", "keeps")

    def __init__(self, address: int, nbytes: int, keeps: object, *, writable: bool = True) -> None:
        self.keeps = keeps
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, not writable),
            "version": 3,
        }


def checked_values(values: Any) -> Array:
    """Return the values as a numpy array whose type may be one of the library's types.

    Raises `DescriptorError` for masked arrays, objects, records and values that numpy cannot read.
    """
    if isinstance(values, MaskedArray):
        raise DescriptorError(
            "memory: an array must have no mask, which a memory cannot keep; got a masked array;"
            " replace the masked elements with filled(value)"
        )
    try:
        array = np.asarray(values)
    except Exception as error:  # arrays of other libraries may raise any exception
        pass_on(error)
        raise DescriptorError(
            "memory: the values must be an array in host memory or nested lists of numbers; got"
            f" {type(values).__name__}: {error}"
        ) from error
    if array.dtype.hasobject and not isinstance(values, np.ndarray | list | tuple):
        raise DescriptorError(
            f"memory: the values must be an array in host memory or nested lists of numbers; got"
            f" {type(values).__name__}, which numpy cannot read; for an array of a device, use"
            " Memory.wrap(array, engine=...) with the engine of this device"
        )
    if array.dtype.hasobject:
        raise DescriptorError(
            f"memory: the elements must be numbers; got objects of Python ({array.dtype}); convert"
            " them with astype(numpy.float32)"
        )
    if array.dtype.names is not None:
        raise DescriptorError(
            f"memory: the elements must be numbers; got records of the fields"
            f" {', '.join(array.dtype.names)}; pass one field, as array[{array.dtype.names[0]!r}]"
        )
    return array


def desc_of(array: Array, *, own_layout: bool, may_repeat: bool = False) -> MemoryDesc:
    """Return a descriptor for an array's shape and type. A single number has dims (1,).

    own_layout: whether to use the array's strides, if a descriptor permits them; otherwise the
        layout is row-major.
    may_repeat: whether to use strides of 0, which repeat a dim.
    """
    name = from_numpy_dtype(array.dtype.newbyteorder("="))
    plain = MemoryDesc(array.shape or (1,), name)
    if not own_layout or array.size == 0 or array.ndim == 0:
        return plain
    width = array.itemsize
    rows = zip(array.shape, array.strides, plain.strides, strict=True)
    strides = [row if size == 1 else stride / width for size, stride, row in rows]
    if any(step < 0 or step != int(step) for step in strides):
        return plain
    try:
        desc = MemoryDesc(array.shape, name, strides=[int(step) for step in strides])
    except DescriptorError:  # elements overlap
        return plain
    return plain if desc.has_repeats and not may_repeat else desc


def native_copy(array: Array) -> Array:
    """Return the values in native byte order: the array itself if it has this order."""
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)


def shared_bytes(array: Array, desc: MemoryDesc, engine: Engine) -> Array | str:
    """Return an array's bytes as a buffer of `engine` with this layout, or why there is none."""
    if not engine.is_host:
        return f"{engine.name} has memory of its own"
    if array.dtype != array.dtype.newbyteorder("="):
        return f"the array's type {array.dtype} has another order of bytes than this machine"
    if data_type(desc.data_type).is_packed:
        return f"two elements of {desc.data_type} share a byte of a memory, but not of the array"
    if not desc.is_plain or desc.offset0:
        return f"the array has no layout such as that of {desc}"
    if not array.size:
        return np.empty(1, np.uint8)
    if not array.flags.writeable:
        return "the array is read-only, but primitives may write to any memory"
    width = desc.itemsize
    strides = array.strides or (width,)
    rows = zip(desc.dims, desc.strides, strides, strict=True)
    if any(size > 1 and step * width != stride for size, step, stride in rows):
        rule = ", and a memory has no negative strides" if min(strides) < 0 else ""
        return f"the array's strides are {strides} bytes, those of {desc} are not{rule}"
    return np.asarray(ByteView(array.ctypes.data, desc.nbytes, array))


def refuse_copy(why: str) -> NoReturn:
    """Raise the error for values that cannot be shared although copy is False."""
    raise DescriptorError(
        f"memory: copy=False needs elements that can be shared; {why}; use copy=None"
    )


def _as_float(value: Any) -> float:
    """Return the nearest float64; an infinity for integers beyond the range of float64."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def element_of(value: object, name: str) -> Any:
    """Return a number in a data type. numpy would also accept texts, None and complex numbers."""
    try:
        if isinstance(value, str | bytes | bytearray | complex | np.complexfloating):
            raise TypeError("not a real number")
        if np.ndim(value) != 0:  # type: ignore[arg-type]  # callers pass anything
            raise TypeError("not a single number")
        row = data_type(name)
        with np.errstate(over="ignore", invalid="raise"):
            if row.is_float:
                return rounded(np.asarray(_as_float(value)), row.dtype)[()]
            # Do not convert to float, which has fewer bits than s64.
            whole = int(value)  # type: ignore[call-overload]  # callers pass anything
            element = np.asarray(whole, np.int64).astype(row.dtype)[()]
        if not int(element) == whole == value:
            raise ValueError("out of range, or not a whole number")
    except Exception as error:  # a value of any class may raise anything
        raise DescriptorError(
            f"memory: fill needs a number that {name} can hold, such as 0; got"
            f" {printable(repr(value))}"
        ) from error
    return element
