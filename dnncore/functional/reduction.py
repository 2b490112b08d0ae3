"""Sums and other reductions along dims of an array: `Reduction`.

If an element is NaN, the result is NaN. The sum along an empty dim is 0; other reductions of it
raise an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.lib.array_utils import normalize_axis_tuple

from dnncore.algorithms.reduction import check_power
from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, brief, result_desc
from dnncore.ops import EltwiseForward, Operation, Reduction, Reorder

__all__ = ["Axis", "max", "mean", "min", "norm", "prod", "sum"]

Axis = int | Sequence[int] | None


def _reduce(
    name: str, operands: dict[str, Operand], algorithm: str, axis: Axis, keepdims: bool, p: float
) -> Plan:
    x = operands["src"]
    axes = _axes(name, axis, x.ndim)
    kept = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    shape = kept if keepdims else tuple(size for i, size in enumerate(x.shape) if i not in axes)
    op: Operation
    if kept != x.shape:
        op = Reduction(algorithm, src=x.desc, dst=result_desc(kept, x), p=p)
    elif name == "norm":  # only dims of size 1 are reduced
        check_power(name, p)
        op = EltwiseForward("forward_inference", "abs", src=x.desc, dst=x.desc)
    else:
        op = Reorder(src=x.desc, dst=x.desc)
    return Plan(op, shape)


def _axes(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    try:
        return normalize_axis_tuple(axis, ndim)
    except (OverflowError, TypeError, ValueError) as error:
        raise DescriptorError(
            f"{name}: axis must be one or several of src's {ndim} dims; got {brief(axis)}: {error}"
        ) from None


def sum(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Result:
    """dst = the sum of the elements.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> sum([[1, 2], [3, 4]], axis=0).tolist()
    [4.0, 6.0]
    """
    return call(_reduce, "sum", {"src": src}, engine, "sum", axis, keepdims, 2.0)


def mean(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Result:
    """dst = the sum of the elements, divided by their number.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> mean([[1, 2], [3, 4]], axis=-1, keepdims=True).tolist()
    [[1.5], [3.5]]
    """
    return call(_reduce, "mean", {"src": src}, engine, "mean", axis, keepdims, 2.0)


def prod(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Result:
    """dst = the product of the elements, oneDNN's reduction mul.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> prod([[1, 2], [3, 4]]).item()
    24.0
    """
    return call(_reduce, "prod", {"src": src}, engine, "mul", axis, keepdims, 2.0)


def max(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Result:
    """dst = the largest element. `maximum` compares two arrays.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> max([[1, 2], [3, 4]], axis=(0, 1)).item()
    4.0
    """
    return call(_reduce, "max", {"src": src}, engine, "max", axis, keepdims, 2.0)


def min(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Result:
    """dst = the smallest element. `minimum` compares two arrays.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> min([[1, 2], [3, 4]], axis=1).tolist()
    [1.0, 3.0]
    """
    return call(_reduce, "min", {"src": src}, engine, "min", axis, keepdims, 2.0)


def norm(
    src: Values,
    axis: Axis = None,
    *,
    p: float = 2.0,
    keepdims: bool = False,
    engine: EngineLike = None,
) -> Result:
    """dst = (sum of |src|**p) ** (1 / p), oneDNN's reduction norm_lp_sum; p must be at least 1.

    src: of any shape.
    axis: the dim or dims to reduce. Negative numbers count from the end. None reduces all dims.
    keepdims: whether the reduced dims stay in the shape of dst, with size 1.

    >>> norm([3, 4]).item()
    5.0
    """
    return call(_reduce, "norm", {"src": src}, engine, "norm_lp_sum", axis, keepdims, p)
