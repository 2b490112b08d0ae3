"""Small classifiers: MobileNet v1 to v3, ShuffleNet v1 and v2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.corpus.blocks import classify, conv, conv_bn, excite, make_divisible
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


def depthwise(net: Net, x: Value, kernel: int, act: str = "relu", stride: int = 1) -> Value:
    """A convolution of each channel alone, with batch normalization."""
    return conv_bn(net, x, x.dims[0], kernel, act, stride=stride, groups=x.dims[0])


@network(
    ("multiply-adds", 569e6, "table 8"),
    ("parameters", 4.2e6, "table 8"),
)
def mobilenet_v1(net: Net) -> None:
    """MobileNet.

    Howard and others 2017, MobileNets: efficient convolutional neural networks for mobile vision
    applications.
    """
    x = conv_bn(net, net.input(3, 224, 224), 32, 3, stride=2)
    for channels, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                             *[(512, 1)] * 5, (1024, 2), (1024, 1)):  # fmt: skip
        x = conv_bn(net, depthwise(net, x, 3, stride=stride), channels, 1)
    classify(net, x, 1000)


def inverted(
    net: Net, x: Value, expanded: int, channels: int, kernel: int, stride: int, act: str,
    squeezed: int = 0, gate: str = "sigmoid",
) -> Value:  # fmt: skip
    """An inverted residual. squeezed: channels within the squeeze and excitation; 0 is none."""
    y = x if expanded == x.dims[0] else conv_bn(net, x, expanded, 1, act)
    y = depthwise(net, y, kernel, act, stride)
    if squeezed:
        y = excite(net, y, squeezed, "swish" if act == "swish" else "relu", gate)
    y = conv_bn(net, y, channels, 1, act="")
    return net.binary(y, x) if y.dims == x.dims else y


@network(
    ("multiply-adds", 300e6, "table 4"),
)
def mobilenet_v2(net: Net) -> None:
    """MobileNetV2.

    Sandler and others 2018, MobileNetV2: inverted residuals and linear bottlenecks.
    """
    x = conv_bn(net, net.input(3, 224, 224), 32, 3, "relu6", stride=2)
    for factor, channels, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            expanded = factor * x.dims[0]
            x = inverted(net, x, expanded, channels, 3, 1 if number else stride, "relu6")
    classify(net, conv_bn(net, x, 1280, 1, "relu6"), 1000)


Row: TypeAlias = tuple[int, int, int, bool, str, int]
"""Kernel, expanded channels, channels, squeeze and excitation, function, stride."""


def _mobilenet_v3(net: Net, rows: Sequence[Row], last: int) -> None:
    x = conv_bn(net, net.input(3, 224, 224), 16, 3, "hardswish", stride=2)
    for kernel, expanded, channels, squeezes, act, stride in rows:
        squeezed = make_divisible(expanded / 4) if squeezes else 0
        x = inverted(net, x, expanded, channels, kernel, stride, act, squeezed, "hardsigmoid")
    x = net.global_pool(conv_bn(net, x, 6 * x.dims[0], 1, "hardswish"))
    x = conv(net, x, last, 1, "hardswish")
    net.softmax(net.linear(net.view(x, last), 1000))


@network(
    ("multiply-adds", 219e6, "table 3"),
    ("parameters", 5.4e6, "table 3"),
)
def mobilenet_v3(net: Net) -> None:
    """MobileNetV3-Large.

    Howard and others 2019, Searching for MobileNetV3.
    """
    rows: list[Row] = [
        (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2),
        (3, 72, 24, False, "relu", 1), (5, 72, 40, True, "relu", 2),
        *[(5, 120, 40, True, "relu", 1)] * 2, (3, 240, 80, False, "hardswish", 2),
        (3, 200, 80, False, "hardswish", 1), *[(3, 184, 80, False, "hardswish", 1)] * 2,
        (3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1),
        (5, 672, 160, True, "hardswish", 2), *[(5, 960, 160, True, "hardswish", 1)] * 2,
    ]  # fmt: skip
    _mobilenet_v3(net, rows, 1280)


@network(
    ("parameters", 2.5e6, "table 3"),
    ("multiply-adds", 56e6, "table 3"),
)
def mobilenet_v3_small(net: Net) -> None:
    """MobileNetV3-Small.

    Howard and others 2019, Searching for MobileNetV3.
    """
    rows: list[Row] = [
        (3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2),
        (3, 88, 24, False, "relu", 1), (5, 96, 40, True, "hardswish", 2),
        *[(5, 240, 40, True, "hardswish", 1)] * 2, (5, 120, 48, True, "hardswish", 1),
        (5, 144, 48, True, "hardswish", 1), (5, 288, 96, True, "hardswish", 2),
        *[(5, 576, 96, True, "hardswish", 1)] * 2,
    ]  # fmt: skip
    _mobilenet_v3(net, rows, 1024)


@network(
    ("multiply-adds", 137e6, "table 1"),
)
def shufflenet_v1(net: Net) -> None:
    """ShuffleNet 1x with 3 groups.

    Zhang and others 2017, ShuffleNet.
    """
    x = conv_bn(net, net.input(3, 224, 224), 24, 3, stride=2)
    x = net.pool(x, 3, stride=2, pad=1)
    for channels, count in ((240, 4), (480, 8), (960, 4)):
        for number in range(count):
            groups = 1 if x.dims[0] == 24 else 3
            y = conv_bn(net, x, channels // 4, 1, groups=groups)
            y = depthwise(net, net.shuffle(y, 3), 3, "", 1 if number else 2)
            rest = channels if number else channels - x.dims[0]
            y = conv_bn(net, y, rest, 1, "", groups=3)
            if number:
                x = net.relu(net.binary(x, y))
            else:
                average = net.pool(x, 3, stride=2, pad=1, alg="avg_p")
                x = net.relu(net.concat(average, y))
    classify(net, x, 1000)


@network(
    ("multiply-adds", 146e6, "table 5"),
    ("parameters", 2.3e6, "table 5"),
)
def shufflenet_v2(net: Net) -> None:
    """ShuffleNet V2 1x.

    Ma and others 2018, ShuffleNet V2: practical guidelines for efficient CNN architecture design.
    """
    x = conv_bn(net, net.input(3, 224, 224), 24, 3, stride=2)
    x = net.pool(x, 3, stride=2, pad=1)
    for channels, count in ((116, 4), (232, 8), (464, 4)):
        half = channels // 2
        for number in range(count):
            stride = 1 if number else 2
            left = right = net.part(x, half, *x.dims[1:]) if number else x
            if not number:
                left = conv_bn(net, depthwise(net, x, 3, "", 2), half, 1)
            right = depthwise(net, conv_bn(net, right, half, 1), 3, "", stride)
            x = net.shuffle(net.concat(left, conv_bn(net, right, half, 1)), 2)
    classify(net, conv_bn(net, x, 1024, 1), 1000)
