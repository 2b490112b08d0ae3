"""Algorithms that operations and post-ops share, as statements in OpenCL C.

Statements replace `x` by a new value. They serve scalars and vectors: LANES follows each type's
name and stands for the number of elements or for nothing. A `real` is a float or, if tensors are
f64, a double (`with_lanes` in `codegen/vectors.py`). A comparison of vectors gives a mask per lane.
?: accepts such a mask if at least one of its two choices is a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dnncore.backend import Attributes, PostOp, Refused
from dnncore_opencl.codegen.layout import Parameters


class Step(NamedTuple):
    """Statements that replace `x`. keeps_zero: whether zeros give +0."""

    text: str
    keeps_zero: bool = True


ONE, ZERO = "(realLANES)(1.0f)", "(realLANES)(0.0f)"
LINE = "const realLANES line = {alpha} * s + {beta};"
UNIT = f"{LINE} realLANES unit = line < 0.0f ? 0.0f : line; unit = unit > 1.0f ? 1.0f : unit;"
# The normal distribution's tail, and its `share` below s; Abramowitz and Stegun, 7.1.26.
NORMAL = (
    "const realLANES r = 1.0f / (1.0f + 0.23164189f * fabs(s)), bell = exp(-0.5f * s * s),"
    " tail = bell * r * (0.1274148f + r * (-0.14224837f + r * (0.71070687f"
    " + r * (-0.726576f + r * 0.53070271f)))), share = s > 0.0f ? 1.0f - tail : tail;"
)
# tanh(log(1 + e)) = n / (n + 2) with n = (1 + e)^2 - 1. Beyond 20 it is 1, and n would overflow.
SOFTPLUS = (
    "const realLANES q = s > 20.0f ? 20.0f : s, e = exp(q), n = e * (e + 2.0f),"
    " ratio = n / (n + 2.0f);"
)
# The slope of the logistic function is even. With e = exp(-|t|) this formula neither overflows nor
# cancels. The slope of tanh(t) is four times the slope of the logistic function at 2 t.
BELL = "(e / ((1.0f + e) * (1.0f + e)))"

# x = f(s). (1 + tanh(t)) / 2 is the logistic function at 2 t, so gelu_tanh needs only exp. If
# exp(-s) overflows to infinity, the quotient is correctly 0.
ELTWISE = {
    "abs": "x = fabs(s);",
    "clip": "x = s < {alpha} ? {alpha} : s; x = x > {beta} ? {beta} : x;",
    "clip_v2": "x = s < {alpha} ? {alpha} : s; x = x > {beta} ? {beta} : x;",
    "elu": (  # exp(s) - 1 without cancellation
        "const realLANES h = tanh(0.5f * s); x = s > 0.0f ? s : {alpha} * (2.0f * h / (1.0f - h));"
    ),
    "exp": "x = exp(s);",
    "gelu_erf": f"{NORMAL} x = s * share;",
    "gelu_tanh": "x = s / (1.0f + exp(-1.5957691216057308f * s * (1.0f + 0.044715f * s * s)));",
    "hardsigmoid": f"{UNIT} x = unit;",
    "hardswish": f"{UNIT} x = s * unit;",
    "linear": "x = {alpha} * s + {beta};",
    "log": "x = log(s);",
    "logistic": "x = 1.0f / (1.0f + exp(-s));",
    "mish": f"{SOFTPLUS} x = s * ratio;",
    "pow": "x = {alpha} * {power};",
    "relu": "x = s > 0.0f ? s : {alpha} * s;",
    "relu without slope": "x = s <= 0.0f ? 0.0f : s;",  # 0 * -inf would be NaN
    "round": "x = rint(s);",
    "soft_relu": (  # log(1 + e) = 2 atanh(z), whose series ends at z^13 since z is below 1/3
        "const realLANES t = {alpha} * s, e = exp(-fabs(t)), z = e / (e + 2.0f), q = z * z,"
        " rest = z + z * q * (0.33333333f + q * (0.2f + q * (0.14285714f + q * (0.11111111f"
        " + q * (0.09090909f + q * 0.07692308f)))));"
        " x = (t > 0.0f ? s : 0.0f) + 2.0f * rest / {alpha};"
    ),
    "sqrt": "x = sqrt(s);",
    "square": "x = s * s;",
    "swish": (  # exp(t) might underflow although s * exp(t) does not
        "const realLANES t = {alpha} * s, root = exp(-0.5f * fabs(t));"
        " x = (t > 0.0f ? s : s * root * root) / (1.0f + root * root);"
    ),
    "tanh": "x = tanh(s);",
}

# In f64, where truncated series are not exact enough.
ELTWISE_OF_DOUBLES = {
    "elu": "x = s > 0.0f ? s : {alpha} * expm1(s);",
    "gelu_erf": "x = 0.5f * s * erfc(-0.7071067811865476f * s);",
    "soft_relu": (
        "const realLANES t = {alpha} * s;"
        " x = (t > 0.0f ? s : 0.0f) + log1p(exp(-fabs(t))) / {alpha};"
    ),
}

# x = f'(s)
SLOPES = {
    "abs": f"x = s > 0.0f ? {ONE} : s < 0.0f ? -{ONE} : s;",
    "clip": f"x = (s > {{alpha}}) & (s <= {{beta}}) ? {ONE} : {ZERO};",
    "clip_v2": f"x = (s > {{alpha}}) & (s < {{beta}}) ? {ONE} : {ZERO};",
    "elu": "x = s > 0.0f ? 1.0f : {alpha} * exp(s);",
    "exp": "x = exp(s);",
    "gelu_erf": f"{NORMAL} x = share + s * (0.39894228f * bell);",
    "gelu_tanh": (  # beyond 10, where the slope is 1 or 0, infinity would be multiplied by 0
        "const realLANES q = s > 10.0f ? 10.0f : s < -10.0f ? -10.0f : s,"
        " g = 1.5957691216057308f * q * (1.0f + 0.044715f * q * q), e = exp(-fabs(g));"
        " x = (q > 0.0f ? 1.0f : e) / (1.0f + e)"
        f" + q * {BELL} * (1.5957691216057308f * (1.0f + 0.134145f * q * q));"
    ),
    "hardsigmoid": (f"{LINE} x = (line > 0.0f) & (line < 1.0f) ? (realLANES)({{alpha}}) : {ZERO};"),
    "hardswish": f"{LINE} x = line >= 1.0f ? 1.0f : line > 0.0f ? {{alpha}} * s + line : 0.0f;",
    "linear": "x = {alpha};",
    "log": "x = 1.0f / s;",
    "logistic": f"const realLANES e = exp(-fabs(s)); x = {BELL};",
    "mish": f"{SOFTPLUS} x = ratio + q * (4.0f * e * (1.0f + e) / ((n + 2.0f) * (n + 2.0f)));",
    "pow": "x = {alpha} * {beta} * {power};",
    "constant": "x = 0.0f;",
    "relu": f"x = s > 0.0f ? {ONE} : (realLANES)({{alpha}});",
    "soft_relu": (  # exp(-t) might be too large for 1 / exp(-t) in full precision
        "const realLANES t = {alpha} * s, e = exp(-fabs(t));"
        " x = (t > 0.0f ? 1.0f : e) / (1.0f + e);"
    ),
    "sqrt": "x = 0.5f / sqrt(s);",
    "square": "x = 2.0f * s;",
    "swish": (  # beyond 128, where the slope is 1 or 0, infinity would be multiplied by 0
        "const realLANES t = {alpha} * s,"
        " q = t > 128.0f ? 128.0f : t < -128.0f ? -128.0f : t, e = exp(-fabs(q));"
        f" x = (q > 0.0f ? 1.0f : e) / (1.0f + e) + q * {BELL};"
    ),
    "tanh": f"const realLANES e = exp(-2.0f * fabs(s)); x = 4.0f * {BELL};",
}

SLOPES_OF_DOUBLES = {
    "gelu_erf": (
        "x = 0.5f * erfc(-0.7071067811865476f * s)"
        " + s * (0.3989422804014327f * exp(-0.5f * s * s));"
    ),
}

# x = f' as an expression of s, the value of f
SLOPES_OF_DST = {
    "clip_v2": SLOPES["clip_v2"],
    "elu": "x = s > 0.0f ? 1.0f : s + {alpha};",
    "exp": "x = s;",
    "logistic": "x = s * (1.0f - s);",
    "relu": SLOPES["relu"],
    "sqrt": "x = 0.5f / s;",
    "tanh": "x = (1.0f - s) * (1.0f + s);",
}

# x = x op operand. NaN is unequal to itself. If x or the operand is NaN, so are max and min.
BINARY = {
    "add": "x = x + {0};",
    "sub": "x = x - {0};",
    "mul": "x = x * {0};",
    "div": "x = x / {0};",
    "max": "x = ((x > {0}) | (x != x)) ? x : {0};",
    "min": "x = ((x < {0}) | (x != x)) ? x : {0};",
    "ge": f"x = x >= {{0}} ? {ONE} : {ZERO};",
    "gt": f"x = x > {{0}} ? {ONE} : {ZERO};",
    "le": f"x = x <= {{0}} ? {ONE} : {ZERO};",
    "lt": f"x = x < {{0}} ? {ONE} : {ZERO};",
    "eq": f"x = x == {{0}} ? {ONE} : {ZERO};",
    "ne": f"x = x != {{0}} ? {ONE} : {ZERO};",
    "select": "x = convert_intLANES({1}) != 0 ? x : {0};",
}

# The algorithms per kind of post-op; "" for kinds without algorithms.
POST_OP_WORDS = ("operand_types", "sum_zero_point")  # of attributes
POST_OPS = {"eltwise": set(ELTWISE), "sum": {""}, "binary": set(BINARY), "prelu": {""}}

# Common powers, because drivers' pow is slow.
POWERS = {
    0: ONE, 1: "s", 2: "(s * s)", 3: "(s * s * s)", -1: "(1.0f / s)",
    0.5: "fabs(sqrt(isinf(s) ? fabs(s) : s))",  # as pow: infinite at -infinity, 0 at -0
}  # fmt: skip

# Whether zeros may not give +0, depending on alpha and beta. A negative factor gives -0.
CHANGES_ZERO: dict[str, Callable[[float, float], bool]] = {
    "clip": lambda alpha, beta: not alpha <= 0 <= beta,
    "clip_v2": lambda alpha, beta: not alpha <= 0 <= beta,
    "elu": lambda alpha, _beta: alpha < 0,
    "exp": lambda *_: True,
    "hardsigmoid": lambda _alpha, beta: beta > 0,
    "linear": lambda _alpha, beta: beta != 0,
    "log": lambda *_: True,
    "logistic": lambda *_: True,
    "pow": lambda alpha, beta: alpha < 0 or beta <= 0,
    "relu": lambda alpha, _beta: alpha < 0,
    "soft_relu": lambda *_: True,
}
INFINITE_SLOPE = ("log", "pow", "sqrt")  # at 0, for some parameters
SIGNED_SLOPE = ("elu", "hardsigmoid", "linear", "relu")  # at 0 it may have the sign of alpha
LIMITED = ("clip", "clip_v2")  # their slopes end at limits that are rounded to f32
BINARY_CHANGES_ZERO = ("div", "ge", "le", "eq")


def refuse_algorithm(algorithm: str, known: Collection[str]) -> Refused | None:
    """Refuse an operation whose algorithm is unknown."""
    return None if algorithm in known else Refused("algorithm", f"has no algorithm {algorithm!r}")


def refuse_post_ops(attr: Attributes) -> Refused | None:
    """Refuse a chain with an unknown kind of post-op or an unknown algorithm."""
    for step in attr.post_ops:
        if step.algorithm not in POST_OPS.get(step.kind, ()):
            return Refused("attribute", f"has no post-op {step.kind} {step.algorithm}".rstrip())
    return None


def eltwise(function: str, alpha: float, beta: float, parameters: Parameters) -> Step:
    """Return x = function(x). Alpha and beta become parameters."""
    texts = ELTWISE | (ELTWISE_OF_DOUBLES if parameters.is_wide else {})
    text = texts["relu without slope" if function == "relu" and alpha == 0 else function]
    keeps_zero = function not in CHANGES_ZERO or not CHANGES_ZERO[function](alpha, beta)
    return Step(_of_s(text, alpha, beta, beta, parameters), keeps_zero)


def eltwise_gradient(
    function: str,
    alpha: float,
    beta: float,
    gradient: str,
    parameters: Parameters,
    *,
    uses_dst: bool,
) -> Step:
    """Return x = gradient * function'(x). uses_dst: whether x is the value of the function."""
    wide = SLOPES_OF_DOUBLES if parameters.is_wide else {}
    slopes = SLOPES_OF_DST if uses_dst else SLOPES | wide
    text = slopes["constant" if function == "pow" and beta == 0 else function]
    negative = function in SIGNED_SLOPE and alpha < 0
    if function in LIMITED:
        alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    return Step(
        f"{_of_s(text, alpha, beta, beta - 1, parameters)} x = {gradient} * x;",
        keeps_zero=function not in INFINITE_SLOPE and not negative,
    )


