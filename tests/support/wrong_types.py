"""Wrong versions of the reference's functions for reading, rounding, dropout and post-ops."""

from __future__ import annotations

from unittest import mock

import ml_dtypes
import numpy as np
from dnncore_reference import definition, post_ops
from wrong_scales import replaced

from dnncore import backend

# -- reading and storing ---------------------------------------------------------------------------


def integers(change):
    """A fault in conversions to integer types: change(values, limits) replaces the rounding."""

    def wrong(right, values, type_name):
        if backend.data_type(type_name).is_float:
            return right(values, type_name)
        row = backend.data_type(type_name)
        limits = ml_dtypes.iinfo(row.dtype)
        return change(values.astype(np.float64), limits).astype(np.int64).astype(row.dtype)

    return replaced(definition, "rounded", wrong)


def saturated(values, limits, nan=0.0):
    return np.nan_to_num(np.clip(values, limits.min, limits.max), nan=nan)


def half_away(values, limits):
    return saturated(np.trunc(values + np.copysign(0.5, values)), limits)


def half_up(values, limits):
    return saturated(np.floor(values + 0.5), limits)


def cut(values, limits):
    return saturated(np.trunc(values), limits)


def wrapped(values, limits):
    bits = int(limits.max - limits.min).bit_length()
    whole = np.rint(np.clip(np.nan_to_num(values), -(2.0**62), 2.0**62)).astype(np.int64)
    return (whole - limits.min) % (1 << bits) + limits.min


def narrow(values, limits):
    """Saturates at one less than the largest number."""
    return np.minimum(saturated(np.rint(values), limits), limits.max - 1)


def symmetric(values, limits):
    """Saturates at minus the largest number, not at the least number."""
    return np.maximum(saturated(np.rint(values), limits), -limits.max if limits.min else 0)


def least_for_nan(values, limits):
    return saturated(np.rint(values), limits, nan=limits.min)


def largest_for_nan(values, limits):
    return saturated(np.rint(values), limits, nan=limits.max)


def floats(words, change):
    """A fault in rounding to these floating types: change(rounded values, exact values)."""

    def wrong(right, values, type_name):
        if type_name not in words:
            return right(values, type_name)
        return change(right(values, type_name), values)

    return replaced(definition, "rounded", wrong)


def towards_zero(nearest, values):
    below = np.nextafter(nearest, np.zeros_like(nearest))
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(beyond & np.isfinite(values), below, nearest)


def without_subnormals(nearest, values):
    limit = ml_dtypes.finfo(nearest.dtype).smallest_normal
    return np.where(np.abs(nearest) < limit, np.zeros_like(nearest), nearest)


def clamped(nearest, values):
    """Overflows become the largest number, not infinity."""
    most = ml_dtypes.finfo(nearest.dtype).max
    beyond = np.isinf(nearest) & np.isfinite(values)
    return np.where(beyond, np.copysign(most, values).astype(nearest.dtype), nearest)


def read_as(words, change):
    """A fault in reading tensors of these types: change(values) replaces the values."""

    def wrong(right, memory):
        values = right(memory)
        return change(values) if memory.desc.data_type in words else values

    return replaced(definition, "_read", wrong)


def to_bits(bits):
    def change(values):
        mantissas, exponents = np.frexp(values)
        return np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits)

    return change


def swapped(right, memory):
    """The two 4-bit elements of each byte are swapped."""
    if memory.desc.data_type not in ("s4", "u4"):
        return right(memory)
    buffer = memory.buffer.copy()
    buffer[:] = (buffer >> 4) | (buffer << 4)
    return memory.desc.unpack(buffer).astype(np.float64)


def in_half(right, self, op, attr, inputs, read):
    """Products of f16 are added up in f16."""
    if not isinstance(op, backend.MatMul) or op.src.data_type != "f16":
        return right(self, op, attr, inputs, read)
    if op.weights.data_type != "f16":
        return right(self, op, attr, inputs, read)
    src, weights = (inputs[name].astype(np.float16) for name in ("src", "weights"))
    total = np.zeros(op.dst.dims, np.float16)
    for k in range(src.shape[-1]):
        total = total + src[..., k : k + 1] * weights[..., k : k + 1, :]
    return {"dst": total.astype(np.float64) + inputs.get("bias", 0.0)}


# -- post-ops, dropout, rounding -------------------------------------------------------------------


def without_zero_point(right, step, x, old, own):
    if step.kind != "sum":
        return right(step, x, old, own)
    return x + step.scale * old().astype(x.dtype)


def contracted_linear(right, step, x, old, own):
    if step.algorithm == "linear":
        alpha, beta = np.float32(step.alpha), np.float32(step.beta)
        return alpha * x.astype(np.float64) + beta if x.dtype == np.float32 else right(
            step, x, old, own)  # fmt: skip
    return right(step, x, old, own)


def contracted_sum(right, step, x, old, own):
    if step.kind != "sum" or x.dtype != np.float32:
        return right(step, x, old, own)
    values = (old().astype(x.dtype) - x.dtype.type(step.zero_point)).astype(np.float64)
    return x.astype(np.float64) + float(np.float32(step.scale)) * values


def shifted_mask(right, dims, *arguments):
    return np.roll(right(dims, *arguments).ravel(), 1).reshape(dims)


def of_columns(right, dims, *arguments):
    """Numbers the elements in column-major order."""
    return right(dims[::-1], *arguments).T


def inverse(right, x, read, arguments):
    """Dropout multiplies results by 1 / p, not by 1 / (1 - p)."""
    p = np.float32(read["dropout_probability"][0])
    dropped = right(x, read, arguments)
    return dropped * (1 - p) / p


def unscaled(right, x, read, arguments):
    return np.where(right(np.ones_like(x), read, arguments) == 0, np.zeros_like(x), x)


def to_nearest(_right, values, mantissa, seed):
    return values


def down(_right, values, mantissa, seed):
    cut = np.uint32((1 << (23 - mantissa)) - 1)
    return (values.astype(np.float32).view(np.uint32) & ~cut).view(np.float32)


def other_places(right, values, mantissa, seed):
    return right(values.ravel()[::-1], mantissa, seed)[::-1].reshape(values.shape)


def late_dropout(right, op, attr, memories):
    """Applies post-ops before dropout."""
    chain, drop = post_ops.apply, definition._dropped
    given = []

    def kept(x, read, arguments):
        given.append((read, arguments))
        return x

    def apply(*own, **named):
        x = chain(*own, **named)
        return drop(x, *given.pop()) if given else x

    with (
        mock.patch.object(definition, "_dropped", kept),
        mock.patch.object(post_ops, "apply", apply),
    ):
        right(*memories)
