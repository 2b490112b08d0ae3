"""The levels that must stay flat: memory, open files, threads, device buffers and the store."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dnncore as dnn
from dnncore.cache import primitives
from dnncore.selection import ranking
from dnncore.store import cache_root
from dnncore.testing.running.process import resident_bytes

__all__ = ["LEAST_SAMPLES", "growth", "measure"]

LEAST_SAMPLES = 6

# The allowed difference between the medians of the last and the second third. Memory of the
# process: the C library's allocator has up to 8 arenas per processor, each of which keeps some
# freed megabytes. Blocks of Python: caches of a thread, of regular expressions, of warnings. Device
# memory and files are counted exactly, after garbage is collected.
TOLERANCES = {
    "resident bytes": 24 << 20,
    "blocks of Python": 4000,
    "open files": 2,
    "threads": 2,
    "bytes of device buffers": 0,
    "bytes of the store": 4 << 20,
}


def measure(engines: Sequence[str]) -> dict[str, int]:
    """Return the present levels, after all caches are cleared."""
    primitives.clear()
    ranking.forget()
    for _ in range(2):
        gc.collect()
    return {
        "resident bytes": resident_bytes(),
        "blocks of Python": sys.getallocatedblocks(),
        "open files": _entries(Path("/proc/self/fd")),
        "threads": threading.active_count(),
        "bytes of device buffers": sum(map(_device_bytes, engines)),
        "bytes of the store": _bytes_below(cache_root()),
    }


def growth(samples: Sequence[dict[str, int]]) -> list[str]:
    """Return sentences about levels that grew beyond their tolerance; none with too few samples.

    The first third is omitted, because caches fill during this time.
    """
    if len(samples) < LEAST_SAMPLES:
        return []
    third = len(samples) // 3
    found = []
    for name, tolerance in TOLERANCES.items():
        before, after = (
            _median([sample[name] for sample in part])
            for part in (samples[third : 2 * third], samples[-third:])
        )
        if after - before > tolerance:
            found.append(
                f"{name} grew from {before} to {after}; at most {tolerance} more are permitted"
            )
    return found


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def _entries(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.exists() else 0


def _device_bytes(name: str) -> int:
    engine: Any = dnn.engine(name)
    return int(engine.memory_info().allocated) if hasattr(engine, "memory_info") else 0


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # removed in the meantime
            continue
    return total
