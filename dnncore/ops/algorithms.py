"""The algorithm names that operations and post-ops share, and what their parameters mean."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Real

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "BINARY_ALGORITHMS",
    "ELTWISE_ALGORITHMS",
    "USE_DST",
    "USE_DST_ALGORITHMS",
    "check_algorithm",
    "check_condition",
    "check_eltwise",
    "check_finite",
]

_LARGEST = float(np.finfo(np.float32).max)

# In all of them NaN gives NaN.
ELTWISE_ALGORITHMS = {
    "abs": "|s|",
    "clip": "min(max(s, alpha), beta)",
    "clip_v2": "min(max(s, alpha), beta), with slope 0 at both limits",
    "elu": "s if s > 0 else alpha * (exp(s) - 1)",
    "exp": "exp(s)",
    "gelu_erf": "s / 2 * (1 + erf(s / sqrt(2)))",
    "gelu_tanh": "s / 2 * (1 + tanh(sqrt(2 / pi) * (s + 0.044715 * s**3)))",
    "hardsigmoid": "max(0, min(1, alpha * s + beta))",
    "hardswish": "s * max(0, min(1, alpha * s + beta))",
    "linear": "alpha * s + beta",
    "log": "log(s)",
    "logistic": "1 / (1 + exp(-s))",
    "mish": "s * tanh(log(1 + exp(s)))",
    "pow": "alpha * s**beta",
    "relu": "s if s > 0 else alpha * s",
    "round": "s rounded to the nearest whole number, ties to even; no gradient",
    "soft_relu": "log(1 + exp(alpha * s)) / alpha",
    "sqrt": "sqrt(s)",
    "square": "s * s",
    "swish": "s / (1 + exp(-alpha * s))",
    "tanh": "tanh(s)",
}

# Behind these algorithms' names the suffix says that the gradient is computed from dst, not src.
USE_DST = "_use_dst_for_bwd"
USE_DST_ALGORITHMS = ("clip_v2", "elu", "exp", "logistic", "relu", "sqrt", "tanh")

# A comparison gives 1 or 0. In max and min NaN wins, whichever input it is.
BINARY_ALGORITHMS = {
    "add": "src0 + src1",
    "sub": "src0 - src1",
    "mul": "src0 * src1",
    "div": "src0 / src1",
    "max": "max(src0, src1)",
    "min": "min(src0, src1)",
    "ge": "src0 >= src1",
    "gt": "src0 > src1",
    "le": "src0 <= src1",
    "lt": "src0 < src1",
    "eq": "src0 == src1",
    "ne": "src0 != src1",
    "select": "src0 if src2 else src1",
}


def check_algorithm(what: str, algorithm: object, known: Collection[str]) -> None:
    """Raise `DescriptorError` unless `algorithm` is one of `known`."""
    if not isinstance(algorithm, str) or algorithm not in known:
        raise DescriptorError(
            f"{what}: unknown algorithm {algorithm!r}; choose one of {', '.join(known)}"
        )


def check_eltwise(what: str, algorithm: object, alpha: object, beta: object) -> str:
    """Return the function's name, that is `algorithm` without the suffix about the gradient.

    Raises `DescriptorError` unless the algorithm exists and its parameters are numbers it can take.
    """
    known = (*ELTWISE_ALGORITHMS, *(name + USE_DST for name in USE_DST_ALGORITHMS))
    check_algorithm(what, algorithm, known)
    check_finite(what, alpha=alpha, beta=beta)
    alpha, beta = float(alpha), float(beta)  # type: ignore[arg-type]  # checked to be numbers
    name = str(algorithm)
    function = name.removesuffix(USE_DST)
    rules = {
        "clip": (alpha <= beta, "beta >= alpha"),
        "clip_v2": (alpha <= beta, "beta >= alpha"),
        "soft_relu": (alpha != 0, "alpha != 0, as in log(1 + exp(alpha * s)) / alpha"),
    }
    if name in ("relu" + USE_DST, "elu" + USE_DST):
        # A negative slope would give dst the same sign on both sides of 0.
        rules[function] = (alpha >= 0, "alpha >= 0")
    ok, rule = rules.get(function, (True, ""))
    if not ok:
        raise DescriptorError(f"{what}: {name} needs {rule}; got alpha {alpha}, beta {beta}")
    return function


def check_condition(what: str, algorithm: str, src2: MemoryDesc | None) -> None:
    """Raise `DescriptorError` unless src2, an s8 tensor, is given for `select` and for it alone."""
    if (algorithm == "select") != (src2 is not None):
        raise DescriptorError(
            f"{what}: src2, the s8 condition, belongs to select alone; got {algorithm}"
            f" {'without' if src2 is None else 'with'} src2"
        )
    if isinstance(src2, MemoryDesc) and src2.data_type != "s8":
        raise DescriptorError(f"{what}: src2 must be of type s8; got {src2.data_type}")


def check_finite(what: str, **values: object) -> None:
    """Raise `DescriptorError` unless each value, told by its name, is finite in float32."""
    for name, value in values.items():
        if not isinstance(value, Real) or not _is_finite(value):
            raise DescriptorError(
                f"{what}: {name} must be a finite number of float32; got {value!r}"
            )


def _is_finite(value: Real) -> bool:
    try:
        return abs(float(value)) <= _LARGEST
    except OverflowError:  # an integer beyond every float
        return False
