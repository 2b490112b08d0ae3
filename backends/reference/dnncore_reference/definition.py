"""Converts formulas to implementations.

A formula is a function `formula(op, **inputs) -> outputs`. The inputs are float64 arrays of logical
dims by argument name. The outputs are a dict of such arrays. This module contains the common part
of all operations. It resolves `any` formats, reads inputs of any layout, applies post-ops to the
result, and rounds each output once to its data type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from ml_dtypes import iinfo

from dnncore.backend import (
    Accepted,
    Attributes,
    HostFunction,
    Implementation,
    Memory,
    Operation,
    Refused,
    data_type,
)
from dnncore_reference import post_ops, quantization
from dnncore_reference.random import kept, rounded_at_random

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Formula = Callable[..., Mapping[str, Array]]

# Measured: 0.01 (pooling) to 0.05 (convolution) of an ideal kernel; matrix products up to 0.4.
EFFICIENCY = 0.02

# All types of operations. float64 represents their values exactly.
TYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s32", "s8", "u8", "s4", "u4")
ATTRIBUTES = ("scales", "zero_points", "groups", "dropout", "stochastic_rounding", "operand_types",
              "sum_zero_point", "depthwise", "rnn_qparams")  # fmt: skip
MANTISSA = {"f16": 10, "bf16": 7, "f8_e4m3": 3, "f8_e5m2": 2}


class Definition(Implementation[Any]):
    """An operation computed by its formula, for every format, data type and attribute.

    like: tensor -> the tensor whose format replaces `any`. Other tensors of format `any` become
    row-major. has_formula: returns whether there is a formula for an operation's algorithm.
    """

    data_types = TYPES
    attributes = ATTRIBUTES
    takes_repeats = True

    def __init__(
        self,
        operation: str,
        formula: Formula,
        like: Mapping[str, str] | None = None,
        has_formula: Callable[[Any], bool] = lambda _op: True,
    ):
        self.name = f"reference:{operation}"
        self.formula = formula
        self.like = like or {}
        self.has_formula = has_formula

    def accept(self, op: Operation, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept all operations in host memory with layouts that are not opaque."""
        if not engine.is_host:
            return Refused("device", f"works on host memory only; got engine {engine.name}")
        if not self.has_formula(op):
            return Refused("algorithm", "the reference has no formula for this algorithm")
        if not all(map(post_ops.has_formula, attr.post_ops)):
            return Refused("attribute", "the reference has no formula for one of the post-ops")
        op = self._resolve(op)
        workspace = op.workspace_desc(hint)
        if workspace is None and op.workspace_desc():
            return Refused("attribute", "the hint keeps no workspace; make it by forward_training")
        arguments = [*op.tensors(workspace), *attr.arguments(op)]
        for argument, desc in arguments:
            name = argument.name
            if desc.format_kind != "blocked":
                return Refused("format", f"{name} has the format {desc.tag!r}, not one of strides")
        names = tuple(argument.name for argument, _ in arguments)
        return Accepted(
            op,
            build=lambda: HostFunction(partial(self._run, op, attr, names)),
            efficiency=EFFICIENCY,
            workspace=workspace,
        )

    def _resolve(self, op: Operation) -> Any:
        for argument, desc in op.tensors():
            if desc.is_any:
                model = getattr(op, self.like.get(argument.name, argument.name))
                format_ = desc.with_format(None) if model.is_any else desc.like(model)
                op = op.with_descs(**{argument.name: format_})
        return op.resolve_any()  # also resolves the algorithm `auto`

    def _run(self, op: Operation, attr: Attributes, names: tuple[str, ...], *memories: Any) -> None:
        """Compute all outputs. names: the argument names of `memories`."""
        arguments = dict(zip(names, memories, strict=True))
        outputs = [a.name for a in op.ARGUMENTS if a.direction == "out" and a.name in arguments]
        own = {a.name for a in op.ARGUMENTS}
        written = {*outputs, "dropout_mask"}
        result = op.result_name
        with np.errstate(all="ignore"):
            read = {n: _read(memory) for n, memory in arguments.items() if n not in written}
            inputs = {name: values for name, values in read.items() if name in own}
            inputs = quantization.converted(op, attr, inputs)
            values = self._computed(op, attr, inputs, read)
            x = values[result]
            if attr.dropout:
                x = _dropped(x, read, arguments)
            x = post_ops.apply(
                attr.post_ops,
                x,
                old=lambda: _old(arguments[result]),
                operands=[quantization.in_f32(read[name]) for name, _ in attr.operands()],
                between=lambda x: rounded(x, op.result.data_type).astype(x.dtype),
            )
            x = quantization.stored(attr, result, x, read)
            if attr.rounding == "stochastic":
                bits = MANTISSA[attr.stored(op).data_type]
                x = rounded_at_random(x, bits, int(read["rounding_seed"][0]))
            values[result] = x
            for name in outputs:
                _write(values[name], arguments[name])

    def _computed(
        self, op: Operation, attr: Attributes, inputs: Arrays, read: Arrays
    ) -> dict[str, Array]:
        """Return the outputs before attributes apply to the result.

        The result is float32 if each later step is rounded.
        """
        if quantization.is_integer_product(op):
            return {"dst": quantization.product(op, attr, self.formula, inputs, read)}
        values = {
            name: quantization.dequantized(op, attr, name, values, read)
            for name, values in inputs.items()
        }
        results = dict(self.formula(op, **values))
        if quantization.is_stepwise(op, attr):
            results[op.result_name] = results[op.result_name].astype(np.float32)
        return results


