"""The device, date, versions and sources of a measurement."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import platform
from typing import Any

import dnncore as dnn
from benchmarks.contestants.onednn_packages import NEWEST, OPENMP
from benchmarks.measuring import source_tree
from benchmarks.measuring.checkout import engine, runs_on_cores

__all__ = ["circumstances", "versions"]

PACKAGES = ("numpy", "numba", "llvmlite", "pyopencl", "torch")
RELEASED = {"torch 2.13.0": "2026-07-03"}  # version -> the newest date of files in its wheel


@functools.cache
def versions() -> tuple[str, ...]:
    """The versions of dnncore, of the packages that dnncore and its peers use, and of Python.

    For peers, also the release date and the threading runtime if these are known.
    """
    known = {found.name: found.version for found in importlib.metadata.distributions()}
    packages = [_text(name, known[name]) for name in PACKAGES if name in known]
    peers = [str(package) for package in (OPENMP, NEWEST) if package.is_installed]
    return (f"dnncore {dnn.__version__}", *packages, *peers, f"Python {platform.python_version()}")


def _text(name: str, version: str) -> str:
    released = RELEASED.get(f"{name} {version.partition('+')[0]}")
    if name != "torch":
        return f"{name} {version}"
    return f"{name} {version} (wheel of {released or 'unknown date'}; threads: {_torch_threads()})"


def _torch_threads() -> str:
    """torch's threading runtime, from the description of its build."""
    import torch

    report = torch.__config__.parallel_info()
    found = report.partition("ATen parallel backend: ")[2].splitlines()
    return found[0] if found else "unknown"


def circumstances(name: str) -> dict[str, Any]:
    """Device, driver, whether it runs on the cores of a CPU, date, versions, digest of sources."""
    device = engine(name).device
    return {
        "device": device.name,
        "driver": device.version,
        "cores": runs_on_cores(name),
        "date": f"{dt.date.today():%Y-%m-%d}",
        "system": platform.system(),
        "versions": versions(),
        "sources": source_tree.present(),
    }
