"""Tasks: the native functions that do this backend's work, written in Python for numba.

A task is `void task(int64 params, int64 begin, int64 end)`: it computes the work items [begin, end)
and reads its pointers, sizes and constants from the int64 block at address `params`. It may run on
any thread, and it must not raise, allocate or touch a Python object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import compiler, registry, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu_options import FastMathOptions
from numba.core.errors import NumbaError

from dnncore.backend import BuildError
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen.isa import BEST

__all__ = ["Task", "device", "exact", "task"]

# Sums may be reordered for vectors; NaN and infinities stay what IEEE says.
FASTMATH = {"reassoc", "nsz", "arcp", "contract"}

_INLINED = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

device = numba.njit(error_model="numpy", fastmath=FASTMATH, **_INLINED)
"""Decorator of the functions that tasks call; inlined into them."""

exact = numba.njit(error_model="numpy", fastmath={"contract", "nsz"}, **_INLINED)
"""The same where the order of operations matters: products may be fused, nothing else."""


class Task:
    """A native function, compiled or loaded from disk when its address is first asked for."""

    def __init__(self, function: Callable[..., None], fastmath: set[str], arity: int) -> None:
        self.function = function
        self.fastmath = fastmath
        self.arity = arity
        self.name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
        self.__doc__ = function.__doc__

    @property
    def address(self) -> int:
        """The address of the compiled function. Raises `BuildError`."""
        return native.function(self.name, self.llvm_text)

    def llvm_text(self, symbol: str) -> str:
        """The optimised LLVM assembly of a module that defines the task as `symbol`."""
        try:
            return _llvm_text(self, symbol)
        except NumbaError as error:
            raise BuildError(
                f"cpu_numba: numba cannot compile task {self.name}: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def task(function: Any = None, *, fastmath: set[str] = FASTMATH, arity: int = 3) -> Any:
    """Decorate a function (params, begin, end) to make it a `Task`.

    arity: another number of int64 arguments, for the runtime's own functions.
    """
    return Task(function, fastmath, arity) if function else lambda f: Task(f, fastmath, arity)


@global_compiler_lock
def _llvm_text(task: Task, symbol: str) -> str:
    target = registry.cpu_target
    flags = compiler.Flags()
    flags.no_compile = True  # numba's own engine gets nothing: the code is linked and compiled here
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.fastmath = FastMathOptions(task.fastmath)
    with _optimizing_for(native.machine(BEST)):
        compiled = compiler.compile_extra(
            target.typing_context,
            target.target_context,
            task.function,
            (types.int64,) * task.arity,
            types.void,
            flags,
            locals={},
        )
    module = compiled.library._final_module
    for library in dict.fromkeys(compiled.library._linking_libraries):
        module.link_in(library._get_module_for_linking(), preserve=True)
    exported = _export(target.target_context, compiled.fndesc, symbol)
    module.link_in(llvm.parse_assembly(str(exported)))
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    return native.optimized(module)


@contextlib.contextmanager
def _optimizing_for(machine: Any) -> Iterator[None]:
    """Let numba's own passes see this machine, not all that the processor has."""
    generator = registry.cpu_target.target_context.codegen()
    usual, generator._tm = generator._tm, machine
    try:
        yield
    finally:
        generator._tm = usual


def _export(context: Any, fndesc: Any, symbol: str) -> ir.Module:
    """Wrap numba's own calling convention into a C function; a task's status is always good."""
    module = context.create_module(symbol)
    inner = ir.Function(
        module,
        context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes),
        fndesc.llvm_func_name,
    )
    arguments = [ir.IntType(64)] * len(fndesc.argtypes)
    outer = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), symbol)
    builder = ir.IRBuilder(outer.append_basic_block("entry"))
    context.call_conv.call_function(builder, inner, fndesc.restype, fndesc.argtypes, outer.args)
    builder.ret_void()
    return module
