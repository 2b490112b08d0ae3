"""Inception v3, v4 and Inception-ResNet-v2, and Xception. Images have 299 x 299 pixels."""

from __future__ import annotations

from typing import Any, TypeAlias

from benchmarks.corpus.blocks import activation, classify, conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network

Step: TypeAlias = tuple[Any, ...]
"""Channels and kernel of a convolution, and perhaps its stride, then without padding."""

EFFICIENT = "Tan and Le 2019, EfficientNet, table 2"


def _chain(net: Net, x: Value, *steps: Step) -> Value:
    for channels, kernel, *stride in steps:
        window = {"stride": stride[0], "pad": 0} if stride else {}
        x = conv_bn(net, x, channels, kernel, **window)
    return x


def _module(net: Net, x: Value, *branches: tuple[Step, ...], pool: int = 0) -> Value:
    """Concatenated branches. pool: channels of a branch with an average; 0: a maximum, stride 2."""
    found = [_chain(net, x, *steps) for steps in branches]
    if pool:
        average = net.pool(x, 3, stride=1, pad=1, alg="avg_np")
        found.append(conv_bn(net, average, pool, 1))
    else:
        found.append(net.pool(x, 3, stride=2))
    return net.concat(*found)


def _split(net: Net, x: Value, channels: int) -> list[Value]:
    """Two convolutions of the same values, 1x3 and 3x1."""
    return [conv_bn(net, x, channels, kernel) for kernel in ((1, 3), (3, 1))]


def _stem(net: Net) -> Value:
    return _chain(net, net.input(3, 299, 299), (32, 3, 2), (32, 3, 1), (64, 3))


def _stem_with_pools(net: Net) -> Value:
    x = _chain(net, net.pool(_stem(net), 3, stride=2), (80, 1), (192, 3, 1))
    return net.pool(x, 3, stride=2)


@network(
    ("multiply-adds", 5.7e9, EFFICIENT),
    ("parameters", 24e6, EFFICIENT),
)
def inception_v3(net: Net) -> None:
    """Inception v3, without the auxiliary classifier.

    Szegedy and others 2015, Rethinking the inception architecture for computer vision.
    """
    x = _stem_with_pools(net)
    for pool in (32, 64, 64):
        branches = ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3))
        x = _module(net, x, *branches, pool=pool)
    x = _module(net, x, ((384, 3, 2),), ((64, 1), (96, 3), (96, 3, 2)))
    for c in (128, 160, 160, 192):
        row, column = (1, 7), (7, 1)
        once = (c, 1), (c, row), (192, column)
        twice = (c, 1), (c, column), (c, row), (c, column), (192, row)
        x = _module(net, x, ((192, 1),), once, twice, pool=192)
    seven = (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)
    x = _module(net, x, ((192, 1), (320, 3, 2)), seven)
    for _ in range(2):
        one = conv_bn(net, x, 320, 1)
        three = _split(net, conv_bn(net, x, 384, 1), 384)
        twice3 = _split(net, _chain(net, x, (448, 1), (384, 3)), 384)
        average = net.pool(x, 3, stride=1, pad=1, alg="avg_np")
        x = net.concat(one, *three, *twice3, conv_bn(net, average, 192, 1))
    classify(net, x, 1000)


