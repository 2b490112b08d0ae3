"""torch's contestants: its eager operations on tensors, in row-major and in channels-last order.

The operators that fill a tensor given to them are taken where torch has them, so that no allocation
is held against it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import dnncore as dnn
from benchmarks.contestants import Contestant, LeftOut, activations, values_of
from dnncore.ops.window import window_output
from dnncore.problem import Problem

__all__ = ["contestants"]

aten = torch.ops.aten
Tensors = Mapping[str, Any]
Run = Callable[[], Any]  # computes, and returns the outputs in the order of the argument table
LAYOUTS = {"plain": None, "channels_last": "axb"}  # its name here: the format tag
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank


def contestants(problem: Problem, _reorders: bool) -> Iterator[Contestant]:
    """One of each order that the problem's formats allow."""
    op, attr = problem.op, problem.attr
    builder = _BUILDERS.get(type(op))
    if builder is None or attr.post_ops:
        raise LeftOut(f"torch has no {'post-ops' if attr.post_ops else op.KIND} in eager mode")
    layouts = [name for name, tag in LAYOUTS.items() if _allows(op, tag)]
    if not layouts:
        raise LeftOut("torch has no such formats")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    for layout in layouts:
        with torch.inference_mode():
            run = builder(op, _tensors(op, layout))
        yield _contestant(op, f"torch {layout}", run)


def _contestant(op: Any, name: str, run: Run) -> Contestant:
    rows = [(row.name, desc) for row, desc in op.tensors() if row.direction == "out"]

    @torch.inference_mode()
    def inferred() -> Any:
        return run()

    def outputs() -> dict[str, Any]:
        found = inferred()
        found = found if isinstance(found, (tuple, list)) else [found]
        pairs = zip(rows, found, strict=False)  # of what follows, such as indices, nothing is known
        return {name: tensor.reshape(desc.dims).numpy() for (name, desc), tensor in pairs}

    return Contestant(name, inferred, outputs)


def _allows(op: Any, tag: str | None) -> bool:
    """Whether all activations may have that format; weights may have any."""
    descs = [getattr(op, name) for name in activations(op)]
    if tag and any(desc.ndims not in MEMORY_FORMATS for desc in descs):
        return False
    free = isinstance(op, dnn.Reorder)  # whose builder looks at the formats
    return free or all(desc.is_any or desc == desc.with_format(tag) for desc in descs)


def _tensors(op: Any, layout: str) -> dict[str, Any]:
    return {row.name: _tensor(row.name, desc, layout) for row, desc in op.tensors()}


def _tensor(name: str, desc: dnn.MemoryDesc, layout: str) -> Any:
    tensor = torch.from_numpy(values_of(name, desc.dims))
    if layout == "channels_last" and desc.ndims in MEMORY_FORMATS:
        return tensor.contiguous(memory_format=MEMORY_FORMATS[desc.ndims])
    return tensor


# -- convolution and products ----------------------------------------------------------------------


def _convolution(op: Any, t: Tensors) -> Run:
    weights, bias = _filters(op, t["weights"]), t.get("bias")
    geometry = op.strides, _padding(op), _dilation(op), False, (0,) * len(op.strides)
    groups = op.grouped_weights[0]
    return lambda: torch.convolution(t["src"], weights, bias, *geometry, groups)


def _convolution_backward(op: Any, t: Tensors) -> Run:
    """With the one output asked for; the tensor that it replaces tells its size."""
    by_data = isinstance(op, dnn.ConvolutionBackwardData)
    groups, with_bias = op.grouped_weights[0], "diff_bias" in t
    src = t["diff_src" if by_data else "src"]
    weights = _filters(op, t["weights" if by_data else "diff_weights"])
    sizes = [op.dst_role.dims[1]] if with_bias else None
    geometry = op.strides, _padding(op), _dilation(op), False, (0,) * len(op.strides), groups
    wanted = [by_data, not by_data, with_bias]

    def run() -> list[Any]:
        found = aten.convolution_backward(t["diff_dst"], src, weights, sizes, *geometry, wanted)
        return [tensor for tensor in found if tensor is not None]

    return run


def _filters(op: Any, weights: Any) -> Any:
    """Grouped weights without their dim of groups, as torch has them."""
    if weights.ndim == op.src_role.ndims:
        return weights
    flat = weights.flatten(0, 1)
    is_last = op.src_role.ndims in MEMORY_FORMATS and _is_channels_last(op)
    return flat.contiguous(memory_format=MEMORY_FORMATS[flat.ndim]) if is_last else flat


def _is_channels_last(op: Any) -> bool:
    return all(_allows(op, tag) == bool(tag) for tag in LAYOUTS.values())


