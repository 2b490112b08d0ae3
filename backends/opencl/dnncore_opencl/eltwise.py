"""Eltwise: dst = f(src), and diff_src = diff_dst * f', with f' computed from src or from dst."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore.backend import Attributes, EltwiseBackward, EltwiseForward, Refused
from dnncore_opencl.codegen.vectors import WITH_F64
from dnncore_opencl.elementwise.algorithms import (
    ELTWISE,
    SLOPES,
    SLOPES_OF_DST,
    eltwise,
    eltwise_gradient,
    refuse_algorithm,
)
from dnncore_opencl.elementwise.implementation import Elementwise, Pass


class Forward(Elementwise[EltwiseForward]):
    """Any algorithm, with post-ops."""

    data_types = WITH_F64
    like: ClassVar = {"dst": "src"}

    def compute(self, op: EltwiseForward, attr: Attributes, work: Pass) -> None:
        """Compute f(v0)."""
        work.start("v0")
        work.then(eltwise(op.function, op.alpha, op.beta, work.parameters))
        work.post_ops(attr)

    def refuse(self, op: EltwiseForward, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse unknown algorithms."""
        return refuse_algorithm(op.function, ELTWISE)


class Backward(Elementwise[EltwiseBackward]):
    """Any algorithm, with post-ops."""

    data_types = WITH_F64
    like: ClassVar = {"diff_dst": "kept", "diff_src": "kept"}

    def compute(self, op: EltwiseBackward, attr: Attributes, work: Pass) -> None:
        """Compute v1 times the slope at v0, which is src or dst."""
        numbers, uses_dst = work.parameters, op.uses_dst
        work.start("v0")
        work.then(
            eltwise_gradient(op.function, op.alpha, op.beta, "v1", numbers, uses_dst=uses_dst)
        )
        work.post_ops(attr)

    def refuse(self, op: EltwiseBackward, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse algorithms whose slope is unknown."""
        return refuse_algorithm(op.function, SLOPES_OF_DST if op.uses_dst else SLOPES)


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
