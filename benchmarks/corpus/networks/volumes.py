"""Networks for videos and volumes: C3D, I3D, R(2+1)D, 3D U-Net."""

from __future__ import annotations

from benchmarks.corpus.blocks import classify, conv, conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.classifiers import MODULES
from benchmarks.corpus.registry import network


@network(
    ("parameters", 79e6, "Carreira and Zisserman 2017, Quo vadis, action recognition?, table 1"),
)
def c3d(net: Net) -> None:
    """C3D for Sports-1M.

    Tran and others 2015, Learning spatiotemporal features with 3D convolutional networks.
    """
    x = net.input(3, 16, 112, 112)
    for channels, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        kernel = 2 if x.source >= 0 else (1, 2, 2)
        for _ in range(count):
            x = conv(net, x, channels, 3)
        x = net.pool(x, kernel, ceil=True)
    for _ in range(2):
        x = net.relu(net.linear(x, 4096))
    net.softmax(net.linear(x, 487))


@network(
    ("parameters", 25e6 / 2, "table 1: two such networks"),
)
def i3d(net: Net) -> None:
    """I3D of frames.

    Carreira and Zisserman 2017, Quo vadis, action recognition? A new model and the Kinetics
    dataset.
    """
    flat = {"pad": "same", "stride": (1, 2, 2)}
    x = conv_bn(net, net.input(3, 64, 224, 224), 64, 7, stride=2, pad="same")
    x = net.pool(x, (1, 3, 3), **flat)
    x = net.pool(conv_bn(net, conv_bn(net, x, 64, 1), 192, 3), (1, 3, 3), **flat)
    kernels = iter((3, 2))
    for channels in MODULES:
        if not channels:
            x = net.pool(x, next(kernels), stride=2, pad="same")
            continue
        n1, reduce3, n3, reduce5, n5, projection = channels
        x = net.concat(
            conv_bn(net, x, n1, 1),
            conv_bn(net, conv_bn(net, x, reduce3, 1), n3, 3),
            conv_bn(net, conv_bn(net, x, reduce5, 1), n5, 3),
            conv_bn(net, net.pool(x, 3, stride=1, pad=1), projection, 1),
        )
    x = net.conv(net.pool(x, (2, 7, 7), stride=1, alg="avg_np"), 400, 1, bias=True)
    net.softmax(net.view(net.global_pool(x), 400))


def _factorized(net: Net, x: Value, channels: int, middle: int, stride: int = 1) -> Value:
    """A convolution over pixels, and a convolution along time."""
    steps = (1, stride, stride), (stride, 1, 1)
    x = conv_bn(net, x, middle, (1, 3, 3), stride=steps[0])
    return net.batch_norm(net.conv(x, channels, (3, 1, 1), stride=steps[1]))


@network(
    ("parameters", 31505325, "torchvision, r2plus1d_18"),
    ("multiply-adds", 40.519e9, "torchvision, r2plus1d_18"),
)
def r2plus1d(net: Net) -> None:
    """R(2+1)D of 18 layers for 16 frames.

    Tran and others 2017, A closer look at spatiotemporal convolutions for action recognition.
    """
    x = conv_bn(net, net.input(3, 16, 112, 112), 45, (1, 7, 7), stride=(1, 2, 2))
    x = conv_bn(net, x, 64, (3, 1, 1))
    for stage in range(4):
        channels = 64 << stage
        for number in range(2):
            stride = 2 if stage and not number else 1
            ic = x.dims[0]
            middle = 27 * ic * channels // (9 * ic + 3 * channels)  # as many parameters as 3x3x3
            y = net.relu(_factorized(net, x, channels, middle, stride))
            y = _factorized(net, y, channels, middle)
            if stride > 1:
                x = net.batch_norm(net.conv(x, channels, 1, stride=stride))
            x = net.relu(net.binary(y, x))
    classify(net, x, 400)


@network(
    ("parameters", 19069955, "section 2"),
)
def unet_3d(net: Net) -> None:
    """3D U-Net.

    Cicek and others 2016, 3D U-Net: learning dense volumetric segmentation from sparse annotation.
    """
    x = net.input(3, 116, 132, 132)
    skips = []
    for channels in (32, 64, 128, 256):
        x = net.pool(x, 2) if skips else x
        for width in (channels, 2 * channels):
            x = net.relu(net.batch_norm(net.conv(x, width, 3, pad=0, bias=True)))
        skips.append(x)
    for skip in skips[-2::-1]:
        x = net.deconv(x, x.dims[0], 2, stride=2)
        x = net.concat(net.part(skip, skip.dims[0], *x.dims[1:]), x)
        for _ in range(2):
            x = net.relu(net.batch_norm(net.conv(x, skip.dims[0], 3, pad=0, bias=True)))
    net.softmax(net.conv(x, 3, 1, bias=True), 0)
