"""Element-wise functions of one array: `EltwiseForward`, and `PReLUForward`.

Each function takes an array `src` of any shape and returns a new array of this shape. NaN gives
NaN. alpha and beta are numbers, named as in oneDNN's formulas.
"""

from __future__ import annotations

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values
from dnncore.ops import EltwiseForward, PReLUForward

__all__ = [
    "abs",
    "clip",
    "elu",
    "exp",
    "gelu_erf",
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "log",
    "logistic",
    "mish",
    "pow",
    "prelu",
    "relu",
    "round",
    "soft_relu",
    "sqrt",
    "square",
    "swish",
    "tanh",
]


def _eltwise(
    algorithm: str, src: Values, engine: EngineLike, alpha: float = 0.0, beta: float = 0.0
) -> Result:
    return call(_plan, algorithm, {"src": src}, engine, alpha, beta)


def _plan(algorithm: str, operands: dict[str, Operand], alpha: float, beta: float) -> Plan:
    x = operands["src"]
    op = EltwiseForward(
        "forward_inference", algorithm, src=x.desc, dst=x.desc, alpha=alpha, beta=beta
    )
    return Plan(op, x.shape)


def abs(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = |src|.

    >>> abs([-1.5, 0, 2]).tolist()
    [1.5, 0.0, 2.0]
    """
    return _eltwise("abs", src, engine)


def clip(src: Values, alpha: float, beta: float, *, engine: EngineLike = None) -> Result:
    """dst = min(max(src, alpha), beta); beta must not be below alpha.

    >>> clip([-1, 3, 9], 0, 6).tolist()
    [0.0, 3.0, 6.0]
    """
    return _eltwise("clip", src, engine, alpha, beta)


def elu(src: Values, *, alpha: float = 1.0, engine: EngineLike = None) -> Result:
    """dst = src where src > 0, else alpha * (exp(src) - 1).

    >>> print(elu([-1, 0, 2]).round(3))
    [-0.632  0.     2.   ]
    """
    return _eltwise("elu", src, engine, alpha)


def exp(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = e**src.

    >>> print(exp([0, 1]).round(3))
    [1.    2.718]
    """
    return _eltwise("exp", src, engine)


def gelu_erf(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = src / 2 * (1 + erf(src / sqrt(2))), the Gaussian error linear unit.

    >>> print(gelu_erf([-1, 0, 1]).round(3))
    [-0.159  0.     0.841]
    """
    return _eltwise("gelu_erf", src, engine)


def gelu_tanh(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = src / 2 * (1 + tanh(sqrt(2 / pi) * (src + 0.044715 * src**3))); see `gelu_erf`.

    >>> print(gelu_tanh([-1, 0, 1]).round(3))
    [-0.159  0.     0.841]
    """
    return _eltwise("gelu_tanh", src, engine)


def hardsigmoid(
    src: Values, *, alpha: float = 1 / 6, beta: float = 0.5, engine: EngineLike = None
) -> Result:
    """dst = max(0, min(1, alpha * src + beta)).

    >>> hardsigmoid([-4, 0, 4]).tolist()
    [0.0, 0.5, 1.0]
    """
    return _eltwise("hardsigmoid", src, engine, alpha, beta)


def hardswish(
    src: Values, *, alpha: float = 1 / 6, beta: float = 0.5, engine: EngineLike = None
) -> Result:
    """dst = src * max(0, min(1, alpha * src + beta)).

    >>> hardswish([-4, 0, 4]).tolist()
    [-0.0, 0.0, 4.0]
    """
    return _eltwise("hardswish", src, engine, alpha, beta)


def log(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = ln src, the natural logarithm.

    >>> print(log([1, 10]).round(3))
    [0.    2.303]
    """
    return _eltwise("log", src, engine)


def logistic(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = 1 / (1 + exp(-src)), the sigmoid.

    >>> print(logistic([-1, 0, 1]).round(3))
    [0.269 0.5   0.731]
    """
    return _eltwise("logistic", src, engine)


def mish(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = src * tanh(log(1 + exp(src))).

    >>> print(mish([-1, 0, 1]).round(3))
    [-0.303  0.     0.865]
    """
    return _eltwise("mish", src, engine)


def pow(src: Values, beta: float, *, alpha: float = 1.0, engine: EngineLike = None) -> Result:
    """dst = alpha * src**beta.

    >>> pow([1, 2, 3], 2).tolist()
    [1.0, 4.0, 9.0]
    """
    return _eltwise("pow", src, engine, alpha, beta)


def prelu(src: Values, weights: Values, *, engine: EngineLike = None) -> Result:
    """dst = src where src > 0, else weights * src: `PReLUForward`.

    weights: one number, or an array of src's rank whose dims are 1 or src's. For one slope per
    channel of an (N, C, H, W) image, the shape is (1, C, 1, 1). Other ranks raise an error, because
    libraries disagree about which dims they match.

    >>> prelu([[-1, 2], [-3, 4]], [[0.5, 0.1]]).tolist()
    [[-0.5, 2.0], [-1.5, 4.0]]
    """
    return call(_prelu, "prelu", {"src": src, "weights": weights}, engine)


def _prelu(_function: str, operands: dict[str, Operand]) -> Plan:
    x, w = operands["src"], operands["weights"]
    if x.dtype == np.float64:
        raise DescriptorError(
            "prelu: src and weights must be of a type whose values float32 holds exactly, since"
            " PReLU has no f64; got float64; convert both to float32"
        )
    shape = (1,) * x.ndim if w.size == 1 else w.shape
    slopes = Operand(shape, w.dtype).desc
    op = PReLUForward("forward_inference", src=x.desc, weights=slopes, dst=x.desc)
    return Plan(op, x.shape)


def relu(src: Values, *, alpha: float = 0.0, engine: EngineLike = None) -> Result:
    """dst = src where src > 0, else alpha * src; the leaky relu if alpha > 0.

    >>> relu([-2, 0, 3], alpha=0.5).tolist()
    [-1.0, 0.0, 3.0]
    """
    return _eltwise("relu", src, engine, alpha)


def round(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = src rounded to the nearest whole number, ties to even.

    >>> round([0.5, 1.5, 2.6]).tolist()
    [0.0, 2.0, 3.0]
    """
    return _eltwise("round", src, engine)


def soft_relu(src: Values, *, alpha: float = 1.0, engine: EngineLike = None) -> Result:
    """dst = log(1 + exp(alpha * src)) / alpha, the softplus; alpha must not be 0.

    >>> print(soft_relu([-1, 0, 1]).round(3))
    [0.313 0.693 1.313]
    """
    return _eltwise("soft_relu", src, engine, alpha)


def sqrt(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = the square root of src.

    >>> sqrt([4, 9]).tolist()
    [2.0, 3.0]
    """
    return _eltwise("sqrt", src, engine)


def square(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = src * src.

    >>> square([-2, 3]).tolist()
    [4.0, 9.0]
    """
    return _eltwise("square", src, engine)


def swish(src: Values, *, alpha: float = 1.0, engine: EngineLike = None) -> Result:
    """dst = src / (1 + exp(-alpha * src)), the SiLU if alpha is 1.

    >>> print(swish([-1, 0, 1]).round(3))
    [-0.269  0.     0.731]
    """
    return _eltwise("swish", src, engine, alpha)


def tanh(src: Values, *, engine: EngineLike = None) -> Result:
    """dst = the hyperbolic tangent of src.

    >>> print(tanh([-1, 0, 1]).round(3))
    [-0.762  0.     0.762]
    """
    return _eltwise("tanh", src, engine)
