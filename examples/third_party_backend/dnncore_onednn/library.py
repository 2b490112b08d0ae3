"""The library libdnnl, loaded with ctypes: checked calls, owned objects, names of enumerators."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dnncore.backend import EngineUnavailable, ExecutionError

__all__ = ["Dims", "Handle", "Library", "OneDnnError", "Owned", "Unsupported", "default", "load"]

VARIABLE = "DNNCORE_ONEDNN_LIBRARY"
PACKAGE = "onednn-cpu-gomp"

Handle = ctypes.c_void_p
Dims = ctypes.c_int64 * 12

CPU = 1  # oneDNN's number for the engine kind CPU
VNNI = 0x48  # bits of instruction sets: AVX2 VNNI, AVX-512 VNNI
RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB", 8: "thread pool", 512: "SYCL"}
# Table -> range of its enumerators. dnnl_<table>2str returns their names.
TABLES: dict[str, Iterable[int]] = {
    "alg_kind": (*range(0xC00), *range(0x1FFF0, 0x20000), *range(0x2FFF0, 0x30010)),
    "prop_kind": range(256),
    "dt": range(17),
    "fpmath_mode": range(8),
    "scratchpad_mode": range(2),
    "accumulation_mode": range(6),
}
NEW_TABLES = ("accumulation_mode",)  # not in oneDNN 3.2


class OneDnnError(ExecutionError):
    """oneDNN returned a status that is not success."""


class Unsupported(OneDnnError):
    """The loaded oneDNN does not implement a problem or cannot express it."""


class Owned:
    """Owns an object of oneDNN and destroys it at the end. ctypes passes the object's handle."""

    __slots__ = ("_as_parameter_", "_destroy", "handle")

    def __init__(self, handle: Handle, destroy: Callable[[Handle], object]) -> None:
        self.handle = self._as_parameter_ = handle
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.handle)


class Library:
    """One loaded libdnnl: `library("stream_wait", stream)` calls dnnl_stream_wait.

    version: such as "3.2.0". runtime: one of `RUNTIMES`. engine: oneDNN's CPU engine.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = _functions(path)
        found = self.functions.dnnl_version().contents
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        self.runtime = RUNTIMES.get(found.cpu_runtime, f"number {found.cpu_runtime}")
        self._numbers = {name: self._names(name) for name in TABLES if self.has(f"{name}2str")}
        self.engine = self.made("engine_create", "engine_destroy", CPU, ctypes.c_size_t(0))

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call dnnl_<function>. Raises `OneDnnError` if its status is not success."""
        status = getattr(self.functions, f"dnnl_{function}")(*arguments)
        if status:
            text = self.status(status)
            kind = Unsupported if text == "unimplemented" else OneDnnError
            raise kind(f"oneDNN {self.version}: {function}: {text}")

    def has(self, function: str) -> bool:
        """Whether this version has dnnl_<function>."""
        return hasattr(self.functions, f"dnnl_{function}")

    @property
    def is_exact_for_bytes(self) -> bool:
        """Whether the code that oneDNN generates has instructions for sums of products of bytes.

        Without VNNI, it adds two products in 16 bits and saturates the sum.
        """
        return bool(self.functions.dnnl_get_effective_cpu_isa() & VNNI)

    def made(self, function: str, destroy: str, *arguments: Any) -> Owned:
        """Return a new object made by dnnl_<function>. Raises `OneDnnError`."""
        handle = Handle()
        self(function, ctypes.byref(handle), *arguments)
        return Owned(handle, getattr(self.functions, f"dnnl_{destroy}"))

    def status(self, number: int) -> str:
        """The name of a status."""
        return str(self.functions.dnnl_status2str(number).decode())

    def number(self, table: str, name: str) -> int:
        """The enumerator with a name. Raises `Unsupported`."""
        try:
            return self._numbers[table][name]
        except KeyError:
            raise Unsupported(f"oneDNN {self.version} has no {table} {name}") from None

    def name(self, table: str, number: int) -> str:
        """The name of an enumerator."""
        return str(getattr(self.functions, f"dnnl_{table}2str")(number).decode())

    def _names(self, table: str) -> dict[str, int]:
        """The enumerators of a table by name."""
        return {self.name(table, number): number for number in TABLES[table]}


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p), ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint),
    )  # fmt: skip


def _functions(path: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(path))
    functions.dnnl_version.restype = ctypes.POINTER(_Version)
    functions.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    functions.dnnl_primitive_desc_query_md.restype = Handle
    for table in ("status", *TABLES):
        if table not in NEW_TABLES or hasattr(functions, f"dnnl_{table}2str"):
            getattr(functions, f"dnnl_{table}2str").restype = ctypes.c_char_p
    return functions


@functools.cache
def load(path: Path) -> Library:
    """Load the library at a path, once. Raises `EngineUnavailable`."""
    try:
        library = Library(path)
    except (OSError, AttributeError, OneDnnError) as error:
        raise EngineUnavailable(
            f"onednn: {path} must be oneDNN 3: {error}; set {VARIABLE} to its path"
        ) from None
    if not library.version.startswith("3."):
        raise EngineUnavailable(f"onednn: {path} must be oneDNN 3; got {library.version}")
    return library


def default() -> Library:
    """The library of `VARIABLE`, else of the installed `PACKAGE`. Raises `EngineUnavailable`."""
    given = os.environ.get(VARIABLE)
    return load(Path(given) if given else _packaged())


def _packaged() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [file for file in files if file.name == "libdnnl.so"]
    if not found:
        raise EngineUnavailable(
            f"onednn needs the library libdnnl: pip install {PACKAGE}, or set {VARIABLE} to the"
            " path of another one"
        )
    return Path(str(found[0].locate())).resolve()
