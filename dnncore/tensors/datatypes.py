"""The data types: one table of name, bits, numpy dtype and accumulation type.

Other modules use the name of a data type, such as `"f32"`. numpy has no dtypes for bf16, the 8-bit
floating-point and the 4-bit types, so they come from `ml_dtypes`. A 4-bit element takes a whole
byte in a numpy array. In a dnncore buffer two elements share a byte, the first in the low 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dnncore.errors import DescriptorError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = [
    "DATA_TYPES", "DataType", "data_type", "from_numpy_dtype", "numpy_dtype", "rounded",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataType:
    """One row of the table.

    bits: the bits of an element in a buffer.
    dtype: the numpy dtype of one unpacked element.
    accumulation: the default type of sums of products of this type.
    """

    name: str
    bits: int
    dtype: np.dtype[Any]
    accumulation: str

    @property
    def itemsize(self) -> int:
        """Bytes of one unpacked element, as in numpy. A 4-bit element takes a whole byte there."""
        return self.dtype.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether two elements share a byte of a buffer."""
        return self.bits < 8

    @property
    def is_float(self) -> bool:
        """Whether values are floating point. For ml_dtypes, `np.issubdtype` returns False."""
        return self.accumulation in ("f32", "f64")

    def nbytes(self, count: int) -> int:
        """Return the bytes that `count` consecutive elements take in a buffer, rounded up."""
        return (count * self.bits + 7) // 8


_TABLE: tuple[tuple[str, int, DTypeLike, str], ...] = (
    # name, bits, numpy dtype, accumulation
    ("f64", 64, np.float64, "f64"),
    ("f32", 32, np.float32, "f32"),
    ("f16", 16, np.float16, "f32"),
    ("bf16", 16, ml_dtypes.bfloat16, "f32"),
    ("f8_e5m2", 8, ml_dtypes.float8_e5m2, "f32"),
    ("f8_e4m3", 8, ml_dtypes.float8_e4m3fn, "f32"),  # the OCP type: no infinities
    ("e8m0", 8, ml_dtypes.float8_e8m0fnu, "f32"),  # powers of two, for block scales
    ("f4_e2m1", 4, ml_dtypes.float4_e2m1fn, "f32"),
    ("s64", 64, np.int64, "s64"),
    ("s32", 32, np.int32, "s32"),
    ("s8", 8, np.int8, "s32"),
    ("u8", 8, np.uint8, "s32"),
    ("s4", 4, ml_dtypes.int4, "s32"),
    ("u4", 4, ml_dtypes.uint4, "s32"),
    ("boolean", 8, np.bool_, "s32"),
)

DATA_TYPES: dict[str, DataType] = {
    name: DataType(name, bits, np.dtype(dtype), accumulation)
    for name, bits, dtype, accumulation in _TABLE
}

_NAME_OF_DTYPE: dict[np.dtype[Any], str] = {row.dtype: row.name for row in DATA_TYPES.values()}


def data_type(name: object) -> DataType:
    """Return the row of the data type `name`. Raises `DescriptorError` if there is none."""
    row = DATA_TYPES.get(name) if isinstance(name, str) else None
    if row is None:
        known = name.__name__ if isinstance(name, type) else str(name).removeprefix("torch.")
        same = next((n for n, row in DATA_TYPES.items() if row.dtype.name == known), "")
        way = f"; numpy's {known} is {same}" if same else ""
        raise DescriptorError(
            f"data type: no such type; got {name!r}; use one of {', '.join(DATA_TYPES)}{way}"
        )
    return row


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one unpacked element of data type `name`."""
    return data_type(name).dtype


def from_numpy_dtype(dtype: DTypeLike) -> str:
    """Return the name of the data type that corresponds to a numpy dtype.

    Raises `DescriptorError` for types that dnncore does not support, such as complex numbers or
    elements in foreign byte order.
    """
    try:
        return _NAME_OF_DTYPE[np.dtype(dtype)]
    except (KeyError, TypeError):
        known = ", ".join(str(row.dtype) for row in DATA_TYPES.values())
        raise DescriptorError(
            f"data type: numpy dtype {dtype!r} is not supported; convert to one of {known}"
        ) from None


def rounded(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert numbers to another type; float64 is rounded once to each floating type. A number that
    is too large becomes an infinity, without a warning of numpy.

    ml_dtypes rounds float64 to float32 first. If that is inexact, an odd last bit makes the second
    rounding right (S. Boldo and G. Melquiond 2008). The reference has its own function, so that it
    checks this one.
    """
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        if values.dtype != np.float64 or dtype.isbuiltin == 1:
            return values.astype(dtype)
        nearest = values.astype(np.float32)
        cut = np.where(abs(nearest) > abs(values), np.nextafter(nearest, np.float32(0)), nearest)
        odd = (cut.view(np.uint32) | 1).view(np.float32)
        return np.where((cut == values) | np.isnan(cut), cut, odd).astype(dtype)
