"""How far off a right result may be.

A result y of K accumulated products, computed with unit roundoff u, is right if

    |y - ref| <= eps * |ref| + (growth(K) + steps) * u * magnitude + tiny
    growth(K) = min(K, 8 * sqrt(K))

where magnitude is the same result computed from absolute values, so that cancellation is not held
against y, and steps are the roundings of element-wise parts. eps is twice u, since the reference is
rounded as well. The square root is for long sums, where rounding errors cancel (Higham and Mary
2019, "A new approach to probabilistic rounding error analysis").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.attributes import Attributes, PostOp
from dnncore.ops import (
    EltwiseBackward,
    EltwiseForward,
    Operation,
    PoolingForward,
    Reorder,
    SoftmaxBackward,
    SoftmaxForward,
    Sum,
)

__all__ = ["majorant", "roundings"]

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]

# Per eltwise algorithm: (a, b, r) with |f(x)| <= a * |x| + b and |f'(x)| <= a for all x, and r the
# roundings that f may cost: OpenCL allows tanh 5 ulp and exp 3, an ulp being two roundings.
_ELTWISE: dict[str, Callable[[float, float], tuple[float, float, int]]] = {
    "relu": lambda alpha, _beta: (max(1.0, abs(alpha)), 0.0, 1),
    "tanh": lambda _alpha, _beta: (1.0, 0.0, 16),
    "logistic": lambda _alpha, _beta: (0.25, 0.5, 16),
    "linear": lambda alpha, beta: (abs(alpha), abs(beta), 2),
}


def roundings(op: Operation, attr: Attributes) -> float:
    """growth(K) + steps of the bound; 0 where only the result is rounded, when it is stored."""
    terms, steps = _terms_and_steps(op)
    steps += sum(_steps(post_op) for post_op in attr.post_ops)
    return min(terms, 8.0 * math.sqrt(terms)) + steps


def _terms_and_steps(op: Any) -> tuple[float, int]:
    if isinstance(op, PoolingForward | Reorder):
        return 0.0, 0
    if isinstance(op, SoftmaxForward | SoftmaxBackward):
        return float(op.result.dims[op.axis]), 16
    if isinstance(op, EltwiseForward | EltwiseBackward):
        return 0.0, 2 + _bounds(op)[2]
    return 1.0 + op.flops / (2.0 * max(1, op.result.nelems)), 0


def _steps(post_op: PostOp) -> int:
    return _bounds(post_op)[2] if post_op.kind == "eltwise" else 2


def _bounds(step: Any) -> tuple[float, float, int]:
    return _ELTWISE[step.algorithm](step.alpha, step.beta)


def majorant(op: Any, attr: Attributes, inputs: Inputs) -> tuple[Any, Attributes, Inputs]:
    """The problem whose result is the magnitude of this one's.

    Inputs and coefficients become absolute values, and each element-wise function the straight line
    above it that is nowhere less steep, so that earlier errors grow along it at least as much.
    """
    sizes = {name: np.abs(array) for name, array in inputs.items()}
    if type(op) in _MAGNITUDES:
        with np.errstate(all="ignore"):
            sizes["src"] = _MAGNITUDES[type(op)](op, inputs).astype(op.result.dtype)
        sizes["dst"] = sizes.get(op.result_name, sizes["src"])
        desc = op.result
        op = EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    elif isinstance(op, EltwiseForward | EltwiseBackward):
        alpha, beta, _ = _bounds(op)
        op = replace(op, algorithm="linear", alpha=alpha, beta=beta)
    elif isinstance(op, Sum):
        op = replace(op, scales=tuple(map(abs, op.scales)))
    return op, Attributes(tuple(map(_majorant_step, attr.post_ops))), sizes


def _majorant_step(step: PostOp) -> PostOp:
    if step.kind == "eltwise":
        alpha, beta, _ = _bounds(step)
        return PostOp.eltwise("linear", alpha, beta)
    return replace(step, scale=abs(step.scale))


def _softmax(op: Any, inputs: Inputs) -> Array:
    """Of dst; the rounding of src - max, by its size times u, is an absolute error."""
    src = inputs["src"].astype(np.float64)
    shifted = src - src.max(op.axis, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(op.axis, keepdims=True)
    if op.algorithm == "log":
        magnitude: Array = 1.0 + np.abs(shifted) + np.abs(np.log(total))
    else:
        shifted = np.maximum(shifted, -1e3)  # where exp is 0, before 0 * inf becomes NaN
        magnitude = np.exp(shifted) / total * (1.0 + np.abs(shifted))
    return magnitude


def _softmax_backward(op: Any, inputs: Inputs) -> Array:
    """Of diff_src; an exponent dst has an absolute error of its own size times u."""
    dst, diff = (inputs[name].astype(np.float64) for name in ("dst", "diff_dst"))
    diff, size = np.abs(diff), np.abs(dst)
    if op.algorithm == "log":
        magnitude: Array = diff + np.exp(dst) * (1.0 + size) * diff.sum(op.axis, keepdims=True)
    else:
        magnitude = size * (diff + (diff * size).sum(op.axis, keepdims=True))
    return magnitude


# For operations that absolute values of the inputs alone do not bound.
_MAGNITUDES: dict[type[Operation], Callable[[Any, Inputs], Array]] = {
    SoftmaxForward: _softmax,
    SoftmaxBackward: _softmax_backward,
}
