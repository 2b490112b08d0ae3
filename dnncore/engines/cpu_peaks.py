"""Rates that this processor can reach, measured once per machine and stored."""

from __future__ import annotations

import functools
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.cache import DiskStore
from dnncore.engines.peaks import Peaks
from dnncore.engines.threads import available

__all__ = ["cpu_peaks", "processor_name"]

MATRIX = 64  # rows: the largest that BLAS libraries leave to one thread
MATRICES = 16  # per call, so that the cost of the call is small
TYPES = {"f32": np.float32, "f64": np.float64}
COPY_BYTES = 1 << 26  # beyond the last-level cache of most processors
LAUNCH_SECONDS = 3e-6  # one fork and join of a thread pool, the cost of a parallel primitive


@functools.cache
def processor_name() -> str:
    """The processor's model name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def cpu_peaks(threads: int) -> Peaks:
    """Return the peaks of `threads` threads of this processor."""
    figures = _of_one_thread()
    at_once = min(threads, available())
    flops = {name: at_once * figures[name] for name in TYPES}
    return Peaks(flops, bandwidth=figures["bytes"], launch=LAUNCH_SECONDS)


@functools.cache
def _of_one_thread() -> dict[str, float]:
    """Return the rates of one thread, from the disk store or measured now."""
    store = DiskStore("peaks")
    key = f"{processor_name()}:{np.__version__}"
    stored = store.get(key)
    if stored is not None:
        return dict(json.loads(stored))
    figures = {name: _flops(dtype) for name, dtype in TYPES.items()}
    figures["bytes"] = _bandwidth()
    store.put(key, json.dumps(figures).encode())
    return figures


def _flops(dtype: type) -> float:
    """Measure one thread: several would wait for each other if another process uses the CPU."""
    a: np.ndarray[Any, Any] = np.ones((MATRICES, MATRIX, MATRIX), dtype)
    out = np.empty_like(a)
    return 2.0 * MATRICES * MATRIX**3 / _best(lambda: np.matmul(a, a, out=out))


def _bandwidth() -> float:
    source = np.ones(COPY_BYTES // 2, np.uint8)
    target = np.ones_like(source)
    return COPY_BYTES / _best(lambda: np.copyto(target, source))


def _best(work: Callable[[], object], least: int = 4, seconds: float = 0.04) -> float:
    """Return the shortest of many runs over enough time that one is probably undisturbed."""
    shortest, runs = math.inf, 0
    end = time.perf_counter() + seconds
    while runs < least or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - start)
        runs += 1
    return shortest
