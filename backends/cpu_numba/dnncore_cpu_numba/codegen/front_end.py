"""Numba's front end: translates Python functions to modules of LLVM.

Numba is slow, so a translation leaves out all that a task does not need: several passes over the
function, the optimisation and the machine code of each function that a task calls, and links
between these functions. The whole module is linked and optimised once, in `native.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import llvmlite.binding as llvm
from numba import _dynfunc, types
from numba.core import codegen, compiler, errors, event, registry
from numba.core.compiler_machinery import PassManager
from numba.core.cpu_options import FastMathOptions
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing.templates import ConcreteTemplate
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

_PASSES = (
    TranslateByteCode, FixupArgs, IRProcessing, RewriteSemanticConstants, DeadBranchPrune,
    GenericRewrites, ReconstructSSA, NopythonTypeInference, PreLowerStripPhis, IRLegalization,
    NativeLowering, NoPythonBackend,
)  # fmt: skip


class _PassManager(PassManager):  # type: ignore[misc]  # numba has no types
    """Runs passes. Numba's own class reports, checks and analyses the function after each one."""

    def _runPass(self, index: int, each: Any, state: Any) -> None:
        each.analysis = self._analysis
        each.run_pass(state)


class Passes(compiler.CompilerBase):  # type: ignore[misc]  # numba has no types
    """The passes that tasks need. The others are for Python objects, arrays and closures."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the only pipeline."""
        passes = _PassManager("dnncore")
        for each in _PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


def translate(
    function: Callable[..., Any], arguments: tuple[Any, ...], result: Any, fastmath: set[str],
    machine: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the LLVM module of a function and all that it calls, and numba's description of it.

    The caller holds the compiler's lock.
    """
    target = registry.cpu_target
    flags = compiler.Flags()
    flags.no_compile = True  # the code is linked and compiled in `native.py`
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.fastmath = FastMathOptions(fastmath)
    with _only_translating(target.target_context, machine):
        compiled = compiler.compile_extra(
            target.typing_context, target.target_context, function, arguments, result, flags,
            locals={}, pipeline_class=Passes,
        )  # fmt: skip
    module = compiled.library._final_module
    for library in _libraries(compiled.library, {}):
        used = library._get_module_for_linking() if library._finalized else library._final_module
        module.link_in(used, preserve=True)
    return module, compiled.fndesc


def _libraries(library: Any, found: dict[Any, None]) -> dict[Any, None]:
    """Return the libraries that a library needs. Finalized ones contain what they need."""
    for needed in library._linking_libraries:
        if needed not in found:
            found[needed] = None
            if not needed._finalized:
                _libraries(needed, found)
    return found


@contextlib.contextmanager
def _only_translating(context: Any, machine: Any) -> Iterator[None]:
    """Make numba translate for this machine instead of all features of the processor, no more.

    The libraries of functions remain unfinished. Numba finishes them if it ever needs them itself.
    """
    generator = context.codegen()
    of_modules = llvm.create_new_module_pass_manager
    of_functions = llvm.create_new_function_pass_manager
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (generator, "_tm", machine),
            (generator, "_module_pass_manager", partial(_no_passes, of_modules, machine)),
            (generator, "_function_pass_manager", partial(_no_passes, of_functions, machine)),
            (context, "get_executable", _no_executable),
            (codegen.CPUCodeLibrary, "add_linking_library", _add_unfinished),
            (types.Function, "get_call_type", _call_type),
            (event, "broadcast", lambda _event: None),
            (errors, "_termcolor_inst", _NoColors()),
        ):
            stack.enter_context(_replaced(owner, name, value))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object another attribute in a `with` block."""
    usual = vars(owner).get(name, _NONE)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if usual is _NONE:
            delattr(owner, name)
        else:
            setattr(owner, name, usual)


_NONE = object()


class _NoColors:
    """A scheme of colors of messages. Numba writes many that nobody reads."""

    def __getattr__(self, name: str) -> Callable[[str], str]:
        return lambda message: message


def _call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a call, for operators of numbers without a long search."""
    if not kws and all(isinstance(each, types.Number | types.Boolean) for each in args):
        numbers = tuple(map(types.unliteral, args))
        for template in function.templates:
            if issubclass(template, ConcreteTemplate):
                found = template(context)
                signature = found.apply(numbers, kws)
                if signature is not None:
                    function._impl_keys[signature.args] = found.get_impl_key(signature)
                    return signature
    return types.functions.BaseFunction.get_call_type(function, context, args, kws)


def _no_executable(library: Any, fndesc: Any, env: Any) -> Any:
    """Return a function that only identifies the translated one. Python must not call it."""
    return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))


def _add_unfinished(library: Any, used: Any) -> None:
    library._linking_libraries.append(used)


def _no_passes(manager: Callable[[], Any], machine: Any, **_: Any) -> tuple[Any, Any]:
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    return manager(), llvm.create_pass_builder(machine, options)
