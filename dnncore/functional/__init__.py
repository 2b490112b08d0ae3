"""One line for one operation: numpy arrays in, a numpy array out.

    from dnncore import functional as F
    y = F.conv2d(image, weights, bias, padding=1, activation="relu", engine="opencl")

What goes in: float32 arrays, which the CPU reads where they lie if they are row-major and writable;
arrays of types that float32 holds exactly, that is float16, bfloat16, booleans and integers of 8
and 16 bits; numbers and nested lists of Python's, which have no such type and are rounded. Arrays
of other libraries are taken through `__array__` or DLPack if they are in host memory. Other types,
float64 among them, would lose digits without a word and raise `DescriptorError`; so do shapes that
do not fit. What comes out is a new array: of float16 or bfloat16 where an array that went in is of
that type and the others fit into it, rounded once from float32, and else of float32. A bias may be
of float32 beside them.

`engine` is an engine or its name, by default `dnncore.engine()`. The first call of a shape chooses
and compiles, later ones take what is ready; a loop that must not pay for choosing binds a primitive
(`Primitive.bind`), and data that is to stay on a device is a `Memory`.

Names are oneDNN's, those of its algorithms included. Where oneDNN has one name for several
functions, numpy's or the field's tell them apart: `conv2d`, `max_pool2d`, `maximum` of two arrays
and `max` along an axis, and `linear`, which is the layer and no function of one element. Arrays
come first, options are keywords.
"""

from __future__ import annotations

from typing import NoReturn

from dnncore.functional.binary import (
    add,
    div,
    eq,
    ge,
    gt,
    le,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    sub,
    where,
)
from dnncore.functional.convolution import conv1d, conv2d, conv3d
from dnncore.functional.eltwise import (
    abs,
    clip,
    elu,
    exp,
    gelu_erf,
    gelu_tanh,
    hardsigmoid,
    hardswish,
    log,
    logistic,
    mish,
    pow,
    prelu,
    relu,
    round,
    soft_relu,
    sqrt,
    square,
    swish,
    tanh,
)
from dnncore.functional.linear import linear
from dnncore.functional.lrn import lrn
from dnncore.functional.matmul import matmul
from dnncore.functional.pooling import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from dnncore.functional.reduction import (
    max,
    mean,
    min,
    norm,
    prod,
    sum,
)
from dnncore.functional.softmax import log_softmax, softmax

__all__ = [
    "abs",
    "add",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "clip",
    "conv1d",
    "conv2d",
    "conv3d",
    "div",
    "elu",
    "eq",
    "exp",
    "ge",
    "gelu_erf",
    "gelu_tanh",
    "gt",
    "hardsigmoid",
    "hardswish",
    "le",
    "linear",
    "log",
    "log_softmax",
    "logistic",
    "lrn",
    "lt",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mul",
    "ne",
    "norm",
    "pow",
    "prelu",
    "prod",
    "relu",
    "round",
    "soft_relu",
    "softmax",
    "sqrt",
    "square",
    "sub",
    "sum",
    "swish",
    "tanh",
    "where",
]

# What the functions are called elsewhere; the names lead to an error that says ours.
ELSEWHERE = {
    "gelu": "gelu_erf or gelu_tanh",
    "hardtanh": "clip(src, alpha, beta)",
    "inner_product": "linear",
    "leaky_relu": "relu(src, alpha=slope)",
    "local_response_norm": "lrn",
    "relu6": "clip(src, 0, 6)",
    "select": "where",
    "sigmoid": "logistic",
    "silu": "swish",
    "softplus": "soft_relu",
}


def __getattr__(name: str) -> NoReturn:
    hint = f"; here it is {ELSEWHERE[name]}" if name in ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
