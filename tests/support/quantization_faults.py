"""The reference's implementations, each with one fault of quantization or of a data type.

`FAULTS` has the faults by name. Each replaces one function of the reference while an implementation
computes. The module is a plugin.
"""

from __future__ import annotations

from unittest import mock

import ml_dtypes
import numpy as np
from dnncore_reference import (
    binary,
    convolution,
    definition,
    eltwise,
    inner_product,
    matmul,
    pooling,
    post_ops,
    quantization,
    reduction,
    reorder,
    softmax,
    sum,
)
from dnncore_reference.window import Windows
from subtle_faults import Right, backend_of

from dnncore import backend

KIND = "quantized"
OPERATIONS = {
    backend.ConvolutionForward: convolution.FORWARD,
    backend.InnerProductForward: inner_product.FORWARD,
    backend.MatMul: matmul.TABLE,
    backend.Reorder: reorder.TABLE,
    backend.EltwiseForward: eltwise.FORWARD,
    backend.Binary: binary.TABLE,
    backend.PoolingForward: pooling.FORWARD,
    backend.SoftmaxForward: softmax.FORWARD,
    backend.Reduction: reduction.TABLE,
    backend.Sum: sum.TABLE,
}


class QuantizedEngine(backend.HostEngine):
    kind = KIND


class AllTypes(Right):
    """Computes as the reference does, with all types and attributes."""

    kind = KIND
    data_types = definition.TYPES
    attributes = definition.ATTRIBUTES


class Faulty(AllTypes):
    """fault: fault(right, op, attr, memories) computes."""

    def __init__(self, name, formula, fault):
        super().__init__(name, formula)
        self.fault = fault

    def run(self, op, attr, engine, right, *memories):
        self.fault(right, op, attr, memories)


def replaced(owner, name, wrong):
    """A fault of the function `name` of a module or class: wrong(right, *arguments)."""

    def fault(right, op, attr, memories):
        with mock.patch.object(owner, name, wrapped_in(wrong, getattr(owner, name))):
            right(*memories)

    return fault


def wrapped_in(wrong, right):
    def function(*arguments, **named):
        return wrong(right, *arguments, **named)

    return function


# -- products of integers --------------------------------------------------------------------------


def scaled_after_bias(right, op, attr, formula, inputs, given):
    """(acc + bias) * scale."""
    x = right(op, attr, formula, inputs, given)
    if "bias" not in inputs:
        return x
    scale = np.ones_like(x)
    for name in ("src", "weights"):
        scale = scale * quantization._scales(op, attr, name, given.get(f"{name}_scales"))[0]
    return x + (x - right(op, attr, formula, without(inputs, "bias"), given)) * (scale - 1)


def without(values, name):
    return {own: value for own, value in values.items() if own != name}


def contracted_bias(right, op, attr, formula, inputs, given):
    """acc * scale + bias with one rounding."""
    if "bias" not in inputs:
        return right(op, attr, formula, inputs, given)
    with mock.patch.object(quantization.np, "float32", np.float64):
        return right(op, attr, formula, inputs, given).astype(np.float32)


def scaled_one_by_one(right, op, attr, formula, inputs, given):
    """acc * src scale * weights scale, from left to right."""
    own = {name: quantization._scales(op, attr, name, given.get(f"{name}_scales"))
           for name in ("src", "weights")}  # fmt: skip
    if any(len(scales) > 1 for scales in own.values()):
        return right(op, attr, formula, inputs, given)
    bare = without(without(given, "src_scales"), "weights_scales")
    x = right(op, attr, formula, without(inputs, "bias"), bare) * own["src"][0] * own["weights"][0]
    if "bias" in inputs:
        none = {name: np.zeros_like(inputs[name]) for name in ("src", "weights")}
        whole = dict.fromkeys((f"{name}_zero_points" for name in own), None)
        x = x + right(op, attr, formula, {**inputs, **none}, {**bare, **whole})
    return x


def saturated_sums(_right, sums):
    return np.clip(sums, -(2**31), 2**31 - 1).astype(np.int32)


def padded_by_zero_points(right, windows, image, outside=0.0):
    """The padding holds 0 as the data do, so that it counts as minus the zero point."""
    zero_points = getattr(padded_by_zero_points, "values", None)
    if zero_points is None or np.size(zero_points) == 1:
        return right(
            windows, image, outside if zero_points is None else -float(zero_points.flat[0])
        )
    padded = right(windows, image, 0.0)
    groups = image.shape[1:3]
    inside = right(windows, np.ones_like(image), 0.0)
    own = zero_points.reshape(1, *groups, *[1] * (image.ndim - 3))
    return np.where(inside == 1, padded, -own)


def with_padding(right, op, attr, formula, inputs, given):
    values = given.get("src_zero_points")
    if not isinstance(op, backend.ConvolutionForward) or values is None:
        return right(op, attr, formula, inputs, given)
    padded_by_zero_points.values = values
    whole = Windows.pad
    try:
        with mock.patch.object(Windows, "pad", lambda *own: padded_by_zero_points(whole, *own)):
            return right(op, attr, formula, inputs, given)
    finally:
        padded_by_zero_points.values = None


