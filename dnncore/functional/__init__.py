"""One line for one operation: arrays in, an array of the same kind out.

    from dnncore import functional as F
    y = F.conv2d(image, weights, bias, padding=1, activation="relu", engine="opencl")

Inputs may be:

- float32 arrays of numpy. The CPU reads them without a copy if they are row-major;
- arrays of types whose values float32 represents exactly: float16, bfloat16, booleans and integers
  of 8 and 16 bits;
- float64 arrays, in the functions whose operation takes f64: convolution, deconvolution, linear,
  matmul, pooling, softmax, reductions and the functions of eltwise. They are computed in float64;
- Python's numbers and nested lists, which are rounded to the type of the computation;
- tensors of torch in host memory, without gradients. The result is a tensor;
- arrays of pyopencl. The result is one on the same queue, and nothing is copied to the host;
- arrays of other libraries in host memory, through `__array__` or DLPack. The result is numpy's.

The arrays of one call must be of one kind. Numbers and lists suit any kind.

Other types, such as int32 without a float64 array, would lose digits. They raise `DescriptorError`.
Shapes that do not fit also raise it.

The result is a new row-major array, also for torch's channels_last. Only the types of the arrays
determine its type. Values and Python's numbers do not. It has the type float64 if one of the inputs
has it. Otherwise a bias, a mask, and the statistics, scale and shift of normalizations do not
affect it. It has the type float16 or bfloat16 if one of the other inputs (src, weights, states of
recurrent cells and others) has this type and this type represents all values of their types; the
result is then rounded once from float32. Otherwise it has the type float32.

`engine` is an engine or its name, by default `dnncore.engine()`, and for arrays of a device the
engine of this device. The first call for shapes, types and options selects and compiles an
implementation. The last 512 are kept. Later calls add 8 to 16 us to the time of the kernel for
arrays of numpy, and 13 to 22 us for tensors of torch, with up to three inputs. With arrays of
pyopencl, a call takes about 70 us on PoCL, where pyopencl's own sum takes 45 us. If this is too
slow in a loop, bind a primitive (`Primitive.bind`).

Functions have the names of oneDNN's operations and algorithms. If oneDNN has one name for several
functions, they have numpy's names or common names: `conv2d`, `max_pool2d`, `maximum` of two arrays,
`max` along an axis, and `linear` for the layer. Arrays come first, and options are keywords.

torch's names of arguments, and the names here:

    dim, keepdim                    axis, keepdims
    weight, bias                    weights, bias; of normalizations scale, shift
    stride, kernel_size             strides, kernel
    dilation                        dilations = dilation - 1
    count_include_pad               include_padding, which is false by default
    eps, num_groups                 epsilon, groups
    momentum                        average_factor
    running_var                     running_variance; variance of batch_norm
    negative_slope                  alpha
    scale_factor, mode              factors, algorithm
    query, key, value, attn_mask    queries, keys, values, mask
    is_causal=True                  causal="top_left"
    normalized_shape                none: layer_norm and rms_norm normalize the last dim
"""

from __future__ import annotations

import difflib
from typing import NoReturn

from dnncore.functional.attention import scaled_dot_product_attention
from dnncore.functional.batch_normalization import batch_norm, batch_norm_training
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
from dnncore.functional.concat import concat
from dnncore.functional.convolution import conv1d, conv2d, conv3d
from dnncore.functional.deconvolution import deconv1d, deconv2d, deconv3d
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
from dnncore.functional.keywords import with_suggestions
from dnncore.functional.linear import linear
from dnncore.functional.lrn import lrn
from dnncore.functional.matmul import matmul
from dnncore.functional.normalization import group_norm, instance_norm, layer_norm, rms_norm
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
from dnncore.functional.resampling import resample
from dnncore.functional.rnn import gru, lstm, rnn
from dnncore.functional.shuffle import shuffle
from dnncore.functional.softmax import log_softmax, softmax
from dnncore.functional.weighted_sum import weighted_sum

__all__ = [
    "abs",
    "add",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_training",
    "clip",
    "concat",
    "conv1d",
    "conv2d",
    "conv3d",
    "deconv1d",
    "deconv2d",
    "deconv3d",
    "div",
    "elu",
    "eq",
    "exp",
    "ge",
    "gelu_erf",
    "gelu_tanh",
    "group_norm",
    "gru",
    "gt",
    "hardsigmoid",
    "hardswish",
    "instance_norm",
    "layer_norm",
    "le",
    "linear",
    "log",
    "log_softmax",
    "logistic",
    "lrn",
    "lstm",
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
    "resample",
    "rms_norm",
    "rnn",
    "round",
    "scaled_dot_product_attention",
    "shuffle",
    "soft_relu",
    "softmax",
    "sqrt",
    "square",
    "sub",
    "sum",
    "swish",
    "tanh",
    "weighted_sum",
    "where",
]

# Name in other libraries -> name here, for the message of the error.
ELSEWHERE = {
    "addn": "weighted_sum",
    "augru": "gru(..., attention=...)",
    "attention": "scaled_dot_product_attention",
    "batch_normalization": "batch_norm",
    "cat": "concat",
    "channel_shuffle": "shuffle(src, channels // groups)",
    "concatenate": "concat",
    "conv_transpose": "deconv1d, deconv2d or deconv3d",
    "conv_transpose1d": "deconv1d",
    "conv_transpose2d": "deconv2d",
    "conv_transpose3d": "deconv3d",
    "convolution": "conv1d, conv2d or conv3d",
    "deconvolution": "deconv1d, deconv2d or deconv3d",
    "gelu": "gelu_erf or gelu_tanh",
    "group_normalization": "group_norm",
    "hardtanh": "clip(src, alpha, beta)",
    "inner_product": "linear",
    "interpolate": "resample",
    "logsumexp": "softmax(src, lse=True)",
    "layer_normalization": "layer_norm",
    "lbr_gru": "gru(..., linear_before_reset=True)",
    "leaky_relu": "relu(src, alpha=slope)",
    "local_response_norm": "lrn",
    "relu6": "clip(src, 0, 6)",
    "resampling": "resample",
    "sdpa": "scaled_dot_product_attention",
    "select": "where",
    "sigmoid": "logistic",
    "silu": "swish",
    "softplus": "soft_relu",
    "upsample": "resample",
}


for _name in ELSEWHERE:  # a submodule would hide the message
    globals().pop(_name, None)
for _name in __all__:
    globals()[_name] = with_suggestions(globals()[_name], __name__)


def __getattr__(name: str) -> NoReturn:
    hint = f"; here it is {ELSEWHERE[name]}" if name in ELSEWHERE else ""
    if not hint and (near := difflib.get_close_matches(name, __all__, 1, 0.8)):
        hint = f"; did you mean {near[0]}?"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
