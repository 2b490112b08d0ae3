"""Reduction algorithms in OpenCL C, for scalars and vectors."""

from __future__ import annotations

import math
from typing import NamedTuple

from dnncore.backend import Reduction
from dnncore_opencl.codegen.layout import Parameters

SUM = "((a) + (b))"


class Algorithm(NamedTuple):
    """A reduction in OpenCL C, of scalars or vectors of type TYPE.

    term: the expression that maps each element x. combine: the expression that combines a and b;
    the first a is `start`. finish: the expression that maps the combined x to the result. P, EPS
    and SIZE are numbers.
    """

    start: str
    combine: str
    term: str = "x"
    finish: str = "x"


def _norm(finish: str) -> Algorithm:
    return Algorithm("0.0f", SUM, "POWER(x, TYPE)", finish)


# NaN is unequal to itself. If a or b is NaN, the result is NaN.
ALGORITHMS = {
    "max": Algorithm("-INFINITY", "((((b) > (a)) | ((b) != (b))) ? (b) : (a))"),
    "min": Algorithm("INFINITY", "((((b) < (a)) | ((b) != (b))) ? (b) : (a))"),
    "sum": Algorithm("0.0f", SUM),
    "mul": Algorithm("1.0f", "((a) * (b))"),
    "mean": Algorithm("0.0f", SUM, "x", "x / SIZE"),
    "norm_lp_max": _norm("ROOT((x < EPS ? EPS : x), TYPE)"),
    "norm_lp_sum": _norm("ROOT((x + EPS), TYPE)"),
    "norm_lp_power_p_max": _norm("x < EPS ? EPS : x"),
    "norm_lp_power_p_sum": _norm("x + EPS"),
}
# by p: |x|**p and the root, for which there is faster code than pow
POWERS = {1.0: ("fabs({})", "({})"), 2.0: ("({0} * {0})", "sqrt({})")}
POW = ("pow(fabs({}), (TYPE)(P))", "pow({}, (TYPE)(INVERSE_P))")


def reduction_defines(op: Reduction, parameters: Parameters, *, terms: bool) -> dict[str, str]:
    """Return START, COMBINE, TERM and FINISH, and the numbers that they use.

    terms: whether the kernel reads elements of src; otherwise results of an earlier stage.
    """
    number = parameters.real
    algorithm = ALGORITHMS[op.algorithm]
    power, root = POWERS.get(op.p, POW)
    numbers = {"SIZE": math.prod(op.src.dims) / op.dst.nelems, "EPS": op.eps}
    if op.is_norm and op.p not in POWERS:
        numbers |= {"P": op.p, "INVERSE_P": 1 / op.p}
    return {
        "START": algorithm.start,
        "COMBINE(a, b)": algorithm.combine,
        "TERM(x, TYPE)": algorithm.term if terms else "x",
        "FINISH(x, TYPE)": algorithm.finish,
        "POWER(x, TYPE)": power.format("(x)"),
        "ROOT(x, TYPE)": root.format("(x)"),
        **{name: number(value) for name, value in numbers.items()},
    }
