"""Local response normalisation: `LRNForward`."""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values
from dnncore.ops import LRNForward

__all__ = ["lrn"]


def lrn(
    src: Values,
    *,
    algorithm: str = "across_channels",
    local_size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    engine: EngineLike = None,
) -> Result:
    """dst = src * (k + alpha / n * sum over the window of src**2) ** -beta.

    src and dst are (N, C, [[[D,] H,] W]). The window has (local_size - 1) // 2 elements on each
    side. With the algorithm across_channels it extends along the channels, and n = local_size.
    With within_channel it extends along every spatial dim, and n = local_size ** spatial dims.
    Elements outside of src are left out. (A. Krizhevsky et al. 2012, "ImageNet classification with
    deep convolutional neural networks".)

    >>> lrn([[[2], [1], [0]]], local_size=3, alpha=3, beta=-1).tolist()
    [[[12.0], [6.0], [0.0]]]
    """
    return call(_lrn, "lrn", {"src": src}, engine, algorithm, local_size, alpha, beta, k)


def _lrn(
    _function: str,
    operands: dict[str, Operand],
    algorithm: str,
    local_size: int,
    alpha: float,
    beta: float,
    k: float,
) -> Plan:
    x = operands["src"].desc
    op = LRNForward(
        "forward_inference",
        algorithm,
        src=x,
        dst=x,
        local_size=local_size,
        alpha=alpha,
        beta=beta,
        k=k,
    )
    return Plan(op)
