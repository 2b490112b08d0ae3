"""Small backends that tests of the core register."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import dnncore as dnn
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

_numbers = itertools.count()


class Relu(Implementation):
    """Relu on plain host memories. A test sets its claims and the result of `accept`."""

    def __init__(self, name, efficiency=0.5, *, refuse=None, accept=None, build=None, **claims):
        self.name = name
        self.efficiency = efficiency
        self.refuse = refuse
        self.replacement = accept
        self.failing_build = build
        self.claims = claims
        self.asked = 0
        self.built = 0

    def accept(self, op, attr, engine, hint):
        self.asked += 1
        if self.replacement:
            return self.replacement(op)
        if self.refuse:
            return Refused(*self.refuse)
        if op.algorithm != "relu":
            return Refused("shape", f"computes relu; got {op.algorithm}")
        op = op.resolve_any(dst=op.src)
        return Accepted(op, build=self.build, efficiency=self.efficiency, **self.claims)

    def build(self):
        self.built += 1
        if self.failing_build:
            raise self.failing_build
        return HostFunction(relu)


def relu(src, dst):
    dst.desc.pack(np.maximum(src.numpy(), 0), dst.buffer)


class ToyEngine(HostEngine):
    kind = "toy"


def plugin(backends):
    """A module-like plugin whose hook returns `backends()`."""
    module = types.ModuleType(f"toy_plugin_{next(_numbers)}")
    module.dnncore_backends = hookimpl(backends, specname="dnncore_backends")
    return module


@contextmanager
def registered(
    *implementations, kind="cpu", name="toybackend", engines=None, table=None, **fields
) -> Iterator:
    """Register a backend with these EltwiseForward implementations during a test.

    table: "module:attribute" of its table instead of the implementations.
    """
    own = f"TABLE_{next(_numbers)}"
    module = plugin(
        lambda: Backend(
            name,
            API_VERSION,
            engines=engines or {},
            implementations={(kind, EltwiseForward): table or f"{__name__}:{own}"},
            **fields,
        )
    )
    globals()[own] = implementations
    dnn.register(module)
    try:
        yield module
    finally:
        dnn.unregister(module)


@contextmanager
def devices(kind, *found, name=None) -> Iterator:
    """Register a backend with an engine kind that lists these devices or raises exceptions."""

    class Engine(HostEngine):
        @classmethod
        def devices(cls):
            for device in found:
                if isinstance(device, BaseException):
                    raise device
            return found

    Engine.kind = kind
    path = f"ENGINE_{next(_numbers)}"
    globals()[path] = Engine
    with registered(kind=kind, name=name or kind, engines={kind: f"{__name__}:{path}"}) as module:
        yield module


def relu_op(dims=(4, 5), format="any", algorithm="relu"):
    src = dnn.MemoryDesc(dims)
    dst = dnn.MemoryDesc(dims, "f32", format)
    return dnn.EltwiseForward("forward_inference", algorithm, src=src, dst=dst)
