"""Eltwise forward and backward."""

from __future__ import annotations

from dnncore.backend import EltwiseBackward, EltwiseForward
from dnncore_cpu_numba.elementwise.implementation import ElementWise
from dnncore_cpu_numba.elementwise.post_ops import Stage, eltwise, gradient

DIFF_DST = 2  # number in the chain's tensors: diff_src, src or dst, diff_dst


def _slope(op: EltwiseBackward) -> list[Stage]:
    return [gradient(op.function, op.alpha, op.beta, DIFF_DST, of_dst=op.uses_dst)]


FORWARD = (ElementWise[EltwiseForward](lambda op: [eltwise(op.function, op.alpha, op.beta)]),)
BACKWARD = (ElementWise(_slope),)