# -- scales and zero points ------------------------------------------------------------------------


def read_with(change):
    """The values of scales, zero points and the like are changed: change(arguments by name)."""

    def fault(right, op, attr, memories):
        names = [a.name for a, _ in [*op.tensors(op.workspace_desc()), *attr.arguments(op)]]
        changed = change(op, dict(zip(names, memories, strict=True)))
        right(*(changed[name] for name in names))

    return fault


def memory_of(values, like):
    return backend.Memory.from_numpy(
        np.ascontiguousarray(values).astype(like.desc.dtype), like.desc
    )


def neighbours(ending, *, of=("src", "weights", "dst")):
    """Values of the neighbour along each dim."""

    def change(op, arguments):
        for name, memory in arguments.items():
            if name.endswith(ending) and name.startswith(of):
                values = memory.numpy()
                arguments[name] = memory_of(np.roll(values, 1, range(values.ndim)), memory)
        return arguments

    return read_with(change)


def first_of_all(ending):
    """The first value for all elements."""

    def change(op, arguments):
        for name, memory in arguments.items():
            if name.endswith(ending):
                values = memory.numpy()
                first = np.broadcast_to(values.ravel()[:1], values.shape)
                arguments[name] = memory_of(first, memory) if values.size else memory
        return arguments

    return read_with(change)


def of_other(name, other):
    """The values of another argument of the same shape."""

    def change(op, arguments):
        one, two = arguments.get(name), arguments.get(other)
        if one is not None and two is not None and one.desc.dims == two.desc.dims:
            arguments[name] = memory_of(two.numpy(), one)
        return arguments

    return read_with(change)


def ignored(name, value):
    def change(op, arguments):
        if name in arguments:
            memory = arguments[name]
            arguments[name] = memory_of(np.full(memory.desc.dims, value), memory)
        return arguments

    return read_with(change)


def bits_of(name, mask):
    """Some bits of a seed alone."""

    def change(op, arguments):
        if name in arguments:
            arguments[name] = memory_of(arguments[name].numpy() & mask, arguments[name])
        return arguments

    return read_with(change)


