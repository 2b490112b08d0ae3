"""Faults planted in single layers of a network, on any engine, and a network of twenty layers.

A planted implementation launches the best other implementation of the problem and then changes its
results. It accepts only the problems that `where` selects.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore import backend
from dnncore.engines.stream import wait_all
from dnncore.selection.plugins import registry

_numbers = itertools.count()


# -- faults: each changes the logical values of an output ------------------------------------------


def last_element(new, old):
    new.flat[-1] += 1


def scaled(new, old):
    new *= np.asarray(1.001, new.dtype)


def border(new, old):
    """The padding is not zero: the first row of each image is wrong."""
    new[..., 0, :] += np.asarray(0.5, new.dtype)


def stale(new, old):
    """The second half is not written."""
    half = new.size // 2
    new.flat[half:] = old.flat[half:]


def nan(new, old):
    new.flat[new.size // 3] = np.nan


def swapped(new, old):
    """Two channels are swapped."""
    new[:, [0, 1]] = new[:, [1, 0]]


def truncated(new, old):
    """Half of the results are one unit in the last place too small, as if cut off."""
    half = np.random.default_rng(0).random(new.shape) < 1 / 2
    new[half] = np.nextafter(new[half], np.zeros_like(new[half]))


FAULTS = {f.__name__: f for f in (last_element, scaled, border, stale, nan, swapped, truncated)}


# -- implementations -------------------------------------------------------------------------------


class _Executable(backend.Executable):
    """Launches `inner`, waits, and changes the argument `place` of the memories."""

    def __init__(self, inner, place, fault):
        self.inner, self.place, self.fault = inner, place, fault

    def bind(self, memories, scratchpad):
        run, memory = self.inner.bind(memories, scratchpad), memories[self.place]

        def planted(stream, wait_for=()):
            wait_all(wait_for)
            old = np.array(memory.numpy(stream))
            run(stream, ()).wait()
            new = np.array(memory.numpy(stream))
            self.fault(new, old)
            with memory.map(stream, "w") as buffer:
                memory.desc.pack(new, buffer)
            return backend.COMPLETED

        return planted


class Planted(backend.Implementation):
    """The best other implementation, with a fault in one output."""

    data_types = ("f32", "f16", "bf16")

    def __init__(self, where: Callable[[Any], bool], fault, output: str = "") -> None:
        self.name = "planted:fault"
        self.where, self.fault, self.output = where, fault, output

    def accept(self, op, attr, engine, hint):
        if not self.where(op):
            return backend.Refused("shape", "no fault is planted here")
        for own, other in registry.implementations(engine.kind, type(op)):
            if own.name in ("planted", "reference"):
                continue
            answer = other.answer(op, attr, engine, hint)
            if isinstance(answer, backend.Accepted):
                return self._with_fault(answer)
        return backend.Refused("shape", "nobody else accepts")

    def _with_fault(self, answer):
        names = [a.name for a, _ in answer.op.tensors(answer.op.workspace_desc())]
        place = names.index(self.output or answer.op.result_name)
        build = lambda: _Executable(answer.build(), place, self.fault)  # noqa: E731
        return replace(answer, build=build, efficiency=None, seconds=1e-12)


@contextmanager
def planted(kind: str, operation, where, fault, output="") -> Iterator[None]:
    """Register an implementation with a fault for a `with` block."""
    own = f"TABLE_{next(_numbers)}"
    globals()[own] = (Planted(where, fault, output),)
    module = types.ModuleType(f"planted_{own}")
    tables = {(kind, operation): f"{__name__}:{own}"}
    found = backend.Backend("planted", backend.API_VERSION, implementations=tables)
    module.dnncore_backends = backend.hookimpl(lambda: found, specname="dnncore_backends")
    dnn.register(module)
    try:
        yield
    finally:
        dnn.unregister(module)


# -- the network -----------------------------------------------------------------------------------


@dataclass
class Launch:
    """A primitive of the network with its memories."""

    name: str
    primitive: dnn.Primitive
    memories: dict[str, dnn.Memory]


@dataclass
class Network:
    """Twenty layers: convolutions, relus, poolings and an LRN. Each layer has a unique shape.

    Layer i has 4 + i channels. `forward` and `backward` list the launches in order.
    """

    engine: dnn.Engine
    data_type: str = "f32"
    forward: list[Launch] = field(default_factory=list)
    backward: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.gradients: list[Callable[[dnn.Memory], dnn.Memory]] = []
        x = self.values((2, 4, 9, 9))
        for i in range(20):
            x = LAYERS[i % len(LAYERS)](self, i, x)
        diff = self.values(x.desc.dims)
        for gradient in reversed(self.gradients):
            diff = gradient(diff)

    def values(self, dims: Sequence[int]) -> dnn.Memory:
        desc = dnn.MemoryDesc(dims, self.data_type)
        drawn = self.random.standard_normal(dims) / np.sqrt(np.prod(dims[1:]) / dims[1])
        return dnn.Memory.from_numpy(drawn.astype(desc.dtype), desc, self.engine)

    def add(self, launches, name, op, hint=None, **memories):
        pd = dnn.PrimitiveDesc(op, self.engine, hint=hint)
        for argument, desc in pd.arguments:
            memories.setdefault(argument.name, dnn.Memory(desc, self.engine))
        launches.append(Launch(name, pd.primitive(), memories))
        return pd, memories

    def convolution(self, i, x):
        n, c, h, w = x.desc.dims
        weights = self.values((5 + i, c, 3, 3))
        dst = dnn.MemoryDesc((n, 5 + i, h, w), self.data_type)
        pads = {"padding_l": (1, 1), "padding_r": (1, 1)}
        op = dnn.ConvolutionForward(
            "forward_training", src=x.desc, weights=weights.desc, dst=dst, **pads
        )
        pd, forward = self.add(self.forward, f"convolution {i}", op, src=x, weights=weights)

        def gradient(diff):
            op = dnn.ConvolutionBackwardWeights(
                src=x.desc, diff_weights=weights.desc, diff_dst=dst, **pads
            )
            self.add(self.backward, f"weights of convolution {i}", op, pd, src=x, diff_dst=diff)
            by_data = dnn.ConvolutionBackwardData(
                diff_src=x.desc, weights=weights.desc, diff_dst=dst, **pads
            )
            name = f"data of convolution {i}"
            _, memories = self.add(self.backward, name, by_data, pd, weights=weights, diff_dst=diff)
            return memories["diff_src"]

        self.gradients.append(gradient)
        return forward["dst"]

    def relu(self, i, x):
        op = dnn.EltwiseForward("forward_training", "relu", src=x.desc, dst=x.desc, alpha=0.1)
        pd, forward = self.add(self.forward, f"relu {i}", op, src=x)

        def gradient(diff):
            op = dnn.EltwiseBackward(
                "relu", src=x.desc, diff_dst=x.desc, diff_src=x.desc, alpha=0.1
            )
            _, memories = self.add(self.backward, f"gradient of relu {i}", op, pd, src=x,
                                   diff_dst=diff)  # fmt: skip
            return memories["diff_src"]

        self.gradients.append(gradient)
        return forward["dst"]

    def pooling(self, i, x):
        window = {"kernel": (3, 3), "strides": (1, 1), "padding_l": (1, 1), "padding_r": (1, 1)}
        op = dnn.PoolingForward("forward_training", "max", src=x.desc, dst=x.desc, **window)
        pd, forward = self.add(self.forward, f"pooling {i}", op, src=x)

        def gradient(diff):
            op = dnn.PoolingBackward("max", diff_src=x.desc, diff_dst=x.desc, **window)
            _, memories = self.add(self.backward, f"gradient of pooling {i}", op, pd,
                                   diff_dst=diff, workspace=forward["workspace"])  # fmt: skip
            return memories["diff_src"]

        self.gradients.append(gradient)
        return forward["dst"]

    def lrn(self, i, x):
        op = dnn.LRNForward("forward_training", "across_channels", src=x.desc, dst=x.desc)
        pd, forward = self.add(self.forward, f"lrn {i}", op, src=x)

        def gradient(diff):
            op = dnn.LRNBackward("across_channels", src=x.desc, diff_dst=x.desc, diff_src=x.desc)
            _, memories = self.add(self.backward, f"gradient of lrn {i}", op, pd, src=x,
                                   diff_dst=diff, workspace=forward["workspace"])  # fmt: skip
            return memories["diff_src"]

        self.gradients.append(gradient)
        return forward["dst"]


LAYERS = (Network.convolution, Network.relu, Network.pooling, Network.convolution, Network.lrn)
