"""Wrong versions of the reference's functions for products of integers, scales and zero points.

A fault is a function fault(right, op, attr, memories) that executes an operation.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
from dnncore_reference import quantization
from dnncore_reference.window import Windows

from dnncore import backend


def replaced(owner, name, wrong):
    """A fault that replaces the function `name` of a module or class.

    The replacement calls wrong(right, *arguments), where `right` is the correct function.
    """

    def fault(right, op, attr, memories):
        with mock.patch.object(owner, name, wrapped_in(wrong, getattr(owner, name))):
            right(*memories)

    return fault


def wrapped_in(wrong, right):
    def function(*arguments, **named):
        return wrong(right, *arguments, **named)

    return function


# -- products of integers --------------------------------------------------------------------------


def parts(right, op, attr, formula, inputs, given):
    """The sums in f32, the scales of src, the scales of weights, and the bias.

    None if scales vary along K.
    """
    scales = [
        quantization._scales(op, attr, name, given.get(f"{name}_scales"))
        for name in ("src", "weights")
    ]
    if any(len(own) > 1 for own in scales):
        return None
    bare = backend.Attributes(zero_points=attr.zero_points)
    kept = {name: values for name, values in given.items() if not name.endswith("_scales")}
    factors = {name: values for name, values in inputs.items() if name != "bias"}
    acc = right(op, bare, formula, factors, kept)
    bias = inputs.get("bias", np.zeros(1)).astype(np.float32)
    if not isinstance(op, backend.MatMul):
        bias = bias.reshape(1, -1, *[1] * (op.dst.ndims - 2))
    return acc, scales[0][0], scales[1][0], bias


def of_parts(formula):
    """A wrong product of integers: formula(acc, src scale, weights scale, bias)."""

    def wrong(right, *arguments):
        found = parts(right, *arguments)
        if found is None:
            return right(*arguments)
        dims = arguments[0].dst.dims
        return np.broadcast_to(formula(*found), dims).astype(np.float32)

    return wrong


def scaled_after_bias(acc, src, weights, bias):
    return (acc + bias) * (src * weights)


def contracted_bias(acc, src, weights, bias):
    """One rounding after the product and the sum, instead of one after each."""
    return acc.astype(np.float64) * (src * weights) + bias


def scaled_one_by_one(acc, src, weights, bias):
    return acc * src * weights + bias


def saturated_sums(_right, sums):
    return np.clip(sums, -(2**31), 2**31 - 1).astype(np.int32)


def padded_by_zero_points(right, op, attr, formula, inputs, given):
    """A convolution's padding contains stored zeros, whose value is minus the zero point."""
    zero_points, pad = given.get("src_zero_points"), Windows.pad

    def padded(windows, image, outside=0.0):
        own = np.broadcast_to(zero_points, (1, op.src.dims[1], *[1] * (op.src.ndims - 2)))
        own = own.reshape(1, *image.shape[1:3], *[1] * (image.ndim - 3))
        is_inside = pad(windows, np.ones_like(image))
        return np.where(is_inside, pad(windows, image), -own)

    if zero_points is None or not isinstance(op, backend.ConvolutionForward):
        return right(op, attr, formula, inputs, given)
    with mock.patch.object(Windows, "pad", padded):
        return right(op, attr, formula, inputs, given)


# -- scales and zero points ------------------------------------------------------------------------


def read_with(change):
    """A fault that changes arguments such as scales and zero points.

    change(op, arguments by name) returns the changed arguments.
    """

    def fault(right, op, attr, memories):
        names = [a.name for a, _ in [*op.tensors(op.workspace_desc()), *attr.arguments(op)]]
        changed = change(op, dict(zip(names, memories, strict=True)))
        right(*(changed[name] for name in names))

    return fault


def memory_of(values, like):
    return backend.Memory.from_numpy(np.array(values, like.desc.dtype, order="C"), like.desc)


def neighbours(ending, *, of=("src", "weights", "dst")):
    """Each element gets the value of its neighbour along each dim."""

    def change(op, arguments):
        for name, memory in arguments.items():
            if name.endswith(ending) and name.startswith(of):
                values = memory.numpy()
                arguments[name] = memory_of(np.roll(values, 1, range(values.ndim)), memory)
        return arguments

    return read_with(change)


def first_of_all(ending):
    """All elements get the first value."""

    def change(op, arguments):
        for name, memory in arguments.items():
            if name.endswith(ending):
                values = memory.numpy()
                first = np.broadcast_to(values.ravel()[:1], values.shape)
                arguments[name] = memory_of(first, memory) if values.size else memory
        return arguments

    return read_with(change)


def of_other(name, other):
    """An argument gets the values of another argument with the same shape."""

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
    """Only the bits of `mask` of a seed are used."""

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
    """x / scale, instead of x * (1 / scale)."""
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
