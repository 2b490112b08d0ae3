"""Functions for tests of the OpenCL engine: devices, a small product, processes and events."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np

import dnncore as dnn
from dnncore.backend import Event

DEVICES = [d.name for d in dnn.devices() if d.status == "ok" and d.name.startswith("opencl")]


def matmul(engine, size=8, attr=None):
    desc = dnn.MemoryDesc((size, size))
    return dnn.PrimitiveDesc(dnn.MatMul(src=desc, weights=desc, dst=desc), engine, attr).primitive()


def square(engine, value, size=8):
    return dnn.Memory.from_numpy(np.full((size, size), value, np.float32), engine=engine)


def run_python(code, timeout=300, **environment):
    """Run code in a process that can import this module. Returns the completed process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


class Gate(Event):
    """An event of another runtime. `open` completes it."""

    __slots__ = ("_error", "_opened")

    def __init__(self):
        self._opened = threading.Event()
        self._error = None

    def open(self, error=None):
        self._error = error
        self._opened.set()

    def wait(self, timeout=None):
        if not self._opened.wait(timeout):
            raise TimeoutError
        if self._error:
            raise self._error

    @property
    def done(self):
        return self._opened.is_set()

    @property
    def error(self):
        return self._error
