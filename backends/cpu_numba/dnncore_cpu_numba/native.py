"""Native code: from LLVM assembly to the address of its function, through the store on disk.

Everything that this backend executes is a C function whose arguments are 64-bit integers. Tasks
(numba turns them into LLVM assembly) and microkernels (written in it) come here to be compiled. A
stored object is loaded in about a millisecond, without numba's compiler.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from dnncore.backend import BuildError, DiskStore, cache_count

__all__ = ["cpu_features", "cpu_name", "function", "optimized", "symbol_of"]

_store = DiskStore("cpu_numba")
_lock = threading.RLock()  # LLVM's just-in-time engine is not safe for threads
_addresses: dict[str, int] = {}


def function(name: str, text: Callable[[str], str]) -> int:
    """The address of a compiled function.

    name: identifies the function and, by its parameters, its code: an identifier of letters, digits
        and underscores. The backend's sources, LLVM and the processor are part of the key anyway.
    text: returns the LLVM assembly of a module that defines the function under the given symbol;
        called only when the object is not in the store.

    Raises `BuildError` when LLVM refuses the text.
    """
    address = _addresses.get(name)
    if address is None:
        with _lock:
            address = _addresses.get(name)
            if address is None:
                address = _addresses[name] = _load(name, text)
    return address


def symbol_of(name: str) -> str:
    """The symbol of a function in its object; later objects may refer to it."""
    return f"dnncore_{name}"


def cpu_name() -> str:
    """LLVM's name of this processor."""
    return str(llvm.get_host_cpu_name())


@functools.cache
def cpu_features() -> str:
    """LLVM's list of this processor's features, for example "+avx2,+fma,-amx-tile"."""
    return str(llvm.get_host_cpu_features().flatten())


def optimized(module: Any) -> str:
    """The assembly of an LLVM module after the optimiser's passes for this processor."""
    _, machine = _jit()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    module.verify()
    passes.getModulePassManager().run(module, passes)
    return str(module)


def _load(name: str, text: Callable[[str], str]) -> int:
    symbol = symbol_of(name)
    key = f"{symbol}:{_environment()}"
    code = _store.get(key)
    if code is None:
        code = _emit(symbol, text(symbol))
        _store.put(key, code)
        cache_count("compiled")
    else:
        cache_count("from_disk")
    engine, _ = _jit()
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    address = engine.get_function_address(symbol)
    if not address:
        raise BuildError(f"cpu_numba: {symbol} is not in its own object; clear the disk cache")
    return int(address)


def _emit(symbol: str, text: str) -> bytes:
    """Compile LLVM assembly to an object file."""
    _, machine = _jit()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
        return bytes(machine.emit_object(module))
    except RuntimeError as error:
        raise BuildError(f"cpu_numba: LLVM refuses {symbol}: {error}") from error


@functools.cache
def _jit() -> tuple[Any, Any]:
    """The process's one engine for objects, and the machine that they are compiled for."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    options = {"cpu": cpu_name(), "features": cpu_features(), "opt": 3}
    machine = target.create_target_machine(**options)
    # The engine owns the machine it is given; ours must outlive it to emit more objects.
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), target.create_target_machine(**options)
    )
    return engine, machine


@functools.cache
def _environment() -> str:
    """What compiled code depends on: the backend's sources, the compilers and the processor."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    digest.update(f"{llvm.get_process_triple()} {cpu_name()} {cpu_features()}".encode())
    return digest.hexdigest()
