"""How far off a right result may be.

A result y of K accumulated products, computed with f32's unit roundoff u, is right if

    |y - ref| <= eps * |ref| + growth(K) * u * magnitude + tiny
    growth(K) = min(K, 8 * sqrt(K))

where magnitude is the same result computed from absolute values, so that cancellation is not held
against y. eps is twice the roundoff of y's type, since the reference is rounded as well; f16 and
bf16 differ in nothing else. The square root is for long sums, where rounding errors cancel (Higham
and Mary 2019, "A new approach to probabilistic rounding error analysis"). Where `fpmath` allows f32
to be rounded to fewer bits before it is multiplied, so much of the magnitude is added.

An elementary function may cost the roundings that OpenCL allows it; an ulp is two roundings. The
records of `dnncore.algorithms` state how many, and of what size. Along a chain of post-ops an error
goes wherever the next step takes x - error and x + error. This module computes all terms but the
first and the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.algorithms.rounding import DIVISION, ROUNDOFF, growth, power_error
from dnncore.attributes import Attributes, PostOp
from dnncore.ops import (
    Binary,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    EltwiseBackward,
    EltwiseForward,
    InnerProductBackwardWeights,
    LRNBackward,
    LRNForward,
    MatMul,
    Operation,
    PoolingBackward,
    PoolingForward,
    Reduction,
    Reorder,
    SoftmaxBackward,
    SoftmaxForward,
    Sum,
)
from dnncore.ops.convolution import Convolution
from dnncore.ops.inner_product import InnerProduct
from dnncore.ops.window import effective_kernel
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["noise"]

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
Evaluate = Callable[[Operation, Attributes, Inputs], dict[str, Array]]

_TILE = 8  # cells at most that Winograd transforms at once: F(6x6, 3x3) is the largest in use
_PLAIN = Attributes()
_MATRIX = (Convolution, InnerProduct, MatMul)  # what fpmath is about
# The roundoff of what it allows; "any" is the coarsest.
_FPMATH = {"tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-9, "any": 2.0**-9}


def noise(
    op: Operation,
    attr: Attributes,
    inputs: Inputs,
    evaluate: Evaluate,
    workspace_error: Array | None = None,
) -> dict[str, Array]:
    """The error allowed to each float output before it is stored; outputs without any are left out.

    evaluate: computes the outputs of an operation as the reference does. workspace_error: absolute
    errors of the workspace that `op` reads; None is an exact workspace.
    """
    with np.errstate(all="ignore"):
        errors = _operation(op, inputs, evaluate)
        if isinstance(op, LRNBackward) and workspace_error is not None:
            errors[op.result_name] += _lrn_workspace(op, inputs, workspace_error, evaluate)
        for name, lost in _lost_by_factors(op, attr, inputs, evaluate).items():
            errors[name] += lost
        name = op.result_name
        if attr.post_ops:
            x = evaluate(op, _PLAIN, inputs)[name]
            error = errors.get(name, np.zeros(x.shape))
            for i, step in enumerate(attr.post_ops):
                operands = {
                    f"post_op_0_{own}": inputs[f"post_op_{i}_{own}"] for own, _ in step.operands
                }
                x, error = _through(step, x, error, operands, inputs.get(name), evaluate)
            errors[name] = error
    return errors


# -- operations -----------------------------------------------------------------------------------


def _operation(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    rule = _RULES.get(type(op))
    return rule(op, inputs, evaluate) if rule else _accumulated(op, inputs, evaluate)


def _lost_by_factors(
    op: Operation, attr: Attributes, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Array]:
    """What is lost where both factors of every product are rounded, as `fpmath` allows of f32."""
    roundoff = _FPMATH.get(attr.fpmath, 0.0)
    if not roundoff or op.data_type != "f32" or not isinstance(op, _MATRIX):
        return {}
    sizes = evaluate(op, _PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    return {name: 2 * roundoff * size.astype(np.float64) for name, size in sizes.items()}


def _accumulated(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Sums of products, from absolute values."""
    terms = 1.0 + op.flops / (2.0 * max(1, op.result.nelems))
    sizes = evaluate(op, _PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    return {
        name: growth(terms) * ROUNDOFF * size.astype(np.float64) for name, size in sizes.items()
    }


def _convolution(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Winograd's algorithm adds up products of all cells near a window with all of its weights."""
    if op.algorithm == "direct":
        return _accumulated(op, inputs, evaluate)
    groups, oc, ic, *taps = op.grouped_weights
    weights = np.abs(inputs["weights"].astype(np.float64))
    weights = weights.reshape(groups, oc, ic, math.prod(taps)).sum(axis=-1)
    if isinstance(op, ConvolutionForward):
        image = inputs[op.SRC]
    else:
        image, weights = inputs[op.DST], weights.swapaxes(1, 2)
    image = _seen(op, image)
    image = image.reshape(len(image), groups, weights.shape[-1], math.prod(op.result.dims[2:]))
    sizes = (weights @ image).reshape(op.result.dims)
    if "bias" in inputs:
        sizes += np.abs(inputs["bias"]).reshape(-1, *[1] * len(taps))
    return {op.result_name: growth(1.0 + ic * math.prod(taps)) * ROUNDOFF * sizes}


def _seen(op: Any, image: Array) -> Array:
    """The largest cell of an image that a tile around each place of the other image holds."""
    image = np.abs(image.astype(np.float64))
    for dim, reaches in enumerate(_reaches(op)):
        image = _largest(image, 2 + dim, reaches)
    return image


def _reaches(op: Any) -> Iterator[list[slice]]:
    """For each spatial dim and place of the other image: the cells that a tile around it holds."""
    backward = isinstance(op, ConvolutionBackwardData)
    places = op.src_role if backward else op.dst_role
    for dim, size in enumerate(places.dims[2:]):
        stride, left = op.strides[dim], op.padding_l[dim]
        span = effective_kernel(op.grouped_weights[3 + dim], op.dilations[dim])
        ends = (
            (-(-(i + left - span + 1) // stride), (i + left) // stride + 1)
            if backward
            else (i * stride - left, i * stride - left + span)
            for i in range(size)
        )
        yield [slice(max(0, first - _TILE), max(0, end + _TILE)) for first, end in ends]


def _largest(image: Array, axis: int, reaches: Sequence[slice]) -> Array:
    """The largest values along an axis within each of some stretches of it."""
    image = np.moveaxis(image, axis, 0)
    largest = [image[reach].max(axis=0, initial=0.0) for reach in reaches]
    return np.moveaxis(np.array(largest).reshape(len(reaches), *image.shape[1:]), 0, axis)


def _weights(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Gradients of weights, and of bias, which sums up whole channels of diff_dst."""
    errors = _accumulated(op, inputs, evaluate)
    if "diff_bias" in errors:
        terms = op.dst_role.nelems / max(1, op.diff_bias.nelems)
        sizes = np.abs(inputs["diff_dst"].astype(np.float64))
        axes = tuple(axis for axis in range(sizes.ndim) if axis != 1)
        errors["diff_bias"] = growth(terms) * ROUNDOFF * sizes.sum(axis=axes)
    return errors


def _convolution_weights(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Winograd's algorithm adds up, for each tap, products with all cells near a window."""
    errors = _weights(op, inputs, evaluate)
    if op.algorithm == "direct":
        return errors
    groups, oc, ic, *taps = op.grouped_weights
    images, _, *pixels = op.diff_dst.dims
    count = images * math.prod(pixels)

    def by_channel(image: Array, channels: int) -> Array:
        return np.moveaxis(image, 1, 0).reshape(groups, channels, count)

    gradients = by_channel(np.abs(inputs["diff_dst"].astype(np.float64)), oc)
    sizes = gradients @ by_channel(_seen(op, inputs["src"]), ic).swapaxes(1, 2)
    sizes = np.broadcast_to(sizes.reshape(groups, oc, ic, *[1] * len(taps)), op.grouped_weights)
    terms = 1.0 + math.prod(taps) + count  # the transforms round, too
    errors["diff_weights"] = growth(terms) * ROUNDOFF * sizes.reshape(op.diff_weights.dims)
    return errors


def _exact(_op: Any, _inputs: Inputs, _evaluate: Evaluate) -> dict[str, Array]:
    """What only moves values, or rounds them once when they are stored."""
    return {}


def _sum(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    return _accumulated(replace(op, scales=tuple(map(abs, op.scales))), inputs, evaluate)


def _binary(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    roundings = BINARY[op.algorithm].roundings
    if not roundings:
        return {}
    return {
        "dst": roundings * ROUNDOFF * np.abs(evaluate(op, _PLAIN, inputs)["dst"].astype(np.float64))
    }


def _eltwise(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    src = inputs["src"].astype(np.float64)
    dst = evaluate(op, _PLAIN, inputs)["dst"].astype(np.float64)
    return {"dst": ELTWISE[op.function].error.bound(src, dst, op.alpha, op.beta)}


def _eltwise_backward(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    kept = inputs["dst" if op.uses_dst else "src"]
    ones = {"diff_dst": np.ones(kept.shape), **{k: v for k, v in inputs.items() if v is kept}}
    slope = evaluate(op, _PLAIN, ones)["diff_src"].astype(np.float64)
    record = ELTWISE[op.function]
    error = record.slope_of_dst_error if op.uses_dst else record.slope_error
    assert error is not None  # each algorithm with a gradient has one
    errors = error.bound(kept.astype(np.float64), slope, op.alpha, op.beta)
    return {"diff_src": errors * np.abs(inputs["diff_dst"].astype(np.float64))}


def _pooling(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Maxima only move values, and their gradient adds some up.

    An average of n terms takes n - 1 additions. Each term, or their sum, is divided by the number
    of cells: in one rounding, or in two as a product with a rounded reciprocal, whose own error
    OpenCL allows to be 2.5 ulp. An element of a gradient has as many terms as windows see it.
    """
    if isinstance(op, PoolingForward) and op.is_max:
        return {}
    sizes = evaluate(op, _PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    size = sizes[op.result_name].astype(np.float64)
    roundings = _terms(op, inputs, evaluate) - 1.0
    if not op.is_max:
        roundings += DIVISION + 1.0
    return {op.result_name: growth(roundings) * ROUNDOFF * size}


def _terms(op: Any, inputs: Inputs, evaluate: Evaluate) -> Array:
    """The number of terms that pooling adds up, per element of its result, at least 1."""
    ones = {name: a if name == "workspace" else np.ones_like(a) for name, a in inputs.items()}
    if op.is_max:
        total = evaluate(op, _PLAIN, ones)[op.result_name]
    else:
        op = replace(op, algorithm="avg_include_padding")
        total = evaluate(op, _PLAIN, ones)[op.result_name] * math.prod(op.kernel)
    return np.maximum(np.rint(total.astype(np.float64)), 1.0)


def _reduction(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    roundings = REDUCTION[op.algorithm].roundings(op.flops / max(1, op.dst.nelems))
    if not roundings:
        return {}
    sizes = evaluate(op, _PLAIN, {"src": np.abs(inputs["src"])})["dst"].astype(np.float64)
    return {"dst": roundings * ROUNDOFF * sizes}


def _softmax(op: Any, inputs: Inputs, _evaluate: Evaluate) -> dict[str, Array]:
    """The rounding of src - max, by its size times u, is an absolute error of the exponent."""
    src = inputs["src"].astype(np.float64)
    shifted = src - src.max(op.axis, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(op.axis, keepdims=True)
    if op.algorithm == "log":
        size: Array = 1.0 + np.abs(shifted) + np.abs(np.log(total))
    else:
        shifted = np.maximum(shifted, -1e3)  # where exp is 0, before 0 * inf becomes NaN
        size = np.exp(shifted) / total * (1.0 + np.abs(shifted))
    return {"dst": (growth(op.src.dims[op.axis]) + 16) * ROUNDOFF * size}


def _softmax_backward(op: Any, inputs: Inputs, _evaluate: Evaluate) -> dict[str, Array]:
    """An exponent dst has an absolute error of its own size times u."""
    dst, diff = (inputs[name].astype(np.float64) for name in ("dst", "diff_dst"))
    diff, size = np.abs(diff), np.abs(dst)
    if op.algorithm == "log":
        size = diff + np.exp(dst) * (1.0 + size) * diff.sum(op.axis, keepdims=True)
    else:
        size = size * (diff + (diff * size).sum(op.axis, keepdims=True))
    return {"diff_src": (growth(op.dst.dims[op.axis]) + 16) * ROUNDOFF * size}


def _lrn(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """The base is a sum; its relative error grows by beta in the power."""
    training = replace(op, prop_kind="forward_training")
    values = evaluate(training, _PLAIN, inputs)
    positive = replace(training, alpha=abs(op.alpha), k=abs(op.k))
    sums = evaluate(positive, _PLAIN, inputs)["workspace"].astype(np.float64)
    terms = 3.0 + op.flops / (2.0 * max(1, op.dst.nelems))
    base_error = growth(terms) * ROUNDOFF * sums
    base, dst = (values[name].astype(np.float64) for name in ("workspace", "dst"))
    relative = abs(op.beta) * base_error / np.abs(base) + power_error(base, op.beta)
    errors = {"dst": relative * np.abs(dst), "workspace": base_error}
    return errors if op.prop_kind == "forward_training" else {"dst": errors["dst"]}


def _lrn_backward(op: Any, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    base = np.abs(inputs["workspace"].astype(np.float64))
    terms = 4.0 + op.flops / (2.0 * max(1, op.src.nelems))
    relative = growth(terms) * ROUNDOFF + float(power_error(base, op.beta + 1).max(initial=0.0))
    own, shared = _lrn_terms(op, inputs, evaluate)
    return {"diff_src": relative * (own + shared)}


def _lrn_workspace(op: Any, inputs: Inputs, error: Array, evaluate: Evaluate) -> Array:
    """The relative error of a base grows by the power to which each term takes it."""
    relative = error / np.abs(inputs["workspace"].astype(np.float64))
    scaled = {**inputs, "diff_dst": relative * inputs["diff_dst"]}
    own, shared = _lrn_terms(op, scaled, evaluate)
    error_of_both: Array = abs(op.beta) * own + abs(op.beta + 1) * shared
    return error_of_both


def _lrn_terms(op: Any, inputs: Inputs, evaluate: Evaluate) -> tuple[Array, Array]:
    """Both terms of the gradient from absolute values.

    The reference returns their difference, and one of them is a product.
    """
    sizes = {name: np.abs(array) for name, array in inputs.items()}
    base = sizes["workspace"].astype(np.float64)
    positive = replace(op, alpha=abs(op.alpha), beta=abs(op.beta))
    difference = evaluate(positive, _PLAIN, sizes)["diff_src"].astype(np.float64)
    own = sizes["diff_dst"] * base ** -abs(op.beta)
    shared = own - difference
    if op.beta < 0:
        own = sizes["diff_dst"] * base**-op.beta
        shared *= float((base ** (2 * abs(op.beta))).max(initial=0.0))
    return own, np.abs(shared)


_RULES: dict[type[Operation], Callable[[Any, Inputs, Evaluate], dict[str, Array]]] = {
    Binary: _binary,
    ConvolutionBackwardData: _convolution,
    ConvolutionBackwardWeights: _convolution_weights,
    ConvolutionForward: _convolution,
    EltwiseBackward: _eltwise_backward,
    EltwiseForward: _eltwise,
    InnerProductBackwardWeights: _weights,
    LRNBackward: _lrn_backward,
    LRNForward: _lrn,
    PoolingBackward: _pooling,
    PoolingForward: _pooling,
    Reduction: _reduction,
    Reorder: _exact,
    SoftmaxBackward: _softmax_backward,
    SoftmaxForward: _softmax,
    Sum: _sum,
}


# -- post-ops -------------------------------------------------------------------------------------


def _through(
    step: PostOp, x: Array, error: Array, operands: Inputs, old: Array | None, evaluate: Evaluate
) -> tuple[Array, Array]:
    """The value after a step, and its error: that of the step, and what it makes of the former."""
    desc = MemoryDesc(x.shape, "f32")
    op = EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    before = {} if old is None else {"dst": old}

    def value(x: Array) -> Array:
        inputs = {"src": x, **before, **operands}
        return evaluate(op, Attributes((step,)), inputs)["dst"].astype(np.float64)

    x = x.astype(np.float64)
    reach = error + 2 * ROUNDOFF * np.abs(x)  # no less than the distance of two float32
    y = value(x)
    grown = np.maximum(np.abs(value(x + reach) - y), np.abs(value(x - reach) - y))
    return y, np.where(error > 0, grown, 0.0) + POST_OPS[step.kind].error(step, x, y, old)
