"""Eltwise: dst = f(src), and diff_src = diff_dst * f'(src)."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore_opencl.algorithms import eltwise, eltwise_gradient, keeps_zero
from dnncore_opencl.pointwise import Pass, Pointwise


class Forward(Pointwise):
    """Any algorithm, with post-ops."""

    like: ClassVar = {"dst": "src"}

    def compute(self, op: Any, work: Pass) -> None:
        """Compute f(v0)."""
        chain = eltwise(op.algorithm, op.alpha, op.beta, "v0", work.parameters.real)
        work.then(*chain, keeps_zero=keeps_zero(op.algorithm, op.beta))


class Backward(Pointwise):
    """Any algorithm, with post-ops."""

    like: ClassVar = {"diff_dst": "src", "diff_src": "src"}

    def compute(self, op: Any, work: Pass) -> None:
        """Compute v1 * f'(v0)."""
        number = work.parameters.real
        work.then(*eltwise_gradient(op.algorithm, op.alpha, op.beta, "v0", "v1", number))


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
