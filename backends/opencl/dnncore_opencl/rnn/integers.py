"""Recurrent cells of integers: the cells of f32 with differences of integers.

A difference is an integer minus the shift. Before the first step, states become differences and
weights become f32. So the sums are exact if the shift is whole and the sums are below 2^24. A cell
multiplies a sum by a factor, which gives the number that it represents, and rounds each state to a
difference. Results become integers, or numbers, after the last step.
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

__all__ = ["STATES", "Numbers"]


STATES = ("src_layer", "src_iter", "dst_layer", "dst_iter")
"""The tensors of states, which are integers or the numbers of integers."""


class Numbers:
    """Conversions between the integers of an operation, their differences and their numbers.

    factors, projection_factors: of sums, by gate and channel.
    """

    def __init__(self, engine: Any, op: RNN, attr: Attributes) -> None:
        self.engine, self.own = engine, op.src_layer.data_type
        self.given = given = RNNQparams.of(op, attr)
        self._scale = Constant(np.array([given.scale], np.float32))
        with np.errstate(over="ignore"):
            self.factors, self.projection_factors = (
                Constant((1 / (np.float64(given.scale) * scales)).astype(np.float32))
                for scales in (given.weights, given.projection)
            )

    def refused(self) -> Refused | None:
        """Refuse scales with which numbers or factors are infinite in f32."""
        given, most_q = self.given, np.iinfo(np.uint8).max
        weights = min(float(own.min()) for own in (given.weights, given.projection))
        most = max(
            (most_q + abs(given.shift)) / given.scale, most_q / weights,
            1 / (given.scale * weights),
        )  # fmt: skip
        if most <= float(np.finfo(np.float32).max):
            return None
        text = f"numbers and factors must be finite in f32; got up to {most:.3g}"
        return Refused("attribute", f"rnn_data_qparams, rnn_weights_qparams: {text}")

    @property
    def of_zero(self) -> float:
        """The difference of the integer that represents zero best. It is 0 if the shift is a whole
        number in the range of integers.
        """
        limits = np.iinfo({"u8": np.uint8, "s8": np.int8}[self.own])
        q = np.clip(np.rint(np.float32(self.given.shift)), limits.min, limits.max)
        return float(np.float32(q - self.given.shift))

    def differences(
        self, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch
    ) -> Sequence[Launch]:
        """Return the launches that write the differences of integers to the scratchpad."""
        return self._launches((1.0, -self.given.shift), src, dst, source, Scratch())

    def integers(self, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch) -> Sequence[Launch]:
        """Return the launches that write the integers of numbers to the scratchpad."""
        return self._launches((self.given.scale, self.given.shift), src, dst, source, Scratch())

    def stored(
        self, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch, target: Arg | Scratch
    ) -> Sequence[Launch]:
        """Return the launches that write the numbers of differences to f32, else the integers."""
        if dst.data_type != "f32":
            return self._launches((1.0, self.given.shift), src, dst, source, target)
        attr = Attributes([PostOp.binary("div", MemoryDesc((1,) * src.ndims))])
        return self._passes(attr, src, dst, [source, target, self._scale])

    def _launches(
        self, step: tuple[float, float], src: MemoryDesc, dst: MemoryDesc, source: Any, target: Any
    ) -> Sequence[Launch]:
        factor, summand = step
        attr = Attributes([PostOp.eltwise("linear", alpha=factor, beta=summand)])
        return self._passes(attr, src, dst, [source, target])

    def _passes(
        self, attr: Attributes, src: MemoryDesc, dst: MemoryDesc, buffers: Sequence[Any]
    ) -> Sequence[Launch]:
        work = Pass(self.engine, [src, dst, *(desc for _, desc in attr.operands())], 1)
        work.take(Reorder(src=src, dst=dst), attr)
        work.start("v0")
        work.post_ops(attr)
        return [redirected(one, dict(enumerate(buffers))) for one in work.launches()]
