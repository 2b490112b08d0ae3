"""Quantized results by torch: the steps of docs/types.md as torch computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dnncore as dnn
from dnncore.comparison.quantized import is_integer_product
from dnncore.ops import InnerProductForward, MatMul, Operation

__all__ = ["dequantized", "is_integer_product", "is_stepwise", "product", "stored"]

Tensors = Mapping[str, Any]


def is_stepwise(op: Operation, attr: dnn.Attributes) -> bool:
    """Whether each step after the sum is rounded to f32."""
    return is_integer_product(op) or (isinstance(op, dnn.Reorder) and bool(attr.words))


def dequantized(op: Operation, attr: dnn.Attributes, t: Tensors) -> dict[str, Any]:
    """Return the tensors with zero points and scales of the inputs applied. Products with scales
    are rounded to f32, unless the tensor is f64.
    """
    read = dict(t)
    for name in (a.name for a, _ in op.tensors() if a.direction == "in"):
        if name in attr.zero_points:
            read[name] = read[name] - _each(t, attr.zero_points, name, "zero_points")
        if name in attr.scales:
            scales = _each(t, attr.scales, name, "scales")
            is_wide = getattr(op, name).data_type == "f64" and not isinstance(op, dnn.Reorder)
            product = read[name] * scales if is_wide else read[name].float() * scales.float()
            read[name] = product.double()
    return read


def _each(t: Tensors, kinds: Mapping[str, Any], name: str, word: str) -> Any:
    """Return a value for each element of a group. Other dims have size 1."""
    values = t[f"{name}_{word}"]
    for dim, group in zip((-2, -1), kinds[name].groups, strict=False):
        values = values.repeat_interleave(group, dim)
    return values


def product(
    torch: Any, op: Any, attr: dnn.Attributes, t: Tensors, sums: Callable[[Tensors], Any]
) -> Any:
    """Return the scaled sums of products of integers plus bias, in f32.

    sums: a function that computes the sums of products without bias.
    """
    factors = {}
    for name in ("src", "weights"):
        values = t[name]
        if name in attr.zero_points:
            values = values - _each(t, attr.zero_points, name, "zero_points")
        factors[name] = values
    x = torch.zeros(op.dst.dims, dtype=torch.float32)
    for part, scale in _ranges(torch, op, attr, t, factors):
        total = sums(part).to(torch.int64)
        wrapped = (total + 2**31) % 2**32 - 2**31
        x = x + wrapped.float() * scale
    if op.bias is None:
        return x
    bias = t["bias"].float()
    return x + (bias if isinstance(op, MatMul) else bias.reshape(1, -1, *[1] * (x.ndim - 2)))


def _ranges(
    torch: Any, op: Any, attr: dnn.Attributes, t: Tensors, factors: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the parts of the factors along K, and the product of their scales, a factor of dst."""
    src, weights = (_along_k(torch, op, attr, t, name) for name in factors)
    count = math.lcm(src.shape[0], weights.shape[0])
    dims = {"src": 1, "weights": 1 if isinstance(op, InnerProductForward) else -2}
    if isinstance(op, MatMul):
        dims["src"] = -1
    for part in range(count):
        own = {
            name: values.tensor_split(count, dims[name])[part] if count > 1 else values
            for name, values in factors.items()
        }
        scales = (all_of[part * all_of.shape[0] // count] for all_of in (src, weights))
        yield own, math.prod(scales)


def _along_k(torch: Any, op: Any, attr: dnn.Attributes, t: Tensors, name: str) -> Any:
    """Return the scales of a factor: for each range of K, a factor of dst."""
    if name not in attr.scales:
        return torch.ones(1, *[1] * op.dst.ndims)
    values, groups = t[f"{name}_scales"].float(), attr.scales[name].groups
    if isinstance(op, MatMul) and name == "src":
        values = values.repeat_interleave(groups[0], -2) if groups else values
        return values.movedim(-1, 0).unsqueeze(-1)
    if isinstance(op, MatMul):
        values = values.repeat_interleave(groups[1], -1) if groups else values
        return values.movedim(-2, 0).unsqueeze(-2)
    if isinstance(op, InnerProductForward) and name == "weights":
        is_flat = values.ndim == 2  # else groups are along K
        values = values.repeat_interleave(groups[0], 0) if groups and is_flat else values
        return values.flatten(1).T.unsqueeze(1)
    return values.reshape(1, 1, -1, *[1] * (op.dst.ndims - 2))


def stored(attr: dnn.Attributes, name: str, x: Any, t: Tensors) -> Any:
    """Return x divided by the scales of the tensor, plus its zero points."""
    if name in attr.scales:
        x = x * (1 / _each(t, attr.scales, name, "scales").to(x.dtype))
    if name in attr.zero_points:
        x = x + _each(t, attr.zero_points, name, "zero_points").to(x.dtype)
    return x
