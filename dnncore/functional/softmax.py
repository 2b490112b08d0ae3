"""Softmax and its logarithm: `SoftmaxForward`."""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, axis_of
from dnncore.ops import SoftmaxForward

__all__ = ["log_softmax", "softmax"]


def _softmax(name: str, operands: dict[str, Operand], algorithm: str, axis: int) -> Plan:
    x = operands["src"]
    place = axis_of(name, axis, x.ndim)
    op = SoftmaxForward("forward_inference", algorithm, src=x.desc, dst=x.desc, axis=place)
    return Plan(op, x.shape)


def softmax(src: Values, axis: int = -1, *, engine: EngineLike = None) -> Result:
    """dst = exp(src) / sum of exp(src) along the axis. A negative axis counts from the end.

    The largest element is subtracted first, so nothing overflows.

    >>> softmax([[1, 1, 1000], [5, 5, -1000]]).tolist()
    [[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]
    """
    return call(_softmax, "softmax", {"src": src}, engine, "accurate", axis)


def log_softmax(src: Values, axis: int = -1, *, engine: EngineLike = None) -> Result:
    """dst = src - log(sum of exp(src) along the axis), the logarithm of `softmax`.

    >>> log_softmax([0, 1000]).tolist()
    [-1000.0, 0.0]
    """
    return call(_softmax, "log_softmax", {"src": src}, engine, "log", axis)
