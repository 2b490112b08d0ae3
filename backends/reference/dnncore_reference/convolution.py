"""Convolution and its gradients, each a sum over the kernel's taps of one matrix product.

With t a tap, y a place in the output and x(y, t) = y*S - P + t*(D+1) the place in the image that y
sees through t, per group and with zeros outside of the image:

    dst[n, o, y]          = bias[o] + sum over t, i of weights[t, o, i] * src[n, i, x(y, t)]
    diff_src[n, i, x]     = sum over o and all t, y with x(y, t) = x of
                            weights[t, o, i] * diff_dst[n, o, y]
    diff_weights[t, o, i] = sum over n, y of diff_dst[n, o, y] * src[n, i, x(y, t)]
    diff_bias[o]          = sum over n, y of diff_dst[n, o, y]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnncore_reference.definition import Definition
from dnncore_reference.window import Windows

Array = np.ndarray[Any, Any]


def forward(op: Any, src: Array, weights: Array, bias: Array | None = None) -> dict[str, Array]:
    """Add up, per tap, (OC, IC) weights times (IC, places) cells, in all images and groups."""
    windows, image, out = _geometry(op)
    padded = windows.pad(src.reshape(image))
    filters = _by_tap(op, weights)
    dst = np.zeros(out)
    for tap in windows.taps():
        cells = padded[windows.cells(tap)].reshape(*image[:3], out[-1])
        dst += filters[tap] @ cells
    if bias is not None:
        dst += bias.reshape(*out[1:3], 1)
    return {"dst": dst.reshape(op.dst.dims)}


def backward_data(op: Any, diff_dst: Array, weights: Array) -> dict[str, Array]:
    """Add, per tap, (IC, OC) weights times (OC, places) gradients to the cells that were seen."""
    windows, image, out = _geometry(op)
    gradient = diff_dst.reshape(out)
    filters = _by_tap(op, weights)
    padded = windows.pad(np.zeros(image))
    for tap in windows.taps():
        product = filters[tap].swapaxes(-1, -2) @ gradient
        padded[windows.cells(tap)] += product.reshape(*image[:3], *windows.dst)
    return {"diff_src": windows.crop(padded).reshape(op.diff_src.dims)}


def backward_weights(op: Any, src: Array, diff_dst: Array) -> dict[str, Array]:
    """Sum (OC, places) gradients times (places, IC) cells over the images, per tap."""
    windows, image, out = _geometry(op)
    padded = windows.pad(src.reshape(image))
    gradient = diff_dst.reshape(out)
    diff_weights = np.zeros(op.grouped_weights)
    for tap in windows.taps():
        cells = padded[windows.cells(tap)].reshape(*image[:3], out[-1])
        diff_weights[(..., *tap)] = (gradient @ cells.swapaxes(-1, -2)).sum(axis=0)
    return {
        "diff_weights": diff_weights.reshape(op.diff_weights.dims),
        "diff_bias": gradient.sum(axis=(0, 3)).reshape(-1),
    }


def _geometry(op: Any) -> tuple[Windows, tuple[int, ...], tuple[int, ...]]:
    """The windows, the image's dims (N, G, IC, *spatial) and the output's (N, G, OC, places)."""
    groups, oc, ic, *kernel = op.grouped_weights
    n, _, *size = op.src_role.dims
    places = op.dst_role.dims[2:]
    windows = Windows(op, tuple(kernel), tuple(size), places)
    return windows, (n, groups, ic, *size), (n, groups, oc, math.prod(places))


def _by_tap(op: Any, weights: Array) -> Array:
    """Return the weights with the taps in front: (kernel, G, OC, IC)."""
    grouped = weights.reshape(op.grouped_weights)
    return np.ascontiguousarray(np.moveaxis(grouped, (0, 1, 2), (-3, -2, -1)))


FORWARD = (Definition("convolution", forward),)
BACKWARD_DATA = (Definition("convolution", backward_data),)
BACKWARD_WEIGHTS = (Definition("convolution", backward_weights),)
