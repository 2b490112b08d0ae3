"""Rates that this processor can reach, measured once per machine and stored."""

from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.engines import measured
from dnncore.engines.peaks import Peaks
from dnncore.engines.processors import available_processors

__all__ = ["cpu_peaks", "processor_name"]

MATRIX = 64  # rows; BLAS libraries use one thread up to this size
MATRICES = 16  # per call, so that the cost of the call is small
TYPES = {"f32": np.float32, "f64": np.float64}
COPY_BYTES = 1 << 26  # larger than the last-level cache of most processors
LEAST_SECONDS = 1e-4  # shorter executions do not prove a rate
UNCACHED = 8  # times `COPY_BYTES`: larger than all caches of large processors
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
    rates = _of_one_thread()
    at_once = min(threads, available_processors())
    flops = {name: at_once * rates[name] for name in TYPES}
    return Peaks(flops, bandwidth=rates["bytes"], launch=LAUNCH_SECONDS)


def measure_again() -> None:
    """Repeat the measurement and store it."""
    _rates.clear()
    _rates.update(measured.figures(_key(), _measure, again=True))
    cpu_peaks.cache_clear()


def prove(threads: int, flops: float, nbytes: float, data_type: str, seconds: float) -> None:
    """Raise the peaks that an execution by `threads` threads exceeds, and store them.

    Short executions are ignored, because clocks are coarse. Bytes that may be in a cache are
    ignored, too.
    """
    if seconds < LEAST_SECONDS:
        return
    rates, kind = _of_one_thread(), data_type if data_type in TYPES else "f32"
    proved = {kind: flops / seconds / min(threads, available_processors())}
    if nbytes >= UNCACHED * COPY_BYTES:
        proved["bytes"] = nbytes / seconds
    raised = {name: rate for name, rate in proved.items() if rates[name] < rate}
    if raised:
        rates.update(raised)
        cpu_peaks.cache_clear()
        measured.correct(_key(), rates)


_rates: dict[str, float] = {}


def _of_one_thread() -> dict[str, float]:
    """Return the rates of one thread, from the disk store or measured now."""
    if not _rates:
        _rates.update(measured.figures(_key(), _measure))
    return _rates


def _key() -> str:
    return f"{processor_name()}:{np.__version__}"


def _measure() -> dict[str, float]:
    rates = {name: _flops(dtype) for name, dtype in TYPES.items()}
    return {**rates, "bytes": _bandwidth()}


def _flops(dtype: type) -> float:
    """Measure one thread. Several threads would wait for each other if another process uses the
    CPU.
    """
    a: np.ndarray[Any, Any] = np.ones((MATRICES, MATRIX, MATRIX), dtype)
    out = np.empty_like(a)
    return 2.0 * MATRICES * MATRIX**3 / _best(lambda: np.matmul(a, a, out=out))


def _bandwidth() -> float:
    source = np.ones(COPY_BYTES // 2, np.uint8)
    target = np.ones_like(source)
    return COPY_BYTES / _best(lambda: np.copyto(target, source))


def _best(work: Callable[[], object], least: int = 4, seconds: float = 0.04) -> float:
    """Return the shortest of many runs. They last long enough that one is probably undisturbed."""
    shortest, runs = math.inf, 0
    end = time.perf_counter() + seconds
    while runs < least or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - start)
        runs += 1
    return shortest