def _padding(op: Any, ceil: bool = False) -> tuple[int, ...]:
    """The same on both sides, if that gives an output of the same size."""
    sizes = op.src_role.dims[2:], op.dst_role.dims[2:]
    kernel = op.kernel if hasattr(op, "kernel") else op.grouped_weights[3:]
    window = zip(*sizes, kernel, op.strides, op.dilations, op.padding_l, strict=True)
    for size, out, k, stride, dilation, left in window:
        if window_output(size, k, stride, dilation, left, left) != out and not ceil:
            raise LeftOut("torch pads both sides alike")
    return tuple(op.padding_l)


def _dilation(op: Any) -> tuple[int, ...]:
    return tuple(dilation + 1 for dilation in op.dilations)


def _inner_product(_op: Any, t: Tensors) -> Run:
    src, weights = t["src"].flatten(1), t["weights"].flatten(1)
    return lambda: torch.nn.functional.linear(src, weights, t.get("bias"))


def _inner_product_data(_op: Any, t: Tensors) -> Run:
    weights = t["weights"].flatten(1)
    dst = torch.empty(len(t["diff_dst"]), weights.shape[1])
    return lambda: torch.mm(t["diff_dst"], weights, out=dst)


def _inner_product_weights(_op: Any, t: Tensors) -> Run:
    src, diff = t["src"].flatten(1), t["diff_dst"]
    dst = torch.empty(diff.shape[1], src.shape[1])
    if "diff_bias" not in t:
        return lambda: torch.mm(diff.T, src, out=dst)
    return lambda: (torch.mm(diff.T, src, out=dst), torch.sum(diff, 0, out=t["diff_bias"]))


def _matmul(_op: Any, t: Tensors) -> Run:
    bias, src, weights = t.get("bias"), t["src"], t["weights"]
    if bias is None:
        return lambda: torch.matmul(src, weights, out=t["dst"])
    add = torch.addmm if src.ndim == 2 else torch.baddbmm
    if src.ndim > 3:
        raise LeftOut("torch has no product of four dims with a bias in one call")
    return lambda: add(bias, src, weights, out=t["dst"])


# -- memory-bound ----------------------------------------------------------------------------------


def _eltwise(op: Any, t: Tensors) -> Run:
    return _filling(op, _FORWARD, (t["src"],), {"out": t["dst"]})


def _eltwise_backward(op: Any, t: Tensors) -> Run:
    kept = t["dst" if op.uses_dst else "src"]
    return _filling(op, _BACKWARD, (t["diff_dst"], kept), {"grad_input": t["diff_src"]})


def _filling(
    op: Any, table: Mapping[str, tuple[str, dict[str, Any]]], inputs: Any, result: dict[str, Any]
) -> Run:
    """A call of the operator for an algorithm, in the variant that fills the tensor `result`."""
    if op.algorithm not in table or (op.algorithm.startswith("relu") and op.alpha):
        raise LeftOut(f"torch has no {op.algorithm} in one call")
    name, constants = table[op.algorithm]
    (variant,) = result
    operator = getattr(getattr(aten, name), variant)
    return lambda: operator(*inputs, **constants, **result)


# Algorithm: torch's operator and its further arguments.
_FORWARD: dict[str, tuple[str, dict[str, Any]]] = {
    "abs": ("abs", {}),
    "exp": ("exp", {}),
    "gelu_erf": ("gelu", {"approximate": "none"}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "log": ("log", {}),
    "logistic": ("sigmoid", {}),
    "mish": ("mish", {}),
    "relu": ("clamp_min", {"min": 0}),
    "round": ("round", {}),
    "sqrt": ("sqrt", {}),
    "square": ("square", {}),
    "tanh": ("tanh", {}),
}
_BACKWARD: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu_erf": ("gelu_backward", {"approximate": "none"}),
    "gelu_tanh": ("gelu_backward", {"approximate": "tanh"}),
    "logistic_use_dst_for_bwd": ("sigmoid_backward", {}),
    "relu": ("threshold_backward", {"threshold": 0}),
    "relu_use_dst_for_bwd": ("threshold_backward", {"threshold": 0}),
    "tanh_use_dst_for_bwd": ("tanh_backward", {}),
}


def _binary(op: Any, t: Tensors) -> Run:
    name = {"max": "maximum", "min": "minimum"}.get(op.algorithm, op.algorithm)
    function = getattr(torch, name)
    if name not in ("add", "sub", "mul", "div", "maximum", "minimum"):
        raise LeftOut(f"torch has no {op.algorithm} that gives floats")
    return lambda: function(t["src0"], t["src1"], out=t["dst"])


def _sum(op: Any, t: Tensors) -> Run:
    (_, scale), *rest = [(t[f"src{i}"], s) for i, s in enumerate(op.scales)]

    def run() -> Any:
        dst = torch.mul(t["src0"], scale, out=t["dst"]) if scale != 1 else t["src0"]
        for tensor, factor in rest:
            dst = torch.add(dst, tensor, alpha=factor, out=t["dst"])
        return dst

    return run


