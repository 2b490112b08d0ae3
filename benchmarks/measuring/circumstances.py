"""The device, date and versions of a measurement."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import platform
from typing import Any

import dnncore as dnn
from benchmarks.measuring.checkout import engine, runs_on_cores

__all__ = ["circumstances", "versions"]

PACKAGES = ("numpy", "numba", "pyopencl", "torch")


@functools.cache
def versions() -> tuple[str, ...]:
    """The versions of dnncore, of packages that it and its peers use, and of Python."""
    known = {found.name: found.version for found in importlib.metadata.distributions()}
    packages = [f"{name} {known[name]}" for name in PACKAGES if name in known]
    return (f"dnncore {dnn.__version__}", *packages, f"Python {platform.python_version()}")


def circumstances(name: str) -> dict[str, Any]:
    """The device and driver of an engine, whether it runs on CPU cores, the date, versions."""
    device = engine(name).device
    return {
        "device": device.name,
        "driver": device.version,
        "cores": runs_on_cores(name),
        "date": f"{dt.date.today():%Y-%m-%d}",
        "versions": versions(),
    }
