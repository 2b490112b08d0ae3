"""Element-wise functions of two arrays: `Binary`.

Arrays of different shapes are broadcast as in numpy: dims of size 1 are repeated, and missing
leading dims count as 1. A comparison returns the numbers 1 or 0. NaN is not equal to any number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Array, Operand, Result, Values, descs, result_desc, truth
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


def _binary(function: str, operands: dict[str, Operand], algorithm: str) -> Plan:
    shape = _broadcast(function, operands)
    rank = max(1, len(shape))
    operands = {name: operand.with_rank(rank) for name, operand in operands.items()}
    op = Binary(algorithm, dst=result_desc(shape, operands["src0"]), **descs(operands))
    return Plan(op, shape)


def _broadcast(name: str, operands: dict[str, Operand]) -> tuple[int, ...]:
    shapes = [operand.shape for operand in operands.values()]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise DescriptorError(
            f"{name}: the shapes of {', '.join(operands)} must broadcast: from the last dim on,"
            f" dims must be equal or 1; got {', '.join(map(str, shapes))}"
        ) from None


def add(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = src0 + src1. Shapes are broadcast as in numpy.

    >>> add([[1], [2]], [10, 20]).tolist()
    [[11.0, 21.0], [12.0, 22.0]]
    """
    return call(_binary, "add", {"src0": src0, "src1": src1}, engine, "add")


def sub(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = src0 - src1. Shapes are broadcast as in numpy.

    >>> sub([3, 2], 1).tolist()
    [2.0, 1.0]
    """
    return call(_binary, "sub", {"src0": src0, "src1": src1}, engine, "sub")


def mul(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = src0 * src1. Shapes are broadcast as in numpy.

    >>> mul([3, 2], [2, 5]).tolist()
    [6.0, 10.0]
    """
    return call(_binary, "mul", {"src0": src0, "src1": src1}, engine, "mul")


def div(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = src0 / src1. Shapes are broadcast as in numpy.

    >>> div([3, 2], 4).tolist()
    [0.75, 0.5]
    """
    return call(_binary, "div", {"src0": src0, "src1": src1}, engine, "div")


def maximum(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = the larger of src0 and src1, NaN if one is. Shapes are broadcast as in numpy.

    >>> maximum([3, 2], [1, 5]).tolist()
    [3.0, 5.0]
    """
    return call(_binary, "maximum", {"src0": src0, "src1": src1}, engine, "max")


def minimum(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = the smaller of src0 and src1, NaN if one is. Shapes are broadcast as in numpy.

    >>> minimum([3, 2], [1, 5]).tolist()
    [1.0, 2.0]
    """
    return call(_binary, "minimum", {"src0": src0, "src1": src1}, engine, "min")


def ge(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 >= src1, else 0. Shapes are broadcast as in numpy.

    >>> ge([1, 2, 3], 2).tolist()
    [0.0, 1.0, 1.0]
    """
    return call(_binary, "ge", {"src0": src0, "src1": src1}, engine, "ge")


def gt(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 > src1, else 0. Shapes are broadcast as in numpy.

    >>> gt([1, 2, 3], 2).tolist()
    [0.0, 0.0, 1.0]
    """
    return call(_binary, "gt", {"src0": src0, "src1": src1}, engine, "gt")


def le(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 <= src1, else 0. Shapes are broadcast as in numpy.

    >>> le([1, 2, 3], 2).tolist()
    [1.0, 1.0, 0.0]
    """
    return call(_binary, "le", {"src0": src0, "src1": src1}, engine, "le")


def lt(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 < src1, else 0. Shapes are broadcast as in numpy.

    >>> lt([1, 2, 3], 2).tolist()
    [1.0, 0.0, 0.0]
    """
    return call(_binary, "lt", {"src0": src0, "src1": src1}, engine, "lt")


def eq(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 equals src1, else 0. Shapes are broadcast as in numpy.

    >>> eq([1, 2, 3], 2).tolist()
    [0.0, 1.0, 0.0]
    """
    return call(_binary, "eq", {"src0": src0, "src1": src1}, engine, "eq")


def ne(src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 where src0 does not equal src1, else 0. Shapes are broadcast as in numpy.

    >>> ne([1, 2, 3], 2).tolist()
    [1.0, 0.0, 1.0]
    """
    return call(_binary, "ne", {"src0": src0, "src1": src1}, engine, "ne")


def where(condition: Values, src0: Values, src1: Values, *, engine: EngineLike = None) -> Result:
    """dst = src0 where the condition is not 0, else src1: oneDNN's binary select.

    condition: booleans or numbers of any type, broadcast with src0 and src1.

    >>> where([True, False], [1, 2], 0).tolist()
    [1.0, 0.0]
    """
    values = {"condition": condition, "src0": src0, "src1": src1}
    return call(_where, "where", values, engine)


def _where(function: str, operands: dict[str, Operand]) -> Plan:
    shape = _broadcast(function, operands)
    a, b = operands["src0"], operands["src1"]
    names = {"condition": "src2"}
    prepared: dict[str, Callable[[Array], Array]] = {"condition": truth}
    if np.broadcast_shapes(a.shape, b.shape) != shape:  # select does not broadcast src0
        a = a.reshape(*shape)
        prepared["src0"] = functools.partial(np.broadcast_to, shape=shape)
    condition = Operand(operands["condition"].shape, np.dtype(np.int8))
    plan = _binary(function, {"src0": a, "src1": b, "src2": condition}, "select")
    return Plan(plan.op, shape, names=names, prepared=prepared)
