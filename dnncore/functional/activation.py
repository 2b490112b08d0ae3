"""Activations, which a layer applies to its result before the result is stored."""

from __future__ import annotations

from dnncore.algorithms.eltwise import ELTWISE
from dnncore.errors import DescriptorError
from dnncore.post_op import PostOp

__all__ = ["Activation", "post_ops"]

Activation = str | PostOp | None
"""The name of an eltwise function, for its default parameters, or a `PostOp.eltwise`."""


def post_ops(function: str, activation: Activation) -> tuple[PostOp, ...]:
    """The chain that applies the activation. Raises `DescriptorError` for any other value."""
    if activation is None:
        return ()
    if isinstance(activation, PostOp) and activation.kind == "eltwise":
        return (activation,)
    defaults = {name: a.defaults for name, a in ELTWISE.items() if a.defaults is not None}
    if not isinstance(activation, str) or activation not in defaults:
        raise DescriptorError(
            f"{function}: activation must be one of {', '.join(defaults)}, or, for other"
            f" parameters, a dnncore.PostOp.eltwise(algorithm, alpha, beta); got {activation!r}"
        )
    return (PostOp.eltwise(activation, *defaults[activation]),)
