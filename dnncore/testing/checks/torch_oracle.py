"""Results of operations by torch in float64, as an independent oracle."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from ml_dtypes import bfloat16, iinfo

import dnncore as dnn
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.ops import Operation
from dnncore.problem import driver_of
from dnncore.tensors.datatypes import from_numpy_dtype
from dnncore.testing.checks import torch_quantization as quantization

__all__ = ["is_available", "lacking_oracle", "torch_outputs"]

BFLOAT16 = np.dtype(bfloat16)

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


@cache
def is_available() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def lacking_oracle(attr: dnn.Attributes) -> str:
    """Return why torch does not check a problem with these attributes."""
    if _has_random_numbers(attr):
        return "torch cannot check it, because it draws other random numbers"
    return "install torch to check it"


def _has_random_numbers(attr: dnn.Attributes) -> bool:
    return attr.dropout is not None or attr.rounding == "stochastic"


@cache
def _torch() -> Any:
    import torch

    torch.set_num_threads(1)  # starting threads costs more than the work on small tensors
    return torch


def torch_outputs(op: Operation, attr: dnn.Attributes, inputs: Inputs) -> dict[str, Array]:
    """Return the outputs of `op`, computed by torch. Its autograd computes gradients.

    Raises `ImportError` if torch is not installed.
    """
    torch = _torch()
    name = op.result_name
    written = [
        (a.name, attr.stored(op) if a.name == name else desc)
        for a, desc in op.tensors(op.workspace_desc())
        if a.direction == "out"
    ]
    if not any(desc.nelems for _, desc in written):  # torch refuses some windows without cells
        return {n: np.empty(d.dims, d.dtype) for n, d in written if n != "workspace"}
    if _has_random_numbers(attr):
        return {}  # torch draws other random numbers
    tensors = {name: torch.tensor(a.astype(np.float64)) for name, a in inputs.items()}
    outputs = _computed(torch, op, attr, tensors)
    x = _chain(torch, attr, outputs[name], tensors, name)
    outputs[name] = quantization.stored(attr, name, x, tensors)
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32's range become inf
        return {n: _stored(outputs[n].numpy(), d.dtype) for n, d in written if n in outputs}


def _computed(torch: Any, op: Any, attr: dnn.Attributes, t: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs before attributes apply to the first; f32 if each step is rounded."""
    driver = driver_of(type(op))
    oracle = driver.oracles[type(op)]
    stages = driver.integer_oracle(torch, op, attr, t)
    if stages is not None:
        return stages
    if quantization.is_integer_product(op):
        bare = op.with_descs(bias=None)
        x = quantization.product(torch, op, attr, t, lambda f: oracle(torch, bare, f)["dst"])
        return {"dst": x}
    outputs: dict[str, Any] = dict(oracle(torch, op, quantization.dequantized(op, attr, t)))
    if quantization.is_stepwise(op, attr):
        outputs["dst"] = outputs["dst"].float()
    return outputs


def _stored(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round once. For integers, round half to even, saturate, and replace NaN by 0."""
    if from_numpy_dtype(dtype)[0] in "su":
        limits = iinfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
        values = np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)
        values = np.nan_to_num(values, nan=0.0).astype(np.int64)
    if dtype == BFLOAT16:
        values = _off_ties(values)
    return values.astype(dtype)


def _off_ties(values: Array) -> Array:
    """Round to float32, but to a tie of bf16 only if the value is this tie.

    ml_dtypes rounds float64 to float32 and then to bf16. The second rounding of a tie may be wrong.
    """
    near = values.astype(np.float32)
    is_tie = (near.view(np.uint32) & 0xFFFF) == 0x8000
    beside = np.nextafter(near, np.where(values > near, np.inf, -np.inf).astype(np.float32))
    return np.where(is_tie & (near != values), beside, near)


def _chain(torch: Any, attr: dnn.Attributes, x: Any, t: Mapping[str, Any], result: str) -> Any:
    for i, step in enumerate(attr.post_ops):
        operands = {name: t[f"post_op_{i}_{name}"].to(x.dtype) for name, _ in step.operands}
        old = t[result].to(x.dtype) if result in t else None
        x = POST_OPS[step.kind].oracle(torch, step, x, operands, old)
    return x
