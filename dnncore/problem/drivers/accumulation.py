"""The noise of sums of products, which several drivers share."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.algorithms.rounding import Array, Noise, summed
from dnncore.attributes import Attributes
from dnncore.ops import (
    ConvolutionBackwardWeights,
    DeconvolutionBackwardWeights,
    InnerProductBackwardWeights,
    Operation,
)
from dnncore.problem.drivers.driver import Evaluate, Inputs

__all__ = ["PLAIN", "absolute", "accumulated", "exact", "norms", "number_of_terms", "sum_along",
           "weights_errors"]  # fmt: skip

PLAIN = Attributes()

# Products of squares of such numbers, and sums of a million such products, are in f32's range.
LEAST, LARGEST = 2.0**-31, 2.0**26


def number_of_terms(op: Operation) -> float:
    """Return the mean number of products per element of the result, plus 1 for a bias."""
    return 1.0 + op.flops / (2.0 * max(1, op.result.nelems))


def accumulated(
    op: Operation, inputs: Inputs, evaluate: Evaluate, terms: Any = None
) -> dict[str, Noise]:
    """Return the noise of sums of products.

    terms: the number of products of an element, as a number or an array.
    """
    terms = number_of_terms(op) if terms is None else terms
    total, norm = norms(op, inputs, evaluate)
    return {op.result_name: summed(terms, total, norm, cut_off=evaluate.cut_off)}


def norms(op: Operation, inputs: Inputs, evaluate: Evaluate) -> tuple[Array, Array]:
    """Return the sums of products of the result, and their 2-norms.

    If the order is not random, or if squares are beyond the range of f32, both are the sums of
    absolute values.
    """
    if not (evaluate.random_order and all(map(_has_squares, inputs.values()))):
        size = absolute(op, inputs, evaluate)
        return size, size
    squares = {  # indices in a workspace are not squared
        name: array if array.dtype.kind in "iu" else np.square(array)
        for name, array in inputs.items()
    }
    total, square = (
        evaluate(op, PLAIN, values)[op.result_name].astype(np.float64)
        for values in (inputs, squares)
    )
    return total, np.sqrt(square)


def absolute(op: Operation, inputs: Inputs, evaluate: Evaluate) -> Array:
    """Return the result for the absolute values of all inputs, in float64."""
    sizes = evaluate(op, PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    return sizes[op.result_name].astype(np.float64)


def _has_squares(array: Array) -> bool:
    sizes = np.abs(array[np.isfinite(array) & (array != 0)])
    return bool(not sizes.size or (sizes.min() >= LEAST and sizes.max() <= LARGEST))


def exact(_op: Operation, _inputs: Inputs, _evaluate: Evaluate) -> dict[str, Noise]:
    """Return no error: values are moved, or rounded once when they are stored."""
    return {}


def weights_errors(
    op: ConvolutionBackwardWeights | DeconvolutionBackwardWeights | InnerProductBackwardWeights,
    inputs: Inputs,
    evaluate: Evaluate,
    terms: Any = None,
) -> dict[str, Noise]:
    """Return the noise of gradients of weights, and of bias, the sum of a whole channel of
    diff_dst.
    """
    errors = accumulated(op, inputs, evaluate, terms)
    if op.diff_bias is not None:
        values = inputs["diff_dst"].astype(np.float64)
        count = op.dst_role.nelems / max(1, op.diff_bias.nelems)
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        errors["diff_bias"] = sum_along(values, axes, count, evaluate)
    return errors


def sum_along(
    values: Array, axes: Any, terms: float, evaluate: Evaluate, *, keepdims: bool = False
) -> Noise:
    """Return the noise of sums of an array in float64 along some axes."""
    if not evaluate.random_order:
        size = np.abs(values).sum(axes, keepdims=keepdims)
        return summed(terms, size, size)
    norm = np.sqrt(np.square(values).sum(axes, keepdims=keepdims))
    return summed(terms, values.sum(axes, keepdims=keepdims), norm)
