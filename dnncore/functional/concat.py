"""Arrays side by side along one axis: `Concat`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, axis_of, brief, result_desc
from dnncore.ops import Concat

__all__ = ["concat"]


def concat(srcs: Sequence[Values], axis: int = 0, *, engine: EngineLike = None) -> Result:
    """dst is the arrays srcs side by side along the axis. A negative axis counts from the end.

    Their other dims must be equal. A size may be 0 along the axis.

    >>> concat([[[1, 2]], [[3, 4], [5, 6]]]).tolist()
    [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    """
    try:
        values = {f"src{i}": src for i, src in enumerate(srcs)}
    except TypeError:
        values = {}
    if not values:
        raise DescriptorError(
            f"concat: srcs must be a sequence of one or more arrays; got {brief(srcs)}"
        )
    return call(_concat, "concat", values, engine, axis)


def _concat(function: str, operands: dict[str, Operand], axis: int) -> Plan:
    srcs = list(operands.values())
    first = srcs[0]
    place = axis_of(function, axis, first.ndim)
    if not first.ndim:
        raise DescriptorError(f"{function}: src0 must have at least one dim; got a number")
    for name, src in operands.items():
        if src.ndim != first.ndim:
            raise DescriptorError(
                f"{function}: all arrays must have one rank; got {first.ndim} dims of src0 and"
                f" {src.ndim} of {name}"
            )
    total = sum(src.shape[place] for src in srcs)
    dims = (*first.shape[:place], total, *first.shape[place + 1 :])
    dst = result_desc(dims, first)
    return Plan(Concat(srcs=tuple(src.desc for src in srcs), dst=dst, axis=place))
