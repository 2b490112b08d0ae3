"""Models of diffusion: DDPM, latent diffusion."""

from __future__ import annotations

from benchmarks.corpus.blocks import activation
from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.networks.transformers import attention
from benchmarks.corpus.registry import network


def _normalized(net: Net, x: Value) -> Value:
    return activation(net, net.group_norm(x, 32), "swish")


def _block(net: Net, x: Value, channels: int, time: Value) -> Value:
    y = net.conv(_normalized(net, x), channels, 3, bias=True)
    shift = net.linear(activation(net, time, "swish"), channels)
    y = net.binary(y, net.view(shift, channels, 1, 1))
    y = net.conv(_normalized(net, y), channels, 3, bias=True)
    if x.dims[0] != channels:
        x = net.conv(x, channels, 1, bias=True)
    return net.binary(y, x)


def _attention(net: Net, x: Value) -> Value:
    c, h, w = x.dims
    normed = net.group_norm(x, 32)
    q, k, v = (net.view(net.conv(normed, c, 1, bias=True), 1, h * w, c) for _ in range(3))
    scores = net.eltwise(net.matmul(q, k, transposed=True), "linear", f"{c**-0.5:g}")
    mixed = net.view(net.matmul(net.softmax(scores), v), c, h, w)
    return net.binary(net.conv(mixed, c, 1, bias=True), x)


@network(
    ("parameters", 35.7e6, "appendix B"),
)
def ddpm(net: Net) -> None:
    """The diffusion model for CIFAR-10.

    Ho, Jain and Abbeel 2020, Denoising diffusion probabilistic models.
    """
    time = net.linear(activation(net, net.linear(net.input(128), 512), "swish"), 512)
    x = net.conv(net.input(3, 32, 32), 128, 3, bias=True)
    skips = [x]
    for level, channels in enumerate((128, 256, 256, 256)):
        for _ in range(2):
            x = _block(net, x, channels, time)
            x = _attention(net, x) if level == 1 else x
            skips.append(x)
        if level < 3:
            x = net.conv(x, channels, 3, stride=2, bias=True)
            skips.append(x)
    x = _block(net, _attention(net, _block(net, x, 256, time)), 256, time)
    for level, channels in ((3, 256), (2, 256), (1, 256), (0, 128)):
        for _ in range(3):
            x = _block(net, net.concat(x, skips.pop()), channels, time)
            x = _attention(net, x) if level == 1 else x
        if level:
            x = net.resample(x, *(2 * size for size in x.dims[1:]))
            x = net.conv(x, channels, 3, bias=True)
    net.conv(_normalized(net, x), 3, 3, bias=True)


def _text_block(net: Net, x: Value, words: Value) -> Value:
    """Attention of pixels to each other and to words, and linear layers with gates."""
    c, h, w = x.dims
    y = net.conv(net.group_norm(x, 32), c, 1, bias=True)
    y = net.view(y, h * w, c)
    normed = net.layer_norm(y)
    y = net.binary(attention(net, normed, normed, 8, bias=False, out_bias=True), y)
    y = net.binary(attention(net, net.layer_norm(y), words, 8, bias=False, out_bias=True), y)
    gated = net.linear(net.layer_norm(y), 8 * c)
    gate = net.eltwise(net.part(gated, h * w, 4 * c), "gelu_erf")
    change = net.linear(net.binary(net.part(gated, h * w, 4 * c), gate, "mul"), c)
    y = net.view(net.binary(change, y), c, h, w)
    return net.binary(net.conv(y, c, 1, bias=True), x)


@network(
    ("parameters", 859.52e6, "the authors' program latent-diffusion: DiffusionWrapper"),
)
def latent_diffusion(net: Net) -> None:
    """Stable Diffusion v1, the denoiser of 64 x 64 latent pixels.

    Rombach and others 2021, High-resolution image synthesis with latent diffusion models.
    """
    time = net.linear(activation(net, net.linear(net.input(320), 1280), "swish"), 1280)
    words = net.input(77, 768)
    x = net.conv(net.input(4, 64, 64), 320, 3, bias=True)
    skips = [x]
    for level, channels in enumerate((320, 640, 1280, 1280)):
        for _ in range(2):
            x = _block(net, x, channels, time)
            x = _text_block(net, x, words) if level < 3 else x
            skips.append(x)
        if level < 3:
            x = net.conv(x, channels, 3, stride=2, bias=True)
            skips.append(x)
    x = _block(net, _text_block(net, _block(net, x, 1280, time), words), 1280, time)
    for level, channels in ((3, 1280), (2, 1280), (1, 640), (0, 320)):
        for _ in range(3):
            x = _block(net, net.concat(x, skips.pop()), channels, time)
            x = _text_block(net, x, words) if level < 3 else x
        if level:
            x = net.resample(x, *(2 * size for size in x.dims[1:]))
            x = net.conv(x, channels, 3, bias=True)
    net.conv(_normalized(net, x), 4, 3, bias=True)