def shifted_groups(_right, values, groups):
    for axis, group in zip((-2, -1), groups, strict=False):
        if group > 1 and values.shape[axis] > 1:
            size = values.shape[axis] * group
            places = np.minimum((np.arange(size) + 1) // group, values.shape[axis] - 1)
            values = np.take(values, places, axis)
        else:
            values = np.repeat(values, group, axis)
    return values


def divided(_right, attr, name, x, given):
    """x / scale, without a reciprocal."""
    if name in attr.scales:
        x = x / quantization._spread(given[f"{name}_scales"].astype(x.dtype),
                                     attr.scales[name].groups)  # fmt: skip
    if name in attr.zero_points:
        x = x + given[f"{name}_zero_points"].astype(x.dtype)
    return x


def contracted_zero_point(right, attr, name, x, given):
    """x * (1 / scale) + zero point with one rounding."""
    if name not in attr.scales or name not in attr.zero_points:
        return right(attr, name, x, given)
    reciprocal = (1 / given[f"{name}_scales"].astype(x.dtype)).astype(np.float64)
    return (x * reciprocal + given[f"{name}_zero_points"]).astype(x.dtype)


def zero_point_first(right, attr, name, x, given):
    """(x + zero point) * (1 / scale)."""
    if name in attr.zero_points:
        x = x + given[f"{name}_zero_points"].astype(x.dtype)
    bare = backend.Attributes(scales=attr.scales)
    return right(bare, name, x, given)


# -- reading and storing ---------------------------------------------------------------------------


def integers(change):
    """Results of integer types: change(values, limits, type) before they are converted."""

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
    """Saturates one below the largest number."""
    return np.minimum(saturated(np.rint(values), limits), limits.max - 1)


def symmetric(values, limits):
    """Saturates at minus the largest number."""
    return np.maximum(saturated(np.rint(values), limits), -limits.max if limits.min else 0)


def least_for_nan(values, limits):
    return saturated(np.rint(values), limits, nan=limits.min)


def largest_for_nan(values, limits):
    return saturated(np.rint(values), limits, nan=limits.max)


def floats(words, change):
    """Results of these floating types: change(values, dtype)."""

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
    """The largest number in place of infinity."""
    most = ml_dtypes.finfo(nearest.dtype).max
    beyond = np.isinf(nearest) & np.isfinite(values)
    return np.where(beyond, np.copysign(most, values).astype(nearest.dtype), nearest)


def read_as(words, change):
    """Tensors of these types are read wrongly: change(values)."""

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
    """The two halves of each byte are exchanged."""
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
    """Places in column-major order."""
    return right(dims[::-1], *arguments).T


def inverse(right, x, read, arguments):
    """Results are multiplied by 1 / p."""
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
    """Post-ops come before dropout."""
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


S8 = np.float64(256)
FAULTS = {
    "scaled_after_bias": replaced(quantization, "product", scaled_after_bias),
    "contracted_bias": replaced(quantization, "product", contracted_bias),
    "scaled_one_by_one": replaced(quantization, "product", scaled_one_by_one),
    "padding_of_zero_points": replaced(quantization, "product", with_padding),
    "sums_saturate": replaced(quantization, "_wrapped", saturated_sums),
    "rounds_half_away": integers(half_away),
    "rounds_half_up": integers(half_up),
    "cuts_off": integers(cut),
    "wraps": integers(wrapped),
    "saturates_early": integers(narrow),
    "saturates_symmetrically": integers(symmetric),
    "least_for_nan": integers(least_for_nan),
    "largest_for_nan": integers(largest_for_nan),
    "u8_as_s8": read_as(["u8"], lambda x: np.where(x > 127, x - S8, x)),
    "s8_as_u8": read_as(["s8"], lambda x: np.where(x < 0, x + S8, x)),
    "s4_as_u4": read_as(["s4"], lambda x: np.where(x < 0, x + 16, x)),
    "nibbles_swapped": replaced(definition, "_read", swapped),
    "scale_of_neighbour": neighbours("_scales"),
    "scale_of_neighbour_of_dst": neighbours("_scales", of=("dst",)),
    "zero_point_of_neighbour": neighbours("_zero_points"),
    "zero_point_of_neighbour_of_dst": neighbours("_zero_points", of=("dst",)),
    "one_scale": first_of_all("_scales"),
    "scale_of_src_for_dst": of_other("dst_scales", "src_scales"),
    "scale_of_src_for_weights": of_other("weights_scales", "src_scales"),
    "scale_of_src0_for_src1": of_other("src1_scales", "src0_scales"),
    "zero_point_of_src_for_dst": of_other("dst_zero_points", "src_zero_points"),
    "no_zero_point_of_src": ignored("src_zero_points", 0),
    "no_zero_point_of_weights": ignored("weights_zero_points", 0),
    "no_zero_point_of_dst": ignored("dst_zero_points", 0),
    "no_scale_of_dst": ignored("dst_scales", 1),
    "shifted_groups": replaced(quantization, "_spread", shifted_groups),
    "divides": replaced(quantization, "stored", divided),
    "contracted_zero_point": replaced(quantization, "stored", contracted_zero_point),
    "zero_point_before_scale": replaced(quantization, "stored", zero_point_first),
    "bf16_cuts_off": floats(["bf16"], towards_zero),
    "f16_cuts_off": floats(["f16"], towards_zero),
    "f16_without_subnormals": floats(["f16"], without_subnormals),
    "f16_read_without_subnormals": read_as(
        ["f16"], lambda x: np.where(np.abs(x) < 2.0**-14, 0 * x, x)
    ),
    "f16_saturates": floats(["f16"], clamped),
    "f32_read_as_tf32": read_as(["f32"], to_bits(11)),
    "f8_cuts_off": floats(["f8_e4m3", "f8_e5m2"], towards_zero),
    "f8_read_without_subnormals": read_as(
        ["f8_e4m3"], lambda x: np.where(np.abs(x) < 2.0**-6, 0 * x, x)
    ),
    "sums_in_f16": replaced(definition.Definition, "_computed", in_half),
    "sum_without_zero_point": replaced(post_ops, "_applied", without_zero_point),
    "contracted_linear": replaced(post_ops, "_applied", contracted_linear),
    "contracted_sum": replaced(post_ops, "_applied", contracted_sum),
    "shifted_mask": replaced(definition, "kept", shifted_mask),
    "mask_of_columns": replaced(definition, "kept", of_columns),
    "dropout_of_inverse": replaced(definition, "_dropped", inverse),
    "dropout_unscaled": replaced(definition, "_dropped", unscaled),
    "dropout_after_post_ops": late_dropout,
    "dropout_seed_of_32_bits": bits_of("dropout_seed", 0xFFFFFFFF),
    "dropout_without_offset": ignored("dropout_offset", 0),
    "rounds_to_nearest": replaced(definition, "rounded_at_random", to_nearest),
    "rounds_down": replaced(definition, "rounded_at_random", down),
    "rounds_in_other_places": replaced(definition, "rounded_at_random", other_places),
    "rounding_seed_of_16_bits": bits_of("rounding_seed", 0xFFFF),
}
"""The faults by name."""

TABLES = {
    operation.__name__: [
        implementation
        for formula in formulas
        for implementation in (
            AllTypes("right", formula),
            *(Faulty(name, formula, fault) for name, fault in FAULTS.items()),
        )
    ]
    for operation, formulas in OPERATIONS.items()
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "quantized" and all implementations above."""
    return backend_of(__name__, QuantizedEngine, OPERATIONS)
