"""Matrix products, one or many: `MatMul`."""

from __future__ import annotations

from dnncore.functional.activation import Activation, post_ops
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, descs, result_desc
from dnncore.ops import MatMul

__all__ = ["matmul"]


def matmul(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Result:
    """dst[..., m, n] = bias[..., m, n] + sum over k of src[..., m, k] * weights[..., k, n].

    src (..., M, K), weights (..., K, N), dst (..., M, N). As in numpy, batch dims of size 1 are
    repeated, and missing leading dims count as 1. bias is broadcast to dst in the same way.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied before dst is
    stored.

    >>> matmul([[1, 2], [3, 4]], [[0, 1], [1, 0]]).tolist()
    [[2.0, 1.0], [4.0, 3.0]]
    >>> matmul(np.ones((5, 2, 3), np.float32), np.ones((3, 4), np.float32), [0, 1, 2, 3])[4, 1]
    array([3., 4., 5., 6.], dtype=float32)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    return call(_matmul, "matmul", values, engine, activation)


def _matmul(function: str, operands: dict[str, Operand], activation: Activation) -> Plan:
    matrices = (operands["src"], operands["weights"])
    if min(a.ndim for a in matrices) >= 2:  # the operation refuses vectors
        rank = max(a.ndim for a in matrices)
        operands = {name: a.with_rank(rank) for name, a in operands.items()}
    a, b = operands["src"], operands["weights"]
    batch = (n if m == 1 else m for m, n in zip(a.shape[:-2], b.shape[:-2], strict=False))
    dst = result_desc((*batch, *a.shape[-2:-1], *b.shape[-1:]), a)
    op = MatMul(dst=dst, **descs(operands))
    return Plan(op, post_ops=post_ops(function, activation))
