"""Where and when something was measured, and by what versions."""

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
    """Of dnncore, of the packages that it or its peers are made of, and of Python."""
    known = {found.name: found.version for found in importlib.metadata.distributions()}
    packages = [f"{name} {known[name]}" for name in PACKAGES if name in known]
    return (f"dnncore {dnn.__version__}", *packages, f"Python {platform.python_version()}")


def circumstances(name: str) -> dict[str, Any]:
    """Of an engine: device, driver, whether these are a CPU's cores; today; versions."""
    device = engine(name).device
    return {
        "device": device.name,
        "driver": device.version,
        "cores": runs_on_cores(name),
        "date": f"{dt.date.today():%Y-%m-%d}",
        "versions": versions(),
    }
