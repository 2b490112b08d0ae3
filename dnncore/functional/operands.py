"""Inputs of functions: arrays in host memory, and their shapes and types for planners."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.errors import DescriptorError, shortened
from dnncore.ops.types import HALF_TYPES
from dnncore.tensors.datatypes import from_numpy_dtype, numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.tensors.strides import Dims

__all__ = [
    "Array", "Operand", "Result", "Values", "axis_of", "brief", "check_rank", "descs", "given",
    "is_true", "result_desc", "truth", "typed",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Values = Any
"""An array of any library, a number or a nested list."""
Result = Any
"""A new array of the inputs' kind."""

_HALVES = tuple(map(numpy_dtype, HALF_TYPES))
_TINY = tuple(map(numpy_dtype, ("f8_e4m3", "f8_e5m2", "s4", "u4")))  # numpy cannot compare these


FACTORS = ("mean", "variance", "scale", "shift")
ADDED = ("bias", "mask")


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a function: its shape, and the type in which it is used."""

    shape: Dims
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of dims, 0 for a single number."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def desc(self) -> MemoryDesc:
        """The row-major descriptor. A single number has dims (1,)."""
        return MemoryDesc(self.shape or (1,), from_numpy_dtype(self.dtype))

    def reshape(self, *shape: int) -> Operand:
        """Return the same elements in another shape."""
        return Operand(shape, self.dtype)

    def with_rank(self, rank: int) -> Operand:
        """Return the same elements with leading dims of size 1, so that there are `rank` dims."""
        return self.reshape(*(1,) * (rank - self.ndim), *self.shape)


def given(**values: Values) -> dict[str, Any]:
    """Return the inputs that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def typed(
    function: str, shapes: Mapping[str, Dims], types: Mapping[str, np.dtype[Any] | None]
) -> dict[str, Operand]:
    """Return the operands of a function by name.

    types: the type of each operand; None for Python's numbers, which are rounded to the common
        type.

    All operands get one type. It is float64 if one of them has this type. It is float16 or bfloat16
    if one of them has this type and the others fit into it. Otherwise it is float32. A bias or a
    mask is never rounded. Statistics, scale and shift are float32, or float64 if another operand
    is. A condition keeps its type. Raises `DescriptorError` for a type whose values the common type
    does not represent exactly.
    """
    numbers = {name: kind for name, kind in types.items() if name != "condition"}
    wide = np.dtype(np.float64 if np.float64 in numbers.values() else np.float32)
    for name, kind in types.items():
        _check_type(function, name, kind, wide)
    beside = (*ADDED, *FACTORS)
    own = _common_type(
        [kind for name, kind in numbers.items() if name not in beside and kind], wide
    )
    used = dict.fromkeys(types, own) | {
        name: types[name] for name in ("condition",) if name in types
    }
    used |= {name: wide for name in FACTORS if name in types}
    used |= {name: wide for name in ADDED if name in types and types[name] != own}
    return {name: Operand(shape, used[name]) for name, shape in shapes.items()}


def _check_type(function: str, name: str, kind: Any, wide: np.dtype[Any]) -> None:
    if name == "condition":
        if not any(np.can_cast(kind, real, "safe") for real in (np.float64, np.longdouble)):
            raise DescriptorError(
                f"{function}: {name} must be booleans or real numbers; got {kind}"
            )
    elif name == "mask" and kind is not None and kind.kind == "b":
        raise DescriptorError(
            f"{function}: mask must be numbers, which are added to the scores; got {kind};"
            " pass numpy.where(mask, numpy.float32(0), -numpy.inf)"
        )
    elif kind is not None and not _holds(wide, kind):
        raise DescriptorError(
            f"{function}: {name} must be of a type whose values {wide} holds exactly, since"
            f" the computation uses {wide}; got {kind}; convert it to {wide}"
        )


def _holds(wide: np.dtype[Any], kind: np.dtype[Any]) -> bool:
    """Whether a type represents all values of another. numpy calls casts of 64-bit integers to
    float64 safe although they round.
    """
    return np.can_cast(kind, wide, "safe") and not (kind.kind in "iu" and kind.itemsize == 8)


def _common_type(dtypes: Sequence[Any], wide: np.dtype[Any]) -> Any:
    """Return the half type of one of the types if all others fit into it, else the wide type."""
    halves = [dtype for dtype in dtypes if dtype in _HALVES]
    fit = halves and all(
        dtype in _TINY or np.can_cast(dtype, halves[0], "safe") for dtype in dtypes
    )
    return halves[0] if fit else wide


def truth(array: Array) -> Array:
    """Return 1 where a number is not 0, else 0, as int8."""
    return np.asarray(array != 0).astype(np.int8)


def brief(value: Any) -> str:
    """Return the representation of a wrong value on one short line; of an array, its shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    return shortened(reprlib.repr(value))


def axis_of(function: str, axis: Any, ndim: int) -> int:
    """Return an axis, counted from 0. A negative axis counts from the end."""
    rank = max(1, ndim)
    try:
        return range(rank)[operator.index(axis)]
    except (IndexError, TypeError):
        raise DescriptorError(
            f"{function}: axis must be an integer from {-rank} to {rank - 1}; got {brief(axis)}"
        ) from None


def is_true(function: str, name: str, value: Any) -> bool:
    """Return an option that is True or False. Raises `DescriptorError` for other values."""
    if not isinstance(value, bool):
        raise DescriptorError(f"{function}: {name} must be True or False; got {brief(value)}")
    return value


def check_rank(function: str, name: str, operand: Operand, shape: str, *ranks: int) -> None:
    """Raise `DescriptorError` unless the operand has one of these ranks; `shape` describes them."""
    if operand.ndim not in ranks:
        raise DescriptorError(f"{function}: {name} must be {shape}; got {operand.shape}")


def result_desc(dims: Sequence[int], like: Operand) -> MemoryDesc:
    """The row-major descriptor of a result with the type of an operand."""
    return Operand(tuple(dims), like.dtype).desc


def descs(operands: Mapping[str, Operand]) -> dict[str, Any]:
    """The descriptor of each operand."""
    return {name: operand.desc for name, operand in operands.items()}
