"""Exchange of elements between groups: `ShuffleForward`."""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, axis_of
from dnncore.ops import ShuffleForward

__all__ = ["shuffle"]


def shuffle(src: Values, group_size: int, axis: int = 1, *, engine: EngineLike = None) -> Result:
    """dst[u * (C / G) + v] = src[v * G + u] along the axis, with C elements and groups of G.

    src: of any shape. dst has the same shape. u counts up to G, and v up to C / G.
    group_size: G, a divisor of C.

    torch's `channel_shuffle(src, g)` has g groups of C / g channels: `group_size` is C // g. A
    negative axis counts from the end. (X. Zhang et al. 2018, "ShuffleNet".)

    >>> shuffle([1, 2, 3, 4, 5, 6], 3, axis=0).tolist()
    [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    """
    return call(_shuffle, "shuffle", {"src": src}, engine, group_size, axis)


def _shuffle(function: str, operands: dict[str, Operand], group_size: int, axis: int) -> Plan:
    x = operands["src"]
    place = axis_of(function, axis, x.ndim)
    op = ShuffleForward(
        "forward_inference", src=x.desc, dst=x.desc, axis=place, group_size=group_size
    )
    return Plan(op, x.shape)
