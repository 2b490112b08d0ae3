"""Tasks: the native functions of this backend's steps, written in Python.

A task is `void task(params, begin, end)`. It computes the work items [begin, end) and reads its
pointers, sizes and constants from the record `params`. It may run on any thread. It must not raise,
allocate or access Python objects. Other native functions have other arguments. `translation.py`
states which part of Python they use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from numba import types

from dnncore.backend import BuildError
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Pointer, Record
from dnncore_cpu_numba.codegen.translation import Inlined, translated

# Sums may be reordered for vectorisation. NaN and infinities follow IEEE 754.
FASTMATH = {"reassoc", "nsz", "arcp", "contract"}


def device(function: Callable[..., Any]) -> Any:
    """Decorate a function that tasks call. It is inlined."""
    return Inlined(function, frozenset(FASTMATH))


def exact(function: Callable[..., Any]) -> Any:
    """Decorate like `device`. The order of operations is kept; products and sums may be fused."""
    return Inlined(function, frozenset({"contract", "nsz"}))


def stepwise(function: Callable[..., Any]) -> Any:
    """Decorate like `exact`. Each product is rounded."""
    return Inlined(function, frozenset({"nsz"}))


TASK = Record("task", ("params", "address"), ("begin end", "index"))
"""The arguments of every task."""


class Task:
    """A native function. It is compiled or loaded from disk when `address` is first read.

    arguments: the record of its arguments. params: the record of a task's parameters. result:
    numba's type of the result, void or int64.

    Raises `CallMismatch` if the function's parameters are not the record's fields in order.
    """

    def __init__(
        self, function: Callable[..., None], arguments: Record, fastmath: set[str],
        params: Record | None = None, result: Any = types.void,
    ) -> None:  # fmt: skip
        self.function = function
        self.arguments = arguments
        self.params = params
        self.fastmath = fastmath
        self.result = result
        module = function.__module__.partition(".")[2].replace(".", "_")
        self.name = f"{module}_{function.__name__}"  # a key of the store; so it must be unique
        self.__doc__ = function.__doc__
        own, wanted = [*inspect.signature(function).parameters], [*arguments.fields]
        if own != wanted:
            raise CallMismatch(f"{self.name}: {arguments.name} has {wanted}; got {own}")

    @property
    def address(self) -> int:
        """The address of the compiled function, which this object keeps. Raises `BuildError`."""
        self._code = native.function(self.name, self.llvm_text)
        return self._code.address

    def llvm_text(self, symbol: str) -> str:
        """Return the optimised LLVM assembly of a module that defines the task as `symbol`."""
        try:
            text = translated(self.function, self.arguments, self.result, self.fastmath, symbol)
        except (TypeError, ValueError, AttributeError) as error:  # `CallMismatch` is a TypeError
            raise BuildError(f"cpu_numba: cannot compile task {self.name}: {error}") from error
        return native.optimized(llvm.parse_assembly(text))

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def task(params: Record, *, fastmath: set[str] = FASTMATH) -> Callable[..., Task]:
    """Decorate a function (params, begin, end) as a task. params: the record of parameters."""
    typed = Record("task", ("params", Pointer(params)), ("begin end", "index"))
    return lambda function: Task(function, typed, fastmath, params)


def native_function(
    arguments: Record, *, fastmath: set[str] = FASTMATH, result: Any = types.void
) -> Callable[..., Task]:
    """Decorate a function as a native function. Its arguments are the fields of a record."""
    return lambda function: Task(function, arguments, fastmath, result=result)
