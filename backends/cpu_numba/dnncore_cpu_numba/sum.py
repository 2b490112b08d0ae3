"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Refused, Sum
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS, chain_steps
from dnncore_cpu_numba.elementwise.implementation import ElementWise, efficiency, offered
from dnncore_cpu_numba.elementwise.post_ops import Stage, add, eltwise
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

SRCS = MAX_TENSORS - 2  # sources that one pass adds; the other tensors are dst and its old values


def _scaled_sum(scales: Sequence[float]) -> list[Stage]:
    """Return the stages of x = scales[0] * x + scales[1] * tensor 2 + ..."""
    first, *others = scales
    if not others:
        return [] if first == 1.0 else [eltwise("linear", first)]
    return [add(i, scale, first if i == 2 else 1.0) for i, scale in enumerate(others, 2)]


class SumImplementation(ElementWise[Sum]):
    """One chain or, for many tensors, several chains. Later chains add to dst."""

    def accepted(
        self, op: Sum, attr: Attributes, engine: Any, stages: Sequence[Stage]
    ) -> Accepted | Refused:
        """Accept any number of tensors."""
        if len(op.srcs) + 1 + len(attr.operands()) <= MAX_TENSORS:
            return super().accepted(op, attr, engine, stages)
        steps = partial(_passes, op)
        return offered(op, attr, engine, steps, in_f32=True, efficiency=efficiency(stages))


def _passes(op: Sum, dst: Tensor) -> list[Step]:
    """Return the steps of several chains. Each adds at most `SRCS` tensors."""
    *srcs, _ = arguments(op).values()
    steps: list[Step] = []
    for first in range(0, len(srcs), SRCS):
        part = slice(first, first + SRCS)
        tensors = [dst, *([dst] if first else []), *srcs[part]]
        scales = [*([1.0] if first else []), *op.scales[part]]
        steps += chain_steps(op.dst.dims, tensors, _scaled_sum(scales))
    return steps


TABLE = (SumImplementation(lambda op: _scaled_sum(op.scales)),)
