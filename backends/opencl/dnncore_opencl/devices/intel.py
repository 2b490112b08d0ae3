"""A hint for Intel's OpenCL runtime for CPUs.

The runtime compiles each kernel a second time, for several work-items at once in vector lanes. A
group of one work-item never runs that code. Its compilation takes most of a build, and for some
kernels it crashes (runtime 2026.2, nested loops over vectors). The hint turns it off.
"""

from __future__ import annotations

from typing import Any

from dnncore_opencl.devices.discovery import device_type

HINT = "#define __kernel __kernel __attribute__((intel_vec_len_hint(1)))\n"


def without_lanes_of_items(device: Any, source: str) -> str:
    """The source of kernels that run in groups of one work-item, for this pyopencl device."""
    is_intel_cpu = device_type(device) == "cpu" and "Intel" in device.platform.vendor
    return HINT + source if is_intel_cpu else source
