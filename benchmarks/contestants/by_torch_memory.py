"""torch's operators for memory-bound operations: elements, windows, rows and reductions.

Each builder makes a call that computes an operation on tensors by argument name. Convolutions and
products are in `by_torch.py`, which also uses the windows here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import dnncore as dnn
from benchmarks.contestants.contestant import LeftOut
from dnncore.ops.window import effective_kernel

__all__ = [
    "BUILDERS", "DATA_TYPES", "LAYOUTS", "Converted", "Run", "Tensors", "dilation", "padding",
]  # fmt: skip

aten = torch.ops.aten
Tensors = Mapping[str, Any]
Run = Callable[[], Any]  # computes, and returns the outputs in the order of the argument table
DATA_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {"plain": None, "channels_last": "axb"}  # name -> format tag


@dataclass(frozen=True)
class Converted:
    """An output that is computed after the measurement, from tensors that torch returned."""

    sources: tuple[Any, ...]
    convert: Callable[..., Any]

    def tensor(self) -> Any:
        """The output."""
        return self.convert(*self.sources)


# -- windows ---------------------------------------------------------------------------------------


def padding(op: Any, ceil: bool = False) -> tuple[int, ...]:
    """torch's padding, the same on both sides. Raises `LeftOut` if the output size differs.

    ceil: whether the output size is rounded up, as by torch's ceil_mode.
    """
    if _outputs(op, math.ceil if ceil else math.floor) != op.dst_role.dims[2:]:
        raise LeftOut("torch pads both sides alike")
    return tuple(op.padding_l)


def dilation(op: Any) -> tuple[int, ...]:
    """torch's dilation, where 1 is dense."""
    return tuple(dilation + 1 for dilation in op.dilations)


def _outputs(op: Any, rounded: Callable[[float], int]) -> tuple[int, ...]:
    """The sizes of dst with the same padding on both sides."""
    kernel = op.kernel if hasattr(op, "kernel") else op.grouped_weights[3:]
    spans = [effective_kernel(*pair) for pair in zip(kernel, op.dilations, strict=True)]
    rows = zip(op.src_role.dims[2:], op.padding_l, spans, op.strides, strict=True)
    return tuple(
        rounded((size + 2 * left - span) / stride) + 1 for size, left, span, stride in rows
    )


# -- elements --------------------------------------------------------------------------------------


def _eltwise(op: Any, t: Tensors) -> Run:
    if op.algorithm == "linear" and not op.beta:
        return lambda: torch.mul(t["src"], op.alpha, out=t["dst"])
    return _filling(op, _FORWARD, (t["src"],), {"out": t["dst"]})


def _eltwise_backward(op: Any, t: Tensors) -> Run:
    kept = t["dst" if op.uses_dst else "src"]
    if op.algorithm == "linear":
        return lambda: torch.mul(t["diff_dst"], op.alpha, out=t["diff_src"])
    return _filling(op, _BACKWARD, (t["diff_dst"], kept), {"grad_input": t["diff_src"]})


def _filling(
    op: Any, table: Mapping[str, Callable[[Any], Operator]], inputs: Any, result: dict[str, Any]
) -> Run:
    """A call of the algorithm's operator, which fills the tensor `result`."""
    operator = table[op.algorithm](op) if op.algorithm in table else None
    if operator is None:
        raise LeftOut(f"torch has no {op.algorithm} in one call")
    name, constants = operator
    (variant,) = result
    function = getattr(getattr(aten, name), variant)
    return lambda: function(*inputs, **constants, **result)


Operator = tuple[str, dict[str, Any]] | None  # torch's operator, further arguments; None: missing


def _always(name: str, **constants: Any) -> Callable[[Any], Operator]:
    return lambda _op: (name, constants)


def _relu(op: Any) -> Operator:
    if op.alpha:
        return "leaky_relu", {"negative_slope": op.alpha}
    return "clamp_min", {"min": 0}


def _relu_backward(op: Any) -> Operator:
    if op.alpha:
        return "leaky_relu_backward", {"negative_slope": op.alpha, "self_is_result": op.uses_dst}
    return "threshold_backward", {"threshold": 0}


