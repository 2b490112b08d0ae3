"""Peak rates of a device, measured once per device and driver. Time estimates are based on them.

The FLOP rates are those of a kernel's multiply-adds, by data type. They exclude matrix units
(tensor cores). A family that uses matrix units claims an efficiency above 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dnncore.backend import Peaks, measured_figures
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.runtime.device import OpenedDevice

COPY_BYTES = {"cpu": 1 << 25, "gpu": 1 << 27}  # larger than the last-level caches
CHAINS = 12  # independent multiply-adds: latency x issue rate of common cores
ROUNDS = {"cpu": 1 << 14, "gpu": 1 << 12}
SECONDS = 0.03  # per measurement

ARITHMETIC = {
    "f32": ("float", ""),
    "f64": ("double", "cl_khr_fp64"),
    "f16": ("half", "cl_khr_fp16"),
}
"""Data types with their names in OpenCL C and the extensions that they need."""

SOURCE = """
__kernel void multiply_add(__global WIDE *out, const int rounds) {
    const WIDE a = (NARROW)0.999f, b = (NARROW)1e-3f * (NARROW)(get_global_id(0) % 32);
#define START(i) WIDE x##i = b * i;
#define STEP(i) x##i = x##i * a + b;
#define ADD(i) sum += x##i;
    EACH(START)
    for (int r = 0; r < rounds; r++) { EACH(STEP) }
    WIDE sum = 0;
    EACH(ADD)
    if (rounds > 0) out[get_global_id(0)] = sum;
}

__kernel void nothing(const int extent) {}
"""


def measure(engine: OpenedDevice, *, again: bool = False) -> Peaks:
    """Return the device's peaks from the disk store, or measure them (about 0.2 s).

    again: measure even if stored.
    """
    device = engine.native.device
    key = "\0".join(
        ("opencl flops", device.name, device.driver_version, engine.native.platform.version)
    )
    return Peaks(**measured_figures(key, lambda: _figures(engine), again=again))


def _figures(engine: OpenedDevice) -> dict[str, Any]:
    extensions = ("", *engine.native.device.extensions.split())
    kinds = [kind for kind, (_, extension) in ARITHMETIC.items() if extension in extensions]
    flops = {kind: _flops(engine, kind) for kind in kinds}
    return {"flops": flops, "bandwidth": _bandwidth(engine), "launch": _launch(engine)}


def _flops(engine: OpenedDevice, data_type: str) -> float:
    cl = pyopencl()
    is_cpu = engine.is_cpu
    units = engine.device.limits["compute_units"]
    width, local, groups = (16, 1, 4 * units) if is_cpu else (1, 256, 16 * units)
    rounds = ROUNDS["cpu" if is_cpu else "gpu"]
    kernel = _kernel(engine, "multiply_add", data_type)
    out = cl.Buffer(engine.native.context, cl.mem_flags.READ_WRITE, 8 * width * local * groups)
    kernel.set_args(out, np.int32(rounds))
    queue = _queue(engine)

    def work() -> None:
        cl.enqueue_nd_range_kernel(queue, kernel, (local * groups,), (local,))
        queue.finish()

    operations: float = 2.0 * CHAINS * width * rounds * local * groups
    return operations / _best(work)


def _bandwidth(engine: OpenedDevice) -> float:
    cl = pyopencl()
    nbytes = COPY_BYTES["cpu" if engine.is_cpu else "gpu"]
    context, flags = engine.native.context, cl.mem_flags.READ_WRITE
    source, target = (cl.Buffer(context, flags, nbytes) for _ in range(2))
    queue = _queue(engine)

    def work() -> None:
        cl.enqueue_copy(queue, target, source, byte_count=nbytes)
        queue.finish()

    return 2.0 * nbytes / _best(work)


def _launch(engine: OpenedDevice, launches: int = 100) -> float:
    cl = pyopencl()
    kernel = _kernel(engine, "nothing")
    kernel.set_args(np.int32(0))
    queue = _queue(engine)

    def work() -> None:
        for _ in range(launches):
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        queue.finish()

    return _best(work) / launches


def _kernel(engine: OpenedDevice, name: str, data_type: str = "f32") -> Any:
    narrow, extension = ARITHMETIC[data_type]
    each = " ".join(f"DO({i})" for i in range(CHAINS))
    lines = [
        *([f"#pragma OPENCL EXTENSION {extension} : enable"] if extension else []),
        f"#define NARROW {narrow}",
        f"#define WIDE {narrow}{16 if engine.is_cpu else ''}",
        f"#define EACH(DO) {each}",
        SOURCE,
    ]
    return pyopencl().Kernel(engine.program("\n".join(lines)), name)


def _queue(engine: OpenedDevice) -> Any:
    native = engine.native
    return pyopencl().CommandQueue(native.context, native.device)


def _best(work: Callable[[], None]) -> float:
    """Return the fewest seconds of a run, of at least three runs after a warm-up."""
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while spent < SECONDS or runs < 3:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best
