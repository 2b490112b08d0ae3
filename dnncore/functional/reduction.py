"""Sums and other reductions along dims of an array: `Reduction`.

axis: the dim or dims to reduce. Negative ones count from the end. None reduces all dims.
keepdims: whether the reduced dims stay in the shape, with size 1.

If an element is NaN, the result is NaN. An empty dim cannot be reduced and raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from dnncore.algorithms.reduction import check_power
from dnncore.errors import DescriptorError
from dnncore.functional.call import (
    Array,
    EngineLike,
    Values,
    arrays,
    desc,
    opened,
    result_desc,
    run,
)
from dnncore.ops import Reduction

__all__ = ["Axis", "max", "mean", "min", "norm", "prod", "sum"]

Axis = int | Sequence[int] | None


def _reduce(
    name: str,
    algorithm: str,
    src: Values,
    axis: Axis,
    keepdims: bool,
    engine: EngineLike,
    p: float = 2.0,
) -> Array:
    tensors = arrays(name, src=src)
    x = tensors["src"]
    axes = _axes(name, axis, x.ndim)
    kept = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    shape = kept if keepdims else tuple(size for i, size in enumerate(x.shape) if i not in axes)
    if kept == x.shape:  # only dims of size 1 are reduced
        opened(engine)
        check_power(name, p)
        return (np.abs(x) if name == "norm" else x.copy()).reshape(shape)
    op = Reduction(algorithm, src=desc(x), dst=result_desc(kept, x), p=p)
    return run(op, tensors, engine).reshape(shape)


def _axes(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    try:
        return normalize_axis_tuple(axis, ndim)
    except (OverflowError, TypeError, ValueError) as error:
        raise DescriptorError(
            f"{name}: axis must be one or several of src's {ndim} dims; got {axis!r}: {error}"
        ) from None


def sum(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Array:
    """dst = the sum of the elements.

    >>> sum([[1, 2], [3, 4]], axis=0).tolist()
    [4.0, 6.0]
    """
    return _reduce("sum", "sum", src, axis, keepdims, engine)


def mean(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Array:
    """dst = the sum of the elements, divided by their number.

    >>> mean([[1, 2], [3, 4]], axis=-1, keepdims=True).tolist()
    [[1.5], [3.5]]
    """
    return _reduce("mean", "mean", src, axis, keepdims, engine)


def prod(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Array:
    """dst = the product of the elements, oneDNN's reduction mul.

    >>> prod([[1, 2], [3, 4]]).item()
    24.0
    """
    return _reduce("prod", "mul", src, axis, keepdims, engine)


def max(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Array:
    """dst = the largest element. `maximum` compares two arrays.

    >>> max([[1, 2], [3, 4]], axis=(0, 1)).item()
    4.0
    """
    return _reduce("max", "max", src, axis, keepdims, engine)


def min(
    src: Values, axis: Axis = None, *, keepdims: bool = False, engine: EngineLike = None
) -> Array:
    """dst = the smallest element. `minimum` compares two arrays.

    >>> min([[1, 2], [3, 4]], axis=1).tolist()
    [1.0, 3.0]
    """
    return _reduce("min", "min", src, axis, keepdims, engine)


def norm(
    src: Values,
    axis: Axis = None,
    *,
    p: float = 2.0,
    keepdims: bool = False,
    engine: EngineLike = None,
) -> Array:
    """dst = (sum of |src|**p) ** (1 / p), oneDNN's reduction norm_lp_sum; p must be at least 1.

    >>> norm([3, 4]).item()
    5.0
    """
    return _reduce("norm", "norm_lp_sum", src, axis, keepdims, engine, p)
