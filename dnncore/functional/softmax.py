"""Softmax and its logarithm: `SoftmaxForward`.

The largest element is subtracted first, so nothing overflows.
"""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, axis_of, is_true
from dnncore.ops import SoftmaxForward
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["log_softmax", "softmax"]


def _softmax(name: str, operands: dict[str, Operand], algorithm: str, axis: int, lse: bool) -> Plan:
    x = operands["src"]
    place = axis_of(name, axis, x.ndim)
    kept = tuple(1 if dim == place else size for dim, size in enumerate(x.shape))
    op = SoftmaxForward(
        "forward_inference",
        algorithm,
        src=x.desc,
        dst=x.desc,
        lse=MemoryDesc(kept or (1,), "f32") if is_true(name, "lse", lse) else None,
        axis=place,
    )
    return Plan(op, x.shape, more={"lse": kept} if lse else {})


def softmax(src: Values, axis: int = -1, *, lse: bool = False, engine: EngineLike = None) -> Result:
    """dst = exp(src) / sum of exp(src) along the axis.

    src: of any shape. dst has the same shape.
    axis: the dim along which the sum is taken. A negative axis counts from the end.
    lse: whether to return a pair: dst and log(sum of exp(src) along the axis), which is float32 and
        of src's shape, but 1 along the axis.

    >>> softmax([[1, 1, 1000], [5, 5, -1000]]).tolist()
    [[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]
    >>> dst, sums = softmax([[1000, 0], [5, -1000]], lse=True)
    >>> sums.tolist()
    [[1000.0], [5.0]]
    """
    return call(_softmax, "softmax", {"src": src}, engine, "accurate", axis, lse)


def log_softmax(
    src: Values, axis: int = -1, *, lse: bool = False, engine: EngineLike = None
) -> Result:
    """dst = src - log(sum of exp(src) along the axis), the logarithm of `softmax`.

    src: of any shape. dst has the same shape.
    axis: the dim along which the sum is taken. A negative axis counts from the end.
    lse: whether to return a pair: dst and log(sum of exp(src) along the axis), which is float32 and
        of src's shape, but 1 along the axis.

    >>> log_softmax([0, 1000]).tolist()
    [-1000.0, 0.0]
    """
    return call(_softmax, "log_softmax", {"src": src}, engine, "log", axis, lse)