# Algorithm -> the operator for an operation.
_FORWARD: dict[str, Callable[[Any], Operator]] = {
    "abs": _always("abs"),
    "clip": lambda op: ("clamp", {"min": op.alpha, "max": op.beta}),
    "elu": lambda op: ("elu", {"alpha": op.alpha}),
    "exp": _always("exp"),
    "gelu_erf": _always("gelu", approximate="none"),
    "gelu_tanh": _always("gelu", approximate="tanh"),
    "log": _always("log"),
    "logistic": _always("sigmoid"),
    "mish": _always("mish"),
    "relu": _relu,
    "round": _always("round"),
    "sqrt": _always("sqrt"),
    "square": _always("square"),
    "swish": lambda op: ("silu", {}) if op.alpha == 1 else None,
    "tanh": _always("tanh"),
}
_BACKWARD: dict[str, Callable[[Any], Operator]] = {
    "clip": lambda op: ("hardtanh_backward", {"min_val": op.alpha, "max_val": op.beta}),
    "gelu_erf": _always("gelu_backward", approximate="none"),
    "gelu_tanh": _always("gelu_backward", approximate="tanh"),
    "logistic_use_dst_for_bwd": _always("sigmoid_backward"),
    "relu": _relu_backward,
    "relu_use_dst_for_bwd": _relu_backward,
    "swish": lambda op: ("silu_backward", {}) if op.alpha == 1 else None,
    "tanh_use_dst_for_bwd": _always("tanh_backward"),
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


def _concat(op: Any, t: Tensors) -> Run:
    srcs = [t[name] for name in op.source_names]
    return lambda: torch.cat(srcs, op.axis, out=t["dst"])


def _shuffle(op: Any, t: Tensors) -> Run:
    """Copy a transposed view, which is faster than `channel_shuffle`."""
    src = t["src"]
    matrix = src.unflatten(op.axis, (op.rows, op.columns)).transpose(op.axis, op.axis + 1)
    dst = t["dst"].unflatten(op.axis, (op.columns, op.rows))
    return lambda: dst.copy_(matrix)


def _shuffle_backward(op: Any, t: Tensors) -> Run:
    """Copy the view transposed in the other direction."""
    diff = t["diff_dst"]
    matrix = diff.unflatten(op.axis, (op.rows, op.columns)).transpose(op.axis, op.axis + 1)
    dst = t["diff_src"].unflatten(op.axis, (op.columns, op.rows))
    return lambda: dst.copy_(matrix)


def _prelu(_op: Any, t: Tensors) -> Run:
    return lambda: aten._prelu_kernel(t["src"], t["weights"])


def _prelu_backward(op: Any, t: Tensors) -> Run:
    """torch computes a gradient of the weights per element, and adds them up."""
    shared = op.shared_dims

    def run() -> Any:
        diff, each = aten._prelu_kernel_backward(t["diff_dst"], t["src"], t["weights"])
        return [diff, each.sum(shared, keepdim=True) if shared else each]

    return run


def _resampling_backward(op: Any, t: Tensors) -> Run:
    linear = ("linear1d", "bilinear2d", "trilinear3d")[op.diff_src.ndims - 3]
    name = (
        f"_upsample_nearest_exact{op.diff_src.ndims - 2}d"
        if op.is_nearest
        else f"upsample_{linear}"
    )
    operator = getattr(aten, f"{name}_backward").grad_input
    sizes, more = (op.diff_dst.dims[2:], op.diff_src.dims), [] if op.is_nearest else [False]
    return lambda: operator(t["diff_dst"], *sizes, *more, grad_input=t["diff_src"])


def _resampling(op: Any, t: Tensors) -> Run:
    linear = ("linear", "bilinear", "trilinear")[op.src.ndims - 3]
    mode = "nearest-exact" if op.is_nearest else linear
    sizes, interpolate = op.dst.dims[2:], torch.nn.functional.interpolate
    return lambda: interpolate(t["src"], size=sizes, mode=mode)


def _reduction(op: Any, t: Tensors) -> Run:
    name = {"max": "amax", "min": "amin"}.get(op.algorithm, op.algorithm)
    if name not in ("sum", "mean", "amax", "amin"):
        raise LeftOut(f"torch has no {op.algorithm} in one call")
    function = getattr(torch, name)
    return lambda: function(t["src"], op.reduced_dims, keepdim=True, out=t["dst"])


def _softmax(op: Any, t: Tensors) -> Run:
    if op.lse is not None:
        raise LeftOut("softmax with statistics")
    operator = aten._log_softmax if op.algorithm == "log" else aten._softmax
    return lambda: operator.out(t["src"], op.axis, False, out=t["dst"])


def _softmax_backward(op: Any, t: Tensors) -> Run:
    if op.algorithm == "log":
        operator, result = aten._log_softmax_backward_data.out, "out"
    else:
        operator, result = aten._softmax_backward_data.out, "grad_input"
    arguments = t["diff_dst"], t["dst"], op.axis, t["dst"].dtype
    return lambda: operator(*arguments, **{result: t["diff_src"]})


def _lrn(op: Any, t: Tensors) -> Run:
    if op.algorithm != "across_channels":
        raise LeftOut("torch normalises across channels only")
    numbers = op.local_size, op.alpha, op.beta, op.k
    return lambda: torch.nn.functional.local_response_norm(t["src"], *numbers)


def _lrn_backward(op: Any, t: Tensors) -> Run:
    """LRN's gradient by its formula, because autograd would also run the forward pass.

    The base of the power is computed before the call.
    """
    if op.algorithm != "across_channels":
        raise LeftOut("torch normalises across channels only")
    src, diff, beta = t["src"], t["diff_dst"], op.beta
    base = op.k + op.alpha * _mean_of_channels(src * src, op.local_size)
    scale, inner = base**-beta, src * base ** (-beta - 1)
    factor = 2 * op.alpha * beta * src

    def run() -> Any:
        return diff * scale - factor * _mean_of_channels(diff * inner, op.local_size)

    return run


def _mean_of_channels(tensor: Any, size: int) -> Any:
    """The mean over an odd number of channels around each channel. Channels outside count as 0."""
    images = tensor.flatten(2).unsqueeze(1)
    mean = torch.nn.functional.avg_pool2d(images, (size, 1), 1, (size // 2, 0))
    return mean.squeeze(1).reshape(tensor.shape)


def _pooling(op: Any, t: Tensors) -> Run:
    src, dst, window = *_images(op, t["src"], t["dst"]), _window(op)
    if op.is_max:
        indices = torch.empty_like(dst, dtype=torch.int64)
        operator = getattr(aten, f"max_pool{len(window[0])}d_with_indices").out
        return lambda: operator(src, *window, out=dst, indices=indices)
    operator = getattr(aten, f"avg_pool{len(window[0])}d").out
    return lambda: operator(src, *window, out=dst)


def _pooling_backward(op: Any, t: Tensors) -> Run:
    dst, image, diff = _images(op, t["diff_src"], t["src"], t["diff_dst"])
    window = _window(op)
    rank = len(window[0])
    if not op.is_max:
        operator = getattr(aten, f"avg_pool{rank}d_backward").grad_input
        return lambda: operator(diff, image, *window, grad_input=dst)
    _, indices = getattr(aten, f"max_pool{rank}d_with_indices")(image, *window)
    operator = getattr(aten, f"max_pool{rank}d_with_indices_backward").grad_input
    return lambda: operator(diff, image, *window, indices, grad_input=dst)


def _images(op: Any, *tensors: Any) -> list[Any]:
    """The tensors with two or three spatial dims, because torch lacks operators for one."""
    return [tensor.unsqueeze(2) if len(op.kernel) == 1 else tensor for tensor in tensors]


def _window(op: Any) -> tuple[Any, ...]:
    """torch's arguments of a window, which follow the image."""

    def flat(values: Any, other: int) -> tuple[int, ...]:
        return ((other,) if len(op.kernel) == 1 else ()) + tuple(values)

    kernel, strides = flat(op.kernel, 1), flat(op.strides, 1)
    if op.is_max:
        ceil = _outputs(op, math.floor) != op.dst_role.dims[2:]
        return kernel, strides, flat(padding(op, ceil), 0), flat(dilation(op), 1), ceil
    if any(op.dilations):
        raise LeftOut("torch has no dilated averages")
    counts_padding = op.algorithm == "avg_include_padding"
    return kernel, strides, flat(padding(op), 0), False, counts_padding, None


def _reorder(op: Any, t: Tensors) -> Run:
    """A copy between orders of dims that torch can express."""
    src, dst = (_ordered(desc, t[name]) for name, desc in (("src", op.src), ("dst", op.dst)))
    return lambda: dst.copy_(src)


def _ordered(desc: dnn.MemoryDesc, tensor: Any) -> Any:
    for tag in LAYOUTS.values():
        if (tag is None or desc.ndims == 4) and desc == desc.with_format(tag):
            order = torch.channels_last if tag else torch.contiguous_format
            return tensor.contiguous(memory_format=order)
    raise LeftOut("torch has no such formats")


BUILDERS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    dnn.Binary: _binary,
    dnn.EltwiseForward: _eltwise,
    dnn.EltwiseBackward: _eltwise_backward,
    dnn.LRNForward: _lrn,
    dnn.LRNBackward: _lrn_backward,
    dnn.PoolingForward: _pooling,
    dnn.PoolingBackward: _pooling_backward,
    dnn.Reduction: _reduction,
    dnn.Reorder: _reorder,
    dnn.SoftmaxForward: _softmax,
    dnn.SoftmaxBackward: _softmax_backward,
    dnn.Concat: _concat,
    dnn.PReLUForward: _prelu,
    dnn.PReLUBackward: _prelu_backward,
    dnn.ResamplingForward: _resampling,
    dnn.ResamplingBackward: _resampling_backward,
    dnn.ShuffleForward: _shuffle,
    dnn.ShuffleBackward: _shuffle_backward,
    dnn.Sum: _sum,
}
