"""Element-wise functions of two arrays: `Binary`.

Arrays of different shapes are broadcast as in numpy: dims of size 1 are repeated, and missing
leading dims count as 1. A comparison returns the numbers 1 or 0. NaN is not equal to any number.
"""

from __future__ import annotations

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.functional.call import (
    Array,
    EngineLike,
    Values,
    arrays,
    descs,
    result_desc,
    run,
    truth,
)
from dnncore.ops import Binary

__all__ = [
    "add",
    "div",
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "ne",
    "sub",
    "where",
]


def _binary(
    name: str, src0: Values, src1: Values, engine: EngineLike, algorithm: str = "", **more: Array
) -> Array:
    tensors = {**arrays(name, src0=src0, src1=src1), **more}
    shape = _broadcast(name, tensors)
    rank = max(1, len(shape))
    tensors = {k: a.reshape((1,) * (rank - a.ndim) + a.shape) for k, a in tensors.items()}
    op = Binary(algorithm or name, dst=result_desc(shape, tensors["src0"]), **descs(tensors))
    return run(op, tensors, engine).reshape(shape)


def _broadcast(name: str, tensors: dict[str, Array]) -> tuple[int, ...]:
    shapes = [array.shape for array in tensors.values()]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise DescriptorError(
            f"{name}: the shapes of {', '.join(tensors)} must broadcast: from the last dim on, dims"
            f" must be equal or 1; got {', '.join(map(str, shapes))}"
        ) from None


def add(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = src0 + src1.

    >>> add([[1], [2]], [10, 20]).tolist()
    [[11.0, 21.0], [12.0, 22.0]]
    """
    return _binary("add", src0, src1, engine)


def sub(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = src0 - src1.

    >>> sub([3, 2], 1).tolist()
    [2.0, 1.0]
    """
    return _binary("sub", src0, src1, engine)


def mul(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = src0 * src1.

    >>> mul([3, 2], [2, 5]).tolist()
    [6.0, 10.0]
    """
    return _binary("mul", src0, src1, engine)


def div(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = src0 / src1.

    >>> div([3, 2], 4).tolist()
    [0.75, 0.5]
    """
    return _binary("div", src0, src1, engine)


def maximum(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = the larger of src0 and src1, oneDNN's binary max; NaN in either gives NaN.

    >>> maximum([3, 2], [1, 5]).tolist()
    [3.0, 5.0]
    """
    return _binary("maximum", src0, src1, engine, "max")


def minimum(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = the smaller of src0 and src1, oneDNN's binary min; NaN in either gives NaN.

    >>> minimum([3, 2], [1, 5]).tolist()
    [1.0, 2.0]
    """
    return _binary("minimum", src0, src1, engine, "min")


def ge(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 >= src1, else 0.

    >>> ge([1, 2, 3], 2).tolist()
    [0.0, 1.0, 1.0]
    """
    return _binary("ge", src0, src1, engine)


def gt(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 > src1, else 0.

    >>> gt([1, 2, 3], 2).tolist()
    [0.0, 0.0, 1.0]
    """
    return _binary("gt", src0, src1, engine)


def le(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 <= src1, else 0.

    >>> le([1, 2, 3], 2).tolist()
    [1.0, 1.0, 0.0]
    """
    return _binary("le", src0, src1, engine)


def lt(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 < src1, else 0.

    >>> lt([1, 2, 3], 2).tolist()
    [1.0, 0.0, 0.0]
    """
    return _binary("lt", src0, src1, engine)


def eq(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 equals src1, else 0.

    >>> eq([1, 2, 3], 2).tolist()
    [0.0, 1.0, 0.0]
    """
    return _binary("eq", src0, src1, engine)


def ne(src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = 1 where src0 does not equal src1, else 0.

    >>> ne([1, 2, 3], 2).tolist()
    [1.0, 0.0, 1.0]
    """
    return _binary("ne", src0, src1, engine)


def where(condition: Values, src0: Values, src1: Values, *, engine: EngineLike = None) -> Array:
    """dst = src0 where the condition is not 0, else src1: oneDNN's binary select.

    condition: booleans or numbers of any type, broadcast with src0 and src1.

    >>> where([True, False], [1, 2], 0).tolist()
    [1.0, 0.0]
    """
    chosen = truth("where: condition", condition)
    tensors = arrays("where", condition=chosen, src0=src0, src1=src1)
    shape = _broadcast("where", tensors)
    a, b = tensors["src0"], tensors["src1"]
    if np.broadcast_shapes(a.shape, b.shape) != shape:  # select does not broadcast src0
        a = np.broadcast_to(a, shape).copy()
    return _binary("where", a, b, engine, "select", src2=chosen.astype(np.int8))