@network(
    ("parameters", 42.7e6, "timm, inception_v4.tf_in1k"),
    ("multiply-adds", 12.3e9, "timm, inception_v4.tf_in1k"),
)
def inception_v4(net: Net) -> None:
    """Inception v4.

    Szegedy and others 2016, Inception-v4, Inception-ResNet and the impact of residual connections
    on learning.
    """
    row, column = (1, 7), (7, 1)
    x = _module(net, _stem(net), ((96, 3, 2),))
    x = net.concat(
        _chain(net, x, (64, 1), (96, 3, 1)),
        _chain(net, x, (64, 1), (64, row), (64, column), (96, 3, 1)),
    )
    x = _module(net, x, ((192, 3, 2),))
    for _ in range(4):
        x = _module(net, x, ((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)), pool=96)
    x = _module(net, x, ((384, 3, 2),), ((192, 1), (224, 3), (256, 3, 2)))
    for _ in range(7):
        once = (192, 1), (224, row), (256, column)
        twice = (192, 1), (192, column), (224, row), (224, column), (256, row)
        x = _module(net, x, ((384, 1),), once, twice, pool=128)
    seven = (256, 1), (256, row), (320, column), (320, 3, 2)
    x = _module(net, x, ((192, 1), (192, 3, 2)), seven)
    for _ in range(3):
        one = conv_bn(net, x, 256, 1)
        once3 = _split(net, conv_bn(net, x, 384, 1), 256)
        twice3 = _split(net, _chain(net, x, (384, 1), (448, (3, 1)), (512, (1, 3))), 256)
        average = net.pool(x, 3, stride=1, pad=1, alg="avg_np")
        x = net.concat(one, *once3, *twice3, conv_bn(net, average, 256, 1))
    classify(net, x, 1000)


def _residual(
    net: Net, x: Value, scale: str, *branches: tuple[Step, ...], act: str = "relu"
) -> Value:
    mixed = net.concat(*(_chain(net, x, *steps) for steps in branches))
    change = net.conv(mixed, x.dims[0], 1, bias=True)
    return activation(net, net.binary(net.eltwise(change, "linear", scale), x), act)


@network(
    ("parameters", 56e6, EFFICIENT),
    ("multiply-adds", 13e9, EFFICIENT),
)
def inception_resnet_v2(net: Net) -> None:
    """Inception-ResNet-v2.

    Szegedy and others 2016, Inception-v4, Inception-ResNet and the impact of residual connections
    on learning.
    """
    x = _stem_with_pools(net)
    branches = ((96, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3))
    x = _module(net, x, *branches, pool=64)
    for _ in range(10):
        branches = ((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))
        x = _residual(net, x, "0.17", *branches)
    x = _module(net, x, ((384, 3, 2),), ((256, 1), (256, 3), (384, 3, 2)))
    for _ in range(20):
        x = _residual(net, x, "0.1", ((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1))))
    x = _module(net, x, ((256, 1), (384, 3, 2)), ((256, 1), (288, 3, 2)),
                ((256, 1), (288, 3), (320, 3, 2)))  # fmt: skip
    for number in range(10):
        act = "relu" if number < 9 else ""
        three = (192, 1), (224, (1, 3)), (256, (3, 1))
        x = _residual(net, x, "0.2", ((192, 1),), three, act=act)
    classify(net, conv_bn(net, x, 1536, 1), 1000)


def _separable(net: Net, x: Value, channels: int) -> Value:
    return net.batch_norm(net.conv(net.conv(x, x.dims[0], 3, groups=x.dims[0]), channels, 1))


@network(
    ("parameters", 22855952, "table 3"),
    ("multiply-adds", 8.4e9, EFFICIENT),
)
def xception(net: Net) -> None:
    """Xception.

    Chollet 2016, Xception: deep learning with depthwise separable convolutions.
    """
    x = _chain(net, net.input(3, 299, 299), (32, 3, 2), (64, 3, 1))
    for number, channels in enumerate((128, 256, 728)):
        shortcut = net.batch_norm(net.conv(x, channels, 1, stride=2))
        x = _separable(net, net.relu(x) if number else x, channels)
        x = net.pool(_separable(net, net.relu(x), channels), 3, stride=2, pad="same")
        x = net.binary(x, shortcut)
    for _ in range(8):
        y = x
        for _ in range(3):
            y = _separable(net, net.relu(y), 728)
        x = net.binary(y, x)
    shortcut = net.batch_norm(net.conv(x, 1024, 1, stride=2))
    x = _separable(net, net.relu(_separable(net, net.relu(x), 728)), 1024)
    x = net.binary(net.pool(x, 3, stride=2, pad="same"), shortcut)
    for channels in (1536, 2048):
        x = net.relu(_separable(net, x, channels))
    classify(net, x, 1000)
