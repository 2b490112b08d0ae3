"""A fully connected (linear) layer: `InnerProductForward`."""

from __future__ import annotations

from dnncore.functional.activation import Activation, post_ops
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, check_rank, descs, result_desc
from dnncore.ops import InnerProductForward

__all__ = ["linear"]


def linear(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Result:
    """dst[n, o] = bias[o] + sum over i of src[n, i] * weights[o, i].

    src (N, IC), weights (OC, IC), bias (OC), dst (N, OC). src may have up to 3 spatial dims after
    IC. weights then have the same spatial dims, and the sum is over all of them.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied before dst is
    stored.

    >>> linear([[1, 2, 3]], [[1, 0, 0], [1, 1, 1]], [0, -10]).tolist()
    [[1.0, -4.0]]
    >>> linear([[1, 2, 3]], [[1, 0, 0], [1, 1, 1]], [0, -10], activation="relu").tolist()
    [[1.0, 0.0]]
    """
    values = {"src": src, "weights": weights, "bias": bias}
    return call(_linear, "linear", values, engine, activation)


def _linear(function: str, operands: dict[str, Operand], activation: Activation) -> Plan:
    x, w = operands["src"], operands["weights"]
    check_rank(function, "src", x, "(N, IC, [[[D,] H,] W])", 2, 3, 4, 5)
    check_rank(function, "weights", w, f"(OC, {', '.join(map(str, x.shape[1:]))})", x.ndim)
    dst = result_desc((x.shape[0], w.shape[0]), x)
    op = InnerProductForward("forward_inference", dst=dst, **descs(operands))
    return Plan(op, post_ops=post_ops(function, activation))
