"""torch's operators for normalizations.

torch keeps 1 / sqrt(variance + epsilon). The variance is computed from it after the measurement,
and gradients get the statistics of a forward pass before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import dnncore as dnn
from benchmarks.contestants.by_torch_memory import Converted, Run, Tensors
from benchmarks.contestants.contestant import LeftOut

__all__ = ["NORMALIZATIONS"]

aten = torch.ops.aten


def _variance(op: Any, inverse: Any) -> Converted:
    """The variance, which torch does not keep."""
    return Converted((inverse,), lambda inverse: inverse.double() ** -2 - op.epsilon)


def _wanted(op: Any) -> list[bool]:
    return [True, op.diff_scale is not None, op.diff_shift is not None]


def _present(tensors: Any) -> list[Any]:
    return [tensor for tensor in tensors if tensor is not None]


# -- batch normalization ---------------------------------------------------------------------------


def _batch(op: Any, t: Tensors) -> Run:
    """Batch normalization, and two more calls for an addition and a relu."""
    compute = _batch_on_cuda if t["src"].is_cuda else _batch_on_cpu
    normalize, other = compute(op, t), t.get("src1")

    def run() -> Any:
        dst, mean, inverse = normalize()
        if other is not None:
            dst.add_(other)
        if op.fuse_relu:
            dst.relu_()
        return [dst, mean, _variance(op, inverse)]

    return run


def _statistics(op: Any, t: Tensors) -> tuple[Any, ...]:
    """torch's arguments: statistics, if given; whether they are computed; factor; epsilon."""
    given = (t["mean"], t["variance"]) if op.use_global_stats else (None, None)
    return *given, not op.use_global_stats, 0.0, op.epsilon


def _batch_on_cpu(op: Any, t: Tensors) -> Run:
    src = t["src"]
    kept = torch.float32 if src.dtype != torch.float64 else src.dtype
    mean, inverse = (src.new_empty(op.channels, dtype=kept) for _ in range(2))
    arguments = src, t.get("scale"), t.get("shift"), *_statistics(op, t)
    results = {"out": t["dst"], "save_mean": mean, "save_invstd": inverse}
    return lambda: aten.native_batch_norm.out(*arguments, **results)


def _batch_on_cuda(op: Any, t: Tensors) -> Run:
    """The choice between cuDNN and torch's kernels is torch's."""
    arguments = t["src"], t.get("scale"), t.get("shift"), *_statistics(op, t), True
    return lambda: torch._batch_norm_impl_index(*arguments)[:3]


def _batch_backward(op: Any, t: Tensors) -> Run:
    if op.fuse_relu:
        raise LeftOut("the mask of a fused relu depends on rounding")
    src, scale, statistics = t["src"], t.get("scale"), _statistics(op, t)
    zeros = None if scale is None else torch.zeros_like(scale)  # cuDNN needs a shift
    found = torch._batch_norm_impl_index(src, scale, zeros, *statistics, True)
    _, mean, inverse, kept, index = found
    mean_given, variance_given, is_training, _, epsilon = statistics
    rest = mean_given, variance_given, mean, inverse, is_training, epsilon, _wanted(op)
    if not src.is_cuda:
        return lambda: _present(aten.native_batch_norm_backward(t["diff_dst"], src, scale, *rest))
    backward = aten._batch_norm_impl_index_backward
    return lambda: _present(backward(index, src, t["diff_dst"], scale, *rest, kept))


# -- layer normalization ---------------------------------------------------------------------------


def _layer(op: Any, t: Tensors) -> Run:
    if op.use_global_stats:
        raise LeftOut("torch computes the statistics of layers")
    dims, src, scale, shift = [op.channels], t["src"], t.get("scale"), t.get("shift")
    if op.rms:
        if shift is not None or op.prop_kind == "forward_training":
            raise LeftOut("torch's RMS normalization has no shift and keeps no statistics")
        return lambda: torch.nn.functional.rms_norm(src, dims, scale, op.epsilon)

    def run() -> Any:
        dst, mean, inverse = aten.native_layer_norm(src, dims, scale, shift, op.epsilon)
        return [dst, mean, _variance(op, inverse)]

    return run


def _layer_backward(op: Any, t: Tensors) -> Run:
    if op.use_global_stats or op.rms:
        raise LeftOut("torch has this gradient only by automatic differentiation")
    dims, src, scale = [op.channels], t["src"], t.get("scale")
    _, mean, inverse = aten.native_layer_norm(src, dims, scale, None, op.epsilon)
    arguments = t["diff_dst"], src, dims, mean, inverse, scale, scale, _wanted(op)
    return lambda: _present(aten.native_layer_norm_backward(*arguments))


# -- group normalization ---------------------------------------------------------------------------


def _group(op: Any, t: Tensors) -> Run:
    src = t["src"]
    arguments = src, t.get("scale"), t.get("shift"), *_sizes(op), op.epsilon

    def run() -> Any:
        dst, mean, inverse = aten.native_group_norm(*arguments)
        return [dst, mean, _variance(op, inverse)]

    return run


def _group_backward(op: Any, t: Tensors) -> Run:
    src, scale = t["src"], t.get("scale")
    _, mean, inverse = aten.native_group_norm(src, scale, None, *_sizes(op), op.epsilon)
    arguments = t["diff_dst"], src, mean, inverse, scale, *_sizes(op), _wanted(op)
    return lambda: _present(aten.native_group_norm_backward(*arguments))


def _sizes(op: Any) -> tuple[int, int, int, int]:
    """Images, channels, pixels, groups."""
    if op.use_global_stats:
        raise LeftOut("torch computes the statistics of groups")
    images, channels, *pixels = op.src.dims
    return images, channels, math.prod(pixels), op.groups


NORMALIZATIONS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    dnn.BatchNormalizationForward: _batch,
    dnn.BatchNormalizationBackward: _batch_backward,
    dnn.LayerNormalizationForward: _layer,
    dnn.LayerNormalizationBackward: _layer_backward,
    dnn.GroupNormalizationForward: _group,
    dnn.GroupNormalizationBackward: _group_backward,
}
