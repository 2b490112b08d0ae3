"""Deconvolution of images with 1, 2 or 3 spatial dims: `DeconvolutionForward`.

All three functions have these options:

bias: (OC,), one number per output channel.
strides: cells of dst from kernel to kernel.
padding: cells cut off dst: one integer, or an integer or a pair (before, after) per spatial dim. A
    negative number at the end adds cells.
dilations: the number of cells SKIPPED between two taps, as in `conv2d`. 0 is a dense kernel.
groups: G, a divisor of the numbers of channels. The default is the number of groups of weights.
activation: as in `conv2d`.

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

    src (N, IC, W), weights (OC, IC, KW), dst (N, OC, OW) with
    OW = (W - 1) * SW + 1 + (KW - 1) * (D + 1) - padding. A dense kernel has dilations 0, NOT 1.

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
    """`deconv1d` with two spatial dims: src (N, IC, H, W), weights (OC, IC, KH, KW).

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

    src (N, IC, D, H, W), weights (OC, IC, KD, KH, KW), dst (N, OC, OD, OH, OW). A dense kernel has
    dilations 0, NOT 1.

    >>> deconv3d(np.ones((1, 2, 2, 2, 2), np.float32), np.ones((3, 2, 2, 2, 2), np.float32)).shape
    (1, 3, 3, 3, 3)
    """
    values = {"src": src, "weights": weights, "bias": bias}
    options = (strides, padding, dilations, groups, activation)
    return call(_deconvolution, "deconv3d", values, engine, *options)
