"""Opens engines. dnncore may be installed, or PYTHONPATH may contain its source.

Without an installation there are no entry points. Then the backends in the project file are
registered.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from pathlib import Path

import dnncore as dnn

__all__ = ["engine", "runs_on_cores"]

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
GROUP = "dnncore.backends"


def engine(name: str) -> dnn.Engine:
    """Open an engine of the backends in the project file."""
    _register_missing()
    return dnn.engine(name)


def runs_on_cores(name: str) -> bool:
    """Whether the kernels of an engine run on the cores of a CPU."""
    opened = engine(name)
    return opened.is_host or opened.device.type == "cpu"


@functools.cache
def _register_missing() -> None:
    entries = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    known = {status.name for status in dnn.backends()}
    for name, module in entries.items():
        if name not in known:
            dnn.register(importlib.import_module(module))
