"""Resampling: element o of dst lies at (o + 1/2) * I / O - 1/2 in src, along each spatial dim.

One dim after the other. Positions are fractions, so that ties are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from dnncore.backend import ResamplingBackward, ResamplingForward
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: ResamplingForward, src: Array) -> dict[str, Array]:
    """Sum weighted elements of src."""
    for axis in range(2, src.ndim):
        sizes = src.shape[axis], op.dst.dims[axis]
        dst = np.zeros((*src.shape[:axis], sizes[1], *src.shape[axis + 1 :]))
        for o, i, weight in _terms(op.algorithm, *sizes):
            _at(dst, axis, o)[...] += weight * _at(src, axis, i)
        src = dst
    return {"dst": src}


def backward(op: ResamplingBackward, diff_dst: Array) -> dict[str, Array]:
    """Add weighted elements of diff_dst to the elements from which they were computed."""
    for axis in range(2, diff_dst.ndim):
        sizes = op.diff_src.dims[axis], diff_dst.shape[axis]
        diff_src = np.zeros((*diff_dst.shape[:axis], sizes[0], *diff_dst.shape[axis + 1 :]))
        for o, i, weight in _terms(op.algorithm, *sizes):
            _at(diff_src, axis, i)[...] += weight * _at(diff_dst, axis, o)
        diff_dst = diff_src
    return {"diff_src": diff_dst}


def _at(values: Array, axis: int, index: int) -> Array:
    return values[(slice(None),) * axis + (index,)]


def _terms(algorithm: str, inputs: int, outputs: int) -> Iterator[tuple[int, int, float]]:
    """Yield (o, i, weight) for each element i of src that element o of dst depends on."""
    for o in range(outputs):
        x = (o + Fraction(1, 2)) * inputs / outputs - Fraction(1, 2)
        if algorithm == "nearest":
            yield o, min(math.floor(x + Fraction(1, 2)), inputs - 1), 1.0
            continue
        low = math.floor(x)
        for i, weight in ((low, 1 - (x - low)), (low + 1, x - low)):
            if weight:
                yield o, min(max(i, 0), inputs - 1), float(weight)


FORWARD = (Definition("resampling", forward, like={"dst": "src"}),)
BACKWARD = (Definition("resampling", backward, like={"diff_src": "diff_dst"}),)
