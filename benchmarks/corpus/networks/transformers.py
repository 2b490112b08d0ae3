"""Transformers for text and images: Transformer, BERT, GPT-2, T5, ViT, Swin."""

from __future__ import annotations

from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


def _heads(net: Net, x: Value, count: int) -> Value:
    """(positions, features) as (heads, positions, features of a head)."""
    positions, features = x.dims
    return net.view(x, count, positions, features // count, batch=x.batch)


def attention(
    net: Net, x: Value, memory: Value, heads: int, width: int = 0, *, bias: bool = True,
    out_bias: bool | None = None, scaled: bool = True, biased: bool = False, masked: bool = False,
) -> Value:  # fmt: skip
    """Attention of the positions of x to the positions of memory.

    width: features of all heads together, by default the features of x.
    bias, out_bias: whether the linear layers, and the last linear layer, have a bias.
    scaled, biased, masked: whether the scores are scaled; have a trained bias for each head and
        pair of positions, whose parameters are not counted; have a mask.
    """
    width = width or x.dims[1]
    q = _heads(net, net.linear(x, width, bias=bias), heads)
    k, v = (_heads(net, net.linear(memory, width, bias=bias), heads) for _ in range(2))
    scores = net.matmul(q, k, transposed=True)
    if scaled:
        scores = net.eltwise(scores, "linear", f"{(width // heads) ** -0.5:g}")
    if biased:
        scores = net.binary(scores, net.input(*scores.dims))
    if masked:
        scores = net.binary(scores, net.input(1, *scores.dims[1:]))
    mixed = net.matmul(net.softmax(scores), v)
    mixed = net.view(mixed, x.dims[0], width, batch=x.batch)
    return net.linear(mixed, x.dims[1], bias=bias if out_bias is None else out_bias)


def feed_forward(net: Net, x: Value, width: int, act: str, *, bias: bool = True) -> Value:
    """Two linear layers for each position."""
    y = net.eltwise(net.linear(x, width, bias=bias), act)
    return net.linear(y, x.dims[1], bias=bias)


def _after(net: Net, x: Value, change: Value) -> Value:
    """The sum with the residual, followed by normalization."""
    return net.layer_norm(net.binary(change, x))


@network(
    ("parameters", 213e6, "table 3"),
)
def transformer(net: Net) -> None:
    """The big Transformer, 32 words to 32.

    Vaswani and others 2017, Attention is all you need.
    """
    x = net.binary(net.embedding(37000, 1024, 32), net.input(32, 1024))
    for _ in range(6):
        x = _after(net, x, attention(net, x, x, 16))
        x = _after(net, x, feed_forward(net, x, 4096, "relu"))
    y = net.binary(net.input(32, 1024), net.input(32, 1024))
    for _ in range(6):
        y = _after(net, y, attention(net, y, y, 16, masked=True))
        y = _after(net, y, attention(net, y, x, 16))
        y = _after(net, y, feed_forward(net, y, 4096, "relu"))
    net.softmax(net.linear(y, 37000, bias=False, shared=True))


def _bert(net: Net, layers: int, features: int, positions: int) -> None:
    x = net.binary(net.embedding(30522, features, positions), net.input(positions, features))
    net.parameter(512 + 2, features)  # positions and segments
    x = net.layer_norm(net.binary(x, net.input(positions, features)))
    for _ in range(layers):
        x = _after(net, x, attention(net, x, x, features // 64, masked=True))
        x = _after(net, x, feed_forward(net, x, 4 * features, "gelu_erf"))
    net.eltwise(net.linear(net.part(x, features), features), "tanh")


@network(
    ("parameters", 110e6, "section 3"),
    ("flops", 22.5e9, "Sun and others 2020, MobileBERT, table 4"),
)
def bert_base(net: Net) -> None:
    """BERT-base, 128 words.

    Devlin and others 2018, BERT: pre-training of deep bidirectional transformers for language
    understanding.
    """
    _bert(net, 12, 768, 128)


@network(
    ("parameters", 340e6, "section 3"),
)
def bert_large(net: Net) -> None:
    """BERT-large, 384 words.

    Devlin and others 2018, BERT: pre-training of deep bidirectional transformers for language
    understanding.
    """
    _bert(net, 24, 1024, 384)


@network(
    ("parameters", 1542e6, "table 2"),
)
def gpt_2(net: Net) -> None:
    """GPT-2, 1,024 words.

    Radford and others 2019, Language models are unsupervised multitask learners.
    """
    x = net.binary(net.embedding(50257, 1600, 1024), net.parameter(1024, 1600))
    for _ in range(48):
        y = net.layer_norm(x)
        x = net.binary(attention(net, y, y, 25, masked=True), x)
        x = net.binary(feed_forward(net, net.layer_norm(x), 6400, "gelu_tanh"), x)
    net.softmax(net.linear(net.layer_norm(x), 50257, bias=False, shared=True))


@network(
    ("parameters", 220e6, "section 3.1.1"),
)
def t5(net: Net) -> None:
    """T5-base, 512 words to 128.

    Raffel and others 2019, Exploring the limits of transfer learning with a unified text-to-text
    transformer.
    """

    def norm(x: Value) -> Value:
        return net.layer_norm(x, flags="CM")  # root mean square, no shift

    def attend(x: Value, memory: Value, *, biased: bool, masked: bool = False) -> Value:
        change = attention(net, norm(x), memory, 12, bias=False, scaled=False, biased=biased,
                           masked=masked)  # fmt: skip
        return net.binary(change, x)

    net.parameter(2 * 32, 12)  # biases of scores by distance
    x = net.embedding(32128, 768, 512)
    for _ in range(12):
        y = norm(x)
        change = attention(net, y, y, 12, bias=False, scaled=False, biased=True)
        x = net.binary(change, x)
        x = net.binary(feed_forward(net, norm(x), 3072, "relu", bias=False), x)
    memory = norm(x)
    x = net.input(128, 768)
    for _ in range(12):
        y = norm(x)
        change = attention(net, y, y, 12, bias=False, scaled=False, biased=True, masked=True)
        x = net.binary(change, x)
        x = attend(x, memory, biased=False)
        x = net.binary(feed_forward(net, norm(x), 3072, "relu", bias=False), x)
    net.softmax(net.linear(norm(x), 32128, bias=False, shared=True))


def _mlp_block(net: Net, x: Value, width: int) -> Value:
    return net.binary(feed_forward(net, net.layer_norm(x), width, "gelu_erf"), x)


@network(
    ("parameters", 86e6, "table 1"),
    ("multiply-adds", 17.5e9, "Liu and others 2021, Swin transformer, table 1: DeiT-B"),
)
def vit(net: Net) -> None:
    """ViT-B/16.

    Dosovitskiy and others 2020, An image is worth 16x16 words.
    """
    x = net.conv(net.input(3, 224, 224), 768, 16, stride=16, pad=0, bias=True)
    x = net.concat(net.parameter(1, 768), net.view(x, 196, 768))
    x = net.binary(x, net.parameter(197, 768))
    for _ in range(12):
        y = net.layer_norm(x)
        x = net.binary(attention(net, y, y, 12), x)
        x = _mlp_block(net, x, 3072)
    x = net.part(net.layer_norm(x), 768)
    net.softmax(net.linear(x, 1000))


@network(
    ("multiply-adds", 4.5e9, "table 1"),
)
def swin(net: Net) -> None:
    """Swin-T.

    Liu and others 2021, Swin transformer: hierarchical vision transformer using shifted windows.
    """
    x = net.conv(net.input(3, 224, 224), 96, 4, stride=4, pad=0, bias=True)
    size = 56
    x = net.layer_norm(net.view(x, size * size, 96))
    for stage, count in enumerate((2, 2, 6, 2)):
        c = 96 << stage
        if stage:
            x = net.view(x, size // 2, 2, size // 2, 2, c // 2)
            size //= 2
            x = net.view(net.transpose(x, 0, 2, 3, 1, 4), size * size, 2 * c)
            x = net.linear(net.layer_norm(x), c, bias=False)
        for number in range(count):
            x = _window_block(net, x, size, c // 32, shifted=number % 2 == 1 and size > 7)
    x = net.layer_norm(x)
    x = net.view(net.reduce(x, (1, 768), "mean"), 768)
    net.softmax(net.linear(x, 1000))


def _window_block(net: Net, x: Value, size: int, heads: int, *, shifted: bool) -> Value:
    """Attention within windows of 7 x 7 pixels. The bias of scores has 13 x 13 distances."""
    c, n = x.dims[1], size // 7
    net.parameter(13 * 13, heads)
    y = net.view(net.layer_norm(x), n, 7, n, 7, c)
    y = net.view(net.transpose(y, 0, 2, 1, 3, 4), 49, c, batch=n * n)
    y = attention(net, y, y, heads, biased=True, masked=shifted)
    y = net.transpose(net.view(y, n, n, 7, 7, c), 0, 2, 1, 3, 4)
    x = net.binary(net.view(y, size * size, c), x)
    return _mlp_block(net, x, 4 * c)
