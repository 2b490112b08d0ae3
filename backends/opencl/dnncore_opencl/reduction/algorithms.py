"""What reductions combine, in OpenCL C on scalars and vectors alike."""

from __future__ import annotations

import math
from typing import NamedTuple

from dnncore.backend import Reduction
from dnncore_opencl.codegen.layout import Parameters

SUM = "((a) + (b))"


class Algorithm(NamedTuple):
    """Reduction in OpenCL C, of scalars and vectors of a type TYPE.

    combine: a and b, beginning with `start`. term: what is combined of each x. finish: the result
    of the x that comes out. P, EPS and SIZE are numbers.
    """

    start: str
    combine: str
    term: str = "x"
    finish: str = "x"


def _norm(finish: str) -> Algorithm:
    return Algorithm("0.0f", SUM, "POWER(x, TYPE)", finish)


# NaN is unequal to itself; once there, it stays.
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
# p: |x|**p and the root, where that is quicker than pow
POWERS = {1.0: ("fabs({})", "({})"), 2.0: ("({0} * {0})", "sqrt({})")}
POW = ("pow(fabs({}), (TYPE)(P))", "pow({}, (TYPE)(INVERSE_P))")


def reduction_defines(op: Reduction, parameters: Parameters, *, terms: bool) -> dict[str, str]:
    """START, COMBINE, TERM and FINISH, and the numbers that they need.

    terms: whether these are made of src's elements, or are what an earlier stage left.
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
