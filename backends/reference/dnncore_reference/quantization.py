"""Scales and zero points, and products of integers.

docs/types.md defines the steps. For products of integers and reorders with attributes, each step
after the sum is computed in float32 and rounded. All other operations dequantize their inputs and
compute in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnncore.backend import (
    Attributes,
    Concat,
    ConvolutionForward,
    DeconvolutionForward,
    InnerProductForward,
    MatMul,
    Operation,
    PoolingForward,
    Reorder,
    ResamplingForward,
    Shuffle,
    data_type,
)

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


PRODUCTS = (ConvolutionForward, DeconvolutionForward, InnerProductForward, MatMul)


def is_integer_product(op: Operation) -> bool:
    """Whether the operation sums products of integers."""
    if not isinstance(op, PRODUCTS):
        return False
    return not any(data_type(desc.data_type).is_float for desc in (op.src, op.weights))


def is_stepwise(op: Operation, attr: Attributes) -> bool:
    """Whether each step after the sum is rounded to float32."""
    return is_integer_product(op) or (isinstance(op, Reorder) and bool(attr.words))


def converted(op: Operation, attr: Attributes, inputs: Inputs) -> dict[str, Array]:
    """Return the inputs. Inputs of s32 are rounded to float32 unless the operation is exact."""
    is_exact = (
        isinstance(op, Reorder)
        or is_integer_product(op)
        or (isinstance(op, PoolingForward) and op.is_max)
    )
    if is_exact:
        return dict(inputs)
    steps = attr.post_ops or attr.dropout or attr.rounding == "stochastic"
    copies = _is_copy(op) and not steps
    types = {argument.name: desc.data_type for argument, desc in op.tensors()}
    return {
        name: values
        if types.get(name) != "s32" or (copies and name not in attr.scales)
        else in_f32(values)
        for name, values in inputs.items()
    }


def _is_copy(op: Operation) -> bool:
    """Whether elements are only moved. Nearest elements of another type are converted in f32."""
    if isinstance(op, ResamplingForward):
        return op.is_nearest and op.src.data_type == op.dst.data_type
    return isinstance(op, Concat | Shuffle)


def in_f32(values: Array) -> Array:
    """Return the values rounded to float32, as float64."""
    rounded: Array = values.astype(np.float32).astype(np.float64)
    return rounded


def dequantized(op: Operation, attr: Attributes, name: str, values: Array, given: Inputs) -> Array:
    """Return (values - zero points) * scales of an input.

    The product is rounded to float32, except for f64 inputs of operations other than reorder.
    """
    scales = given.get(f"{name}_scales")
    values = without_zero_points(attr, name, values, given)
    if scales is None:
        return values
    scales = _spread(scales, attr.scales[name].groups)
    if getattr(op, name).data_type == "f64" and not isinstance(op, Reorder):
        return values * scales
    product: Array = values.astype(np.float32) * scales.astype(np.float32)
    return product.astype(np.float64)


def without_zero_points(attr: Attributes, name: str, values: Array, given: Inputs) -> Array:
    """Return the values of an input minus its zero points."""
    zero_points = given.get(f"{name}_zero_points")
    if zero_points is None:
        return values
    return values - _spread(zero_points, attr.zero_points[name].groups)


def stored(attr: Attributes, name: str, x: Array, given: Inputs) -> Array:
    """Return x / scales + zero points of the tensor `name`. The type of x does not change."""
    if name in attr.scales:
        scales = _spread(given[f"{name}_scales"].astype(x.dtype), attr.scales[name].groups)
        x = x * (1 / scales)
    if name in attr.zero_points:
        zero_points = given[f"{name}_zero_points"].astype(x.dtype)
        x = x + _spread(zero_points, attr.zero_points[name].groups)
    return x


def _spread(values: Array, groups: tuple[int, ...]) -> Array:
    """Repeat values for each element of their groups along the last two dims."""
    for axis, group in zip((-2, -1), groups, strict=False):
        values = np.repeat(values, group, axis)
    return values


# -- products of integers --------------------------------------------------------------------------


def product(
    op: Any, attr: Attributes, formula: Callable[..., Any], inputs: Inputs, given: Inputs
) -> Array:
    """Return the scaled sums of products plus bias, in float32.

    If scales vary along K, the sum of each range of K is scaled, and the results are added in
    order.
    """
    factors = {
        name: without_zero_points(attr, name, inputs[name], given) for name in ("src", "weights")
    }
    scales = {name: _scales(op, attr, name, given.get(f"{name}_scales")) for name in factors}
    ranges = math.lcm(*(own.shape[0] for own in scales.values()))
    x = np.zeros(op.dst.dims, np.float32)
    for part in range(ranges):
        own = {name: _range(op, name, values, part, ranges) for name, values in factors.items()}
        src, weights = (all_of[part * all_of.shape[0] // ranges] for all_of in scales.values())
        x = x + _sums(op, formula, own).astype(np.float32) * (src * weights)
    if "bias" not in inputs:
        return x
    bias = inputs["bias"].astype(np.float32)
    return x + (bias if isinstance(op, MatMul) else _per_channel(bias, op.dst.ndims))


def _sums(op: Any, formula: Callable[..., Any], factors: Mapping[str, Array]) -> Array:
    """Return the sums of products as s32, which wraps around."""
    total = np.zeros(op.dst.dims, np.int64)
    for src, src_shift in _halves(factors["src"]):
        for weights, weights_shift in _halves(factors["weights"]):
            sums = formula(op, src=src, weights=weights)["dst"]
            total += sums.astype(np.int64) << (src_shift + weights_shift)
    return _wrapped(total)


def _wrapped(sums: Array) -> Array:
    """Convert int64 sums to s32, which wraps around."""
    return sums.astype(np.int32)


def _halves(values: Array) -> list[tuple[Array, int]]:
    """Divide integers into parts. Returns (part, bits by which the part is shifted).

    Parts have at most 16 bits, so that float64 represents sums of 2**21 products exactly.
    """
    if np.abs(values).max(initial=0) < 1 << 16:
        return [(values, 0)]
    wrapped = values.astype(np.int64).astype(np.int32)
    low, high = wrapped & 0xFFFF, wrapped >> 16
    return [(low.astype(np.float64), 0), (high.astype(np.float64), 16)]


def _per_channel(values: Array, ndims: int) -> Array:
    """Return one value per index of dim 1, or a single value, as a tensor of rank `ndims`."""
    return values.reshape(1, -1, *[1] * (ndims - 2))


def _scales(op: Any, attr: Attributes, name: str, values: Array | None) -> Array:
    """Return a factor of dst for each range of K. Dim 0 is the ranges."""
    if values is None:
        return np.ones((1, *[1] * op.dst.ndims), np.float32)
    values = values.astype(np.float32)
    groups = attr.scales[name].groups
    if isinstance(op, MatMul):
        if name == "src":
            values = _spread(values, (groups[0], 1) if groups else ())
            return np.moveaxis(values, -1, 0)[..., np.newaxis]
        values = _spread(values, (1, groups[1]) if groups else ())
        return np.moveaxis(values, -2, 0)[..., np.newaxis, :]
    if isinstance(op, InnerProductForward) and name == "weights":
        is_flat = values.ndim == 2  # otherwise the groups are along dims of K only
        values = _spread(values, (groups[0], 1) if groups and is_flat else ())
        return values.reshape(*values.shape[:2]).T[:, np.newaxis, :]
    return _per_channel(values, op.dst.ndims)[np.newaxis]


def _range(op: Any, name: str, values: Array, part: int, ranges: int) -> Array:
    """Return the part of a factor in one range of K."""
    if ranges == 1:
        return values
    axis = 1 if isinstance(op, InnerProductForward) else values.ndim - (1 if name == "src" else 2)
    parts: Array = np.split(values, ranges, axis)[part]
    return parts
