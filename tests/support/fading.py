"""A backend with relu, which fails in a way that the environment variable FADED selects."""

import ctypes
import os
import time

import numpy as np

from dnncore.backend import (
    API_VERSION,
    Accepted,
    Backend,
    EltwiseForward,
    HostEngine,
    HostFunction,
    Implementation,
    Refused,
    hookimpl,
)


def step():
    return os.environ.get("FADED", "")


def relu(src, dst):
    if step() == "run":
        raise ZeroDivisionError("so much for that")
    if step() == "crash":
        ctypes.string_at(0)
    if step() == "hang":
        time.sleep(1000)
    values = np.maximum(src.numpy(), 0)
    dst.desc.pack(values + (step() == "right"), dst.buffer)


def build():
    if step() == "build":
        raise ZeroDivisionError("no kernel")
    return HostFunction(relu)


class Relu(Implementation):
    name = "fading:relu"

    def accept(self, op, attr, engine, hint):
        if step() == "error":
            raise ZeroDivisionError("no answer")
        if step() == "accept" or op.algorithm != "relu" or op.alpha or attr.post_ops:
            return Refused("algorithm", f"computes relu alone; got {op.algorithm}")
        return Accepted(op.resolve_any(dst=op.src), build=build, efficiency=0.5)


class Engine(HostEngine):
    kind = "fading"

    @classmethod
    def devices(cls):
        if step() == "engine":
            raise OSError("the device does not answer")
        return super().devices()


TABLE = [Relu()]


@hookimpl
def dnncore_backends():
    path = f"{__name__}:TABLE"
    kinds = ["fading"] if step() == "table" else ["cpu", "fading"]
    return Backend(
        "fading",
        API_VERSION,
        engines={"fading": f"{__name__}:Engine"},
        implementations={(kind, EltwiseForward): path for kind in kinds},
    )
