"""Binary: dst = src0 op src1, both broadcast."""

from __future__ import annotations

from typing import Any

from dnncore_cpu_numba.elementwise.implementation import ElementWise
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary

SRC1 = 2  # its number in the chain: dst, src0, src1


def _stages(op: Any) -> list[Stage]:
    return [binary(op.algorithm, SRC1)]


TABLE = (ElementWise(_stages),)
