"""Recurrent cells of integers: the cells of f32 with the numbers that the integers represent.

Inputs and weights become numbers before the first step. A cell rounds each state to the number of
an integer. Results become integers after the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import RNN, Attributes, MemoryDesc, PostOp, Refused, Reorder, RNNQparams
from dnncore_opencl.copies.staging import redirected
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Constant, Scratch

__all__ = ["Numbers"]


class Numbers:
    """Conversions between the integers of an operation and their numbers."""

    def __init__(self, engine: Any, op: RNN, attr: Attributes) -> None:
        self.engine, self.own = engine, op.src_layer.data_type
        self.given = RNNQparams.of(op, attr)
        with np.errstate(over="ignore"):
            self.inverse = np.float32(1 / self.given.scale)
            weights, projection = (
                (1 / scales).astype(np.float32)
                for scales in (self.given.weights, self.given.projection)
            )
        self.of_weights = {
            "weights_layer": weights, "weights_iter": weights, "weights_projection": projection,
        }  # fmt: skip

    def refused(self) -> Refused | None:
        """Refuse scales with which integers represent numbers that are infinite in f32."""
        given, most_q = self.given, np.iinfo(np.uint8).max
        weights = min(float(own.min()) for own in (given.weights, given.projection))
        most = max((most_q + abs(given.shift)) / given.scale, most_q / weights)
        if most <= float(np.finfo(np.float32).max):
            return None
        text = f"numbers of integers must be finite in f32; got up to {most:.3g}"
        return Refused("attribute", f"rnn_data_qparams, rnn_weights_qparams: {text}")

    @property
    def of_zero(self) -> float:
        """The number of the integer that represents zero best. It differs from 0 if the shift is
        no integer.
        """
        limits = np.iinfo({"u8": np.uint8, "s8": np.int8}[self.own])
        q = np.clip(np.rint(np.float32(self.given.shift)), limits.min, limits.max)
        return float(np.float32((q - self.given.shift) / self.given.scale))

    def decoded(
        self, name: str, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch
    ) -> Sequence[Launch]:
        """Return the launches that write the numbers of a tensor of integers to the scratchpad."""
        factors = self.of_weights.get(name)
        if factors is None:
            steps = (1.0, -self.given.shift), (float(self.inverse), 0.0)
            return self._launches(_linear(*steps), src, dst, [source, Scratch()])
        dims = (*(1,) * (src.ndims - factors.ndim), *factors.shape)
        attr = Attributes([PostOp.binary("mul", MemoryDesc(dims))])
        return self._launches(attr, src, dst, [source, Scratch(), Constant(factors)])

    def encoded(
        self, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch, target: Arg | Scratch
    ) -> Sequence[Launch]:
        """Return the launches that write the integers of numbers."""
        attr = _linear((self.given.scale, self.given.shift))
        return self._launches(attr, src, dst, [source, target])

    def _launches(
        self, attr: Attributes, src: MemoryDesc, dst: MemoryDesc, buffers: Sequence[Any]
    ) -> Sequence[Launch]:
        work = Pass(self.engine, [src, dst, *(desc for _, desc in attr.operands())], 1)
        work.take(Reorder(src=src, dst=dst), attr)
        work.start("v0")
        work.post_ops(attr)
        return [redirected(one, dict(enumerate(buffers))) for one in work.launches()]


def _linear(*steps: tuple[float, float]) -> Attributes:
    return Attributes([PostOp.eltwise("linear", alpha=a, beta=b) for a, b in steps])
