"""A backend whose faults depend on earlier executions in the process.

The environment variable HISTORY selects a fault. "stale" always returns the first result for a
shape. "second" computes wrong results for all shapes except the first one in the process.
"""

import os

import numpy as np
from toy import Relu

from dnncore.backend import API_VERSION, Backend, EltwiseForward, HostFunction, Refused, hookimpl

results = {}


class Historical(Relu):
    """Relu with a fault. Accepts neither alpha nor post-ops."""

    def accept(self, op, attr, engine, hint):
        if attr.post_ops or op.alpha:
            return Refused("attribute", "computes plain relu only")
        return super().accept(op, attr, engine, hint)

    def build(self):
        return HostFunction(stale if os.environ["HISTORY"] == "stale" else second)


def stale(src, dst):
    result = results.setdefault(src.desc, np.maximum(src.numpy(), 0))
    dst.desc.pack(result, dst.buffer)


def second(src, dst):
    results.setdefault(src.desc.dims)
    right = next(iter(results)) == src.desc.dims
    dst.desc.pack(np.maximum(src.numpy(), 0) + (0 if right else 1), dst.buffer)


TABLE = [Historical("history:relu")]


@hookimpl
def dnncore_backends():
    """One implementation of relu on the CPU."""
    tables = {("cpu", EltwiseForward): f"{__name__}:TABLE"}
    return Backend("history", API_VERSION, implementations=tables)
