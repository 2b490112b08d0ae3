"""Deconvolution and its gradients: the formulas of convolution with src and dst exchanged.

Let y be a place in src, t a tap and x(y, t) = y*S - P + t*(D+1) the place in dst that it reaches:

    dst[n, o, x]          = bias[o] + sum over i and all t, y with x(y, t) = x of
                            weights[o, i, t] * src[n, i, y]
    diff_src[n, i, y]     = sum over t, o of weights[o, i, t] * diff_dst[n, o, x(y, t)]
    diff_weights[o, i, t] = sum over n, y of src[n, i, y] * diff_dst[n, o, x(y, t)]
    diff_bias[o]          = sum over n, x of diff_dst[n, o, x]

With the dims of channels of weights exchanged, these are backward data, forward and backward
weights of the convolution whose image is dst.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    Deconvolution,
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
    DeconvolutionForward,
    MemoryDesc,
)
from dnncore_reference import convolution
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(
    op: DeconvolutionForward, src: Array, weights: Array, bias: Array | None = None
) -> dict[str, Array]:
    """Compute the gradient of the convolution by its image."""
    twin = ConvolutionBackwardData(
        diff_src=_plain(op.dst), weights=_weights(op), diff_dst=_plain(op.src), **op.window_fields
    )
    dst = convolution.backward_data(twin, src, _exchanged(op, weights))["diff_src"]
    if bias is not None:
        dst = dst + bias.reshape(-1, *[1] * (dst.ndim - 2))
    return {"dst": dst}


def backward_data(
    op: DeconvolutionBackwardData, diff_dst: Array, weights: Array
) -> dict[str, Array]:
    """Compute the convolution of diff_dst."""
    twin = ConvolutionForward(
        "forward_training", src=_plain(op.diff_dst), weights=_weights(op), dst=_plain(op.diff_src),
        **op.window_fields,
    )  # fmt: skip
    return {"diff_src": convolution.forward(twin, diff_dst, _exchanged(op, weights))["dst"]}


def backward_weights(
    op: DeconvolutionBackwardWeights, src: Array, diff_dst: Array
) -> dict[str, Array]:
    """Compute the gradient of the convolution by its weights."""
    twin = ConvolutionBackwardWeights(
        src=_plain(op.diff_dst), diff_weights=_weights(op), diff_dst=_plain(op.src),
        **op.window_fields,
    )  # fmt: skip
    found = convolution.backward_weights(twin, diff_dst, src)["diff_weights"]
    axes = tuple(axis for axis in range(diff_dst.ndim) if axis != 1)
    return {"diff_weights": _exchanged(op, found), "diff_bias": diff_dst.sum(axis=axes)}


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return MemoryDesc(desc.dims)


def _weights(op: Deconvolution) -> MemoryDesc:
    """Describe the weights of the convolution."""
    return MemoryDesc(_exchanged(op, np.empty(op.weights_role.dims, np.bool_)).shape)


def _exchanged(op: Deconvolution, weights: Array) -> Array:
    """Exchange the dims of channels."""
    first = weights.ndim - op.src_role.ndims
    return weights.swapaxes(first, first + 1)


FORWARD = (Definition("deconvolution", forward),)
BACKWARD_DATA = (Definition("deconvolution", backward_data),)
BACKWARD_WEIGHTS = (Definition("deconvolution", backward_weights),)