def binary(algorithm: str, operands: Sequence[str]) -> Step:
    """Return x = algorithm(x, *operands)."""
    return Step(BINARY[algorithm].format(*operands), algorithm not in BINARY_CHANGES_ZERO)


def chain(
    post_ops: Iterable[PostOp], operands: Iterable[str], old: str, parameters: Parameters
) -> list[Step]:
    """Return the steps of a chain of post-ops.

    operands: the expressions of all steps' operands, in order. old: the expression of dst's old
    value.
    """
    waiting = iter(operands)
    return [
        _post_op(post_op, [next(waiting) for _ in post_op.operands], old, parameters)
        for post_op in post_ops
    ]


def _post_op(post_op: PostOp, operands: Sequence[str], old: str, parameters: Parameters) -> Step:
    number = parameters.real
    match post_op.kind:
        case "eltwise":
            return eltwise(post_op.algorithm, post_op.alpha, post_op.beta, parameters)
        case "sum":
            zero_point = f" - {number(float(post_op.zero_point))}" if post_op.zero_point else ""
            step = f"x = x + {number(post_op.scale)} * ({old}{zero_point});"
            return Step(step, keeps_zero=not zero_point)
        case "binary":
            return binary(post_op.algorithm, operands)
        case "prelu":
            return Step(f"x = x > 0.0f ? x : {operands[0]} * x;")
        case "depthwise":
            raise AssertionError("the core gives it only to implementations that list it")


def _of_s(text: str, alpha: float, beta: float, exponent: float, parameters: Parameters) -> str:
    """Return the statements with `s` for the old x, with numbers and a power of s filled in."""
    number = parameters.real
    if "{power}" in text:
        power = POWERS.get(exponent) or f"pow(s, (realLANES)({number(exponent)}))"
        text = text.replace("{power}", power)
    numbers = {
        name: number(value)
        for name, value in (("alpha", alpha), ("beta", beta))
        if f"{{{name}}}" in text
    }
    return f"{{ const realLANES s = x; {text.format(**numbers)} }}"
