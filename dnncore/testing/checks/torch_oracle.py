"""Results of operations by torch in float64, as an independent oracle."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

import dnncore as dnn
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.ops import Operation
from dnncore.problem import driver_of

__all__ = ["is_available", "torch_outputs"]

BFLOAT16 = np.dtype(bfloat16)

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


@cache
def is_available() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


@cache
def _torch() -> Any:
    import torch

    torch.set_num_threads(1)  # small tensors: starting threads costs more than the work
    return torch


def torch_outputs(op: Operation, attr: dnn.Attributes, inputs: Inputs) -> dict[str, Array]:
    """Return the outputs of `op`, computed by torch. Its autograd computes gradients.

    Raises `ImportError` if torch is not installed.
    """
    torch = _torch()
    written = [(a.name, d) for a, d in op.tensors(op.workspace_desc()) if a.direction == "out"]
    if not any(desc.nelems for _, desc in written):  # torch refuses some windows without cells
        return {n: np.empty(d.dims, d.dtype) for n, d in written if n != "workspace"}
    tensors = {name: torch.tensor(a.astype(np.float64)) for name, a in inputs.items()}
    outputs = driver_of(type(op)).oracles[type(op)](torch, op, tensors)
    outputs[op.result_name] = _chain(torch, attr, outputs[op.result_name], tensors, op.result_name)
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32's range become inf
        return {n: _stored(outputs[n].numpy(), d.dtype) for n, d in written if n in outputs}


def _stored(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round once; integers half to even, saturated, and 0 for NaN."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.nan_to_num(np.clip(np.rint(values), limits.min, limits.max), nan=0.0)
    if dtype == BFLOAT16:
        values = _off_ties(values)
    return values.astype(dtype)


def _off_ties(values: Array) -> Array:
    """Round to float32, but to no tie of bf16 unless the value is one.

    ml_dtypes rounds float64 to float32 and then to bf16. The second rounding of a tie may be wrong.
    """
    near = values.astype(np.float32)
    is_tie = (near.view(np.uint32) & 0xFFFF) == 0x8000
    beside = np.nextafter(near, np.where(values > near, np.inf, -np.inf).astype(np.float32))
    return np.where(is_tie & (near != values), beside, near)


def _chain(torch: Any, attr: dnn.Attributes, x: Any, t: Mapping[str, Any], result: str) -> Any:
    for i, step in enumerate(attr.post_ops):
        operands = {name: t[f"post_op_{i}_{name}"] for name, _ in step.operands}
        x = POST_OPS[step.kind].oracle(torch, step, x, operands, t.get(result))
    return x
