"""The activation that a layer may apply to its result before it is stored."""

from __future__ import annotations

from dnncore.attributes import PostOp
from dnncore.errors import DescriptorError

__all__ = ["Activation", "post_ops"]

Activation = str | PostOp | None
"""The name of an eltwise function, with its defaults, or a `PostOp.eltwise`."""

# (alpha, beta) as the functions of `dnncore.functional.eltwise` have them by default
PARAMETERS: dict[str, tuple[float, ...]] = {
    "abs": (),
    "elu": (1.0,),
    "exp": (),
    "gelu_erf": (),
    "gelu_tanh": (),
    "hardsigmoid": (1 / 6, 0.5),
    "hardswish": (1 / 6, 0.5),
    "log": (),
    "logistic": (),
    "mish": (),
    "relu": (),
    "round": (),
    "soft_relu": (1.0,),
    "sqrt": (),
    "square": (),
    "swish": (1.0,),
    "tanh": (),
}


def post_ops(function: str, activation: Activation) -> tuple[PostOp, ...]:
    """The chain that applies the activation; raises `DescriptorError` for what is none."""
    if activation is None:
        return ()
    if isinstance(activation, PostOp) and activation.kind == "eltwise":
        return (activation,)
    if not isinstance(activation, str) or activation not in PARAMETERS:
        raise DescriptorError(
            f"{function}: activation must be one of {', '.join(PARAMETERS)}, or with parameters of"
            f" your own a dnncore.PostOp.eltwise(algorithm, alpha, beta); got {activation!r}"
        )
    return (PostOp.eltwise(activation, *PARAMETERS[activation]),)
