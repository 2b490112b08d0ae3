"""An engine with implementations of products. Each has the reference's formula but less precision.

`FAULTS` has the implementations by name. The module is a plugin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dnncore_reference import binary, convolution, inner_product, matmul
from subtle_faults import Right, SubtleEngine, backend_of, output

from dnncore import backend

KIND = "imprecise"
OPERATIONS = {
    backend.Binary: binary.TABLE,
    backend.MatMul: matmul.TABLE,
    backend.InnerProductForward: inner_product.FORWARD,
    backend.InnerProductBackwardData: inner_product.BACKWARD_DATA,
    backend.InnerProductBackwardWeights: inner_product.BACKWARD_WEIGHTS,
    backend.ConvolutionForward: convolution.FORWARD,
    backend.ConvolutionBackwardData: convolution.BACKWARD_DATA,
    backend.ConvolutionBackwardWeights: convolution.BACKWARD_WEIGHTS,
}


class ImpreciseEngine(SubtleEngine):
    kind = KIND


def rounded(values, bits):
    """Round to a number of significant bits."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    scaled = np.rint(np.ldexp(mantissas, bits))
    return np.ldexp(scaled, exponents - bits).astype(values.dtype)


def cut(values, dtype):
    """Round float64 towards zero."""
    nearest = values.astype(dtype)
    below = np.nextafter(nearest, np.zeros_like(nearest))
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(values), below, nearest)


def store(memory, values):
    memory.desc.pack(values.astype(memory.desc.dtype), memory.buffer)


class RoundsInputs(Right):
    """Rounds both factors of products to `bits` significant bits, for all or only some outputs."""

    def __init__(self, name, definition, bits, where=()):
        super().__init__(name, definition)
        self.bits = bits
        self.where = where

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        result = output(op, memories)
        exact = result.numpy().copy()
        inputs = [
            m for m, (a, _) in zip(memories, op.tensors(), strict=True) if a.direction == "in"
        ]
        kept = [memory.buffer.copy() for memory in inputs]
        for memory in inputs:
            store(memory, rounded(memory.numpy(), self.bits))
        right(*memories)
        for memory, old in zip(inputs, kept, strict=True):
            memory.buffer[:] = old
        if self.where:
            got = result.numpy().copy()
            exact[self.where] = got[self.where]
            store(result, exact)


class CutsOff(Right):
    """Rounds results towards zero. Computes in float64 from exact products."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        result = output(op, memories)
        store(result, cut(self.exact(op, memories), result.desc.dtype))

    def exact(self, op, memories):
        pairs = zip(memories, op.tensors(), strict=True)
        arguments = {a.name: m.numpy() for m, (a, _) in pairs if a.direction == "in"}
        inputs = {name: array.astype(np.float64) for name, array in arguments.items()}
        return self.definition.formula(op, **inputs)[op.result_name]


class Claims(Right):
    """Writes zeros, and claims large errors."""

    def __init__(self, name, definition, error_factor):
        super().__init__(name, definition)
        self.error_factor = error_factor

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, backend.Refused):
            return answer
        return replace(answer, exact=False, error_factor=self.error_factor)

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        result = output(op, memories)
        store(result, 0 * result.numpy())


class InexactSums(Right):
    """Results for integer inputs have an error of one rounding."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        refused = isinstance(answer, backend.Refused)
        return answer if refused else replace(answer, exact=False)

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        result = output(op, memories)
        store(result, np.nextafter(result.numpy(), np.float32(np.inf)))


class Sums(Right):
    """Adds up products one by one, with a rounding after each: `add(total, term)`."""

    def __init__(self, name, definition, add):
        super().__init__(name, definition)
        self.add = add

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        names = [a.name for a, _ in op.tensors()]
        arrays = dict(zip(names, (m.numpy() for m in memories), strict=True))
        rows, columns = _factors(op, arrays)
        total = np.zeros((rows.shape[0], columns.shape[1]), rows.dtype)
        for k in range(rows.shape[1]):
            total = self.add(total, rows[:, k : k + 1], columns[k])
        store(output(op, memories), _unfolded(op, total))


def _factors(op, arrays):
    """The two matrices whose product is the result of a product or an unpadded convolution."""
    if isinstance(op, backend.MatMul):
        return arrays["src"], arrays["weights"]
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    if isinstance(op, backend.InnerProductForward):
        return flat["src"], flat["weights"].T
    if isinstance(op, backend.InnerProductBackwardData):
        return flat["diff_dst"], flat["weights"]
    if isinstance(op, backend.InnerProductBackwardWeights):
        return flat["diff_dst"].T, flat["src"]
    pixels = {n: np.moveaxis(a, 1, -1).reshape(-1, a.shape[1]) for n, a in arrays.items()}
    if isinstance(op, backend.ConvolutionForward):
        return pixels["src"], flat["weights"].T
    if isinstance(op, backend.ConvolutionBackwardData):
        return pixels["diff_dst"], flat["weights"]
    return pixels["diff_dst"].T, pixels["src"]


def _unfolded(op, total):
    """Reshape a product to the result; convolutions have 1x1 windows."""
    dims = op.result.dims
    if isinstance(op, backend.ConvolutionForward | backend.ConvolutionBackwardData):
        return np.moveaxis(total.reshape(dims[0], *dims[2:], dims[1]), -1, 1)
    return total.reshape(dims)


def in_type(total, a, b):
    """Round products and sums to the type of the factors."""
    return (total + a * b).astype(total.dtype)


def towards_zero(total, a, b):
    """A fused multiply-add in f32 that rounds towards zero."""
    return cut(total.astype(np.float64) + a.astype(np.float64) * b, np.float32)


FAULTS: dict[str, tuple[Any, ...]] = {
    **{f"bits_{n}": (RoundsInputs, n) for n in (6, 8, 11, 13, 16, 20)},
    "last_row": (RoundsInputs, 19, np.s_[-1:]),
    "last_columns": (RoundsInputs, 19, np.s_[:, -2:]),
    "cuts_results": (CutsOff,),
    "claims_much": (Claims, 1e30),
    "claims_more": (Claims, 9.0),
    "inexact": (InexactSums,),
    "sums_in_type": (Sums, in_type),
    "sums_towards_zero": (Sums, towards_zero),
    "right": (Right,),
}


def named(name, implementation):
    """The implementation with a name of this backend."""
    implementation.name = f"{KIND}:{name}"
    return implementation


TABLES = {
    operation.__name__: [
        named(name, make(name, definition, *arguments))
        for definition in definitions
        for name, (make, *arguments) in FAULTS.items()
    ]
    for operation, definitions in OPERATIONS.items()
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "imprecise" and all implementations above."""
    return backend_of(__name__, ImpreciseEngine, OPERATIONS)
