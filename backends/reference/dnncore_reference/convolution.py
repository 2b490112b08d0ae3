"""Convolution and its gradients: sums of one matrix product per row of the kernel.

Let t be a tap, y a place in the output, and x(y, t) = y*S - P + t*(D+1) the place in the image that
tap t of place y reads. For each group, with zeros outside the image:

    dst[n, o, y]          = bias[o] + sum over t, i of weights[o, i, t] * src[n, i, x(y, t)]
    diff_src[n, i, x]     = sum over o and all t, y with x(y, t) = x of
                            weights[o, i, t] * diff_dst[n, o, y]
    diff_weights[o, i, t] = sum over n, y of diff_dst[n, o, y] * src[n, i, x(y, t)]
    diff_bias[o]          = sum over n, y of diff_dst[n, o, y]

A row is the taps along the kernel's last dim. One matrix product sums over all pairs (i, t) of a
row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnncore.backend import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
)
from dnncore_reference.definition import Definition
from dnncore_reference.window import Windows

Array = np.ndarray[Any, Any]


def forward(
    op: ConvolutionForward, src: Array, weights: Array, bias: Array | None = None
) -> dict[str, Array]:
    """Sum over rows: (OC, IC taps) weights times (IC taps, places) cells, per image and group."""
    windows, image, out = _geometry(op)
    padded = windows.pad(src.reshape(image))
    filters = weights.reshape(op.grouped_weights)
    dst = np.zeros(out)
    for row, taps in _rows(op):
        dst += _by_pair(filters[row]) @ _cells(windows, padded, taps)
    if bias is not None:
        dst += bias.reshape(*out[1:3], 1)
    return {"dst": dst.reshape(op.dst.dims)}


def backward_data(op: ConvolutionBackwardData, diff_dst: Array, weights: Array) -> dict[str, Array]:
    """For each row, add (IC taps, OC) weights times (OC, places) gradients to the cells read."""
    windows, image, out = _geometry(op)
    gradient = diff_dst.reshape(out)
    filters = weights.reshape(op.grouped_weights)
    padded = windows.pad(np.zeros(image))
    for row, taps in _rows(op):
        product = _by_pair(filters[row]).swapaxes(-1, -2) @ gradient
        shares = product.reshape(*image[:3], len(taps), *windows.dst)
        for i, tap in enumerate(taps):
            padded[windows.cells(tap)] += shares[:, :, :, i]
    return {"diff_src": windows.crop(padded).reshape(op.diff_src.dims)}


def backward_weights(
    op: ConvolutionBackwardWeights, src: Array, diff_dst: Array
) -> dict[str, Array]:
    """For each row, sum (OC, places) gradients times (places, IC taps) cells over the images."""
    windows, image, out = _geometry(op)
    padded = windows.pad(src.reshape(image))
    gradient = diff_dst.reshape(out)
    diff_weights = np.zeros(op.grouped_weights)
    for row, taps in _rows(op):
        products = gradient @ _cells(windows, padded, taps).swapaxes(2, 3)
        diff_weights[row] = products.sum(axis=0).reshape(diff_weights[row].shape)
    return {
        "diff_weights": diff_weights.reshape(op.diff_weights.dims),
        "diff_bias": gradient.sum(axis=(0, 3)).reshape(-1),
    }


def _geometry(op: Convolution) -> tuple[Windows, tuple[int, ...], tuple[int, ...]]:
    """Return the windows, the dims of the image and the dims of the output.

    These dims are (N, G, IC, *spatial) and (N, G, OC, places).
    """
    groups, oc, ic, *kernel = op.grouped_weights
    n, _, *size = op.src_role.dims
    places = op.dst_role.dims[2:]
    windows = Windows(op, tuple(kernel), tuple(size), places)
    return windows, (n, groups, ic, *size), (n, groups, oc, math.prod(places))


def _rows(op: Convolution) -> Iterator[tuple[Any, list[tuple[int, ...]]]]:
    """Yield, for each row of the kernel, its index in the grouped weights and its taps."""
    *outer, last = op.grouped_weights[3:]
    for row in np.ndindex(*outer):
        yield (..., *row, slice(None)), [(*row, tap) for tap in range(last)]


def _by_pair(filters: Array) -> Array:
    """Join the last dims of weights (G, OC, IC, taps) to one column per pair (i, t)."""
    return filters.reshape(*filters.shape[:2], -1)


def _cells(windows: Windows, padded: Array, taps: list[tuple[int, ...]]) -> Array:
    """Return the cells that some taps of all windows read: (N, G, IC taps, places)."""
    n, groups, ic = padded.shape[:3]
    seen = np.stack([padded[windows.cells(tap)] for tap in taps], axis=3)
    return seen.reshape(n, groups, ic * len(taps), math.prod(windows.dst))


FORWARD = (Definition("convolution", forward),)
BACKWARD_DATA = (Definition("convolution", backward_data),)
BACKWARD_WEIGHTS = (Definition("convolution", backward_weights),)
