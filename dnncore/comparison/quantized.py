"""Bounds for quantized results: inputs as numbers, and the last steps before a result is stored.

docs/types.md defines the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ml_dtypes import iinfo

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.rounding import ROUNDOFF, Array, Noise
from dnncore.attributes import Attributes
from dnncore.ops import (
    ConvolutionForward,
    DeconvolutionForward,
    InnerProductForward,
    MatMul,
    Operation,
)
from dnncore.ops.sources import Sources
from dnncore.post_op import PostOp
from dnncore.tensors.datatypes import data_type

__all__ = ["allowed_steps", "dequantized", "dropped", "in_f32", "is_exact", "is_integer_product",
           "stored"]  # fmt: skip

UNCHANGED = ("workspace", "src2")
"""Arguments that are not numbers: places and conditions."""

PRODUCTS = (ConvolutionForward, DeconvolutionForward, InnerProductForward, MatMul)
"""The operations that may add up products of integers."""

EXACT = ("relu", "clip", "clip_v2", "abs", "linear")
"""Algorithms of eltwise whose roundings docs/types.md defines."""


def in_f32(op: Operation) -> Operation:
    """Return the operation on tensors of f32. Tensors of f64 keep their type."""
    tensors = {row.name: desc for row, desc in op.tensors() if row.name not in UNCHANGED}
    wide = {
        name: desc.with_data_type("f32")
        for name, desc in tensors.items()
        if desc.data_type not in ("f32", "f64")
    }
    if not wide:
        return op
    if isinstance(op, Sources):
        srcs = tuple(wide.get(f"src{i}", desc) for i, desc in enumerate(op.srcs))
        return replace(op, srcs=srcs, dst=wide.get("dst", op.dst))
    return op.with_descs(**wide)


def is_integer_product(op: Operation) -> bool:
    """Whether the operation adds up products of integers."""
    if not isinstance(op, PRODUCTS):
        return False
    return not any(data_type(desc.data_type).is_float for desc in (op.src, op.weights))


def is_exact(step: PostOp) -> bool:
    """Whether a post-op after a product of integers returns the same bits on every engine."""
    if step.kind == "eltwise":
        return step.algorithm in EXACT
    return step.kind != "binary" or BINARY[step.algorithm].roundings <= 1


def dequantized(op: Operation, attr: Attributes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs as numbers of f32 or f64, with zero points and scales applied."""
    result = dict(inputs)
    for row, _ in op.tensors():
        name = row.name
        if name not in inputs or name in UNCHANGED:
            continue
        values = inputs[name]
        kind: Any = np.float64 if values.dtype == np.float64 else np.float32
        if name in attr.zero_points and row.direction == "in":
            own = inputs[f"{name}_zero_points"].astype(np.float64)
            values = values.astype(np.float64) - spread(own, attr.zero_points[name].groups)
        values = values.astype(kind)
        if name in attr.scales and row.direction == "in":
            own = inputs[f"{name}_scales"].astype(kind)
            values = values * spread(own, attr.scales[name].groups)
        result[name] = values
    return result


def spread(values: Array, groups: tuple[int, ...]) -> Array:
    """Repeat the value of each group for the elements of the group, along the last two dims."""
    for axis, group in zip((-2, -1), groups, strict=False):
        values = np.repeat(values, group, axis)
    return values


def dropped(x: Array, noise: Noise, mask: Array, probability: float) -> tuple[Array, Noise]:
    """Return the value after dropout, and its noise."""
    factor = float(np.float32(1) / (np.float32(1) - np.float32(probability)))
    x = np.where(mask, x * factor, 0.0)
    own = 2 * ROUNDOFF * np.abs(x)
    return x, noise * np.where(mask, factor, 0.0) + Noise.within(own)


def stored(
    attr: Attributes, name: str, x: Array, noise: Noise, inputs: Mapping[str, Array], exact: bool
) -> tuple[Array, Noise]:
    """Return the value after the scales and zero points of the tensor `name`, and its noise.

    exact: whether the steps round to f32, as for products of integers.
    """
    kind: Any = np.float32 if exact else np.float64
    own_error = 0.0 if exact else ROUNDOFF
    x = x.astype(kind)
    if name in attr.scales:
        own = spread(inputs[f"{name}_scales"].astype(kind), attr.scales[name].groups)
        x = x * (1 / own)
        noise = noise * np.abs(1 / own.astype(np.float64))
        noise += Noise.within(own_error * 3 * np.abs(x))
    if name in attr.zero_points:
        own = spread(inputs[f"{name}_zero_points"].astype(kind), attr.zero_points[name].groups)
        x = x + own
        noise += Noise.within(own_error * np.abs(x))
    return x.astype(np.float64), noise


def allowed_steps(x: Array, noise: Noise, values: Array) -> Array:
    """Return how far an integer result may be from `values` if the error of x is within the noise.

    Where x is infinite or NaN, the result must be exact.
    """
    limits = iinfo(values.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    known = np.where(np.isfinite(noise.limit), noise.limit, np.inf)
    right = values.astype(np.float64)
    ends = [np.clip(np.rint(x + sign * known), limits.min, limits.max) for sign in (-1, 1)]
    steps: Array = np.max([np.abs(end - right) for end in ends], axis=0)
    steps = np.where(np.isfinite(x), steps, 0.0)  # infinity saturates, NaN becomes 0
    return np.where(noise.is_unknown, np.inf, steps)
