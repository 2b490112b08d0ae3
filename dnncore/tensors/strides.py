"""Arithmetic of layouts: strides of dims that are plain or split into inner blocks.

All strides count elements. `inner_blocks` holds (dim, size) pairs, outermost first.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

__all__ = [
    "Blocks",
    "Dims",
    "block_sizes",
    "dense_strides",
    "outer_counts",
    "reshaped_strides",
    "row_major",
    "used_strides",
]

Dims: TypeAlias = tuple[int, ...]
Blocks: TypeAlias = tuple[tuple[int, int], ...]


def block_sizes(ndims: int, inner_blocks: Blocks) -> list[int]:
    """Return the elements of a whole block of each dim; 1 for a dim without blocks."""
    sizes = [1] * ndims
    for dim, size in inner_blocks:
        sizes[dim] *= size
    return sizes


def outer_counts(dims: Dims, inner_blocks: Blocks) -> Dims:
    """Return the number of blocks of each dim; the last block may be partly padding."""
    if not inner_blocks:
        return dims
    sizes = block_sizes(len(dims), inner_blocks)
    return tuple([-(-n // size) for n, size in zip(dims, sizes, strict=True)])


def dense_strides(dims: Dims, order: Dims, inner_blocks: Blocks) -> Dims:
    """Return the strides of dims stored without gaps in `order`, outermost first."""
    counts = outer_counts(dims, inner_blocks)
    strides = [0] * len(dims)
    step = math.prod([size for _, size in inner_blocks])
    for dim in reversed(order):
        strides[dim] = step
        step *= counts[dim] or 1
    return tuple(strides)


def row_major(dims: Dims) -> Dims:
    """Return the strides of dims stored in their own order."""
    return dense_strides(dims, tuple(range(len(dims))), ())


def used_strides(outer: Dims, strides: Dims) -> Dims:
    """Return `strides` with 0 for dims of one block; () if there is no element."""
    if not strides or 0 in outer:
        return ()
    return tuple([s if n > 1 else 0 for s, n in zip(strides, outer, strict=True)])


def reshaped_strides(dims: Dims, strides: Dims, target: Dims) -> Dims:
    """Return the strides of `target` on plain `dims`; ValueError if elements would have to move."""
    elements = as_strided(np.empty(1, np.uint8), dims, strides)  # one byte each; never read
    return elements.reshape(target, copy=False).strides
