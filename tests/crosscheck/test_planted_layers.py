"""A fault in one of twenty layers is found at this layer, on the CPU and on OpenCL."""

import pytest
from combinations import every_second
from planted_layers import FAULTS, Network, planted

import dnncore as dnn


def plain(launches, stream):
    for launch in launches:
        launch.primitive.execute(stream, **launch.memories)


def bound(launches, stream):
    for launch in launches:
        launch.primitive.bind(**launch.memories)(stream)


def sequence(launches, stream):
    dnn.Sequence(launch.primitive.bind(**launch.memories) for launch in launches)(stream)


WAYS = {f.__name__: f for f in (plain, bound, sequence)}

# operation, channels of src or diff_src at the faulty layer, its name, the output
LAYERS = {
    "convolution": (dnn.ConvolutionForward, lambda op: op.dst.dims[1] == 15, "convolution 10"),
    "pooling": (dnn.PoolingForward, lambda op: op.src.dims[1] == 10, "pooling 7"),
    "lrn": (dnn.LRNForward, lambda op: op.src.dims[1] == 18, "lrn 14"),
    "weights": (
        dnn.ConvolutionBackwardWeights, lambda op: op.diff_dst.dims[1] == 8,
        "weights of convolution 3",
    ),
    "relu backward": (
        dnn.EltwiseBackward, lambda op: op.diff_src.dims[1] == 20, "gradient of relu 16",
    ),
    "pooling backward": (
        dnn.PoolingBackward, lambda op: op.diff_src.dims[1] == 15, "gradient of pooling 12",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", "pocl"])
def engine(request):
    try:
        return dnn.engine(request.param)
    except dnn.DnnError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("way", WAYS)
def test_a_right_network_does_not_diverge(engine, way, tmp_path):
    network = Network(engine)
    with dnn.crosscheck("reference", folder=tmp_path, slowdown=None) as report:
        for launches in (network.forward, network.backward):
            WAYS[way](launches, engine.stream())
    assert not report.divergences
    assert not report.left_out
    assert report.compared == report.calls == len(network.forward) + len(network.backward)


@every_second(("layer", LAYERS), ("way", WAYS))
def test_the_first_divergence_is_the_faulty_layer(engine, way, layer, tmp_path):
    operation, where, name = LAYERS[layer]
    fault = "last_element" if way == "plain" else "border"
    with planted(engine.kind, operation, where, FAULTS[fault]):
        network = Network(engine)
        launches = [*network.forward, *network.backward]
        with dnn.crosscheck("reference", folder=tmp_path, mode="collect") as report:
            WAYS[way](launches, engine.stream())
    assert [launches[d.number - 1].name for d in report.divergences] == [name]
    (divergence,) = report.divergences
    assert divergence.implementation == "planted:fault"
    assert divergence.path.exists()
