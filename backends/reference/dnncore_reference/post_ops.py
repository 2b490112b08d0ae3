"""The chain of post-ops, computed on a primitive's unrounded result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore_reference.algorithms import BINARY, ELTWISE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dnncore.backend import PostOp

Array = np.ndarray[Any, Any]


def has_formula(step: PostOp) -> bool:
    """Whether `apply` supports the kind and the algorithm of a post-op."""
    formulas = {"eltwise": ELTWISE, "binary": BINARY}
    if step.kind in formulas:
        return step.algorithm in formulas[step.kind]
    return step.kind in ("sum", "prelu", "depthwise")


# The eltwise algorithms whose rounding docs/types.md defines.
STEPWISE = ("relu", "linear", "clip", "clip_v2", "hardsigmoid", "hardswish")


def apply(
    chain: Iterable[PostOp],
    x: Array,
    old: Callable[[], Array],
    operands: Iterable[Array],
    between: Callable[[Array], Array],
) -> Array:
    """Return x after all steps of the chain. If x is float32, each step rounds to float32.

    old: returns the old values of dst. operands: the operands of all steps, in order. between:
        rounds to the type between a convolution and the depthwise one.
    """
    operands = iter(operands)
    for step in chain:
        own = [next(operands).astype(x.dtype) for _ in step.operands]
        if step.kind == "depthwise":
            x = _depthwise(step, between(x), *own).astype(x.dtype)
        else:
            x = _applied(step, x, old, own).astype(x.dtype)
    return x


def _applied(step: PostOp, x: Array, old: Callable[[], Array], operands: list[Array]) -> Any:
    if step.kind == "eltwise":
        exact = x if step.algorithm in STEPWISE else x.astype(np.float64)
        return ELTWISE[step.algorithm](exact, step.alpha, step.beta)
    if step.kind == "sum":
        return x + step.scale * (old().astype(x.dtype) - x.dtype.type(step.zero_point))
    if step.kind == "prelu":
        return np.where(x > 0, x, operands[0] * x)
    return BINARY[step.algorithm](x, *operands)


def _depthwise(step: PostOp, x: Array, weights: Array, bias: Array | None = None) -> Array:
    """Return the sum over all taps of the kernel. Each has its cells of the padded x."""
    spatial = x.shape[2:]
    kernel = weights.shape[3:]
    around = [(step.padding, step.padding)] * len(spatial)
    padded = np.pad(x, [(0, 0), (0, 0), *around])
    sizes = [n - k + 1 for n, k in zip(padded.shape[2:], kernel, strict=True)]
    total: Array = np.zeros(1)
    for tap in np.ndindex(*kernel):
        cells = [slice(t, t + n, step.stride) for t, n in zip(tap, sizes, strict=True)]
        factor = weights[:, 0, 0, *tap].reshape(-1, *[1] * len(spatial))
        total = total + factor * padded[:, :, *cells]
    return total if bias is None else total + bias.reshape(-1, *[1] * len(spatial))
