"""Kernels access no memory beside their tensors, not even to read what they do not use."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TARGETS

from dnncore.problem import DRIVERS

PROGRAM = Path(__file__).with_name("fences.py")
BEYOND = """
import pyopencl as cl, numpy as np, dnncore as dnn
from dnncore.testing.checks.fences import fenced
engine = dnn.engine("pocl")
flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
src = cl.Buffer(engine.native.context, flags, hostbuf=fenced(64, at_end=True))
dst = cl.Buffer(engine.native.context, cl.mem_flags.READ_WRITE, 4)
text = "__kernel void f(__global float *x, __global float *y, int i) { *y = x[i]; }"
kernel = cl.Program(engine.native.context, text).build().f
queue = cl.CommandQueue(engine.native.context)
for i in (15, 16):
    kernel(queue, (1,), None, src, dst, np.int32(i))
    queue.finish()
    print("read", i, flush=True)
"""


@pytest.fixture(params=[target for target in TARGETS if "pocl" in str(target)], ids=str)
def target(request):
    return request.param


def run(*arguments):
    command = [sys.executable, *arguments]
    environment = {**os.environ, "DNNCORE_DISK_CACHE": "0"}  # PoCL builds twice what is stored
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment
    )


@pytest.mark.long
@pytest.mark.parametrize("first", range(3))
def test_kernels_stay_inside(target, first):
    """A process for several operations, because it reads the list of problems for seconds."""
    operations = [*DRIVERS][first::3]
    done = run(str(PROGRAM), *operations)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    for operation in operations:
        assert sum(f": --{operation} " in line for line in lines) >= 6


def test_one_element_behind_a_tensor_is_outside(target):
    done = run("-c", BEYOND)
    assert done.stdout == "read 15\n", done.stderr
    assert done.returncode == -signal.SIGSEGV
