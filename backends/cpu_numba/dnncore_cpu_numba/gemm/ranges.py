"""Products of integers with scales that vary along K. Each range of K with one scale has a sum.

    x = 0, then x = x + f32(sum of a range) * (scale of A * scale of B) in order of K

Each range is a separate product that adds the sum of the ranges before it. The other terms follow
the last range.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from dnncore.backend import Attributes, MemoryDesc, Operation, OpT, Refused
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.factors import SMALL
from dnncore_cpu_numba.gemm.plan import INTEGERS, PlannedImplementation, ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct
from dnncore_cpu_numba.gemm.quantization import Terms, refuse_uniform, summed
from dnncore_cpu_numba.runtime.program import Table
from dnncore_cpu_numba.runtime.tensor import Tensor

MOST_RANGES = 1024  # each takes one or more steps


class RangedProduct(PlannedImplementation[OpT]):
    """Products of s32, for integers whose scales or zero points vary along K."""

    NAME = "cpu_numba:gemm"
    data_types: Collection[str] = (*FLOATS, *INTEGERS, *SMALL)

    def arithmetic(self, op: OpT) -> Arithmetic:
        """Return products of s32."""
        return Arithmetic("s32", "s32")

    def refused(self, op: OpT, attr: Attributes) -> Refused | None:
        """Refuse what other implementations compute faster."""
        own = refuse_uniform(op, attr) or _refuse_many(op, attr)
        return own or PlannedImplementation.refused(self, op, attr)


def _refuse_many(op: Operation, attr: Attributes) -> Refused | None:
    """Refuse more than `MOST_RANGES` ranges. Their steps would take longer than the products."""
    found = math.prod(math.lcm(*sizes) for sizes in zip(*summed(op, attr, "scales"), strict=True))
    if found <= MOST_RANGES:
        return None
    return Refused("attribute", f"takes up to {MOST_RANGES} scales along K; got {found}")


def append_ranges(
    plan: ProgramPlan, product: MatrixProduct, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    """Append a product with scales that have the rank of C.

    K is the last dim of scale_a and the last but one of scale_b.
    """
    scales = [(own, dim) for own, dim in ((scale_a, -1), (scale_b, -2)) if own is not None]
    ranges = math.lcm(*(own.desc.dims[dim] for own, dim in scales))
    dims = product.c.desc.dims
    start = Tensor(Table(np.zeros(1, np.float32)), MemoryDesc((1,) * len(dims)))
    if ranges <= 1:
        terms = product.terms.following([own for own, _ in scales] if ranges else [], start)
        dataclasses.replace(product, terms=terms).append_to(plan)
        return
    room = plan.scratch(MemoryDesc(dims))

    def append(plan: ProgramPlan, part: int, *, last: bool = False) -> None:
        terms = product.terms if last else Terms()
        own_scales = [
            _part(own, dim, part * own.desc.dims[dim] // ranges, own.desc.dims[dim])
            for own, dim in scales
        ]
        dataclasses.replace(
            product, a=_part(product.a, -1, part, ranges), b=_part(product.b, -2, part, ranges),
            c=product.c if last else room,
            terms=terms.following(own_scales, room if part else start),
        ).append_to(plan)  # fmt: skip

    append(plan, 0)
    between = [(part, 1) for part in range(1, ranges - 1)]
    if between:
        plan.repeat(between, lambda plan, part, _count: append(plan, part))
    append(plan, ranges - 1, last=True)


def _part(tensor: Tensor, dim: int, part: int, parts: int) -> Tensor:
    """Return one of `parts` equal parts along a dim."""
    dims, start = list(tensor.desc.dims), [0] * tensor.desc.ndims
    dims[dim] //= parts
    start[dim] = part * dims[dim]
    return tensor.seen_as(tensor.desc.submemory(dims, start))
