"""Groups of layers that many networks have."""

from __future__ import annotations

from typing import Any

from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.shapes import Size

__all__ = ["activation", "classify", "conv", "conv_bn", "excite", "make_divisible"]

ALGORITHMS = {
    "gelu": ("gelu_erf",), "hardsigmoid": ("hardsigmoid", "0.16666667", "0.5"),
    "hardswish": ("hardswish", "0.16666667", "0.5"), "leaky": ("relu", "0.1"),
    "leaky2": ("relu", "0.2"), "relu": ("relu",), "relu6": ("clip", "0", "6"),
    "sigmoid": ("logistic",), "swish": ("swish", "1"), "tanh": ("tanh",),
}  # fmt: skip


def activation(net: Net, x: Value, name: str) -> Value:
    """Apply an activation function, by its name in papers; "" is the identity."""
    return net.eltwise(x, *ALGORITHMS[name]) if name else x


def conv(
    net: Net, x: Value, channels: int, kernel: Size, act: str = "relu", **window: Any
) -> Value:
    """A convolution with bias, and an activation function."""
    return activation(net, net.conv(x, channels, kernel, bias=True, **window), act)


def conv_bn(
    net: Net, x: Value, channels: int, kernel: Size, act: str = "relu", **window: Any
) -> Value:
    """A convolution, batch normalization and an activation function."""
    return activation(net, net.batch_norm(net.conv(x, channels, kernel, **window)), act)


def classify(net: Net, x: Value, *features: int) -> Value:
    """Inner products and softmax. Relu follows each product but the last.

    An image is averaged before the first product.
    """
    if len(x.dims) > 1:
        x = net.view(net.global_pool(x), x.dims[0])
    for count in features[:-1]:
        x = net.relu(net.linear(x, count))
    return net.softmax(net.linear(x, features[-1]))


def excite(net: Net, x: Value, reduced: int, act: str = "relu", gate: str = "sigmoid") -> Value:
    """Squeeze and excitation: each channel is multiplied by a factor computed from all means."""
    factors = conv(net, net.global_pool(x), reduced, 1, act)
    return net.binary(x, conv(net, factors, x.dims[0], 1, gate), "mul")


def make_divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of a divisor, at most 10 % below `channels`."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest
