"""Classifiers with searched or scaled sizes: MnasNet, EfficientNet, GhostNet, MixNet."""

from __future__ import annotations

from benchmarks.corpus.blocks import activation, classify, conv, conv_bn, excite, make_divisible
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.mobile import depthwise, inverted
from benchmarks.corpus.registry import network


@network(
    ("multiply-adds", 312e6, "table 1"),
    ("parameters", 3.9e6, "table 1"),
)
def mnasnet(net: Net) -> None:
    """MnasNet-A1.

    Tan and others 2018, MnasNet: platform-aware neural architecture search for mobile.
    """
    x = conv_bn(net, net.input(3, 224, 224), 32, 3, stride=2)
    for factor, channels, count, stride, kernel, squeezes in (
        (1, 16, 1, 1, 3, 0), (6, 24, 2, 2, 3, 0), (3, 40, 3, 2, 5, 1), (6, 80, 4, 2, 3, 0),
        (6, 112, 2, 1, 3, 1), (6, 160, 3, 2, 5, 1), (6, 320, 1, 1, 3, 0),
    ):  # fmt: skip
        for number in range(count):
            ic = x.dims[0]
            squeezed = ic // 4 if squeezes else 0
            step = 1 if number else stride
            x = inverted(net, x, factor * ic, channels, kernel, step, "relu", squeezed)
    classify(net, conv_bn(net, x, 1280, 1), 1000)


