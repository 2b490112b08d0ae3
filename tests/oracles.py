"""The operations as torch computes them, in float64: a peer's answer to every problem.

A test that asks for it is skipped, by name, where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dnncore as dnn

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


def torch_outputs(op: Any, attr: dnn.Attributes, inputs: Inputs) -> dict[str, Array]:
    """The outputs of `op` by torch; gradients come from its own differentiation."""
    torch = pytest.importorskip("torch", reason="peer comparison: torch is not installed")
    torch.set_num_threads(1)  # small tensors: waking threads costs more than the work
    tensors = {name: torch.tensor(array, dtype=torch.float64) for name, array in inputs.items()}
    outputs = _ORACLES[type(op)](torch, op, tensors)
    outputs[op.result_name] = _chain(torch, attr, outputs[op.result_name], tensors, op.result_name)
    descs = {a.name: desc for a, desc in op.tensors() if a.direction == "out"}
    return {name: outputs[name].numpy().astype(desc.dtype) for name, desc in descs.items()}


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
    pool = getattr(torch.nn.functional, f"max_pool{len(op.kernel)}d")
    padded = _spread(torch, op, t["src"], -torch.inf)
    dst = pool(padded, op.kernel, op.strides, dilation=tuple(d + 1 for d in op.dilations))
    return dst.clamp(min=float(np.finfo(np.float32).min))


def _inner_product(torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    flat = torch.nn.functional.linear(t["src"].flatten(1), t["weights"].flatten(1))
    return flat + t["bias"] if "bias" in t else flat


def _matmul(torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    return torch.matmul(t["src"], t["weights"]) + t.get("bias", 0.0)


def _eltwise(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    return _ELTWISE[op.algorithm](torch, t["src"], op)


def _softmax(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    name = "log_softmax" if op.algorithm == "log" else "softmax"
    return getattr(torch, name)(t["src"], op.axis)


def _binary(torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    return getattr(torch, op.algorithm)(t["src0"], t["src1"])


def _sum(_torch: Any, op: Any, t: Mapping[str, Any]) -> Any:
    return sum(scale * t[f"src{i}"] for i, scale in enumerate(op.scales))


def _reorder(_torch: Any, _op: Any, t: Mapping[str, Any]) -> Any:
    return t["src"]


_ELTWISE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relu": lambda torch, x, step: torch.nn.functional.leaky_relu(x, step.alpha),
    "tanh": lambda torch, x, _step: torch.tanh(x),
    "logistic": lambda torch, x, _step: torch.sigmoid(x),
    "linear": lambda _torch, x, step: step.alpha * x + step.beta,
}


def _chain(torch: Any, attr: dnn.Attributes, x: Any, t: Mapping[str, Any], result: str) -> Any:
    for i, step in enumerate(attr.post_ops):
        if step.kind == "eltwise":
            x = _ELTWISE[step.algorithm](torch, x, step)
        elif step.kind == "sum":
            x = x + step.scale * t[result]
        else:
            x = getattr(torch, step.algorithm)(x, t[f"post_op_{i}_src"])
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


def _softmax_gradient(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    """The softmax of log(dst) is dst again, and its log-softmax that of dst."""
    src = t["dst"] if op.algorithm == "log" else t["dst"].log()
    return _gradient(_softmax, "src")(torch, op, {**t, "src": src})


_ORACLES: dict[type[dnn.Operation], Callable[..., dict[str, Any]]] = {
    dnn.Binary: _forward(_binary),
    dnn.ConvolutionForward: _forward(_convolution),
    dnn.ConvolutionBackwardData: _gradient(_convolution, "src"),
    dnn.ConvolutionBackwardWeights: _gradient(_convolution, "weights", "bias"),
    dnn.EltwiseForward: _forward(_eltwise),
    dnn.EltwiseBackward: _gradient(_eltwise, "src"),
    dnn.InnerProductForward: _forward(_inner_product),
    dnn.InnerProductBackwardData: _gradient(_inner_product, "src"),
    dnn.InnerProductBackwardWeights: _gradient(_inner_product, "weights", "bias"),
    dnn.MatMul: _forward(_matmul),
    dnn.PoolingForward: _forward(_pooling),
    dnn.PoolingBackward: _gradient(_pooling, "src"),
    dnn.Reorder: _forward(_reorder),
    dnn.SoftmaxForward: _forward(_softmax),
    dnn.SoftmaxBackward: _softmax_gradient,
    dnn.Sum: _forward(_sum),
}
