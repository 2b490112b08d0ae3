"""Limits of NVIDIA's GPUs that the OpenCL driver does not report, or reports too low.

CL_DEVICE_LOCAL_MEM_SIZE is 48 KB on every GPU. That is the limit of `__local` arguments; arrays
that a kernel declares may be as large as CUDA's documentation says for the compute capability
(the table of technical specifications, shared memory per thread block).
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
DRIVERS_OWN = 4  # bytes of each group that the driver takes, by the assembler's message


def limits(device: Any) -> dict[str, Any]:
    """Return the limits of a pyopencl device that differ from the standard's; none elsewhere."""
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
    """The compute capability of an engine's device; (0, 0) for all but NVIDIA's GPUs."""
    found: tuple[int, int] = engine.device.limits.get("compute_capability", (0, 0))
    return found


def is_nvidia(engine: Any) -> bool:
    """Whether an engine's device is a GPU of NVIDIA's."""
    return capability(engine) > (0, 0)


def register_limit(count: int) -> str:
    """The option of NVIDIA's compiler that limits a work-item's registers."""
    return f"-cl-nv-maxrregcount={count}"
