"""Fixtures of the tests of oneDNN's backend in examples/third_party_backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.contestants  # noqa: F401 - makes dnncore_onednn importable
import dnncore as dnn

PLUGIN = Path(__file__).parents[2] / "examples" / "third_party_backend"


@pytest.fixture
def onednn() -> Iterator[ModuleType]:
    """The plugin, registered."""
    import dnncore_onednn

    dnn.register(dnncore_onednn)
    yield dnncore_onednn
    dnn.unregister(dnncore_onednn)


@pytest.fixture
def run() -> Callable[..., str]:
    """Run a program in a process that finds the plugin; returns its output."""

    def run_program(text: str, **variables: str) -> str:
        paths = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_program
