"""Sums of several arrays: `Sum`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, brief
from dnncore.ops import Sum

__all__ = ["weighted_sum"]


def weighted_sum(
    srcs: Sequence[Values], scales: Sequence[float] | None = None, *, engine: EngineLike = None
) -> Result:
    """dst = scales[0] * srcs[0] + scales[1] * srcs[1] + ..., with arrays of one shape.

    scales: a number for each array; by default 1.

    >>> weighted_sum([[1, 2], [3, 4], [5, 6]], [1, 10, 100]).tolist()
    [531.0, 642.0]
    """
    try:
        values = {f"src{i}": src for i, src in enumerate(srcs)}
        factors = tuple(map(float, (1.0,) * len(values) if scales is None else scales))
    except (TypeError, ValueError):
        values = {}
    if not values:
        raise DescriptorError(
            "weighted_sum: srcs must be a sequence of one or more arrays and scales one of numbers;"
            f" got {brief(srcs)} and {brief(scales)}"
        )
    return call(_sum, "weighted_sum", values, engine, factors)


def _sum(_function: str, operands: dict[str, Operand], scales: tuple[float, ...]) -> Plan:
    first, *_ = operands.values()
    srcs = tuple(src.desc for src in operands.values())
    return Plan(Sum(scales, srcs=srcs, dst=first.desc), first.shape)
