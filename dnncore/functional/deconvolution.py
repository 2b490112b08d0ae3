"""Deconvolution of images with 1, 2 or 3 spatial dims: `DeconvolutionForward`.

Weights have dims (OC, IC, kernel), or (G, OC / G, IC / G, kernel), or (OC, IC / G, kernel) with
`groups`. torch exchanges the dims of channels: (IC, OC / G, kernel). (M. Zeiler et al. 2010,
"Deconvolutional networks".)
"""

from __future__ import annotations

import functools

from dnncore.functional.activation import Activation
from dnncore.functional.call import EngineLike, call
from dnncore.functional.convolution import layer
from dnncore.functional.operands import Result, Values
from dnncore.functional.window import Padding, Sizes, spread
from dnncore.ops import DeconvolutionForward

__all__ = ["deconv1d", "deconv2d", "deconv3d"]


_deconvolution = functools.partial(layer, DeconvolutionForward, spread)


def deconv1d(
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
    """dst[n, o, x*SW - P + s*(D+1)] is bias[o] + the sum of src[n, i, x] * weights[o, i, s].

    src (N, IC, W), dst (N, OC, OW) with
    OW = (W - 1) * SW + 1 + (KW - 1) * (D + 1) - padding at both ends.
    weights: (OC, IC, KW), with `groups` (OC, IC / G, KW), or (G, OC / G, IC / G, KW). torch's
    weights are (IC, OC / G, KW): exchange the dims of channels, for each group.

    bias: (OC,), or None, which is zero.
    strides: cells of dst from kernel to kernel.
    padding: cells cut off dst at both ends: one integer, or [(before, after)].
        A negative number at the end adds cells. This gives the sizes that torch gives with
        output_padding: torch's padding p and output_padding q are padding=[(p, p - q)] here.
    dilations: the number of cells SKIPPED between two taps. 0 is dense, NOT 1 as in torch.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    >>> deconv1d([[[1, 2, 3]]], [[[1, 10]]]).tolist()
    [[[1.0, 12.0, 23.0, 30.0]]]
    >>> deconv1d([[[1, 2, 3]]], [[[1, 10]]], strides=2).tolist()
    [[[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]]]
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_deconvolution, "deconv1d", values, engine, *options)


def deconv2d(
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
    """`deconv1d`, which has the formula and the size of dst, with two spatial dims.

    src (N, IC, H, W), dst (N, OC, OH, OW). weights: (OC, IC, KH, KW), with `groups`
    (OC, IC / G, KH, KW), or (G, OC / G, IC / G, KH, KW). torch's weights w are
    (IC, OC / G, KH, KW): pass w.reshape(G, IC // G, OC // G, KH, KW).transpose(1, 2).

    bias: (OC,), or None, which is zero.
    strides: cells of dst from kernel to kernel, one integer or one per spatial dim.
    padding: cells cut off dst at both ends: one integer, or an integer or a pair (before, after)
        per spatial dim. A negative number at the end adds cells. This gives the sizes that torch
        gives with output_padding: torch's padding p and output_padding q are
        padding=[(p, p - q), (p, p - q)] here.
    dilations: the number of cells SKIPPED between two taps, one integer or one per spatial dim. 0
        is dense, NOT 1 as in torch.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    >>> image, box = np.ones((1, 3, 4, 4), np.float32), np.ones((2, 3, 2, 2), np.float32)
    >>> deconv2d(image, box, strides=2).shape
    (1, 2, 8, 8)
    >>> deconv2d(image, box, [-4.0, -2.0], strides=2, activation="relu")[0, :, 0, 0].tolist()
    [0.0, 1.0]
    >>> deconv2d(image, box, padding=((0, 1), (1, 0))).shape
    (1, 2, 4, 4)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_deconvolution, "deconv2d", values, engine, *options)


def deconv3d(
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
    """`deconv2d` with one more spatial dim.

    src (N, IC, D, H, W), dst (N, OC, OD, OH, OW). weights: (OC, IC, KD, KH, KW), with `groups`
    (OC, IC / G, KD, KH, KW), or (G, OC / G, IC / G, KD, KH, KW). torch's weights are
    (IC, OC / G, KD, KH, KW): exchange the dims of channels, for each group.

    bias: (OC,), or None, which is zero.
    strides: cells of dst from kernel to kernel, one integer or one per spatial dim.
    padding: cells cut off dst at both ends: one integer, or an integer or a pair (before, after)
        per spatial dim. A negative number at the end adds cells. This gives the sizes that torch
        gives with output_padding: torch's padding p and output_padding q are
        padding=[(p, p - q), (p, p - q), (p, p - q)] here.
    dilations: the number of cells SKIPPED between two taps, one integer or one per spatial dim. 0
        is dense, NOT 1 as in torch.
    groups: G, a divisor of IC and OC. Group g of dst depends only on group g of src.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.

    >>> deconv3d(np.ones((1, 2, 2, 2, 2), np.float32), np.ones((3, 2, 2, 2, 2), np.float32)).shape
    (1, 3, 3, 3, 3)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_deconvolution, "deconv3d", values, engine, *options)
