"""Native code: from LLVM assembly to the address of its function, through the store on disk.

Everything that this backend executes is a C function whose arguments are 64-bit integers. Tasks
(numba turns them into LLVM assembly) and microkernels (written in it) come here to be compiled. A
stored object is loaded in about a millisecond, without numba's compiler.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core.compiler_lock import global_compiler_lock

from dnncore import planning
from dnncore.backend import BuildError, DiskStore, cache_count, hold_at_fork
from dnncore_cpu_numba.codegen.isa import BEST, Isa, host_features

_store = DiskStore("cpu_numba")
_addresses: dict[str, int] = {}
hold_at_fork(global_compiler_lock)


def function(name: str, text: Callable[[str], str], isa: Isa = BEST) -> int:
    """The address of a compiled function.

    name: identifies the function and, by its parameters, its code: an identifier of letters, digits
        and underscores. Its sources, LLVM and the processor are part of the key anyway.
    text: returns the LLVM assembly of a module that defines the function under the given symbol;
        called only when the object is not in the store.
    isa: the instruction set that the code may use.

    Raises `BuildError` when LLVM refuses the text.
    """
    address = _addresses.get(name)
    if address is None:
        with global_compiler_lock:  # numba's, as LLVM is one for both
            address = _addresses.get(name)
            if address is None:
                address = _addresses[name] = _load(name, text, isa)
    return address


def symbol_of(name: str) -> str:
    """The symbol of a function in its object; later objects may refer to it."""
    return f"dnncore_{name}"


def optimized(module: Any) -> str:
    """The assembly of an LLVM module after the optimiser's passes for this processor."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine(BEST), options)
    module.verify()
    passes.getModulePassManager().run(module, passes)
    return str(module)


def _new_machine(isa: Isa) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    cpu = llvm.get_host_cpu_name()
    return target.create_target_machine(cpu=cpu, features=isa.features, opt=3)


machine = functools.cache(_new_machine)
"""LLVM's target machine for an instruction set on this processor."""


def _load(name: str, text: Callable[[str], str], isa: Isa) -> int:
    symbol = symbol_of(name)
    key = f"{symbol}:{isa.name}:{_environment()}"
    code = _store.get(key)
    if code is None:
        code = _emit(symbol, text(symbol), isa)
        _store.put(key, code)
        cache_count("compiled")
    else:
        cache_count("from_disk")
    engine = _engine()
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    address = engine.get_function_address(symbol)
    if not address:
        raise BuildError(f"cpu_numba: {symbol} is not in its own object; clear the disk cache")
    return int(address)


def _emit(symbol: str, text: str, isa: Isa) -> bytes:
    """Compile LLVM assembly to an object file."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
        return bytes(machine(isa).emit_object(module))
    except RuntimeError as error:
        raise BuildError(f"cpu_numba: LLVM refuses {symbol}: {error}") from error


@functools.cache
def _engine() -> Any:
    """The process's one engine, which loads objects; it owns the machine that it is given."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _new_machine(BEST))


@functools.cache
def _environment() -> str:
    """A hash of all that compiled code depends on: sources, compilers and the processor."""
    digest = hashlib.sha256()
    for package in (Path(__file__).parents[1], Path(planning.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package.parent).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    for compiler in ("numba", "llvmlite"):
        digest.update(f"{compiler} {importlib.metadata.version(compiler)}\n".encode())
    digest.update(f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()}\n".encode())
    digest.update(repr(sorted(host_features().items())).encode())
    return digest.hexdigest()
