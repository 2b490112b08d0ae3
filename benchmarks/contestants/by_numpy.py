"""numpy's contestants: fast code for numpy that writes into existing arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import dnncore as dnn
from benchmarks.contestants.contestant import Array, Contestant, LeftOut, Terms, values_of
from benchmarks.measuring.sampling import one_by_one
from dnncore.problem import Problem

__all__ = ["contestants"]

Inputs = Mapping[str, Array]
Run = Callable[[], object]


def contestants(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """The only contestant of numpy. It computes on row-major arrays."""
    op, attr = problem.op, problem.attr
    builder = _BUILDERS.get(type(op))
    if builder is None or attr.post_ops:
        raise LeftOut(f"numpy has no {'post-ops' if attr.post_ops else op.KIND}")
    descs = {row.name: desc for row, desc in op.tensors()}
    if not all(desc.is_any or desc == desc.with_format(None) for desc in descs.values()):
        raise LeftOut("numpy is measured on row-major arrays")
    inputs = {row.name: values_of(row.name, descs[row.name].dims) for row, _ in op.tensors()}
    result = inputs[op.result_name]

    def refill(draw: int) -> None:
        for name, array in inputs.items():
            np.copyto(array, values_of(name, array.shape, draw))
        result.fill(np.nan)

    repeat = one_by_one(builder(op, inputs, result))
    yield Contestant("numpy", repeat, lambda: {op.result_name: result}, refill)


def _eltwise(op: Any, t: Inputs, dst: Array) -> Run:
    function = _FUNCTIONS.get(op.algorithm)
    if function is None or op.alpha:
        raise LeftOut(f"numpy has no {op.algorithm} in one call")
    return lambda: function(t["src"], dst)


def _binary(op: Any, t: Inputs, dst: Array) -> Run:
    name = _BINARY.get(op.algorithm)
    if name is None:
        raise LeftOut(f"numpy has no {op.algorithm} of floats")
    function = getattr(np, name)
    return lambda: function(t["src0"], t["src1"], out=dst)


def _sum(op: Any, t: Inputs, dst: Array) -> Run:
    scaled = [(t[f"src{i}"], np.float32(scale)) for i, scale in enumerate(op.scales)]
    (first, scale), *rest = scaled
    product = np.empty_like(dst)

    def run() -> None:
        np.multiply(first, scale, out=dst)
        for array, factor in rest:
            addend = array if factor == 1 else np.multiply(array, factor, out=product)
            np.add(dst, addend, out=dst)

    return run


def _reduction(op: Any, t: Inputs, dst: Array) -> Run:
    function = _REDUCTIONS.get(op.algorithm)
    if function is None:
        raise LeftOut(f"numpy has no {op.algorithm} in one call")
    return lambda: function(t["src"], axis=op.reduced_dims, keepdims=True, out=dst)


def _matmul(_op: Any, t: Inputs, dst: Array) -> Run:
    bias = t.get("bias")

    def run() -> None:
        np.matmul(t["src"], t["weights"], out=dst)
        if bias is not None:
            np.add(dst, bias, out=dst)

    return run


def _inner_product(op: Any, t: Inputs, dst: Array) -> Run:
    rows = len(t["src"])
    flat = {"src": t["src"].reshape(rows, -1), "weights": t["weights"].reshape(len(dst.T), -1).T}
    return _matmul(op, {**t, **flat}, dst)


def _reorder(_op: Any, t: Inputs, dst: Array) -> Run:
    return lambda: np.copyto(dst, t["src"])


_FUNCTIONS: dict[str, Callable[[Array, Array], object]] = {
    "relu": lambda x, y: np.maximum(x, np.float32(0), out=y),
    "abs": lambda x, y: np.abs(x, out=y),
    "exp": lambda x, y: np.exp(x, out=y),
    "square": lambda x, y: np.square(x, out=y),
    "sqrt": lambda x, y: np.sqrt(x, out=y),
    "tanh": lambda x, y: np.tanh(x, out=y),
}
_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum",
    "min": "minimum",
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., object]] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min,
}  # fmt: skip
_BUILDERS: dict[type[dnn.Operation], Callable[[Any, Inputs, Array], Run]] = {
    dnn.Binary: _binary,
    dnn.EltwiseForward: _eltwise,
    dnn.InnerProductForward: _inner_product,
    dnn.MatMul: _matmul,
    dnn.Reduction: _reduction,
    dnn.Reorder: _reorder,
    dnn.Sum: _sum,
}
