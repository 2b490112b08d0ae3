"""The chain of post-ops, evaluated in float64 on a primitive's unrounded result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore_reference.algorithms import BINARY, ELTWISE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dnncore.backend import PostOp

Array = np.ndarray[Any, Any]


def has_formula(step: PostOp) -> bool:
    """Whether `apply` computes the kind of the step and its algorithm."""
    formulas = {"eltwise": ELTWISE, "binary": BINARY}
    if step.kind in formulas:
        return step.algorithm in formulas[step.kind]
    return step.kind in ("sum", "prelu")


def apply(
    chain: Iterable[PostOp], x: Array, old: Callable[[], Array], operands: Iterable[Array]
) -> Array:
    """Return x after every step of the chain.

    `old` gives what dst held before; `operands` are those of all steps, in order.
    """
    operands = iter(operands)
    for step in chain:
        own = [next(operands) for _ in step.operands]
        if step.kind == "eltwise":
            x = ELTWISE[step.algorithm](x, step.alpha, step.beta)
        elif step.kind == "sum":
            x = x + step.scale * old()
        elif step.kind == "prelu":
            x = np.where(x > 0, x, own[0] * x)
        else:
            x = BINARY[step.algorithm](x, *own)
    return x
