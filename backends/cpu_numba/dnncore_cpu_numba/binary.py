"""Binary: dst = src0 op src1, both broadcast."""

from __future__ import annotations

from dnncore.backend import Binary
from dnncore_cpu_numba.elementwise.implementation import ElementWise
from dnncore_cpu_numba.elementwise.post_ops import binary

SRC1 = 2  # number in the chain's tensors: dst, src0, src1
TABLE = (ElementWise[Binary](lambda op: [binary(op.algorithm, SRC1)]),)
