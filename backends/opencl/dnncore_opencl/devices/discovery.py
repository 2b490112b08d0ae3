"""The OpenCL devices of this machine: found once, in a stable order, with their limits."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Device, EngineUnavailable
from dnncore_opencl.devices import nvidia
from dnncore_opencl.devices.pocl import name_the_processor

REMEDY = 'install the runtime with pip install "dnncore[opencl]", or a driver for your device'


@dataclass(frozen=True)
class Native:
    """The pyopencl objects of an engine."""

    platform: Any
    device: Any
    context: Any


@functools.cache
def pyopencl() -> types.ModuleType:
    """Import pyopencl; raises `EngineUnavailable` where it or the OpenCL loader is missing."""
    try:
        import pyopencl as cl
    except ImportError as error:
        raise EngineUnavailable(
            f"opencl: pyopencl cannot be imported ({error}); {REMEDY}"
        ) from error
    return cl


@functools.cache
def cl_devices() -> tuple[Any, ...]:
    """All devices: platforms as the loader lists them, GPUs first within a platform."""
    cl = pyopencl()
    found: list[Any] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise EngineUnavailable(
            f"opencl: there is no OpenCL platform ({error}); {REMEDY}"
        ) from error
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except cl.Error:  # a driver without its device, such as CUDA's on a machine without a GPU
            continue
        found += sorted(devices, key=lambda d: not d.type & cl.device_type.GPU)
    if not found:
        names = ", ".join(p.name for p in platforms)
        raise EngineUnavailable(f"opencl: no platform ({names}) has a device; {REMEDY}")
    for device in found:
        name_the_processor(device)
    return tuple(found)


def describe(device: Any) -> Device:
    """Return a device's record. Sizes are in bytes, also the alignment of sub-buffers.

    local_memory: of all `__local` arrays that a kernel declares. local_argument: of a `__local`
    argument. sub_group: work-items that run in step, if known. compute_capability: (major, minor),
    of NVIDIA's GPUs only.
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
