"""Programs: built from source once, then loaded from the disk store.

A binary is verified before the driver reads it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnncore.backend import BuildError, DiskStore, cache_count, uninterrupted
from dnncore_opencl.devices.discovery import Native, device_type, pyopencl
from dnncore_opencl.devices.handles import handles
from dnncore_opencl.devices.intel import CRASHING, without_lanes_of_items
from dnncore_opencl.devices.pocl_declarations import WITHOUT_HEADER, declarations, is_quicker
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.ptx import uncovered

EXACT_OPTIONS = ("-cl-std=CL1.2",)
OPTIONS = (*EXACT_OPTIONS, "-cl-mad-enable")
"""Never -cl-fast-relaxed-math or -cl-finite-math-only: NaN and infinity must come through."""

DIVIDE = ("-cl-fp32-correctly-rounded-divide-sqrt",)
UNOPTIMIZED = "-cl-opt-disable"
LITTLE_WORK = 1 << 18  # multiply-adds; 2**20 took 10 ms unoptimized, optimization takes 0.3 to 3 s
KEPT = 128  # programs kept loaded without a user; PoCL needs 0.2 MB for each
SMALL_GRID = 0xFFFF  # PoCL generates separate code for grids whose sizes are all at most this

_building = threading.RLock()  # warning filters and some compilers are shared by the whole process


@handles("_native")
class Builder:
    """Builds the programs of one device and stores them on disk.

    A program stays in memory while an executable uses it. The last `KEPT` unused ones stay too.
    """

    def __init__(self, native: Native) -> None:
        import pyopencl.version

        self._native = native
        self._programs: weakref.WeakValueDictionary[tuple[str, ...], Any] = (
            weakref.WeakValueDictionary()
        )
        self._recent: deque[Any] = deque(maxlen=KEPT)
        self._lock = threading.RLock()
        self._store = DiskStore("opencl")
        device = native.device
        self._identity = (
            device.name,
            device.version,
            device.driver_version,
            native.platform.version,
            str(device.native_vector_width_float),  # processors of the same name may differ in it
            pyopencl.version.VERSION_TEXT,
        )

    @property
    def _exact_options(self) -> tuple[str, ...]:
        rounds = pyopencl().device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        divides = self._native.device.single_fp_config & rounds
        return (*EXACT_OPTIONS, *(DIVIDE if divides else ()))

    def launchable(self, launch: Launch) -> Any:
        """Return the built program of a launch, with all of its code generated.

        On CPUs the program is launched once with empty extents before it is stored. PoCL generates
        code at the first launch, separately for each local size and for small and large grids. A
        GPU kernel with little work is compiled without optimization on CPUs. PoCL compiles a
        work-group as a loop over its work-items, and loops that are unrolled for a GPU make
        optimization slow.
        """
        source = launch.source.text
        if math.prod(launch.local_size) == 1 or launch.kernel in CRASHING:
            source = without_lanes_of_items(self._native.device, source)
        base = self._exact_options if launch.source.is_exact else OPTIONS
        if device_type(self._native.device) != "cpu":
            target = launch.source.target
            return self.program(source, launch.source.options, target=target, base=base)
        small = max(launch.global_size) <= SMALL_GRID
        use = f"{launch.kernel} {launch.local_size} {small}"
        options = (*launch.source.options, *([UNOPTIMIZED] if launch.work <= LITTLE_WORK else []))
        first_use = functools.partial(self._launch_empty, launch)
        return self.program(source, options, first_use, use, base=base)

    def program(
        self,
        source: str,
        options: Sequence[str] = (),
        first_use: Callable[[Any], None] | None = None,
        use: str = "",
        target: str = "",
        base: Sequence[str] = OPTIONS,
    ) -> Any:
        """Return the built program of `source`.

        first_use: called with the program before it is stored. use: distinguishes programs with
        the same source but different first uses. target: the PTX target, if the source contains
        hidden instructions. base: options common to all programs.
        """
        options = (*base, *options)
        key = (source, *options, use, target)
        program = self._programs.get(key)
        if program is None:
            program = uninterrupted(self._program, key, source, options, first_use, target)
        return program

    def _program(self, key: tuple[str, ...], *arguments: Any) -> Any:
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self._obtain(key, *arguments)
                self._recent.append(program)
        return program

    def _obtain(
        self,
        key: tuple[str, ...],
        source: str,
        options: Sequence[str],
        first_use: Callable[[Any], None] | None,
        target: str,
    ) -> Any:
        stored_as = "\0".join((*key, *self._identity))
        binary = self._store.get(stored_as)
        program = self._load(binary, options) if binary is not None else None
        from_disk = program is not None
        cache_count("from_disk" if from_disk else "compiled")
        if not from_disk:
            program = self._compile(source, options, target)
        if first_use:
            first_use(program)
        if not from_disk:
            self._put(stored_as, program)
        return program

    def _load(self, binary: bytes, options: Sequence[str]) -> Any:
        """Create a program from a stored binary. Return None if the driver refuses the binary."""
        cl = pyopencl()
        native = self._native
        try:
            program = cl.Program(native.context, [native.device], [binary])
            return _build(program, native.device, options)
        except cl.Error:
            return None

    def _compile(self, source: str, options: Sequence[str], target: str) -> Any:
        cl = pyopencl()
        native = self._native
        if is_quicker(native.device):
            quick = cl.Program(native.context, declarations(source) + source)
            with contextlib.suppress(cl.Error):  # a function may have no declaration
                return _build(quick, native.device, (*options, *WITHOUT_HEADER))
        try:
            program = _build(cl.Program(native.context, source), native.device, options)
            if target:
                (binary,) = program.get_info(cl.program_info.BINARIES)
                program = cl.Program(native.context, [native.device], [uncovered(binary, target)])
                program = _build(program, native.device, options)
            return program
        except cl.Error as error:
            place = _dump(source)
            raise BuildError(
                f"opencl: {native.device.name} cannot build a program with the options"
                f" {' '.join(options)}; its source is in {place}; the compiler says:\n{error}"
            ) from error

    def _launch_empty(self, launch: Launch, program: Any) -> None:
        """Launch the kernel with all extents 0."""
        cl = pyopencl()
        kernel = cl.Kernel(program, launch.kernel)
        for place, arg in enumerate(launch.args):
            kernel.set_arg(place, np.zeros((), arg.dtype)[()] if hasattr(arg, "dtype") else None)
        queue = cl.CommandQueue(self._native.context, self._native.device)
        cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
        queue.finish()

    def _put(self, key: str, program: Any) -> None:
        if self._store.folder is None:
            return  # PoCL needs as long to return a binary as to build the program
        # pyopencl leaves out the devices of the context for which the program is not built.
        binaries = program.get_info(pyopencl().program_info.BINARIES)
        if len(binaries) == 1 and binaries[0]:
            self._store.put(key, binaries[0])


def _build(program: Any, device: Any, options: Sequence[str]) -> Any:
    """Build without pyopencl's own cache, which does not verify its files, and without warnings."""
    with _building, warnings.catch_warnings():
        warnings.simplefilter("ignore", pyopencl().CompilerWarning)
        return program.build(options=list(options), devices=[device], cache_dir=False)


def _dump(source: str) -> str:
    handle, path = tempfile.mkstemp(prefix="dnncore-", suffix=".cl", text=True)
    with os.fdopen(handle, "w") as file:
        file.write(source)
    return path