def _efficientnet(net: Net, size: int, width: float, depth: float) -> None:
    x = conv_bn(net, net.input(3, size, size), make_divisible(32 * width), 3, "swish", stride=2,
                pad="same")  # fmt: skip
    for factor, channels, count, stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for number in range(-int(-count * depth // 1)):
            ic = x.dims[0]
            step = 1 if number else stride
            x = inverted(net, x, factor * ic, make_divisible(channels * width), kernel, step,
                          "swish", ic // 4)  # fmt: skip
    classify(net, conv_bn(net, x, make_divisible(1280 * width), 1, "swish"), 1000)


@network(
    ("multiply-adds", 0.39e9, "table 2"),
    ("parameters", 5.3e6, "table 2"),
)
def efficientnet_b0(net: Net) -> None:
    """EfficientNet-B0.

    Tan and Le 2019, EfficientNet: rethinking model scaling for convolutional neural networks.
    """
    _efficientnet(net, 224, 1.0, 1.0)


@network(
    ("parameters", 19e6, "table 2"),
)
def efficientnet_b4(net: Net) -> None:
    """EfficientNet-B4.

    Tan and Le 2019, EfficientNet: rethinking model scaling for convolutional neural networks.
    """
    _efficientnet(net, 380, 1.4, 1.8)


@network(
    ("multiply-adds", 8.366e9, "torchvision, efficientnet_v2_s"),
    ("parameters", 21458488, "torchvision, efficientnet_v2_s"),
)
def efficientnet_v2(net: Net) -> None:
    """EfficientNetV2-S for 384 x 384 pixels.

    Tan and Le 2021, EfficientNetV2: smaller models and faster training.
    """
    x = conv_bn(net, net.input(3, 384, 384), 24, 3, "swish", stride=2)
    for factor, channels, count, stride in ((1, 24, 2, 1), (4, 48, 4, 2), (4, 64, 4, 2)):
        for number in range(count):
            y = conv_bn(net, x, factor * x.dims[0], 3, "swish", stride=1 if number else stride)
            y = conv_bn(net, y, channels, 1, "") if factor > 1 else y
            x = net.binary(y, x) if y.dims == x.dims else y
    for factor, channels, count, stride in ((4, 128, 6, 2), (6, 160, 9, 1), (6, 256, 15, 2)):
        for number in range(count):
            ic = x.dims[0]
            step = 1 if number else stride
            x = inverted(net, x, factor * ic, channels, 3, step, "swish", ic // 4)
    classify(net, conv_bn(net, x, 1280, 1, "swish"), 1000)


def _ghost(net: Net, x: Value, channels: int, act: str) -> Value:
    """Half of the channels by a 1x1 convolution, and a depthwise convolution of this half."""
    first = conv_bn(net, x, channels // 2, 1, act)
    return net.concat(first, depthwise(net, first, 3, act))


@network(
    ("multiply-adds", 141e6, "table 7"),
    ("parameters", 5.2e6, "table 7"),
)
def ghostnet(net: Net) -> None:
    """GhostNet 1.0x.

    Han and others 2019, GhostNet: more features from cheap operations.
    """
    x = conv_bn(net, net.input(3, 224, 224), 16, 3, stride=2)
    for kernel, expanded, channels, squeezes, stride in (
        (3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 1, 2),
        (5, 120, 40, 1, 1), (3, 240, 80, 0, 2), (3, 200, 80, 0, 1), *[(3, 184, 80, 0, 1)] * 2,
        (3, 480, 112, 1, 1), (3, 672, 112, 1, 1), (5, 672, 160, 1, 2), (5, 960, 160, 0, 1),
        (5, 960, 160, 1, 1), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1),
    ):  # fmt: skip
        y = _ghost(net, x, expanded, "relu")
        y = depthwise(net, y, kernel, "", stride) if stride > 1 else y
        if squeezes:
            y = excite(net, y, make_divisible(expanded / 4, 4), gate="hardsigmoid")
        y = _ghost(net, y, channels, "")
        if stride > 1 or x.dims[0] != channels:
            x = conv_bn(net, depthwise(net, x, kernel, "", stride), channels, 1, "")
        x = net.binary(y, x)
    x = net.global_pool(conv_bn(net, x, 960, 1))
    x = conv(net, x, 1280, 1)
    net.softmax(net.linear(net.view(x, 1280), 1000))


def _shares(channels: int, count: int) -> list[int]:
    """The channels of equal groups. The first group also takes the remainder."""
    share = channels // count
    return [channels - share * (count - 1), *[share] * (count - 1)]


def _mixed(net: Net, x: Value, channels: int, kernels: tuple[int, ...], stride: int = 1) -> Value:
    """Convolutions of groups of channels with several kernels; depthwise if larger than 1."""
    found = []
    sources, targets = (_shares(c, len(kernels)) for c in (x.dims[0], channels))
    for kernel, ic, oc in zip(kernels, sources, targets, strict=True):
        part = net.part(x, ic, *x.dims[1:]) if len(kernels) > 1 else x
        groups = ic if kernel > 1 else 1
        found.append(net.conv(part, oc, kernel, stride=stride, groups=groups))
    return net.batch_norm(net.concat(*found) if len(found) > 1 else found[0])


@network(
    ("parameters", 4.1e6, "table 2"),
)
def mixnet(net: Net) -> None:
    """MixNet-S.

    Tan and Le 2019, MixConv: mixed depthwise convolutional kernels.
    """
    x = conv_bn(net, net.input(3, 224, 224), 16, 3, stride=2)
    x = inverted(net, x, 16, 16, 3, 1, "relu")
    one, two, three = (1,), (1, 1), (3, 5, 7)
    for expand, kernels, project, factor, channels, count, stride, squeeze in (
        (two, (3,), two, 6, 24, 1, 2, 0.0), (two, (3,), two, 3, 24, 1, 1, 0.0),
        (one, three, one, 6, 40, 1, 2, 0.5), (two, (3, 5), two, 6, 40, 3, 1, 0.5),
        (one, three, two, 6, 80, 1, 2, 0.25), (one, (3, 5), two, 6, 80, 2, 1, 0.25),
        (two, three, two, 6, 120, 1, 1, 0.5), (two, (3, 5, 7, 9), two, 3, 120, 2, 1, 0.5),
        (one, (3, 5, 7, 9, 11), one, 6, 200, 1, 2, 0.5),
        (one, (3, 5, 7, 9), two, 6, 200, 2, 1, 0.5),
    ):  # fmt: skip
        act = "swish" if squeeze else "relu"
        for _ in range(count):
            ic = x.dims[0]
            y = activation(net, _mixed(net, x, factor * ic, expand), act)
            y = activation(net, _mixed(net, y, factor * ic, kernels, stride), act)
            y = excite(net, y, int(ic * squeeze), act) if squeeze else y
            y = _mixed(net, y, channels, project)
            x = net.binary(y, x) if y.dims == x.dims else y
    classify(net, conv_bn(net, x, 1536, 1), 1000)
