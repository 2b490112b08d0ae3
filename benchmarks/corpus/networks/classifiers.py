"""Classifiers without residuals: AlexNet, VGG-16, GoogLeNet, SqueezeNet."""

from __future__ import annotations

from benchmarks.corpus.blocks import conv
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


def _fully_connected(net: Net, x: Value) -> None:
    for _ in range(2):
        x = net.relu(net.linear(x, 4096))
    net.softmax(net.linear(x, 1000))


@network(
    ("parameters", 60e6, "the abstract"),
)
def alexnet(net: Net) -> None:
    """AlexNet.

    Krizhevsky, Sutskever and Hinton 2012, ImageNet classification with deep convolutional neural
    networks.
    """
    x = net.lrn(conv(net, net.input(3, 227, 227), 96, 11, stride=4, pad=0), k=2)
    x = net.pool(x, 3, stride=2)
    x = net.pool(net.lrn(conv(net, x, 256, 5, groups=2), k=2), 3, stride=2)
    x = conv(net, x, 384, 3)
    x = conv(net, x, 384, 3, groups=2)
    _fully_connected(net, net.pool(conv(net, x, 256, 3, groups=2), 3, stride=2))


@network(
    ("parameters", 138e6, "table 2"),
    ("multiply-adds", 15.3e9, "He and others 2015, Deep residual learning, section 4.1"),
)
def vgg_16(net: Net) -> None:
    """VGG-16, configuration D.

    Simonyan and Zisserman 2014, Very deep convolutional networks for large-scale image
    recognition.
    """
    x = net.input(3, 224, 224)
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = conv(net, x, channels, 3)
        x = net.pool(x, 2)
    _fully_connected(net, x)


MODULES = (  # 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, projection; a pooling before 4a and 5a
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


@network(
    ("parameters", 6.999e6, "Open Model Zoo, googlenet-v1"),
)
def googlenet(net: Net) -> None:
    """GoogLeNet, without the auxiliary classifiers.

    Szegedy and others 2014, Going deeper with convolutions.
    """
    x = conv(net, net.input(3, 224, 224), 64, 7, stride=2)
    x = net.lrn(net.pool(x, 3, stride=2, ceil=True))
    x = net.lrn(conv(net, conv(net, x, 64, 1), 192, 3))
    x = net.pool(x, 3, stride=2, ceil=True)
    for channels in MODULES:
        if not channels:
            x = net.pool(x, 3, stride=2, ceil=True)
            continue
        n1, reduce3, n3, reduce5, n5, projection = channels
        x = net.concat(
            conv(net, x, n1, 1),
            conv(net, conv(net, x, reduce3, 1), n3, 3),
            conv(net, conv(net, x, reduce5, 1), n5, 5),
            conv(net, net.pool(x, 3, stride=1, pad=1), projection, 1),
        )
    x = net.view(net.global_pool(x), 1024)
    net.softmax(net.linear(x, 1000))


@network(
    ("parameters", 1248424, "table 1"),
)
def squeezenet(net: Net) -> None:
    """SqueezeNet.

    Iandola and others 2016, SqueezeNet: AlexNet-level accuracy with 50x fewer parameters.
    """
    x = net.pool(conv(net, net.input(3, 224, 224), 96, 7, stride=2, pad=2), 3, stride=2)
    for number, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        x = conv(net, x, squeeze, 1)
        x = net.concat(conv(net, x, 4 * squeeze, 1), conv(net, x, 4 * squeeze, 3))
        x = net.pool(x, 3, stride=2) if number in (4, 8) else x
    x = net.global_pool(conv(net, x, 1000, 1))
    net.softmax(net.view(x, 1000))
