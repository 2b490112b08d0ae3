"""Networks with a result for each pixel: U-Net, FCN-8s, DeepLab v3, HRNet."""

from __future__ import annotations

from benchmarks.corpus.blocks import conv, conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.residual import bottleneck, stem
from benchmarks.corpus.registry import network


@network(
    ("parameters", 31.13e6, "Valanarasu and Patel 2022, UNeXt, table 1"),
)
def unet(net: Net) -> None:
    """U-Net, without padding.

    Ronneberger, Fischer and Brox 2015, U-Net: convolutional networks for biomedical image
    segmentation.
    """
    x = net.input(1, 572, 572)
    skips = []
    for channels in (64, 128, 256, 512, 1024):
        x = net.pool(x, 2) if skips else x
        for _ in range(2):
            x = conv(net, x, channels, 3, pad=0)
        skips.append(x)
    for skip in skips[-2::-1]:
        channels = skip.dims[0]
        x = net.deconv(x, channels, 2, stride=2, bias=True)
        x = net.concat(net.part(skip, *x.dims), x)
        for _ in range(2):
            x = conv(net, x, channels, 3, pad=0)
    net.softmax(net.conv(x, 2, 1, bias=True), 0)


@network(
    ("parameters", 134e6, "table 1"),
)
def fcn_8s(net: Net) -> None:
    """FCN-8s of VGG-16.

    Long, Shelhamer and Darrell 2015, Fully convolutional networks for semantic segmentation.
    """
    x = net.input(3, 500, 500)
    pools = []
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for number in range(count):
            pad = 1 if pools or number else 100  # so that images may be small
            x = conv(net, x, channels, 3, pad=pad)
        x = net.pool(x, 2, ceil=True)
        pools.append(x)
    x = conv(net, conv(net, x, 4096, 7, pad=0), 4096, 1)
    x = net.conv(x, 21, 1, bias=True)
    for pool in (pools[3], pools[2]):
        x = net.deconv(x, 21, 4, stride=2)
        score = net.conv(pool, 21, 1, bias=True)
        x = net.binary(x, net.part(score, *x.dims))
    x = net.part(net.deconv(x, 21, 16, stride=8), 21, 500, 500)
    net.softmax(x, 0)


@network(
    ("parameters", 60996202, "torchvision, deeplabv3_resnet101"),
    ("multiply-adds", 258.743e9, "torchvision, deeplabv3_resnet101"),
)
def deeplab_v3(net: Net) -> None:
    """DeepLab v3 of ResNet-101, with torchvision's auxiliary classifier.

    Chen and others 2017, Rethinking atrous convolution for semantic image segmentation.
    """
    x = stem(net, net.input(3, 520, 520))
    stages: list[Value] = []
    for stage, count in enumerate((3, 4, 23, 3)):
        for number in range(count):
            stride = 2 if stage == 1 and not number else 1
            dilation = (1, 1, 2, 4)[stage] if number else (1, 1, 1, 2)[stage]
            x = bottleneck(net, x, 64 << stage, 256 << stage, stride=stride, dilation=dilation)
        stages.append(x)
    branches = [conv_bn(net, x, 256, 1)]
    branches += [conv_bn(net, x, 256, 3, dilation=rate) for rate in (12, 24, 36)]
    average = conv_bn(net, net.global_pool(x), 256, 1)
    branches.append(net.resample(average, *x.dims[1:], alg="linear"))
    y = conv_bn(net, conv_bn(net, net.concat(*branches), 256, 1), 256, 3)
    auxiliary = net.conv(conv_bn(net, stages[2], 256, 3), 21, 1, bias=True)
    for scores in (net.conv(y, 21, 1, bias=True), auxiliary):
        net.resample(scores, 520, 520, alg="linear")


def _fused(net: Net, branches: list[Value], channels: list[int], count: int) -> list[Value]:
    """The first `count` branches, each the sum of all branches after resizing to its size."""
    found = []
    for target in range(count):
        total = branches[target]
        for source, x in enumerate(branches):
            if source > target:
                y = conv_bn(net, x, channels[target], 1, "")
                total = net.binary(total, net.resample(y, *total.dims[1:]))
            for step in range(source, target):
                last = step + 1 == target
                width = channels[target] if last else channels[source]
                x = conv_bn(net, x, width, 3, "" if last else "relu", stride=2)  # noqa: PLW2901
            if source < target:
                total = net.binary(total, x)
        found.append(net.relu(total))
    return found


@network(
    ("parameters", 28.5e6, "table 1"),
)
def hrnet(net: Net) -> None:
    """HRNet-W32 for poses in 256 x 192 pixels.

    Sun and others 2019, Deep high-resolution representation learning for human pose estimation.
    """
    x = conv_bn(net, net.input(3, 256, 192), 64, 3, stride=2)
    x = conv_bn(net, x, 64, 3, stride=2)
    for _ in range(4):
        x = bottleneck(net, x, 64, 256)
    channels = [32, 64, 128, 256]
    branches = [conv_bn(net, x, 32, 3)]
    for stage, modules in ((2, 1), (3, 4), (4, 3)):
        source = x if stage == 2 else branches[-1]
        branches.append(conv_bn(net, source, channels[stage - 1], 3, stride=2))
        for module in range(modules):
            for _ in range(4):
                branches = [_basic(net, branch) for branch in branches]
            count = 1 if (stage, module) == (4, 2) else stage
            branches = _fused(net, branches, channels, count)
    net.conv(branches[0], 17, 1, bias=True)


def _basic(net: Net, x: Value) -> Value:
    y = conv_bn(net, conv_bn(net, x, x.dims[0], 3), x.dims[0], 3, "")
    return net.relu(net.binary(y, x))
