"""The operations as torch computes them, in float64: a peer's answer to every problem."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from ml_dtypes import finfo

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION

__all__ = ["is_available", "torch_outputs"]

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


@cache
def is_available() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


@cache
def _torch() -> Any:
    import torch

    torch.set_num_threads(1)  # small tensors: waking threads costs more than the work
    return torch


def torch_outputs(op: Any, attr: dnn.Attributes, inputs: Inputs) -> dict[str, Array]:
    """The outputs of `op` by torch; gradients come from its own differentiation.

    Raises `ImportError` where torch is not installed.
    """
    torch = _torch()
    tensors = {name: torch.tensor(a.astype(np.float64)) for name, a in inputs.items()}
    outputs = _ORACLES[type(op)](torch, op, tensors)
    outputs[op.result_name] = _chain(torch, attr, outputs[op.result_name], tensors, op.result_name)
    written = [(a.name, d) for a, d in op.tensors(op.workspace_desc()) if a.direction == "out"]
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold is inf
        return {n: _stored(outputs[n].numpy(), d.dtype) for n, d in written if n in outputs}


def _stored(values: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded once; integers half to even, and saturated."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return values.astype(dtype)


# -- forward --------------------------------------------------------------------------------------


def _spread(torch: Any, op: Any, x: Any, value: float) -> Any:
    """Apply the padding of a windowed operation, unequal or negative as it may be."""
    pairs = reversed([*zip(op.padding_l, op.padding_r, strict=True)])  # innermost dim first
    return torch.nn.functional.pad(x, [p for pair in pairs for p in pair], value=value)


def _convolution(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    groups, oc, ic, *kernel = op.grouped_weights
    convolve = getattr(torch.nn.functional, f"conv{len(kernel)}d")
    return convolve(
        _spread(torch, op, t["src"], 0.0),
        t["weights"].reshape(groups * oc, ic, *kernel),
        t.get("bias"),
        stride=op.strides,
        dilation=tuple(d + 1 for d in op.dilations),
        groups=groups,
    )


def _pooling(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    if not op.is_max:
        return _average(torch, op, t)
    pool = getattr(torch.nn.functional, f"max_pool{len(op.kernel)}d")
    padded = _spread(torch, op, t["src"], -torch.inf)
    dst = pool(padded, op.kernel, op.strides, dilation=tuple(d + 1 for d in op.dilations))
    return dst.clamp(min=float(finfo(op.dst_role.dtype).min))  # type: ignore[no-untyped-call]


def _average(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    """A convolution with ones: torch's own average knows no dilation and no uneven padding."""
    channels = t["src"].shape[1]
    convolve = getattr(torch.nn.functional, f"conv{len(op.kernel)}d")

    def window_sum(x: Any) -> Any:
        ones = torch.ones((channels, 1, *op.kernel), dtype=torch.float64)
        dilation = tuple(d + 1 for d in op.dilations)
        padded = _spread(torch, op, x, 0.0)
        return convolve(padded, ones, None, op.strides, 0, dilation, channels)

    if op.algorithm == "avg_include_padding":
        return window_sum(t["src"]) / np.prod(op.kernel)
    return window_sum(t["src"]) / window_sum(torch.ones_like(t["src"]))