def _dropped(x: Array, read: Arrays, arguments: Mapping[str, Memory]) -> Array:
    """Return x after dropout. Writes the mask if it is an argument."""
    probability = float(read["dropout_probability"][0])
    offset = read.get("dropout_offset", np.zeros(1))
    mask = kept(x.shape, probability, int(read["dropout_seed"][0]), int(offset[0]))
    if "dropout_mask" in arguments:
        _write(mask, arguments["dropout_mask"])
    factor = np.float32(1) / (np.float32(1) - np.float32(probability))
    return np.where(mask, x * factor, np.zeros_like(x))


def _read(memory: Memory) -> Array:
    """Return a copy of the logical values as float64, or as int64 for s64.

    float64 represents all other types exactly.
    """
    values = memory.desc.unpack(memory.buffer)
    return values.copy() if memory.desc.data_type == "s64" else values.astype(np.float64)


def _old(memory: Memory) -> Array:
    """Return the old values of the result. Integers are rounded to float32."""
    values = _read(memory)
    return values if data_type(memory.desc.data_type).is_float else quantization.in_f32(values)


def _write(values: Array, memory: Memory) -> None:
    memory.desc.pack(rounded(values, memory.desc.data_type), memory.buffer)


def rounded(values: Array, type_name: str) -> Array:
    """Round to nearest, ties to even. Integer types saturate, and NaN becomes 0."""
    row = data_type(type_name)
    if row.is_float:
        # numpy rounds once to its own types, and to other types through float32.
        own = row.dtype in (np.float64, np.float32, np.float16)
        return values.astype(row.dtype) if own else _odd_float32(values).astype(row.dtype)
    limits = iinfo(row.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    whole: Array = np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)
    return np.nan_to_num(whole, nan=0.0).astype(np.int64).astype(row.dtype)


def _odd_float32(values: Array) -> Array:
    """Round to float32 with an odd last bit if inexact. A second rounding is then correct.

    (S. Boldo and G. Melquiond 2008, "Emulation of a FMA and correctly rounded sums".)
    """
    nearest = values.astype(np.float32)
    beyond = np.abs(nearest) > np.abs(values)
    cut = np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
    return np.where(cut == values, cut, (cut.view(np.uint32) | 1).view(np.float32))
