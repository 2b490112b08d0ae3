"""Native code: compiles LLVM assembly and returns the function's address, with a store on disk.

All code that this backend executes is C functions whose arguments are 64-bit integers. Tasks
are translated to LLVM assembly; microkernels are emitted as LLVM assembly. This module compiles
both. Loading a stored object takes about a millisecond and does not need the compiler. A
function is unloaded when no program uses it and many other functions were loaded after it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core.compiler_lock import global_compiler_lock

from dnncore import planning
from dnncore.backend import BuildError, DiskStore, cache_count, hold_at_fork, uninterrupted
from dnncore_cpu_numba.codegen.isa import BEST, Isa, host_features

KEPT = 256  # unused functions that stay loaded: 8 KiB each; loading one again takes 0.4 ms

_store = DiskStore("cpu_numba")
hold_at_fork(global_compiler_lock)


class Code:
    """A function in memory. LLVM's engine and the code exist as long as this object."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, address: int, engine: Any) -> None:
        self.address = address
        # Closing an engine needs the compiler's lock, which the garbage collector cannot acquire.
        weakref.finalize(self, _unused.append, engine).atexit = False


_loaded: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
_recent: deque[Code] = deque(maxlen=KEPT)
_unused: deque[Any] = deque()
_permanent: set[Code] = set()


class _Users(threading.local):
    """The sets of code that the `keeping` blocks of this thread collect, the innermost last."""

    def __init__(self) -> None:
        self.sets: list[set[Code]] = []


_users = _Users()


@contextmanager
def keeping() -> Iterator[set[Code]]:
    """Collect the code of the functions that this thread requests in the `with` block.

    The code stays loaded as long as the set exists. A function requested outside such a block stays
    loaded until the process ends.
    """
    code: set[Code] = set()
    _users.sets.append(code)
    try:
        yield code
    finally:
        _users.sets.pop()


def loaded() -> int:
    """Return the number of functions in memory."""
    return len(_loaded)


def function(name: str, text: Callable[[str], str], isa: Isa = BEST) -> Code:
    """Return a compiled function. `keeping` states how long its address is valid.

    name: identifies the function and all parameters of its code. It has letters, digits and
        underscores. The key of the store also contains the sources, LLVM and the processor.
    text: returns the LLVM assembly of a module that defines the function under the given symbol.
        It is called only if the object is not in the store.
    isa: the instruction set that the code may use.

    Raises `BuildError` if LLVM refuses the text.
    """
    code = _loaded.get(name)
    if code is None:
        code = uninterrupted(_obtain, name, text, isa)
    (_users.sets[-1] if _users.sets else _permanent).add(code)
    return code


def _obtain(name: str, text: Callable[[str], str], isa: Isa) -> Code:
    with global_compiler_lock:  # numba's lock, because both share LLVM
        code = _loaded.get(name)
        if code is None:
            code = _loaded[name] = _load(name, text, isa)
            _recent.append(code)
            _unload()
    return code


def _unload() -> None:
    """Close the engines of unused code."""
    while _unused:
        _unused.popleft().close()


def symbol_of(name: str) -> str:
    """Return the symbol of a function in its object."""
    return f"dnncore_{name}"


def optimized(module: Any) -> str:
    """Return the assembly of an LLVM module after optimisation for this processor."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine(BEST), options)
    module.verify()
    passes.getModulePassManager().run(module, passes)
    return str(module)


@functools.cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


@functools.cache
def machine(isa: Isa) -> Any:
    """Return LLVM's target machine for an instruction set on this processor."""
    cpu = llvm.get_host_cpu_name()
    return _target().create_target_machine(cpu=cpu, features=isa.features, opt=3)


def _load(name: str, text: Callable[[str], str], isa: Isa) -> Code:
    symbol = symbol_of(name)
    key = f"{symbol}:{isa.name}:{_environment()}"
    code = _store.get(key)
    if code is None:
        code = _emit(symbol, text(symbol), isa)
        _store.put(key, code)
        cache_count("compiled")
    else:
        cache_count("from_disk")
    # The engine owns the machine, which compiles nothing and therefore needs no features. A single
    # engine for all objects would never free any object.
    loader = _target().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loader)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    address = engine.get_function_address(symbol)
    if not address:
        raise BuildError(f"cpu_numba: {symbol} is not in its own object; clear the disk cache")
    return Code(int(address), engine)


def _emit(symbol: str, text: str, isa: Isa) -> bytes:
    """Compile LLVM assembly to an object file."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
        return bytes(machine(isa).emit_object(module))
    except RuntimeError as error:
        raise BuildError(f"cpu_numba: LLVM refuses {symbol}: {error}") from error


@functools.cache
def _environment() -> str:
    """Return a hash of the sources, compilers and processor that compiled code depends on."""
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
