"""Networks with residual or dense connections: ResNet and variants, DenseNet, DPN, ConvNeXt."""

from __future__ import annotations

from typing import Any

from benchmarks.corpus.blocks import classify, conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


def bottleneck(
    net: Net, x: Value, width: int, channels: int, *, stride: int = 1, first: bool = False,
    **window: Any,
) -> Value:  # fmt: skip
    """A residual block of convolutions 1x1, 3x3 and 1x1. first: whether the stride is in the first.

    window: the window of the second convolution.
    """
    strides = (stride, 1) if first else (1, stride)
    y = conv_bn(net, x, width, 1, stride=strides[0])
    y = conv_bn(net, y, width, 3, stride=strides[1], **window)
    y = conv_bn(net, y, channels, 1, act="")
    if stride > 1 or x.dims[0] != channels:
        x = conv_bn(net, x, channels, 1, act="", stride=stride)
    return net.relu(net.binary(y, x))


def stem(net: Net, x: Value) -> Value:
    """The first layers of ResNet."""
    return net.pool(conv_bn(net, x, 64, 7, stride=2), 3, stride=2, pad=1)


def stages(
    net: Net, x: Value, counts: tuple[int, ...], width: int = 64, **block: Any
) -> list[Value]:
    """The results of the stages of ResNet. A stage halves the image and doubles its channels."""
    found = []
    for stage, count in enumerate(counts):
        for number in range(count):
            stride = 2 if stage and not number else 1
            x = bottleneck(net, x, width << stage, 256 << stage, stride=stride, **block)
        found.append(x)
    return found


@network(
    ("multiply-adds", 3.8e9, "table 1"),
)
def resnet_50(net: Net) -> None:
    """ResNet-50, with the stride of a stage in its first 1x1.

    He, Zhang, Ren and Sun 2015, Deep residual learning for image recognition.
    """
    x = stem(net, net.input(3, 224, 224))
    classify(net, stages(net, x, (3, 4, 6, 3), first=True)[-1], 1000)


@network(
    ("parameters", 25.0e6, "table 1"),
    ("multiply-adds", 4.2e9, "table 1"),
)
def resnext_50(net: Net) -> None:
    """ResNeXt-50, 32x4d.

    Xie and others 2016, Aggregated residual transformations for deep neural networks.
    """
    x = stem(net, net.input(3, 224, 224))
    classify(net, stages(net, x, (3, 4, 6, 3), 128, groups=32)[-1], 1000)


@network(
    ("parameters", 36.5e6, "table 4"),
)
def wide_resnet_28_10(net: Net) -> None:
    """WRN-28-10 for CIFAR-10.

    Zagoruyko and Komodakis 2016, Wide residual networks.
    """
    x = net.conv(net.input(3, 32, 32), 16, 3)
    for stage, channels in enumerate((160, 320, 640)):
        for number in range(4):
            stride = 2 if stage and not number else 1
            y = net.relu(net.batch_norm(x))
            shortcut = x if number else net.conv(y, channels, 1, stride=stride)
            y = net.conv(y, channels, 3, stride=stride)
            y = net.conv(net.relu(net.batch_norm(y)), channels, 3)
            x = net.binary(y, shortcut)
    classify(net, net.relu(net.batch_norm(x)), 10)


@network(
    ("parameters", 20e6, "section 4.4"),
)
def densenet_201(net: Net) -> None:
    """DenseNet-201.

    Huang and others 2016, Densely connected convolutional networks.
    """
    x = stem(net, net.input(3, 224, 224))
    for stage, count in enumerate((6, 12, 48, 32)):
        if stage:
            x = net.conv(net.relu(net.batch_norm(x)), x.dims[0] // 2, 1)
            x = net.pool(x, 2, alg="avg_np")
        for _ in range(count):
            y = net.conv(net.relu(net.batch_norm(x)), 128, 1)
            x = net.concat(x, net.conv(net.relu(net.batch_norm(y)), 32, 3))
    classify(net, net.relu(net.batch_norm(x)), 1000)


@network(
    ("parameters", 37.7e6, "timm, dpn92.mx_in1k"),
    ("multiply-adds", 6.5e9, "timm, dpn92.mx_in1k"),
)
def dpn_92(net: Net) -> None:
    """DPN-92.

    Chen and others 2017, Dual path networks.
    """
    x = stem(net, net.input(3, 224, 224))
    for stage, (count, growth) in enumerate(((3, 16), (4, 32), (20, 24), (3, 128))):
        fixed = 256 << stage  # channels of the residual path, before those of the dense path
        for number in range(count):
            stride = 2 if stage and not number else 1
            path = net.relu(net.batch_norm(x))
            if not number:
                x = net.conv(net.relu(net.batch_norm(x)), fixed + 2 * growth, 1, stride=stride)
            y = net.conv(path, 96 << stage, 1)
            y = net.conv(net.relu(net.batch_norm(y)), 96 << stage, 3, stride=stride, groups=32)
            y = net.conv(net.relu(net.batch_norm(y)), fixed + growth, 1)
            size = y.dims[1:]
            total = net.binary(net.part(x, fixed, *size), net.part(y, fixed, *size))
            dense = net.part(x, x.dims[0] - fixed, *size)
            x = net.concat(total, dense, net.part(y, growth, *size))
    classify(net, net.eltwise(net.batch_norm(x), "elu", "1"), 1000)


@network(
    ("parameters", 15.3e6, "figure 16"),
    ("multiply-adds", 3.2e9, "figure 16"),
)
def regnet_x(net: Net) -> None:
    """RegNetX-3.2GF.

    Radosavovic and others 2020, Designing network design spaces.
    """
    x = conv_bn(net, net.input(3, 224, 224), 32, 3, stride=2)
    for width, count in ((96, 2), (192, 6), (432, 15), (1008, 2)):
        for number in range(count):
            stride = 1 if number else 2
            x = bottleneck(net, x, width, width, stride=stride, groups=width // 48)
    classify(net, x, 1000)


@network(
    ("parameters", 29e6, "table 1"),
    ("multiply-adds", 4.5e9, "table 1"),
)
def convnext(net: Net) -> None:
    """ConvNeXt-T.

    Liu and others 2022, A ConvNet for the 2020s.
    """
    x = net.conv(net.input(3, 224, 224), 96, 4, stride=4, pad=0, bias=True)
    x = _channel_norm(net, x)
    for stage, count in enumerate((3, 3, 9, 3)):
        channels = 96 << stage
        if stage:
            x = net.conv(_channel_norm(net, x), channels, 2, stride=2, pad=0, bias=True)
        c, h, w = x.dims
        for _ in range(count):
            y = net.conv(x, channels, 7, groups=channels, bias=True)
            y = net.layer_norm(net.view(y, h * w, c))
            y = net.linear(net.eltwise(net.linear(y, 4 * c), "gelu_erf"), c)
            y = net.binary(y, net.parameter(1, c), "mul")
            x = net.binary(net.view(y, c, h, w), x)
    x = net.layer_norm(net.view(net.global_pool(x), 768))
    net.softmax(net.linear(x, 1000))


def _channel_norm(net: Net, x: Value) -> Value:
    """Layer normalization over the channels of each pixel."""
    c, h, w = x.dims
    return net.view(net.layer_norm(net.view(x, h * w, c)), c, h, w)
