"""Binary: dst = src0 op src1, each broadcast along its dims of size 1."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Attributes, Refused
from dnncore_opencl.elementwise.algorithms import BINARY, binary, refuse_algorithm
from dnncore_opencl.elementwise.implementation import Elementwise, Pass


class Binary(Elementwise[core.Binary]):
    """Any algorithm, with post-ops."""

    attributes = (*Elementwise.attributes, "scales")
    like: ClassVar = {"dst": "src0"}

    def compute(self, op: core.Binary, attr: Attributes, work: Pass) -> None:
        """Combine the elements of src0, src1 and, as the condition of `select`, src2."""
        work.start(work.dequantized("src0"))
        others = [argument.name for argument, _ in op.tensors()[1:-1]]
        work.then(binary(op.algorithm, [f"({work.dequantized(name)})" for name in others]))
        work.post_ops(attr)

    def refuse(self, op: core.Binary, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse unknown algorithms."""
        return refuse_algorithm(op.algorithm, BINARY)


TABLE = (Binary(),)
