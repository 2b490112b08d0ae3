"""Eltwise: dst = f(src), and diff_src = diff_dst * f', with f' computed from src or from dst."""

from __future__ import annotations

from typing import ClassVar

from dnncore.backend import Attributes, EltwiseBackward, EltwiseForward
from dnncore_opencl.elementwise.algorithms import eltwise, eltwise_gradient
from dnncore_opencl.elementwise.implementation import Elementwise, Pass


class Forward(Elementwise[EltwiseForward]):
    """Any algorithm, with post-ops."""

    like: ClassVar = {"dst": "src"}

    def compute(self, op: EltwiseForward, attr: Attributes, work: Pass) -> None:
        """Compute f(v0)."""
        work.start("v0")
        work.then(eltwise(op.function, op.alpha, op.beta, work.parameters.real))
        work.post_ops(attr)


class Backward(Elementwise[EltwiseBackward]):
    """Any algorithm, with post-ops."""

    like: ClassVar = {"diff_dst": "kept", "diff_src": "kept"}

    def compute(self, op: EltwiseBackward, attr: Attributes, work: Pass) -> None:
        """Compute v1 times the slope at v0, which is src or dst."""
        number, uses_dst = work.parameters.real, op.uses_dst
        work.start("v0")
        work.then(eltwise_gradient(op.function, op.alpha, op.beta, "v1", number, uses_dst=uses_dst))
        work.post_ops(attr)


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
