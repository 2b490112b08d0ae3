"""Networks for vectors and points: LSTMs, DLRM, PointNet, NeRF, an autoencoder."""

from __future__ import annotations

from typing import TypeAlias

from benchmarks.corpus.layers import Value
from benchmarks.corpus.net import Net
from benchmarks.corpus.registry import network


def _lstm_step(
    net: Net, x: Value, hidden: Value, cell: Value, *, shared: bool
) -> tuple[Value, Value]:
    """One step of an LSTM layer, as inner products of all gates and their functions."""
    n = hidden.dims[0]
    gates = net.binary(
        net.linear(x, 4 * n, shared=shared), net.linear(hidden, 4 * n, bias=False, shared=shared)
    )
    i, f, o = (net.eltwise(net.part(gates, n), "logistic") for _ in range(3))
    g = net.eltwise(net.part(gates, n), "tanh")
    cell = net.binary(net.binary(f, cell, "mul"), net.binary(i, g, "mul"))
    return net.binary(o, net.eltwise(cell, "tanh"), "mul"), cell


State: TypeAlias = list[tuple[Value, Value]]
"""The hidden values and the cells of each layer of an LSTM."""


def _lstm(net: Net, inputs: list[Value], state: State) -> tuple[list[Value], State]:
    """The last layer's results for all steps, and the final state."""
    last = []
    for start in state:
        hidden, cell = start
        found = []
        for step, x in enumerate(inputs):
            hidden, cell = _lstm_step(net, x, hidden, cell, shared=step > 0)
            found.append(hidden)
        inputs = found
        last.append((hidden, cell))
    return inputs, last


def _start(net: Net, layers: int, width: int) -> State:
    return [(net.input(width), net.input(width)) for _ in range(layers)]


@network(
    ("parameters", 66e6, "Merity and others 2016, Pointer sentinel mixture models, table 2"),
)
def lstm_ptb(net: Net) -> None:
    """The large LSTM for Penn Treebank, 35 words.

    Zaremba, Sutskever and Vinyals 2014, Recurrent neural network regularization.
    """
    net.embedding(10000, 1500)
    words = [net.input(1500) for _ in range(35)]
    results, _ = _lstm(net, words, _start(net, 2, 1500))
    for step, x in enumerate(results):
        net.softmax(net.linear(x, 10000, shared=step > 0))


@network(
    ("parameters", 384e6, "section 3.4"),
)
def seq2seq(net: Net) -> None:
    """The LSTMs of sequence to sequence learning, 20 words to 20.

    Sutskever, Vinyals and Le 2014, Sequence to sequence learning with neural networks.
    """
    net.embedding(160000 + 80000, 1000)
    _, state = _lstm(net, [net.input(1000) for _ in range(20)], _start(net, 4, 1000))
    results, _ = _lstm(net, [net.input(1000) for _ in range(20)], state)
    for step, x in enumerate(results):
        net.softmax(net.linear(x, 80000, shared=step > 0))


@network(
    ("parameters", 540e6, "section 5.1"),
)
def dlrm(net: Net) -> None:
    """DLRM for Criteo's Kaggle data.

    Naumov and others 2019, Deep learning recommendation model for personalization and
    recommendation systems.
    """
    net.embedding(33762577, 16)  # the rows of all 26 tables
    x = net.input(13)
    for features in (512, 256, 64, 16):
        x = net.relu(net.linear(x, features))
    features = net.concat(net.view(x, 1, 16), net.input(26, 16))
    batch = net.view(features, 1, 27, 16)
    products = net.matmul(batch, batch, transposed=True)
    x = net.concat(x, net.part(products, 27 * 26 // 2))
    for count in (512, 256):
        x = net.relu(net.linear(x, count))
    net.eltwise(net.linear(x, 1), "logistic")


def _points(net: Net, x: Value, *features: int) -> Value:
    """Layers that all points share, as convolutions of one tap along the points."""
    for count in features:
        x = net.relu(net.batch_norm(net.conv(x, count, 1, bias=True)))
    return x


def _vector(net: Net, x: Value, *features: int) -> Value:
    for count in features:
        x = net.view(net.batch_norm(net.linear(x, count)), count)
        x = net.relu(x)
    return x


def _transformed(net: Net, x: Value) -> Value:
    """The points times a matrix. A small network computes the matrix from the points."""
    k, n = x.dims
    y = _vector(
        net, net.view(net.global_pool(_points(net, x, 64, 128, 1024), "max"), 1024), 512, 256
    )
    matrix = net.view(net.linear(y, k * k), 1, k, k)
    points = net.matmul(net.view(x, 1, n, k), matrix)
    return net.view(points, k, n)


@network(
    ("parameters", 3.5e6, "table 6"),
    ("multiply-adds", 440e6, "table 6"),
)
def pointnet(net: Net) -> None:
    """PointNet for 1,024 points.

    Qi and others 2016, PointNet: deep learning on point sets for 3D classification and
    segmentation.
    """
    x = _points(net, _transformed(net, net.input(3, 1024)), 64, 64)
    x = _points(net, _transformed(net, x), 64, 128, 1024)
    x = _vector(net, net.view(net.global_pool(x, "max"), 1024), 512, 256)
    net.softmax(net.linear(x, 40))


@network(
    ("parameters", 1191e3, "Barron and others 2021, Mip-NeRF, table 1"),
)
def nerf(net: Net) -> None:
    """NeRF, 1,024 rays of 64 coarse and 192 fine points.

    Mildenhall and others 2020, NeRF: representing scenes as neural radiance fields for view
    synthesis.
    """
    for samples in (64, 192):
        points = 1024 * samples
        place, view = net.input(points, 63), net.input(points, 27)
        x = place
        for layer in range(8):
            x = net.concat(place, x, axis=1) if layer == 5 else x
            x = net.relu(net.linear(x, 256))
        net.relu(net.linear(x, 1))
        x = net.concat(net.linear(x, 256), view, axis=1)
        x = net.relu(net.linear(x, 128))
        net.eltwise(net.linear(x, 3), "logistic")


@network(
    ("parameters", 2837314, "the sum of its layers 784-1000-500-250-30, which are in note 8"),
)
def autoencoder(net: Net) -> None:
    """The deep autoencoder for MNIST.

    Hinton and Salakhutdinov 2006, Reducing the dimensionality of data with neural networks.
    """
    x = net.input(784)
    for features in (1000, 500, 250):
        x = net.eltwise(net.linear(x, features), "logistic")
    x = net.linear(x, 30)
    for features in (250, 500, 1000, 784):
        x = net.eltwise(net.linear(x, features), "logistic")
