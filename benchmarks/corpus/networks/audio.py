"""Networks for sound, with convolutions along time: Conv-TasNet, QuartzNet, wav2vec 2.0."""

from __future__ import annotations

from benchmarks.corpus.blocks import conv_bn
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.transformers import attention, feed_forward
from benchmarks.corpus.registry import network


def _prelu(net: Net, x: Value) -> Value:
    """Relu with one trained slope, and normalization over all elements."""
    net.parameter(1)
    return net.group_norm(net.relu(x, "0.25"), 1)


@network(
    ("parameters", 5.1e6, "table 2"),
)
def conv_tasnet(net: Net) -> None:
    """Conv-TasNet for two speakers, 4 s at 8 kHz.

    Luo and Mesgarani 2018, Conv-TasNet: surpassing ideal time-frequency magnitude masking for
    speech separation.
    """
    mixture = net.relu(net.conv(net.input(1, 32000), 512, 16, stride=8, pad=0))
    x = net.conv(net.group_norm(mixture, 1), 128, 1, bias=True)
    total = None
    for block in range(24):
        y = _prelu(net, net.conv(x, 512, 1, bias=True))
        y = net.conv(y, 512, 3, groups=512, dilation=1 << block % 8, bias=True)
        y = _prelu(net, y)
        skip = net.conv(y, 128, 1, bias=True)
        total = skip if total is None else net.binary(total, skip)
        x = net.binary(net.conv(y, 128, 1, bias=True), x)  # the last block's result is not used
    assert total is not None
    net.parameter(1)
    masks = net.eltwise(net.conv(net.relu(total, "0.25"), 1024, 1, bias=True), "logistic")
    for _ in range(2):
        source = net.binary(net.part(masks, *mixture.dims), mixture, "mul")
        net.deconv(source, 1, 16, stride=8)


@network(
    ("parameters", 18.9e6, "table 1"),
)
def quartznet(net: Net) -> None:
    """QuartzNet 15x5, 10 s.

    Kriman and others 2019, QuartzNet: deep automatic speech recognition with 1D time-channel
    separable convolutions.
    """

    def separable(
        x: Value, channels: int, kernel: int, act: str = "relu", stride: int = 1, dilation: int = 1
    ) -> Value:
        depth = {"groups": x.dims[0], "stride": stride, "dilation": dilation}
        return conv_bn(net, net.conv(x, x.dims[0], kernel, **depth), channels, 1, act)

    x = separable(net.input(64, 1000), 256, 33, stride=2)
    for channels, kernel in ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75)):
        for _ in range(3):
            y = x
            for number in range(5):
                y = separable(y, channels, kernel, "relu" if number < 4 else "")
            x = net.relu(net.binary(y, conv_bn(net, x, channels, 1, "")))
    x = separable(x, 512, 87, dilation=2)
    x = net.conv(conv_bn(net, x, 1024, 1), 29, 1, bias=True)
    net.softmax(x, 0)


@network(
    ("parameters", 95.04e6, "Yang and others 2021, SUPERB, table 1"),
)
def wav2vec_2(net: Net) -> None:
    """The base model of wav2vec 2.0 without the quantizer, 10 s at 16 kHz.

    Baevski and others 2020, wav2vec 2.0: a framework for self-supervised learning of speech
    representations.
    """
    x = net.input(1, 160000)
    for number, (kernel, stride) in enumerate(((10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2)):
        x = net.conv(x, 512, kernel, stride=stride, pad=0)
        x = x if number else net.group_norm(x, 512)
        x = net.eltwise(x, "gelu_erf")
    steps = x.dims[1]
    x = net.linear(net.layer_norm(net.view(x, steps, 512)), 768)
    y = net.conv(net.view(x, 768, steps), 768, 128, pad=64, groups=16, bias=True)
    y = net.eltwise(net.part(y, 768, steps), "gelu_erf")  # without the last position
    x = net.layer_norm(net.binary(net.view(y, steps, 768), x))
    for _ in range(12):
        x = net.layer_norm(net.binary(attention(net, x, x, 12), x))
        x = net.layer_norm(net.binary(feed_forward(net, x, 3072, "gelu_erf"), x))
