"""Binary: dst = src0 op src1, each broadcast along its dims of size 1."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore_opencl.algorithms import BINARY
from dnncore_opencl.pointwise import Pass, Pointwise


class Binary(Pointwise):
    """Any algorithm, with post-ops."""

    like: ClassVar = {"dst": "src0"}

    def compute(self, op: Any, work: Pass) -> None:
        """Combine each pair of elements."""
        work.then(BINARY[op.algorithm].format("v0", "v1"))


TABLE = (Binary(),)