def _reduction(op: Any, t: Tensors) -> Run:
    name = {"max": "amax", "min": "amin"}.get(op.algorithm, op.algorithm)
    if name not in ("sum", "mean", "amax", "amin"):
        raise LeftOut(f"torch has no {op.algorithm} in one call")
    function = getattr(torch, name)
    return lambda: function(t["src"], op.reduced_dims, keepdim=True, out=t["dst"])


def _softmax(op: Any, t: Tensors) -> Run:
    operator = aten._log_softmax if op.algorithm == "log" else aten._softmax
    return lambda: operator.out(t["src"], op.axis, False, out=t["dst"])


def _softmax_backward(op: Any, t: Tensors) -> Run:
    if op.algorithm == "log":
        operator, result = aten._log_softmax_backward_data.out, "out"
    else:
        operator, result = aten._softmax_backward_data.out, "grad_input"
    arguments = t["diff_dst"], t["dst"], op.axis, torch.float32
    return lambda: operator(*arguments, **{result: t["diff_src"]})


def _lrn(op: Any, t: Tensors) -> Run:
    if op.algorithm != "across_channels":
        raise LeftOut("torch normalises across channels only")
    numbers = op.local_size, op.alpha, op.beta, op.k
    return lambda: torch.nn.functional.local_response_norm(t["src"], *numbers)


def _pooling(op: Any, t: Tensors) -> Run:
    if op.is_max:
        indices = torch.empty_like(t["dst"], dtype=torch.int64)
        window = op.kernel, op.strides, _padding(op, ceil=True), _dilation(op), _is_ceil(op)
        operator = aten.max_pool2d_with_indices.out
        return lambda: operator(t["src"], *window, out=t["dst"], indices=indices)
    operator, window = aten.avg_pool2d.out, _average(op)
    return lambda: operator(t["src"], *window, out=t["dst"])


def _pooling_backward(op: Any, t: Tensors) -> Run:
    dst = t["diff_src"]
    image = torch.empty_like(dst).copy_(torch.from_numpy(values_of("src", op.diff_src.dims)))
    if not op.is_max:
        operator, window = aten.avg_pool2d_backward.grad_input, _average(op)
        return lambda: operator(t["diff_dst"], image, *window, grad_input=dst)
    window = op.kernel, op.strides, _padding(op, ceil=True), _dilation(op), _is_ceil(op)
    _, indices = aten.max_pool2d_with_indices(image, *window)
    operator = aten.max_pool2d_with_indices_backward.grad_input
    return lambda: operator(t["diff_dst"], image, *window, indices, grad_input=dst)


def _average(op: Any) -> tuple[Any, ...]:
    if any(op.dilations):
        raise LeftOut("torch has no dilated averages")
    counts_padding = op.algorithm == "avg_include_padding"
    return op.kernel, op.strides, _padding(op), False, counts_padding, None


def _is_ceil(op: Any) -> bool:
    """Whether windows that begin inside and end beyond the padding count."""
    try:
        _padding(op)
    except LeftOut:
        sizes = zip(
            op.src_role.dims[2:], op.dst_role.dims[2:], op.kernel, op.strides, op.dilations,
            op.padding_l, strict=True,
        )  # fmt: skip
        for size, out, k, stride, dilation, left in sizes:
            span = size + 2 * left - 1 - (k - 1) * (dilation + 1)
            if math.ceil(span / stride) + 1 != out:
                raise
        return True
    return False


def _reorder(op: Any, t: Tensors) -> Run:
    """Between the orders that torch has."""
    src, dst = (_ordered(desc, t[name]) for name, desc in (("src", op.src), ("dst", op.dst)))
    return lambda: dst.copy_(src)


def _ordered(desc: dnn.MemoryDesc, tensor: Any) -> Any:
    for tag in LAYOUTS.values():
        if desc.ndims == 4 and desc == desc.with_format(tag):
            last = torch.channels_last if tag else torch.contiguous_format
            return tensor.contiguous(memory_format=last)
    raise LeftOut("torch has no such formats")


_BUILDERS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    dnn.Binary: _binary,
    dnn.ConvolutionForward: _convolution,
    dnn.ConvolutionBackwardData: _convolution_backward,
    dnn.ConvolutionBackwardWeights: _convolution_backward,
    dnn.EltwiseForward: _eltwise,
    dnn.EltwiseBackward: _eltwise_backward,
    dnn.InnerProductForward: _inner_product,
    dnn.InnerProductBackwardData: _inner_product_data,
    dnn.InnerProductBackwardWeights: _inner_product_weights,
    dnn.LRNForward: _lrn,
    dnn.MatMul: _matmul,
    dnn.PoolingForward: _pooling,
    dnn.PoolingBackward: _pooling_backward,
    dnn.Reduction: _reduction,
    dnn.Reorder: _reorder,
    dnn.SoftmaxForward: _softmax,
    dnn.SoftmaxBackward: _softmax_backward,
    dnn.Sum: _sum,
}
