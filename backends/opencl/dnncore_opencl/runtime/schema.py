"""Parameters of kernels, declared once, in the module that launches the kernel.

A `Schema` lists a kernel's parameters by name, in order. It writes the list that replaces
`$parameters` in the kernel's text, and it checks the arguments, which are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Arg:
    """The buffer of the memory bound at place `index`."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """The buffer of the scratchpad."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Numbers in a buffer of the program, which its kernels only read."""

    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A parameter by value: its types in OpenCL C and in numpy."""

    text: str
    dtype: Any

    def declared(self, name: str) -> str:
        """Return the declaration of the parameter."""
        return f"const {self.text} {name}"

    def checked(self, given: Any) -> Any:
        """Return the argument; convert a Python number that fits. Raises `TypeError` otherwise."""
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
    """A pointer parameter. Its element type is `const` if the kernel only reads."""

    text: str
    is_restrict: bool = False

    def declared(self, name: str) -> str:
        """Return the declaration of the parameter."""
        return f"__global {self.text} *{'restrict ' if self.is_restrict else ''}{name}"

    def checked(self, given: Any) -> Arg | Scratch | Constant:
        """Return the argument. Raises `TypeError` unless it is a buffer."""
        if isinstance(given, Arg | Scratch | Constant):
            return given
        raise TypeError(f"must be a buffer, an Arg, Scratch or Constant; got {given!r}")


class Schema:
    """Parameters by name, in the kernel's order."""

    def __init__(self, **types: Value | Buffer) -> None:
        self.types: Mapping[str, Value | Buffer] = types

    def __or__(self, other: Schema) -> Schema:
        """Return these parameters followed by the others. Raises `TypeError` for a common name."""
        shared = self.types.keys() & other.types.keys()
        if shared:
            raise TypeError(f"opencl: two parameters have the name {', '.join(sorted(shared))}")
        return Schema(**{**self.types, **other.types})

    @property
    def declarations(self) -> list[str]:
        """The declaration of each parameter."""
        return [kind.declared(name) for name, kind in self.types.items()]

    @property
    def text(self) -> str:
        """The list of parameters, one per line."""
        return ",".join(f"\n    {declaration}" for declaration in self.declarations)

    def arguments(self, kernel: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return arguments in the kernel's order.

        Raises `TypeError` for missing or unknown arguments, and for arguments of a wrong type.
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
