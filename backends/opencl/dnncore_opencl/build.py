"""Programs: built from source once, then loaded from the disk store, checked before any driver
sees them.
"""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dnncore.backend import BuildError, DiskStore, cache_count
from dnncore_opencl.devices import pyopencl

if TYPE_CHECKING:
    from dnncore_opencl.engine import Native

OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable")
"""Never -cl-fast-relaxed-math or -cl-finite-math-only: NaN and infinity must come through."""

_building = threading.Lock()  # warning filters belong to the process, and so do some compilers


class Builder:
    """Builds the programs of one device and keeps them, in the process and on disk."""

    def __init__(self, native: Native) -> None:
        import pyopencl.version

        self._native = native
        self._programs: dict[tuple[str, ...], Any] = {}
        self._lock = threading.Lock()
        self._store = DiskStore("opencl")
        device = native.device
        self._identity = (
            device.name,
            device.version,
            device.driver_version,
            native.platform.version,
            pyopencl.version.VERSION_TEXT,
        )

    def program(
        self,
        source: str,
        options: Sequence[str] = (),
        first_use: Callable[[Any], None] | None = None,
        use: str = "",
    ) -> Any:
        """Return the built program of `source`.

        first_use: makes the driver generate all code (PoCL does so at the first launch) before the
        program is stored; `use` tells programs apart that have the same source but another use.
        """
        key = (source, *options, use)
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self._obtain(key, source, options, first_use)
        return program

    def _obtain(
        self,
        key: tuple[str, ...],
        source: str,
        options: Sequence[str],
        first_use: Callable[[Any], None] | None,
    ) -> Any:
        options = (*OPTIONS, *options)
        stored_as = "\0".join((*key, *options, *self._identity))
        binary = self._store.get(stored_as)
        program = self._load(binary, options) if binary is not None else None
        if program is not None:
            cache_count("from_disk")
        else:
            program = self._compile(source, options)
            cache_count("compiled")
        if first_use:
            first_use(program)
        if binary is None:
            self._put(stored_as, program)
        return program

    def _load(self, binary: bytes, options: Sequence[str]) -> Any:
        """Make a program of a stored binary; None if the driver does not take it any more."""
        cl = pyopencl()
        native = self._native
        try:
            return _build(cl.Program(native.context, [native.device], [binary]), options)
        except cl.Error:
            return None

    def _compile(self, source: str, options: Sequence[str]) -> Any:
        cl = pyopencl()
        native = self._native
        try:
            return _build(cl.Program(native.context, source), options)
        except cl.Error as error:
            place = _dump(source)
            raise BuildError(
                f"opencl: {native.device.name} cannot build a program with the options"
                f" {' '.join(options)}; its source is in {place}; the compiler says:\n{error}"
            ) from error

    def _put(self, key: str, program: Any) -> None:
        (binary,) = program.get_info(pyopencl().program_info.BINARIES)
        if binary:
            self._store.put(key, binary)


def _build(program: Any, options: Sequence[str]) -> Any:
    """Build without pyopencl's own cache, whose entries nothing checks, and without its chatter."""
    with _building, warnings.catch_warnings():
        warnings.simplefilter("ignore", pyopencl().CompilerWarning)
        return program.build(options=list(options), cache_dir=False)


def _dump(source: str) -> str:
    handle, path = tempfile.mkstemp(prefix="dnncore-", suffix=".cl", text=True)
    with os.fdopen(handle, "w") as file:
        file.write(source)
    return path
