"""Workarounds for errors of PoCL.

The release on PyPI uses LLVM of 2022, which does not know newer processors. It calls an unknown
processor "generic". Its clang refuses this name, so every build fails with "unknown target CPU
'generic'". It calls Zen 4 "znver3", a processor without AVX-512, but the driver selects built-in
functions with AVX-512. So vectors of 16 floats end the process with "LLVM ERROR: Do not know how to
scalarize this operator's operand". No environment variable changes the name, so it is replaced in
the driver's device record. This is done only in the release whose record layout is known, and only
for these two names.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from pathlib import Path
from typing import Any

RELEASE = "PoCL 3.0-rc2"
NAME_OFFSET = 640  # bytes to `char *llvm_cpu` in the 64-bit device record of this release
TARGET = "x86_64-unknown-linux-gnu-"  # and the name, at the end of the device's version
MISNAMED = {"generic": set(), "znver3": {"avx512f"}}  # wrong if the processor has these features
# Best first, each with its required features, named as in /proc/cpuinfo. The release's built-in
# functions were compiled for these processors. Code for any other would not inline vload16.
PROCESSORS = (
    (b"skylake-avx512", {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
    (b"haswell", {"avx2", "fma", "f16c", "bmi2", "movbe"}),
    (b"x86-64", {"sse2"}),
)


MISCOMPILING = "PoCL 5."  # with barriers in loops, only one work-item of a group completed


def miscompiles_barriers(device: Any) -> bool:
    """Whether kernels with work-group barriers in loops give wrong results on the device."""
    return MISCOMPILING in device.platform.version


def unusable_cache(platform: Any) -> str:
    """Return why PoCL cannot write compiled code, so that it lists no device; else an empty text.

    PoCL writes to POCL_CACHE_DIR, else to a folder in XDG_CACHE_HOME, else in HOME, else in /tmp.
    """
    if "PoCL" not in platform.version:
        return ""
    name = next((n for n in ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME") if os.environ.get(n)), "")
    folder = Path(os.environ.get(name) or "/tmp")  # noqa: S108 - PoCL's own choice
    if name != "POCL_CACHE_DIR":
        folder = folder / (".cache" if name == "HOME" else "") / "pocl" / "kcache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        source = f"{name}={os.environ[name]}" if name else "HOME is not set"
        return (
            f"PoCL must write compiled code to a folder and cannot: {error} ({source});"
            " set POCL_CACHE_DIR to a folder that you can write to"
        )


def name_the_processor(device: Any) -> None:
    """Replace an unusable processor name of a pyopencl device by one that its compiler supports."""
    _, _, name = device.version.partition(TARGET)
    wrong_with = MISNAMED.get(name)
    if RELEASE not in device.platform.version or wrong_with is None:
        return
    place = ctypes.c_uint64.from_address(device.int_ptr + NAME_OFFSET)
    kept = name.encode() + b"\0"
    if wrong_with <= _processor_flags() and _peek(place.value, len(kept)) == kept:
        place.value = ctypes.addressof(_processor())


@functools.cache
def _processor() -> ctypes.Array[ctypes.c_char]:
    """Return the name, in memory that is never freed."""
    flags = _processor_flags()
    name = next(name for name, needs in PROCESSORS if needs <= flags or name == b"x86-64")
    return ctypes.create_string_buffer(name)


@functools.cache
def _processor_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _peek(address: int, size: int) -> bytes | None:
    """Read this process's memory; return None for an unmapped address instead of crashing."""
    target = ctypes.create_string_buffer(size)
    here, there = _Range(ctypes.addressof(target), size), _Range(address, size)
    read = ctypes.CDLL(None).process_vm_readv
    got = read(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return target.raw if got == size else None
