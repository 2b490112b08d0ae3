"""Lets modules record the outcomes of their conditions in files that all processes share.

The file of a module has two bytes per condition. The first one is 1 if the condition was false at
least once, the second one is 1 if it was true at least once. The file is mapped at the same address
in all processes, because stored compiled functions contain the address.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from conditions import opencl
from conditions.source import DECIDED, Condition, instrumented

__all__ = ["FOLDER", "PACKAGES", "ROOT", "conditions_of", "install", "outcomes"]

FOLDER = "DNNCORE_CONDITIONS"  # the environment variable with the folder of the records
ROOT = Path(__file__).parents[1]
PACKAGES = {
    "dnncore": ROOT / "dnncore",
    **{folder.name: folder for folder in sorted(ROOT.glob("backends/*/dnncore_*"))},
}
# Packages whose conditions are not recorded: the commands, the cross-check, the kit and its
# problems.
LEFT_OUT = ("dnncore.cli", "dnncore.crosschecking", "dnncore.testing", "dnncore.problem")
START = 0x2000_0000_0000  # an address at which Linux places no mappings by itself
SPACE = 1 << 16  # bytes of addresses for each module
SPACE_OF_C = 1 << 24  # bytes of addresses for OpenCL C
MAP_FIXED_NOREPLACE = 0x100000  # a constant of Linux

Seen = ctypes.Array[ctypes.c_ubyte]


@functools.cache
def conditions_of(path: Path) -> list[Condition]:
    """The conditions of a file."""
    name = path.relative_to(ROOT).as_posix()
    return instrumented(name, path.read_text(encoding="utf-8"))[1]


def outcomes(folder: Path) -> dict[Condition, tuple[bool, bool]]:
    """Condition of an imported module -> (whether it was false, whether it was true)."""
    found = {}
    for record in sorted(folder.glob("*.py.outcomes")):
        seen = record.read_bytes()
        for number, condition in enumerate(conditions_of(ROOT / record.stem.replace("--", "/"))):
            found[condition] = (bool(seen[2 * number]), bool(seen[2 * number + 1]))
    return found | dict(opencl.outcomes(folder))


def install() -> None:
    """Instrument the modules of the project that are imported from now on."""
    sys.meta_path.insert(0, _Finder(Path(os.environ[FOLDER])))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES or name.startswith(LEFT_OUT):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if not Path(spec.loader.path).is_relative_to(ROOT):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path, self.folder)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self.folder = folder

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._read()[0], self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        count = len(self._read()[1])
        if count:
            name = Path(self.path).relative_to(ROOT).as_posix().replace("/", "--")
            address = START + SPACE * _numbers()[Path(self.path)]
            seen = _seen(self.folder / f"{name}.outcomes", 2 * count, address)
            module.__dict__[DECIDED] = _recorder(seen)
            if module.__name__.startswith("dnncore_cpu_numba."):
                compiled = importlib.import_module("conditions.compiled")
                compiled.register(module.__dict__[DECIDED], ctypes.addressof(seen))
        super().exec_module(module)
        if module.__name__ == "dnncore_cpu_numba.codegen.source":
            module.__dict__["parsed"] = _parsed
        if module.__name__ == "dnncore_opencl.runtime.build":
            _seen(self.folder / opencl.NAME, 2 * opencl.COUNT, START - SPACE_OF_C)
            opencl.attach(module, START - SPACE_OF_C, self.folder)

    def _read(self) -> tuple[ast.Module, list[Condition]]:
        text = importlib.util.decode_source(self.get_data(self.path))
        return instrumented(Path(self.path).relative_to(ROOT).as_posix(), text)


def _parsed(path: str) -> ast.Module:
    """The instrumented syntax tree of a file, from which tasks are translated."""
    text = Path(path).read_text(encoding="utf-8")
    return instrumented(Path(path).relative_to(ROOT).as_posix(), text)[0]


@functools.cache
def _numbers() -> dict[Path, int]:
    """The number of each module. It determines the address of the module's file."""
    paths = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))
    return {path: number for number, path in enumerate(paths)}


def _seen(path: Path, size: int, address: int) -> Seen:
    """Map a file at this address. Returns its bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    with path.open("ab+") as file:
        if file.tell() < size:  # in mode "a", tell() is the size of the file
            file.truncate(size)
        got = libc.mmap(
            address, size, mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_SHARED | MAP_FIXED_NOREPLACE, file.fileno(), 0,
        )  # fmt: skip
    if got != address:
        raise OSError(ctypes.get_errno(), f"{path} cannot be mapped at {address:#x}")
    return (ctypes.c_ubyte * size).from_address(address)


def _recorder(seen: Seen) -> Callable[[int, Any], Any]:
    """A function that records the outcome of a value and returns the value.

    Arrays have several outcomes.
    """

    def decided(number: int, value: Any) -> Any:
        if value is True or value is False:
            seen[2 * number + value] = 1
        elif hasattr(value, "all") and hasattr(value, "any"):
            seen[2 * number] |= not value.all()
            seen[2 * number + 1] |= bool(value.any())
        else:
            with contextlib.suppress(Exception):  # the program raises it, too
                seen[2 * number + bool(value)] = 1
        return value

    return decided
