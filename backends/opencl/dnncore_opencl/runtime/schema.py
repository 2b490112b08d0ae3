"""Parameters of kernels: declared once, beside the code that launches the kernel.

A `Schema` has a kernel's parameters by name, in their order. It writes the list that stands for
`$parameters` in the kernel's text, and it checks the arguments, which are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Arg:
    """The buffer of the memory that is bound at place `index`."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """The scratchpad's buffer."""


@dataclass(frozen=True)
class Value:
    """A parameter by value: its types in OpenCL C and in numpy."""

    text: str
    dtype: Any

    def declared(self, name: str) -> str:
        """Return the text of a parameter."""
        return f"const {self.text} {name}"

    def checked(self, given: Any) -> Any:
        """Return the argument, of a Python number if it fits. Raises `TypeError` for others."""
        if isinstance(given, np.generic):
            if given.dtype == self.dtype:
                return given
        elif isinstance(given, int) and self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            if limits.min <= given <= limits.max:
                return self.dtype.type(given)
        elif isinstance(given, float) and self.dtype.kind == "f":
            return self.dtype.type(given)
        raise TypeError(f"must be of type {self.text}; got {given!r}")


INT, UINT, LONG = (
    Value(text, np.dtype(kind))
    for text, kind in (("int", np.int32), ("uint", np.uint32), ("long", np.int64))
)
FLOAT, DOUBLE = (Value(text, np.dtype(kind)) for text, kind in (("float", "f4"), ("double", "f8")))


@dataclass(frozen=True)
class Buffer:
    """A parameter that points to elements of a type, which is `const` if they are only read."""

    text: str
    is_restrict: bool = False

    def declared(self, name: str) -> str:
        """Return the text of a parameter."""
        return f"__global {self.text} *{'restrict ' if self.is_restrict else ''}{name}"

    def checked(self, given: Any) -> Arg | Scratch:
        """Return the argument. Raises `TypeError` for all but buffers."""
        if isinstance(given, Arg | Scratch):
            return given
        raise TypeError(f"must be a buffer, an Arg or Scratch; got {given!r}")


class Schema:
    """Parameters by name, in the kernel's order."""

    def __init__(self, **types: Value | Buffer) -> None:
        self.types: Mapping[str, Value | Buffer] = types

    def __or__(self, other: Schema) -> Schema:
        """Return these parameters and then the other ones. Raises `TypeError` if they share one."""
        shared = self.types.keys() & other.types.keys()
        if shared:
            raise TypeError(f"opencl: two parameters have the name {', '.join(sorted(shared))}")
        return Schema(**{**self.types, **other.types})

    @property
    def declarations(self) -> list[str]:
        """The text of each parameter."""
        return [kind.declared(name) for name, kind in self.types.items()]

    @property
    def text(self) -> str:
        """The list of parameters, one to a line."""
        return ",".join(f"\n    {declaration}" for declaration in self.declarations)

    def arguments(self, kernel: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return arguments in the kernel's order.

        Raises `TypeError` for missing ones, for unknown ones and for those of a wrong type.
        """
        missing, unknown = self.types.keys() - given.keys(), given.keys() - self.types.keys()
        if missing or unknown:
            problems = [
                f"{what} {', '.join(sorted(names))}"
                for what, names in (("lacks", missing), ("does not have", unknown))
                if names
            ]
            raise TypeError(f"opencl: a launch of {kernel} {' and '.join(problems)}")
        return tuple([self._checked(kernel, name, given[name]) for name in self.types])

    def _checked(self, kernel: str, name: str, given: Any) -> Any:
        try:
            return self.types[name].checked(given)
        except TypeError as error:
            raise TypeError(f"opencl: argument {name} of a launch of {kernel} {error}") from None
