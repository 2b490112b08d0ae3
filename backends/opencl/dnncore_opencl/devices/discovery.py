"""The OpenCL devices of this machine: discovered once, in a stable order, with their limits."""

from __future__ import annotations

import functools
import importlib
import platform
import sys
import types
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Device, EngineUnavailable, uninterrupted
from dnncore_opencl.devices import nvidia, pocl
from dnncore_opencl.devices.handles import begin_use, check_not_forked

INSTALL = 'install it with pip install "dnncore[opencl]"'
HAS_POCL = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether PyPI has PoCL for this system, and the extra `opencl` installs it."""


def remedy() -> str:
    """Return advice for a system without an OpenCL driver."""
    if HAS_POCL:
        return f"install the driver of your device; PoCL is one for the CPU: {INSTALL}"
    return (
        "install the driver of your device; PyPI has none for this system, and so the extra"
        " `opencl` installs none; conda-forge has PoCL, a driver for the CPU"
    )


@dataclass(frozen=True)
class Native:
    """The pyopencl objects of an engine."""

    platform: Any
    device: Any
    context: Any


@functools.cache
def pyopencl() -> types.ModuleType:
    """Import pyopencl. Raises `EngineUnavailable` if pyopencl or the OpenCL loader is missing."""
    try:
        return uninterrupted(importlib.import_module, "pyopencl")
    except ImportError as error:
        raise EngineUnavailable(
            f"opencl: pyopencl cannot be imported ({error}); {INSTALL}"
        ) from error


def cl_devices() -> tuple[Any, ...]:
    """Return all devices: platforms in the loader's order, GPUs first within a platform.

    Raises `EngineUnavailable` if there is no device, or in a child forked after OpenCL was used.
    """
    check_not_forked()
    return _cl_devices() if _cl_devices.cache_info().currsize else uninterrupted(_cl_devices)


@functools.cache
def _cl_devices() -> tuple[Any, ...]:
    cl = pyopencl()
    begin_use()
    found: list[Any] = []
    causes: list[str] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise EngineUnavailable(
            f"opencl: there is no OpenCL platform ({error}); {remedy()}"
        ) from error
    for vendor in platforms:
        try:
            devices = vendor.get_devices()
        except cl.Error as error:  # such as a CUDA driver on a machine without a GPU
            causes.append(f"{vendor.name}: {error}")
            continue
        causes += [] if devices else [f"{vendor.name} lists none"]
        found += sorted(devices, key=lambda d: not d.type & cl.device_type.GPU)
    if not found:
        unusable = next(filter(None, map(pocl.unusable_cache, platforms)), "")
        why = unusable or f"{', '.join(causes)}; {remedy()}"
        raise EngineUnavailable(f"opencl: no platform has a device: {why}")
    for device in found:
        pocl.name_the_processor(device)
    return tuple(found)


def describe(device: Any) -> Device:
    """Return a device's record. Sizes, including the alignment of sub-buffers, are in bytes.

    local_memory: the limit for all `__local` arrays declared in a kernel. local_argument: the limit
    for a `__local` argument. sub_group: work-items that execute in lockstep, if known.
    compute_capability: (major, minor), only of NVIDIA's GPUs.
    """
    extensions = device.extensions.split()
    limits = {
        "compute_units": device.max_compute_units,
        "global_memory": device.global_mem_size,
        "max_allocation": device.max_mem_alloc_size,
        "local_memory": device.local_mem_size,
        "local_argument": device.local_mem_size,
        "max_work_group": device.max_work_group_size,
        "alignment": device.mem_base_addr_align // 8,
        "fp16": "cl_khr_fp16" in extensions,
        "sub_groups": "cl_khr_subgroups" in extensions,
    } | nvidia.limits(device)
    version = f"{device.driver_version} ({device.platform.version.strip()})"
    return Device(device.name.strip(), device.vendor.strip(), version, limits, device_type(device))


def device_type(device: Any) -> str:
    """Return "cpu", "gpu" or "accelerator"."""
    kinds = pyopencl().device_type
    if device.type & kinds.CPU:
        return "cpu"
    return "gpu" if device.type & kinds.GPU else "accelerator"
