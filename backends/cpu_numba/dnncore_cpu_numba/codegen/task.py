"""Tasks: the native functions of this backend's steps, written in Python for numba.

A task is `void task(params, begin, end)`. It computes the work items [begin, end) and reads its
pointers, sizes and constants from the record `params`. It may run on any thread. It must not raise,
allocate or access Python objects. Other native functions have other arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import registry, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError

from dnncore.backend import BuildError
from dnncore_cpu_numba.codegen import front_end, native
from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Pointer, Record
from dnncore_cpu_numba.codegen.call_typing import numba_type
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.vector_ir import I64, float_of

# Sums may be reordered for vectorisation. NaN and infinities follow IEEE 754.
FASTMATH = {"reassoc", "nsz", "arcp", "contract"}

_INLINED: dict[str, Any] = {
    "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
    "pipeline_class": front_end.Passes,
}  # fmt: skip

device = numba.njit(error_model="numpy", fastmath=FASTMATH, **_INLINED)
"""Decorator of functions that tasks call. They are inlined."""

exact = numba.njit(error_model="numpy", fastmath={"contract", "nsz"}, **_INLINED)
"""Like `device`, but keeps the order of operations. Products and sums may be fused."""

stepwise = numba.njit(error_model="numpy", fastmath={"nsz"}, **_INLINED)
"""Like `exact`, but rounds each product."""


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
        self.name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
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
            return str(_llvm_text(self, symbol))
        except (NumbaError, CallMismatch) as error:
            raise BuildError(
                f"cpu_numba: numba cannot compile task {self.name}: {error}"
            ) from error

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


@global_compiler_lock
def _llvm_text(task: Task, symbol: str) -> str:
    module, fndesc = front_end.translate(
        task.function,
        tuple(numba_type(field.kind) for field in task.arguments.fields.values()),
        task.result,
        task.fastmath,
        native.machine(BEST),
    )
    exported = _export(registry.cpu_target.target_context, fndesc, task.arguments, symbol)
    module.link_in(llvm.parse_assembly(str(exported)))
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    return native.optimized(module)


def _export(context: Any, fndesc: Any, arguments: Record, symbol: str) -> ir.Module:
    """Wrap numba's calling convention in a C function. The status is ignored: tasks never fail."""
    module = context.create_module(symbol)
    inner = ir.Function(
        module,
        context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes),
        fndesc.llvm_func_name,
    )
    slots = [I64] * len(fndesc.argtypes)
    has_result = fndesc.restype is types.int64
    outer_type = ir.FunctionType(I64 if has_result else ir.VoidType(), slots)
    outer = ir.Function(module, outer_type, symbol)
    builder = ir.IRBuilder(outer.append_basic_block("entry"))
    values = [
        float_of(builder, slot) if field.kind == "float32" else slot
        for field, slot in zip(arguments.fields.values(), outer.args, strict=True)
    ]
    _, value = context.call_conv.call_function(
        builder, inner, fndesc.restype, fndesc.argtypes, values
    )
    if has_result:
        builder.ret(value)
    else:
        builder.ret_void()
    return module
