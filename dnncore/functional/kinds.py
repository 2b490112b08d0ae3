"""The kinds of arrays that functions take and return. The core imports none of their libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.ma import MaskedArray  # else numpy imports it in a call, while a fork is possible

from dnncore.engines.array_kinds import ArrayKind, HostArrays
from dnncore.errors import DescriptorError
from dnncore.interrupts import pass_on
from dnncore.selection.plugins import registry
from dnncore.tensors.datatypes import numpy_dtype

__all__ = ["NEUTRAL", "NUMPY", "common_kind", "host_array", "is_untyped", "kind_of"]

Array = np.ndarray[Any, Any]


class _NumpyArrays(HostArrays):
    """Arrays of numpy, and of other libraries if numpy can read them by `__array__` or DLPack."""

    name = "a numpy array"
    from_numpy = to_numpy = "numpy.asarray(array)"

    def array(self, value: Any) -> Array:
        """The values as an array, without a copy if possible."""
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        if isinstance(value, MaskedArray):
            raise TypeError("its mask would be dropped; replace masked elements with filled(value)")
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError(_about_objects(array))
        return array

    def result(self, array: Array) -> Array:
        """The array itself."""
        return array


class _TorchTensors(HostArrays):
    """Tensors of torch on the CPU."""

    name = "a torch tensor"
    from_numpy, to_numpy = "torch.from_numpy(array)", "tensor.numpy()"
    # numpy lacks these types; a view of integers shares the elements.
    _own = (
        ("bfloat16", "int16", "bf16"),
        ("float8_e5m2", "uint8", "f8_e5m2"),
        ("float8_e4m3fn", "uint8", "f8_e4m3"),
    )
    _views: Mapping[Any, tuple[Any, Any]] | None = None

    def array(self, value: Any) -> Array:
        """Return the elements of a tensor, which must not require a gradient."""
        if not value.is_cpu:
            raise TypeError(f"the tensor is on {value.device}; move it with tensor.cpu()")
        views = self._views or self._known_views()
        view = views.get(value.dtype)
        array: Array = value.numpy() if view is None else value.view(view[0]).numpy().view(view[1])
        return array

    def _known_views(self) -> Mapping[Any, tuple[Any, Any]]:
        """Return the type of integers and numpy's type for each type that numpy lacks."""
        torch = sys.modules["torch"]
        self._views = {
            getattr(torch, name): (getattr(torch, integer), numpy_dtype(own))
            for name, integer, own in self._own
            if hasattr(torch, name)
        }
        return self._views

    def result(self, array: Array) -> Any:
        """Return a tensor over the elements."""
        torch = sys.modules["torch"]
        if array.dtype == _BF16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def _about_objects(array: Array) -> str:
    """Return what is wrong with an array of objects."""
    kinds = {type(value) for value in array.flat}
    if kinds == {int}:
        return "an integer has more than 64 bits"
    return f"these are objects of Python: {', '.join(sorted(kind.__name__ for kind in kinds))}"


_BF16 = numpy_dtype("bf16")
NUMPY = _NumpyArrays()
_CORE = {"torch:Tensor": _TorchTensors()}
_kinds: dict[tuple[type, int], ArrayKind] = {}
MOST_TYPES = 256  # types that are kept; a program may create types without limit


def kind_of(value: object) -> ArrayKind:
    """Return the kind of an array; numpy's kind if its library has none."""
    key = (type(value), registry.generation)
    kind = _kinds.get(key)
    if kind is None:
        if len(_kinds) >= MOST_TYPES:
            _kinds.clear()
        kind = _kinds[key] = _found(value)
    return kind


def _found(value: object) -> ArrayKind:
    known: Mapping[str, ArrayKind | str] = {**registry.array_kinds(), **_CORE}
    for place, kind in known.items():
        module, _, name = place.partition(":")
        theirs = getattr(sys.modules.get(module), name, None)
        if isinstance(theirs, type) and isinstance(value, theirs):
            return registry.load(kind) if isinstance(kind, str) else kind
    return NUMPY


def common_kind(function: str, values: Mapping[str, object]) -> ArrayKind:
    """Return the kind of all arrays among the values. Numbers and lists suit any kind.

    Raises `DescriptorError` for arrays of several kinds.
    """
    kind, first = None, ""
    for name, value in values.items():
        if value is None or isinstance(value, NEUTRAL):
            continue
        other = kind_of(value)
        if kind is None:
            kind, first = other, name
        elif other is not kind:
            raise DescriptorError(
                f"{function}: all arrays must be of one kind; {first} is {kind.name} and {name} is"
                f" {other.name}; convert one, as with {_ways(kind, other)}"
            )
    return kind or NUMPY


def _ways(*kinds: ArrayKind) -> str:
    """Return text that explains how to convert two arrays to one kind."""
    others = [kind for kind in kinds if kind is not NUMPY]
    return " or ".join([f"{kind.from_numpy} or {kind.to_numpy}" for kind in others])


def host_array(what: str, value: object, kind: ArrayKind) -> Array:
    """Return the values as an array in host memory, without a copy if possible.

    kind: the kind of the values, if they are an array. Python's numbers become float64.

    Raises `DescriptorError` for values that are neither an array nor numbers.
    """
    try:
        is_neutral = isinstance(value, NEUTRAL)
        reader: Any = NUMPY if is_neutral or kind.is_device else kind
        array: Array = reader.array(value)
        if is_neutral and is_untyped(value):
            if array.dtype.kind in "USMmc":
                raise TypeError(f"these are of type {array.dtype}, not real numbers")
            array = array.astype(np.float64)
    except Exception as error:  # arrays of other libraries may raise any exception
        pass_on(error)
        raise DescriptorError(
            f"{what} must be an array in host memory or nested lists of numbers;"
            f" got {type(value).__name__}: {error}"
        ) from error
    return array


def is_untyped(value: object) -> bool:
    """Whether the values are Python's numbers, which have no numpy type."""
    return isinstance(value, int | float | list | tuple) and not isinstance(value, np.generic)


NEUTRAL = (int, float, list, tuple, np.generic)
"""Values that suit arrays of any kind."""
