"""Error bounds of sums of products, which several drivers share."""

from __future__ import annotations

import numpy as np

from dnncore.algorithms.rounding import ROUNDOFF, Array, growth
from dnncore.attributes import Attributes
from dnncore.ops import ConvolutionBackwardWeights, InnerProductBackwardWeights, Operation
from dnncore.problem.drivers.driver import Evaluate, Inputs

__all__ = ["PLAIN", "accumulated", "exact", "weights_errors"]

PLAIN = Attributes()


def accumulated(op: Operation, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Sums of products: growth(terms) times the roundoff of the result of absolute values."""
    terms = 1.0 + op.flops / (2.0 * max(1, op.result.nelems))
    sizes = evaluate(op, PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    relative = growth(terms) * ROUNDOFF
    return {name: relative * size.astype(np.float64) for name, size in sizes.items()}


def exact(_op: Operation, _inputs: Inputs, _evaluate: Evaluate) -> dict[str, Array]:
    """No error: values are moved, or rounded once when they are stored."""
    return {}


def weights_errors(
    op: ConvolutionBackwardWeights | InnerProductBackwardWeights, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Array]:
    """Gradients of weights, and of bias, which is the sum of a whole channel of diff_dst."""
    errors = accumulated(op, inputs, evaluate)
    if op.diff_bias is not None:
        terms = op.dst_role.nelems / max(1, op.diff_bias.nelems)
        sizes = np.abs(inputs["diff_dst"].astype(np.float64))
        axes = tuple(axis for axis in range(sizes.ndim) if axis != 1)
        errors["diff_bias"] = growth(terms) * ROUNDOFF * sizes.sum(axis=axes)
    return errors