def _lrn(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    if op.algorithm == "across_channels" and op.local_size % 2:
        return (
            torch.nn.functional.local_response_norm(
                t["src"], op.local_size, op.alpha, op.beta, op.k
            )
            if t["src"].ndim > 2
            else _lrn_by_formula(torch, op, t["src"])
        )
    return _lrn_by_formula(torch, op, t["src"])


def _lrn_by_formula(torch: Any, op: Any, x: Any) -> Any:
    return x * _lrn_base(torch, op, x) ** -op.beta


def _lrn_base(torch: Any, op: Any, x: Any) -> Any:
    """Of even and square windows, which torch's function has not.

    The geometry is written out here: the operation's own would agree with the reference anyway.
    """
    dims = [1] if op.algorithm == "across_channels" else list(range(2, x.ndim))
    total, h = x * x, (op.local_size - 1) // 2
    for dim in dims:
        moved = total.movedim(dim, -1)
        total = torch.nn.functional.pad(moved, (h, h)).unfold(-1, 2 * h + 1, 1).sum(-1)
        total = total.movedim(-1, dim)
    return op.k + op.alpha / op.local_size ** len(dims) * total


def _inner_product(torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    flat = torch.nn.functional.linear(t["src"].flatten(1), t["weights"].flatten(1))
    return flat + t["bias"] if "bias" in t else flat


def _matmul(torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    return torch.matmul(t["src"], t["weights"]) + t.get("bias", 0.0)


def _eltwise(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    return ELTWISE[op.function].oracle(torch, t["src"], op.alpha, op.beta)


def _softmax(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    name = "log_softmax" if op.algorithm == "log" else "softmax"
    return getattr(torch, name)(t["src"], op.axis)


def _binary(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    sources = [t[name] for name in ("src0", "src1", "src2") if name in t]
    return BINARY[op.algorithm].oracle(torch, *sources).to(torch.float64)


def _reduction(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    oracle = REDUCTION[op.algorithm].oracle
    return oracle(torch, t["src"], op.reduced_dims, op.p, op.eps)


def _sum(_torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    return sum(scale * t[f"src{i}"] for i, scale in enumerate(op.scales))


def _reorder(_torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    return t["src"]


def _chain(torch: Any, attr: dnn.Attributes, x: Any, t: Mapping[str, Any], result: str) -> Any:
    for i, step in enumerate(attr.post_ops):
        operands = {name: t[f"post_op_{i}_{name}"] for name, _ in step.operands}
        x = POST_OPS[step.kind].oracle(torch, step, x, operands, t.get(result))
    return x


# -- gradients ------------------------------------------------------------------------------------


def _forward(formula: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    return lambda torch, op, t: {"dst": formula(torch, op, t)}


def _gradient(formula: Callable[..., Any], *names: str) -> Callable[..., dict[str, Any]]:
    """Differentiate `formula` with respect to those inputs; absent ones start from zero."""

    def gradient(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {name: tensor for name, tensor in t.items() if "dst" not in name}
        for name in names:
            desc = getattr(op, name, None) or getattr(op, f"diff_{name}", None)
            if desc is not None:
                values = t.get(name, torch.zeros(desc.dims, dtype=torch.float64))
                inputs[name] = values.clone().requires_grad_()
        wanted = [name for name in names if name in inputs]
        dst = formula(torch, op, inputs)
        slopes = torch.autograd.grad(dst, [inputs[name] for name in wanted], t["diff_dst"])
        return {f"diff_{name}": slope for name, slope in zip(wanted, slopes, strict=True)}

    return gradient


def _eltwise_gradient(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    """The gradient at src, or at the src that gives dst."""
    if op.uses_dst:
        inverse = ELTWISE[op.function].inverse
        assert inverse is not None  # each algorithm with slope_of_dst has one
        src = inverse(torch, t["dst"], op.alpha, op.beta)
        t = {"src": src, "diff_dst": t["diff_dst"]}
    return _gradient(_eltwise, "src")(torch, op, t)


def _lrn_forward(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    return {"dst": _lrn(torch, op, t), "workspace": _lrn_base(torch, op, t["src"])}


def _softmax_gradient(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    """By torch's own kernels, which take dst as it is: rounded, it is the softmax of no src."""
    name = f"_{'log_softmax' if op.algorithm == 'log' else 'softmax'}_backward_data"
    slope = getattr(torch.ops.aten, name)(t["diff_dst"], t["dst"], op.axis, torch.float64)
    return {"diff_src": slope}


_ORACLES: dict[type[dnn.Operation], Callable[..., dict[str, Any]]] = {
    dnn.Binary: _forward(_binary),
    dnn.ConvolutionForward: _forward(_convolution),
    dnn.ConvolutionBackwardData: _gradient(_convolution, "src"),
    dnn.ConvolutionBackwardWeights: _gradient(_convolution, "weights", "bias"),
    dnn.EltwiseForward: _forward(_eltwise),
    dnn.EltwiseBackward: _eltwise_gradient,
    dnn.InnerProductForward: _forward(_inner_product),
    dnn.InnerProductBackwardData: _gradient(_inner_product, "src"),
    dnn.InnerProductBackwardWeights: _gradient(_inner_product, "weights", "bias"),
    dnn.LRNForward: _lrn_forward,
    dnn.LRNBackward: _gradient(_lrn, "src"),
    dnn.MatMul: _forward(_matmul),
    dnn.PoolingForward: _forward(_pooling),
    dnn.PoolingBackward: _gradient(_pooling, "src"),
    dnn.Reduction: _forward(_reduction),
    dnn.Reorder: _forward(_reorder),
    dnn.SoftmaxForward: _forward(_softmax),
    dnn.SoftmaxBackward: _softmax_gradient,
    dnn.Sum: _forward(_sum),
}
