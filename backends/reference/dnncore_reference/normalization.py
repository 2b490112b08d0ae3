"""Batch, layer and group normalization and their gradients.

dst = scale * x + shift, with x = (src - mean) / sqrt(variance + epsilon)

diff_scale = sum of diff_dst * x and diff_shift = sum of diff_dst over a channel
diff_src   = (g - average of g - x * average of g * x) / sqrt(variance + epsilon)

with g = scale * diff_dst. The averages are those of a set of elements that share a mean and a
variance. They are absent if the statistics are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import (
    BatchNormalizationForward,
    GroupNormalization,
    LayerNormalization,
    Normalization,
)
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


class Sets:
    """Arrays with src's dims, but for groups (N, G, C // G, ...).

    axes: the axes of a set of elements that share statistics.
    channel: the axes of a channel.
    """

    def __init__(self, op: Normalization) -> None:
        dims = op.source.dims
        self.dims: tuple[int, ...] = dims
        self.channel: tuple[int, ...] = (1,)
        self.axes: tuple[int, ...] = (0, *range(2, len(dims)))
        if isinstance(op, GroupNormalization):
            groups = op.groups
            self.dims = (dims[0], groups, dims[1] // groups, *dims[2:])
            self.channel = (1, 2)
            self.axes = tuple(range(2, len(self.dims)))
        elif isinstance(op, LayerNormalization):
            self.channel = self.axes = (len(dims) - 1,)
        self.count = max(1, op.count)

    def whole(self, values: Array) -> Array:
        """Return a tensor of src's dims."""
        return values.reshape(self.dims)

    def statistic(self, values: Array) -> Array:
        """Return mean or variance, to be broadcast."""
        return values.reshape([1 if a in self.axes else n for a, n in enumerate(self.dims)])

    def per_channel(self, values: Array | None, absent: float) -> Array:
        """Return scale or shift, to be broadcast."""
        if values is None:
            return np.array(absent)
        return values.reshape([n if a in self.channel else 1 for a, n in enumerate(self.dims)])

    def average(self, values: Array) -> Array:
        """Average over each set; 0 without elements."""
        total: Array = values.sum(self.axes, keepdims=True)
        return total / self.count

    def over_channel(self, values: Array) -> Array:
        """Sum over each channel."""
        total: Array = values.sum(tuple(a for a in range(values.ndim) if a not in self.channel))
        return total.reshape(-1)


def forward(
    op: Any,
    src: Array,
    mean: Array | None = None,
    variance: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    src1: Array | None = None,
) -> dict[str, Array]:
    """Normalize with the statistics of src, or with given ones."""
    sets = Sets(op)
    x = sets.whole(src)
    if op.use_global_stats:
        average = sets.statistic(mean) if mean is not None else np.array(0.0)
        spread = sets.statistic(variance) if variance is not None else np.array(1.0)
    else:
        average = sets.average(x) if op.has_mean else np.array(0.0)
        spread = sets.average(np.square(x - average))
    factor = sets.per_channel(scale, 1.0)
    normalized = (x - average) / np.sqrt(spread + op.epsilon)
    dst = (factor * normalized + sets.per_channel(shift, 0.0)).reshape(src.shape)
    outputs = {}
    if not op.use_global_stats and op.variance is not None:
        outputs["variance"] = spread.reshape(op.variance.dims)
        if op.mean is not None:
            outputs["mean"] = average.reshape(op.mean.dims)
    if isinstance(op, BatchNormalizationForward) and op.fuse_relu:
        dst = dst if src1 is None else dst + src1
        outputs["workspace"] = np.where(dst <= 0, 0.0, 1.0)
        dst = np.where(dst <= 0, 0.0, dst)
    return {**outputs, "dst": dst}


def backward(
    op: Any,
    src: Array,
    diff_dst: Array,
    variance: Array,
    mean: Array | None = None,
    scale: Array | None = None,
    workspace: Array | None = None,
) -> dict[str, Array]:
    """Compute the gradients of src, scale, shift and src1."""
    sets = Sets(op)
    if workspace is not None:
        diff_dst = np.where(workspace == 0, 0.0, diff_dst)
    diff = sets.whole(diff_dst)
    average = sets.statistic(mean) if mean is not None else np.array(0.0)
    factor = 1 / np.sqrt(sets.statistic(variance) + op.epsilon)
    x = (sets.whole(src) - average) * factor
    g = sets.per_channel(scale, 1.0) * diff
    slope = g
    if not op.use_global_stats:
        slope = g - x * sets.average(g * x)
        if op.has_mean:
            slope = slope - sets.average(g)
    return {
        "diff_src": (slope * factor).reshape(src.shape),
        "diff_scale": sets.over_channel(diff * x),
        "diff_shift": sets.over_channel(diff),
        "diff_src1": diff_dst,
    }


FORWARD_LIKE = {"dst": "src"}
BACKWARD_LIKE = {"diff_dst": "src", "diff_src": "src", "diff_src1": "src"}

BATCH_FORWARD = (Definition("batch_normalization", forward, FORWARD_LIKE),)
BATCH_BACKWARD = (Definition("batch_normalization", backward, BACKWARD_LIKE),)
LAYER_FORWARD = (Definition("layer_normalization", forward, FORWARD_LIKE),)
LAYER_BACKWARD = (Definition("layer_normalization", backward, BACKWARD_LIKE),)
GROUP_FORWARD = (Definition("group_normalization", forward, FORWARD_LIKE),)
GROUP_BACKWARD = (Definition("group_normalization", backward, BACKWARD_LIKE),)
