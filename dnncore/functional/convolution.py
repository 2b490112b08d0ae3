"""Convolution of images with 1, 2 or 3 spatial dims: `ConvolutionForward`.

Weights with G groups have dims (OC, IC / G, kernel) as in torch, or (G, OC / G, IC / G, kernel) as
in oneDNN. Both contain the same numbers in the same order. As in both libraries, the kernel is not
reversed: this is the cross-correlation of signal processing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.functional.activation import Activation, post_ops
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import (
    Operand,
    Result,
    Values,
    brief,
    check_rank,
    descs,
    result_desc,
)
from dnncore.functional.window import IMAGE, Padding, Sizes, window
from dnncore.ops import ConvolutionForward

__all__ = ["conv1d", "conv2d", "conv3d", "layer"]

_KERNEL = {1: "KW", 2: "KH, KW", 3: "KD, KH, KW"}


def layer(
    kind: type[Any],
    place: Callable[..., Any],
    function: str,
    operands: dict[str, Operand],
    strides: Sizes,
    padding: Padding,
    dilations: Sizes,
    groups: int | None,
    activation: Activation,
) -> Plan:
    """Return the plan of an operation with weights: convolution or deconvolution.

    place: `window` or `spread`, which computes the size of dst.
    """
    spatial = int(function[-2])
    x, w = operands["src"], operands["weights"]
    rank = spatial + 2
    check_rank(function, "src", x, f"(N, IC, {IMAGE[spatial]})", rank)
    shape = f"(OC, IC / G, {_KERNEL[spatial]}) or (G, OC / G, IC / G, {_KERNEL[spatial]})"
    check_rank(function, "weights", w, shape, rank, rank + 1)
    w = operands["weights"] = _grouped(function, x, w, groups)
    fields, output = place(function, x.shape[2:], w.shape[-spatial:], strides, padding, dilations)
    channels = w.shape[0] * (w.shape[1] if w.ndim > rank else 1)
    dst = result_desc((x.shape[0], channels, *output), x)
    op = kind("forward_inference", dst=dst, **descs(operands), **fields)
    return Plan(op, post_ops=post_ops(function, activation))


_convolution = functools.partial(layer, ConvolutionForward, window)


def _grouped(function: str, src: Operand, weights: Operand, groups: int | None) -> Operand:
    """Return `weights`, with the groups as first dim if `groups` is above 1.

    Raises `DescriptorError` if `groups` is not a positive integer or does not fit the tensors.
    """
    if groups is None:
        return weights
    try:
        count = operator.index(groups)
    except TypeError:
        count = 0
    if count < 1:
        raise DescriptorError(
            f"{function}: groups must be an integer, at least 1; got {brief(groups)}"
        )
    if weights.ndim > src.ndim:
        if count != weights.shape[0]:
            raise DescriptorError(
                f"{function}: groups must be {weights.shape[0]}, the first of weights' dims"
                f" {weights.shape}; got {count}"
            )
        return weights
    ic, oc = src.shape[1], weights.shape[0]
    if ic % count or oc % count:
        raise DescriptorError(
            f"{function}: groups must divide src's channels and weights' output channels;"
            f" got {count} groups, {ic} and {oc} channels"
        )
    if weights.shape[1] * count != ic:
        raise DescriptorError(
            f"{function}: weights must have src's channels / groups = {ic} / {count} ="
            f" {ic // count} along dim 1; got {weights.shape[1]}"
        )
    return weights if count == 1 else weights.reshape(count, oc // count, *weights.shape[1:])


def conv1d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    groups: int | None = None,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Result:
    """dst[n, o, x] = bias[o] + sum over i, s of src[n, i, x*SW - P + s*(D+1)] * weights[o, i, s].

    src is 0 outside of its dims. The kernel is not reversed, as in oneDNN and torch.

    src (N, IC, W), dst (N, OC, OW) with
    OW = (W - 1 - (KW - 1) * (D + 1) + padding at both ends) // SW + 1.
    weights: (OC, IC, KW), with groups (OC, IC / G, KW) or (G, OC / G, IC / G, KW).
    bias: (OC,), or None, which is zero.
    strides: cells of src from window to window, an integer.
    padding: zeros around src: one integer, [(before, after)], "same" or "valid". "same" gives dst
        the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two taps of the kernel. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src. With G = IC
        the convolution is depthwise. None is the number that the dims of weights have.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    Raises `DescriptorError` for shapes, types and options that do not fit.

    >>> conv1d([[[1, 2, 3, 4]]], [[[1, 10]]]).tolist()
    [[[21.0, 32.0, 43.0]]]
    >>> conv1d([[[1, 2, 3, 4]]], [[[1, 10]]], dilations=1).tolist()
    [[[31.0, 42.0]]]
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_convolution, "conv1d", values, engine, *options)


def conv2d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    groups: int | None = None,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Result:
    """dst[n, o, y, x] = bias[o] + sum over i, r, s of src[n, i, y', x'] * weights[o, i, r, s].

    y' = y*SH - PT + r*(DH+1) and x' = x*SW - PL + s*(DW+1). src is 0 outside of its dims. The
    kernel is not reversed, as in oneDNN and torch.

    src (N, IC, H, W), dst (N, OC, OH, OW) with OH and OW of the form
    OW = (W - 1 - (KW - 1) * (DW + 1) + padding at both ends) // SW + 1.
    weights: (OC, IC, KH, KW), with groups (OC, IC / G, KH, KW) or (G, OC / G, IC / G, KH, KW).
    bias: (OC,), or None, which is zero.
    strides: cells of src from window to window, an integer for all spatial dims or one for each.
    padding: zeros around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two taps of the kernel. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src. With G = IC
        the convolution is depthwise. None is the number that the dims of weights have.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    Raises `DescriptorError` for shapes, types and options that do not fit.

    >>> image, box = np.ones((1, 3, 8, 8), np.float32), np.ones((16, 3, 3, 3), np.float32)
    >>> conv2d(image, box, strides=2, padding=((0, 1), (0, 1))).shape
    (1, 16, 4, 4)
    >>> conv2d(image, box, [-20.0, -30.0] * 8, activation="relu")[0, :2, 0, 0].tolist()
    [7.0, 0.0]
    >>> conv2d(image, box[:3, :1], padding="same", groups=3).shape
    (1, 3, 8, 8)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_convolution, "conv2d", values, engine, *options)


def conv3d(
    src: Values,
    weights: Values,
    bias: Values = None,
    *,
    strides: Sizes = 1,
    padding: Padding = 0,
    dilations: Sizes = 0,
    groups: int | None = None,
    activation: Activation = None,
    engine: EngineLike = None,
) -> Result:
    """`conv2d`, which has the formula and the size of dst, with three spatial dims.

    src (N, IC, D, H, W), dst (N, OC, OD, OH, OW).
    weights: (OC, IC, KD, KH, KW), with groups (OC, IC / G, KD, KH, KW) or
        (G, OC / G, IC / G, KD, KH, KW).
    bias: (OC,), or None, which is zero.
    strides: cells of src from window to window, an integer for all spatial dims or one for each.
    padding: zeros around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two taps of the kernel. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src. With G = IC
        the convolution is depthwise. None is the number that the dims of weights have.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    Raises `DescriptorError` for shapes, types and options that do not fit.

    >>> conv3d(np.ones((1, 2, 4, 4, 4), np.float32), np.ones((3, 2, 2, 2, 2), np.float32)).shape
    (1, 3, 3, 3, 3)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_convolution, "conv3d", values, engine, *options)
