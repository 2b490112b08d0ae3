"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

from typing import Any

from dnncore_cpu_numba.elementwise import ElementWise
from dnncore_cpu_numba.post_ops import Stage, add, eltwise

__all__ = ["TABLE"]


def _stages(op: Any) -> list[Stage]:
    first, *others = op.scales
    stages = [] if first == 1.0 else [eltwise("linear", first)]
    return stages + [add(i, scale) for i, scale in enumerate(others, 2)]


TABLE = (ElementWise(_stages),)
