"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore.backend import Attributes, Refused
from dnncore_opencl.pointwise import Pass, Pointwise

MOST_SRCS = 32  # a device need only take 1024 bytes of arguments; a src takes 12, and strides


class Sum(Pointwise):
    """All srcs in one pass, with post-ops."""

    like: ClassVar = {"dst": "src0"}

    def compute(self, op: Any, attr: Attributes, work: Pass) -> None:
        """Add up the scaled elements."""
        terms = [f"{work.parameters.real(scale)} * v{i}" for i, scale in enumerate(op.scales)]
        work.start(" + ".join(terms))
        work.keeps_zero = any(scale > 0 for scale in op.scales)  # else they add up to -0
        work.post_ops(attr)

    def refuse(self, op: Any, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse more srcs than a kernel takes arguments."""
        if len(op.srcs) > MOST_SRCS:
            return Refused("resources", f"{len(op.srcs)} srcs; a kernel takes at most {MOST_SRCS}")
        return None


TABLE = (Sum(),)
