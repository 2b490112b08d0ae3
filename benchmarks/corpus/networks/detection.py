"""Detectors of objects: SSD, YOLO v2 and v3, Faster R-CNN with feature pyramids."""

from __future__ import annotations

from benchmarks.corpus.blocks import conv, conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.residual import stages, stem
from benchmarks.corpus.registry import network


def _l2_norm(net: Net, x: Value) -> Value:
    """Each pixel divided by its norm, times a trained factor of each channel."""
    one = (1, *x.dims[1:])
    norm = net.reduce(x, one, "norm_lp_sum", "--p=2")
    return net.binary(net.binary(x, norm, "div"), net.parameter(x.dims[0], 1, 1), "mul")


@network(
    ("multiply-adds", 34.9e9, "Howard and others 2017, MobileNets, table 13"),
    ("parameters", 35641826, "torchvision, ssd300_vgg16"),
)
def ssd_300(net: Net) -> None:
    """SSD300 for the 91 classes of COCO.

    Liu and others 2015, SSD: single shot multibox detector.
    """
    x = net.input(3, 300, 300)
    for channels, count in ((64, 2), (128, 2), (256, 3)):
        for _ in range(count):
            x = conv(net, x, channels, 3)
        x = net.pool(x, 2, ceil=True)
    for _ in range(3):
        x = conv(net, x, 512, 3)
    maps = [_l2_norm(net, x)]
    x = net.pool(x, 2)
    for _ in range(3):
        x = conv(net, x, 512, 3)
    x = conv(net, net.pool(x, 3, stride=1, pad=1), 1024, 3, pad=6, dilation=6)
    x = conv(net, x, 1024, 1)
    maps.append(x)
    for narrow, wide, stride in ((256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1)):
        x = conv(net, conv(net, x, narrow, 1), wide, 3, stride=stride, pad=stride - 1)
        maps.append(x)
    for value, boxes in zip(maps, (4, 6, 6, 6, 4, 4), strict=True):
        net.conv(value, 4 * boxes, 3, bias=True)
        net.conv(value, 91 * boxes, 3, bias=True)


@network(
    ("flops", 62.94e9, "the authors' page pjreddie.com/darknet/yolo"),
)
def yolo_v2(net: Net) -> None:
    """YOLOv2 608x608 for COCO.

    Redmon and Farhadi 2016, YOLO9000: better, faster, stronger.
    """
    x = net.input(3, 608, 608)
    fine = x
    for widths in ((32,), (64,), (128, 64, 128), (256, 128, 256), (512, 256, 512, 256, 512),
                   (1024, 512, 1024, 512, 1024)):  # fmt: skip
        fine = x
        x = net.pool(x, 2) if x.source >= 0 else x
        for number, channels in enumerate(widths):
            x = conv_bn(net, x, channels, 1 if number % 2 else 3, "leaky")
    for _ in range(2):
        x = conv_bn(net, x, 1024, 3, "leaky")
    c, h, w = x.dims
    y = net.view(conv_bn(net, fine, 64, 1, "leaky"), 64, h, 2, w, 2)
    y = net.view(net.transpose(y, 2, 4, 0, 1, 3), 256, h, w)
    x = conv_bn(net, net.concat(y, x), c, 3, "leaky")
    net.conv(x, 425, 1, bias=True)


def _darknet_53(net: Net, x: Value) -> list[Value]:
    """The results of the last three stages."""
    x = conv_bn(net, x, 32, 3, "leaky")
    found = []
    for channels, count in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = conv_bn(net, x, channels, 3, "leaky", stride=2)
        for _ in range(count):
            y = conv_bn(net, conv_bn(net, x, channels // 2, 1, "leaky"), channels, 3, "leaky")
            x = net.binary(y, x)
        found.append(x)
    return found[2:]


@network(
    ("flops", 65.86e9, "the authors' page pjreddie.com/darknet/yolo"),
)
def yolo_v3(net: Net) -> None:
    """YOLOv3-416 for COCO.

    Redmon and Farhadi 2018, YOLOv3: an incremental improvement.
    """
    *skips, x = _darknet_53(net, net.input(3, 416, 416))
    for channels in (512, 256, 128):
        if channels < 512:
            x = conv_bn(net, x, channels, 1, "leaky")
            x = net.resample(x, *(2 * size for size in x.dims[1:]))
            x = net.concat(x, skips.pop())
        for _ in range(2):
            x = conv_bn(net, conv_bn(net, x, channels, 1, "leaky"), 2 * channels, 3, "leaky")
        x = conv_bn(net, x, channels, 1, "leaky")
        net.conv(conv_bn(net, x, 2 * channels, 3, "leaky"), 255, 1, bias=True)


@network(
    ("parameters", 41755286, "torchvision, fasterrcnn_resnet50_fpn"),
)
def faster_rcnn(net: Net) -> None:
    """Faster R-CNN of ResNet-50 with feature pyramids, with 1,000 proposals in an image.

    Ren and others 2015, Faster R-CNN, and Lin and others 2016, Feature pyramid networks.
    """
    results = stages(net, stem(net, net.input(3, 800, 1216)), (3, 4, 6, 3))
    sides = [net.conv(value, 256, 1, bias=True) for value in results]
    tops = [sides.pop()]
    while sides:
        side = sides.pop()
        tops.append(net.binary(net.resample(tops[-1], *side.dims[1:]), side))
    pyramid = [net.conv(top, 256, 3, bias=True) for top in tops]
    pyramid.append(net.pool(pyramid[0], 1, stride=2))
    for number, level in enumerate(pyramid):
        shared = number > 0
        y = net.relu(net.conv(level, 256, 3, bias=True, shared=shared))
        net.conv(y, 3, 1, bias=True, shared=shared)
        net.conv(y, 12, 1, bias=True, shared=shared)
    x = net.input(256, 7, 7, batch=1000)  # cut out of the pyramid
    for _ in range(2):
        x = net.relu(net.linear(x, 1024))
    net.softmax(net.linear(x, 91))
    net.linear(x, 364)
