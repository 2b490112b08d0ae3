"""A backend whose implementations crash, hang or exit, as broken drivers do."""

import ctypes
import os
import sys
import threading
import time

import numpy as np

from dnncore.backend import (
    API_VERSION,
    Accepted,
    Backend,
    ConvolutionForward,
    HostFunction,
    Implementation,
    Sum,
    hookimpl,
)


def crash(*memories):
    ctypes.string_at(0)


def beyond(*memories):
    """Reads one byte after the end of each tensor, and writes nothing."""
    for memory in memories:
        ctypes.string_at(memory.address + memory.nbytes, 1)


def hang(*memories):
    time.sleep(1000)


def leave(*memories):
    print("out of patience", file=sys.stderr, flush=True)
    os._exit(3)


def later(*memories):
    """Ends the process after 2 seconds, when the test case has ended."""
    threading.Timer(2, os._exit, [4]).start()
    ones(*memories)


def slow(*memories):
    """Takes 0.05 seconds."""
    time.sleep(0.05)
    ones(*memories)


def fail(*memories):
    raise ZeroDivisionError("so much for that")


def ones(*memories):
    """Writes only ones."""
    dst = memories[-1]
    dst.desc.pack(np.ones(dst.desc.dims, np.float32), dst.buffer)


def chatter(*memories):
    os.write(1, b"Invalid write of size 4 at address 0x10\n")
    ones(*memories)


class Unruly(Implementation):
    def __init__(self, function):
        self.name = f"unruly:{function.__name__}"
        self.function = function

    def accept(self, op, attr, engine, hint):
        free = {a.name: desc.with_format(None) for a, desc in op.tensors() if desc.is_any}
        op = op.resolve_any(**free)
        return Accepted(op, build=lambda: HostFunction(self.function), seconds=1e-9)


WAYS = os.environ.get("UNRULY", "crash,beyond,hang,leave,later,slow,fail,ones,chatter")
TABLE = [Unruly(globals()[way]) for way in WAYS.split(",")]


@hookimpl
def dnncore_backends():
    tables = {("cpu", ConvolutionForward): f"{__name__}:TABLE", ("cpu", Sum): f"{__name__}:MISSING"}
    return Backend("unruly", API_VERSION, implementations=tables)
