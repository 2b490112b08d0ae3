"""Limits of NVIDIA's GPUs that the OpenCL driver does not report, or reports too low.

CL_DEVICE_LOCAL_MEM_SIZE is 48 KB on every GPU. This is the limit for `__local` arguments. Arrays
that a kernel declares may be larger; CUDA's documentation lists their limit by compute capability
(table of technical specifications, shared memory per thread block).
"""

from __future__ import annotations

from typing import Any

KILOBYTES = {
    (7, 5): 64,
    **dict.fromkeys(((7, 0), (7, 2)), 96),
    **dict.fromkeys(((8, 6), (8, 9), (12, 0), (12, 1)), 99),
    **dict.fromkeys(((8, 0), (8, 7)), 163),
    **dict.fromkeys(((9, 0), (10, 0), (10, 3)), 227),
}
DRIVERS_OWN = 4  # bytes per work-group that the driver reserves, by the assembler's message


def limits(device: Any) -> dict[str, Any]:
    """Return an NVIDIA device's limits that its driver reports too low or not; {} for others."""
    if "cl_nv_device_attribute_query" not in device.extensions.split():
        return {}
    capability = (device.compute_capability_major_nv, device.compute_capability_minor_nv)
    declared = 1024 * KILOBYTES.get(capability, 0) - DRIVERS_OWN
    return {
        "compute_capability": capability,
        "local_memory": max(declared, device.local_mem_size),
        "sub_group": device.warp_size_nv,
    }


def capability(engine: Any) -> tuple[int, int]:
    """Return the compute capability of an engine's device; (0, 0) unless an NVIDIA GPU."""
    found: tuple[int, int] = engine.device.limits.get("compute_capability", (0, 0))
    return found


def is_nvidia(engine: Any) -> bool:
    """Whether an engine's device is an NVIDIA GPU."""
    return capability(engine) > (0, 0)


def register_limit(count: int) -> str:
    """Return the option of NVIDIA's compiler that limits the registers of a work-item."""
    return f"-cl-nv-maxrregcount={count}"
