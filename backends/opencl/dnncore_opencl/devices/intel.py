"""A hint for Intel's OpenCL runtime for CPUs.

The runtime also compiles each kernel in a version that executes several work-items at once in
vector lanes. Work-groups of one work-item never execute that version. Its compilation takes most of
the build time, and crashes for some kernels (runtime 2026.2, nested loops over vectors). The hint
disables it. `CRASHING` lists kernels of larger work-groups whose compilation crashes, too.
"""

from __future__ import annotations

from typing import Any

from dnncore_opencl.devices.discovery import device_type

HINT = "#define __kernel __kernel __attribute__((intel_vec_len_hint(1)))\n"
CRASHING = ("groups_data", "groups_weights")


def without_lanes_of_items(device: Any, source: str) -> str:
    """Return the source, with the hint if the device needs it."""
    is_intel_cpu = device_type(device) == "cpu" and "Intel" in device.platform.vendor
    return HINT + source if is_intel_cpu else source
