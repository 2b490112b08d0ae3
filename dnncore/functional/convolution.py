"""Convolution of images with 1, 2 or 3 spatial dims: `ConvolutionForward`.

The options that all three share:

bias: (OC), one number per output channel.
strides: cells from window to window.
padding: zeros around src; an integer, or per spatial dim an integer or a pair (before, after).
dilations: cells SKIPPED between two taps of the kernel, as in oneDNN: 0, the default, is a dense
    kernel. This is one less than what torch and tensorflow call dilation, whose 1 is dense.
activation: an eltwise function by name, or a `PostOp.eltwise`, applied before dst is stored.

strides and dilations are an integer for all spatial dims or a tuple with one for each. Weights of G
groups have the group as first dim, so that `weights.reshape(G, -1, *weights.shape[1:])` groups
those of libraries that keep groups and channels in one dim.
"""

from __future__ import annotations

from dnncore.functional.activation import Activation, post_ops
from dnncore.functional.call import (
    Array,
    EngineLike,
    Values,
    arrays,
    check_rank,
    descs,
    result_desc,
    run,
)
from dnncore.functional.window import IMAGE, Padding, Sizes, window
from dnncore.ops import ConvolutionForward

__all__ = ["conv1d", "conv2d", "conv3d"]

KERNEL = {1: "KW", 2: "KH, KW", 3: "KD, KH, KW"}


def _convolution(
    spatial: int,
    src: Values,
    weights: Values,
    bias: Values,
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
    activation: Activation,
    engine: EngineLike,
) -> Array:
    function = f"conv{spatial}d"
    tensors = arrays(function, src=src, weights=weights, bias=bias)
    x, w = tensors["src"], tensors["weights"]
    rank = spatial + 2
    check_rank(function, "src", x, f"(N, IC, {IMAGE[spatial]})", rank)
    shape = f"(OC, IC, {KERNEL[spatial]}), or with groups (G, OC, IC, {KERNEL[spatial]})"
    check_rank(function, "weights", w, shape, rank, rank + 1)
    fields, output = window(function, x.shape[2:], w.shape[-spatial:], strides, padding, dilations)
    channels = w.shape[0] * (w.shape[1] if w.ndim > rank else 1)
    dst = result_desc((x.shape[0], channels, *output), x)
    op = ConvolutionForward("forward_inference", dst=dst, **descs(tensors), **fields)
    return run(op, tensors, engine, post_ops(function, activation))


def conv1d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Array:
    """dst[n, o, x] = bias[o] + sum over i, s of src[n, i, x*SW - P + s*(D+1)] * weights[o, i, s].

    src (N, IC, W), weights (OC, IC, KW) or (G, OC, IC, KW), dst (N, OC, OW) with
    OW = (W - 1 - (KW - 1) * (D + 1) + padding) // SW + 1. A dense kernel has dilations 0, NOT 1.

    >>> conv1d([[[1, 2, 3, 4]]], [[[1, 10]]]).tolist()
    [[[21.0, 32.0, 43.0]]]
    >>> conv1d([[[1, 2, 3, 4]]], [[[1, 10]]], dilations=1).tolist()
    [[[31.0, 42.0]]]
    """
    return _convolution(1, src, weights, bias, strides, padding, dilations, activation, engine)


def conv2d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Array:
    """dst[n, o, y, x] = bias[o] + sum over i, r, s of src[n, i, y', x'] * weights[o, i, r, s].

    There y' = y*SH - PT + r*(DH+1), x' = x*SW - PL + s*(DW+1), and src is 0 outside. src (N, IC, H,
    W), weights (OC, IC, KH, KW) or (G, OC, IC, KH, KW), dst (N, OC, OH, OW) with sizes as in
    `conv1d`. A dense kernel has dilations 0, NOT 1.

    >>> image, box = np.ones((1, 3, 8, 8), np.float32), np.ones((16, 3, 3, 3), np.float32)
    >>> conv2d(image, box, strides=2, padding=((0, 1), (0, 1))).shape
    (1, 16, 4, 4)
    >>> conv2d(image, box, [-20.0, -30.0] * 8, activation="relu")[0, :2, 0, 0].tolist()
    [7.0, 0.0]
    """
    return _convolution(2, src, weights, bias, strides, padding, dilations, activation, engine)


def conv3d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Array:
    """`conv2d` with one more spatial dim.

    src (N, IC, D, H, W), weights (OC, IC, KD, KH, KW) or (G, OC, IC, KD, KH, KW), dst (N, OC, OD,
    OH, OW). A dense kernel has dilations 0, NOT 1.

    >>> conv3d(np.ones((1, 2, 4, 4, 4), np.float32), np.ones((3, 2, 2, 2, 2), np.float32)).shape
    (1, 3, 3, 3, 3)
    """
    return _convolution(3, src, weights, bias, strides, padding, dilations, activation, engine)
