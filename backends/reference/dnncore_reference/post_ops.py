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
    return step.kind in ("sum", "prelu")


# The eltwise algorithms whose rounding docs/types.md defines.
STEPWISE = ("relu", "linear", "clip", "clip_v2", "hardsigmoid", "hardswish")


def apply(
    chain: Iterable[PostOp], x: Array, old: Callable[[], Array], operands: Iterable[Array]
) -> Array:
    """Return x after all steps of the chain. If x is float32, each step rounds to float32.

    old: returns the old values of dst. operands: the operands of all steps, in order.
    """
    operands = iter(operands)
    for step in chain:
        own = [next(operands).astype(x.dtype) for _ in step.operands]
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
