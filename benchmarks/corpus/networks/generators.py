"""Networks that generate images: pix2pix, StyleGAN, EDSR, ESRGAN."""

from __future__ import annotations

from benchmarks.corpus.blocks import conv
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


@network(
    ("parameters", 54.414e6, "the authors' program pytorch-CycleGAN-and-pix2pix, unet_256"),
)
def pix2pix(net: Net) -> None:
    """The generator of pix2pix.

    Isola and others 2016, Image-to-image translation with conditional adversarial networks.
    """
    x = net.input(3, 256, 256)
    skips = []
    for number, channels in enumerate((64, 128, 256, 512, 512, 512, 512, 512)):
        if number:
            x = net.relu(x, "0.2")
        inner = 0 < number < 7
        x = net.conv(x, channels, 4, stride=2, pad=1)
        x = net.batch_norm(x) if inner else x
        skips.append(x)
    skips.pop()
    for channels in (512, 512, 512, 512, 256, 128, 64):
        x = net.batch_norm(net.deconv(net.relu(x), channels, 4, stride=2, pad=1))
        x = net.concat(skips.pop(), x)
    x = net.deconv(net.relu(x), 3, 4, stride=2, pad=1, bias=True)
    net.eltwise(x, "tanh")


def _style(net: Net, x: Value, latent: Value) -> Value:
    """Noise, leaky relu, and a scale and a shift of each channel from the latent vector."""
    channels = x.dims[0]
    net.parameter(channels)  # factors of the noise
    x = net.binary(x, net.input(1, *x.dims[1:]))
    x = net.group_norm(net.relu(net.binary(x, net.parameter(channels, 1, 1)), "0.2"), channels,
                       scales=False)  # fmt: skip
    style = net.linear(latent, 2 * channels)
    x = net.binary(x, net.part(style, channels, 1, 1), "mul")
    return net.binary(x, net.part(style, channels, 1, 1))


@network(
    ("parameters", 26.2e6, "section 2"),
)
def stylegan(net: Net) -> None:
    """The generator of StyleGAN for 1024 x 1024 pixels.

    Karras, Laine and Aila 2018, A style-based generator architecture for generative adversarial
    networks.
    """
    latent = net.input(512)
    for _ in range(8):
        latent = net.relu(net.linear(latent, 512), "0.2")
    x = _style(net, net.parameter(512, 4, 4), latent)
    x = _style(net, net.conv(x, 512, 3), latent)
    for size in (8, 16, 32, 64, 128, 256, 512, 1024):
        channels = min(512, 16 * 1024 // size)
        if size < 128:
            x = net.conv(net.resample(x, size, size), channels, 3)
        else:
            x = net.deconv(x, channels, 3, stride=2, pad=1, out=size)
        x = net.conv(x, channels, 3, groups=channels, constant=True)  # blurs
        x = _style(net, x, latent)
        x = _style(net, net.conv(x, channels, 3), latent)
    net.conv(x, 3, 1, bias=True)


def _pixel_shuffle(net: Net, x: Value, factor: int) -> Value:
    """Channels become pixels: (c r r, h, w) becomes (c, h r, w r)."""
    c, h, w = x.dims
    count = c // factor**2
    x = net.transpose(net.view(x, count, factor, factor, h, w), 0, 3, 1, 4, 2)
    return net.view(x, count, h * factor, w * factor)


@network(
    ("parameters", 43e6, "table 1"),
)
def edsr(net: Net) -> None:
    """EDSR, 4x, of 48 x 48 pixels.

    Lim and others 2017, Enhanced deep residual networks for single image super-resolution.
    """
    head = net.conv(net.input(3, 48, 48), 256, 3, bias=True)
    x = head
    for _ in range(32):
        y = net.conv(conv(net, x, 256, 3), 256, 3, bias=True)
        x = net.binary(net.eltwise(y, "linear", "0.1"), x)
    x = net.binary(net.conv(x, 256, 3, bias=True), head)
    for _ in range(2):
        x = _pixel_shuffle(net, net.conv(x, 1024, 3, bias=True), 2)
    net.conv(x, 3, 3, bias=True)


@network(
    ("parameters", 16697987, "the model RealESRGAN_x4plus, which is the same network"),
)
def esrgan(net: Net) -> None:
    """The generator of ESRGAN, 4x, of 128 x 128 pixels.

    Wang and others 2018, ESRGAN: enhanced super-resolution generative adversarial networks.
    """
    head = net.conv(net.input(3, 128, 128), 64, 3, bias=True)
    x = head
    for _ in range(23):
        outer = x
        for _ in range(3):
            block = dense = x
            for _ in range(4):
                dense = net.concat(dense, conv(net, dense, 32, 3, "leaky2"))
            y = net.conv(dense, 64, 3, bias=True)
            x = net.binary(net.eltwise(y, "linear", "0.2"), block)
        x = net.binary(net.eltwise(x, "linear", "0.2"), outer)
    x = net.binary(net.conv(x, 64, 3, bias=True), head)
    for size in (256, 512):
        x = conv(net, net.resample(x, size, size), 64, 3, "leaky2")
    net.conv(conv(net, x, 64, 3, "leaky2"), 3, 3, bias=True)
