"""Layers of networks on a `Tape`: each adds its primitives and how its gradients are made.

All tensors have plain formats, (N, C, H, W) for images and (rows, channels) for sequences.
"""

from __future__ import annotations

import numpy as np
from tape import Tape, Tensor

import dnncore as dnn

__all__ = ["add", "batch_norm", "causal_attention", "convolution", "eltwise", "global_average",
           "layer_norm", "linear", "log_softmax", "lstm"]  # fmt: skip

EPSILON = 1e-5
PACE = 0.1  # the part of a batch's statistics in the running averages


def convolution(tape: Tape, src: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    """Convolution with square windows, padded so that the size is divided by the stride."""
    n, c, h, w = src.dims
    weights = tape.normal((channels, c, kernel, kernel), fan_in=c * kernel**2, gain=2**0.5)
    dst = tape.tensor((n, channels, -(-h // stride), -(-w // stride)))
    pad = kernel // 2
    geometry = {"strides": (stride, stride), "padding_l": (pad, pad)}
    tensors = {"src": src.value, "weights": weights.value, "dst": dst.value}
    descs = {name: memory.desc for name, memory in tensors.items()}
    pd = tape.choose(dnn.ConvolutionForward(tape.prop_kind, **descs, **geometry))
    tape.add("convolution", pd, **tensors)

    def gradient() -> None:
        by_weights = dnn.ConvolutionBackwardWeights(
            src=descs["src"], diff_weights=descs["weights"], diff_dst=descs["dst"], **geometry
        )
        found = tape.add(
            "convolution backward weights", tape.choose(by_weights, hint=pd),
            src=src.value, diff_dst=dst.gradient,
        )  # fmt: skip
        tape.flow(weights, found["diff_weights"])
        if src.needs_gradient:
            by_data = dnn.ConvolutionBackwardData(
                diff_src=descs["src"], weights=descs["weights"], diff_dst=descs["dst"], **geometry
            )
            found = tape.add(
                "convolution backward data", tape.choose(by_data, hint=pd),
                weights=weights.value, diff_dst=dst.gradient,
            )  # fmt: skip
            tape.flow(src, found["diff_src"])

    tape.record(gradient)
    return dst


def batch_norm(tape: Tape, src: Tensor, added: Tensor | None = None) -> Tensor:
    """Batch normalization, then the optional addition, then a relu, in one primitive.

    Training uses the statistics of the batch and follows them by running averages, which inference
    uses.
    """
    desc, channels = src.value.desc, src.dims[1]
    scale, shift = tape.ones(channels), tape.zeros(channels)
    running = {"mean": tape.state(np.zeros(channels)), "variance": tape.state(np.ones(channels))}
    dst, vector = tape.tensor(src.dims), scale.value.desc
    fused = {"epsilon": EPSILON, "fuse_relu": True}
    op = dnn.BatchNormalizationForward(
        tape.prop_kind, src=desc, src1=desc if added else None, dst=desc, scale=vector,
        shift=vector, use_global_stats=tape.trained is not None, **fused,
    )  # fmt: skip
    pd = tape.choose(op)
    given = {"src": src.value, "scale": scale.value, "shift": shift.value, "dst": dst.value}
    if added:
        given["src1"] = added.value
    if tape.trained:
        tape.add("batch norm", pd, **given, **running)
        return dst
    forward = tape.add("batch norm", pd, **given)
    count = desc.nelems // channels
    for name, average in running.items():
        unbiased = count / (count - 1) if name == "variance" and count > 1 else 1
        factors = 1 - PACE, PACE * unbiased
        follow = tape.choose(dnn.Sum(factors, srcs=(vector, vector), dst=vector))
        tape.add(f"running {name}", follow, src0=average, src1=forward[name], dst=average)

    def gradient() -> None:
        op = dnn.BatchNormalizationBackward(
            src=desc, diff_dst=desc, diff_src=desc, diff_src1=desc if added else None, scale=vector,
            diff_scale=vector, diff_shift=vector, **fused,
        )  # fmt: skip
        kept = {name: forward[name] for name in ("src", "mean", "variance", "scale", "workspace")}
        found = tape.add(
            "batch norm backward", tape.choose(op, hint=pd), diff_dst=dst.gradient, **kept
        )
        tape.flow(src, found["diff_src"])
        tape.flow(scale, found["diff_scale"])
        tape.flow(shift, found["diff_shift"])
        if added:
            tape.flow(added, found["diff_src1"])

    tape.record(gradient)
    return dst


def linear(tape: Tape, src: Tensor, channels: int) -> Tensor:
    """dst = src @ weights.T + bias, along the channels of src (rows, channels)."""
    rows, c = src.dims
    weights, bias = tape.normal((channels, c), fan_in=c), tape.zeros(channels)
    dst = tape.tensor((rows, channels))
    op = dnn.InnerProductForward(
        tape.prop_kind, src=src.value.desc, weights=weights.value.desc,
        bias=bias.value.desc, dst=dst.value.desc,
    )  # fmt: skip
    pd = tape.choose(op)
    tape.add("linear", pd, src=src.value, weights=weights.value, bias=bias.value, dst=dst.value)

    def gradient() -> None:
        by_weights = dnn.InnerProductBackwardWeights(
            src=src.value.desc, diff_weights=weights.value.desc, diff_bias=bias.value.desc,
            diff_dst=dst.value.desc,
        )  # fmt: skip
        found = tape.add(
            "linear backward weights", tape.choose(by_weights, hint=pd),
            src=src.value, diff_dst=dst.gradient,
        )  # fmt: skip
        tape.flow(weights, found["diff_weights"])
        tape.flow(bias, found["diff_bias"])
        if src.needs_gradient:
            by_data = dnn.InnerProductBackwardData(
                diff_src=src.value.desc, weights=weights.value.desc, diff_dst=dst.value.desc
            )
            found = tape.add(
                "linear backward data", tape.choose(by_data, hint=pd),
                weights=weights.value, diff_dst=dst.gradient,
            )  # fmt: skip
            tape.flow(src, found["diff_src"])

    tape.record(gradient)
    return dst


def eltwise(tape: Tape, src: Tensor, algorithm: str) -> Tensor:
    """An activation such as "relu" or "gelu_tanh"."""
    desc = src.value.desc
    dst = tape.tensor(src.dims)
    pd = tape.choose(dnn.EltwiseForward(tape.prop_kind, algorithm, src=desc, dst=desc))
    tape.add(algorithm, pd, src=src.value, dst=dst.value)

    def gradient() -> None:
        op = dnn.EltwiseBackward(algorithm, src=desc, diff_dst=desc, diff_src=desc)
        found = tape.add(
            f"{algorithm} backward", tape.choose(op, hint=pd),
            src=src.value, diff_dst=dst.gradient,
        )  # fmt: skip
        tape.flow(src, found["diff_src"])

    tape.record(gradient)
    return dst


def add(tape: Tape, first: Tensor, second: Tensor) -> Tensor:
    """The sum of two tensors of the same dims. Both share the gradient of the sum."""
    desc = first.value.desc
    dst = tape.tensor(first.dims)
    pd = tape.choose(dnn.Binary("add", src0=desc, src1=desc, dst=desc))
    tape.add("add", pd, src0=first.value, src1=second.value, dst=dst.value)

    def gradient() -> None:
        for source in (first, second):
            if source.needs_gradient:
                tape.flow(source, dst.gradient, is_shared=True)

    tape.record(gradient)
    return dst


def global_average(tape: Tape, src: Tensor) -> Tensor:
    """The mean of each channel of images (N, C, H, W), as (N, C)."""
    n, c, h, w = src.dims
    desc = src.value.desc
    means = tape.memory((n, c, 1, 1))
    window = {"kernel": (h, w), "strides": (1, 1)}
    pd = tape.choose(
        dnn.PoolingForward(
            tape.prop_kind, "avg_exclude_padding", src=desc, dst=means.desc, **window
        )
    )
    tape.add("global average", pd, src=src.value, dst=means)
    dst = Tensor(tape.view(means, dnn.MemoryDesc((n, c))))

    def gradient() -> None:
        op = dnn.PoolingBackward(
            "avg_exclude_padding", diff_src=desc, diff_dst=means.desc, **window
        )
        found = tape.add(
            "global average backward", tape.choose(op, hint=pd),
            diff_dst=tape.view(dst.gradient, means.desc),
        )  # fmt: skip
        tape.flow(src, found["diff_src"])

    tape.record(gradient)
    return dst


def log_softmax(tape: Tape, src: Tensor) -> Tensor:
    """The logarithms of the probabilities of each row."""
    desc = src.value.desc
    dst = tape.tensor(src.dims)
    pd = tape.choose(dnn.SoftmaxForward(tape.prop_kind, "log", src=desc, dst=desc, axis=1))
    tape.add("log softmax", pd, src=src.value, dst=dst.value)

    def gradient() -> None:
        op = dnn.SoftmaxBackward("log", dst=desc, diff_dst=desc, diff_src=desc, axis=1)
        found = tape.add(
            "log softmax backward", tape.choose(op, hint=pd),
            dst=dst.value, diff_dst=dst.gradient,
        )  # fmt: skip
        tape.flow(src, found["diff_src"])

    tape.record(gradient)
    return dst


def lstm(tape: Tape, src: Tensor, hidden: int) -> Tensor:
    """One layer of LSTM cells over a sequence (steps, batch, channels)."""
    steps, batch, c = src.dims
    wide = tape.normal((1, 1, c, 4, hidden), fan_in=hidden)
    square = tape.normal((1, 1, hidden, 4, hidden), fan_in=hidden)
    forget = np.zeros((1, 1, 4, hidden))
    forget[:, :, 1] = 1  # cells that remember at first learn sooner
    bias = tape.parameter(forget)
    dst = tape.tensor((steps, batch, hidden))
    kind = ("vanilla_lstm", "left2right")
    inputs = {"src_layer": src, "weights_layer": wide, "weights_iter": square}
    descs = {name: tensor.value.desc for name, tensor in inputs.items()}
    op = dnn.RNNForward(
        tape.prop_kind, *kind, **descs, bias=bias.value.desc, dst_layer=dst.value.desc
    )
    pd = tape.choose(op)
    given = {name: tensor.value for name, tensor in inputs.items()}
    forward = tape.add("lstm", pd, **given, bias=bias.value, dst_layer=dst.value)

    def gradient() -> None:
        op = dnn.RNNBackward(
            *kind, **descs, diff_dst_layer=dst.value.desc, diff_bias=bias.value.desc,
            diff_weights_layer=wide.value.desc, diff_weights_iter=square.value.desc,
            diff_src_layer=src.value.desc if src.needs_gradient else None,
        )  # fmt: skip
        found = tape.add(
            "lstm backward", tape.choose(op, hint=pd), **given, diff_dst_layer=dst.gradient,
            workspace=forward["workspace"],
        )  # fmt: skip
        tape.flow(wide, found["diff_weights_layer"])
        tape.flow(square, found["diff_weights_iter"])
        tape.flow(bias, found["diff_bias"])
        if src.needs_gradient:
            tape.flow(src, found["diff_src_layer"])

    tape.record(gradient)
    return dst


def layer_norm(tape: Tape, src: Tensor) -> Tensor:
    """Layer normalization of each row, with scale and shift."""
    desc, channels = src.value.desc, src.dims[1]
    scale, shift = tape.ones(channels), tape.zeros(channels)
    dst, vector = tape.tensor(src.dims), scale.value.desc
    op = dnn.LayerNormalizationForward(
        tape.prop_kind, src=desc, dst=desc, scale=vector, shift=vector, epsilon=EPSILON
    )
    pd = tape.choose(op)
    forward = tape.add(
        "layer norm", pd, src=src.value, scale=scale.value, shift=shift.value, dst=dst.value
    )

    def gradient() -> None:
        op = dnn.LayerNormalizationBackward(
            src=desc, diff_dst=desc, diff_src=desc, scale=vector, diff_scale=vector,
            diff_shift=vector, epsilon=EPSILON,
        )  # fmt: skip
        kept = {name: forward[name] for name in ("src", "mean", "variance", "scale")}
        found = tape.add(
            "layer norm backward", tape.choose(op, hint=pd), diff_dst=dst.gradient, **kept
        )
        tape.flow(src, found["diff_src"])
        tape.flow(scale, found["diff_scale"])
        tape.flow(shift, found["diff_shift"])

    tape.record(gradient)
    return dst


def causal_attention(tape: Tape, src: Tensor, batch: int, heads: int) -> Tensor:
    """Attention in which a character sees itself and those before it.

    src: (batch * steps, 3 * channels): queries, keys and values of all heads side by side. The
        heads are views of this memory and of its gradient; nothing is copied.
    """
    rows, width = src.dims
    steps, channels = rows // batch, width // 3
    depth = channels // heads

    def heads_of(place: int, row: int) -> dnn.MemoryDesc:
        """A part of each row, as (batch, heads, steps, depth)."""
        strides = (steps * row, depth, row, 1)
        return dnn.MemoryDesc((batch, heads, steps, depth), "f32", strides=strides, offset0=place)

    dst = tape.tensor((rows, channels))
    parts = {"queries": 0, "keys": channels, "values": 2 * channels}
    descs = {name: heads_of(place, width) for name, place in parts.items()}
    result = heads_of(0, channels)
    op = dnn.AttentionForward(tape.prop_kind, **descs, dst=result, causal="top_left")
    pd = tape.choose(op)
    given = {name: tape.view(src.value, desc) for name, desc in descs.items()}
    forward = tape.add("attention", pd, **given, dst=tape.view(dst.value, result))

    def gradient() -> None:
        op = dnn.AttentionBackward(
            **descs, dst=result, diff_dst=result, causal="top_left",
            **{f"diff_{name}": desc for name, desc in descs.items()},
        )  # fmt: skip
        diff_src = tape.memory(src.dims)
        tape.add(
            "attention backward", tape.choose(op, hint=pd), **given, dst=forward["dst"],
            diff_dst=tape.view(dst.gradient, result), workspace=forward["workspace"],
            **{f"diff_{name}": tape.view(diff_src, desc) for name, desc in descs.items()},
        )  # fmt: skip
        tape.flow(src, diff_src)

    tape.record(gradient)
    return dst
