"""The corpus of networks: its layers follow each other, and their sums are the published ones."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dnncore as dnn
from benchmarks.corpus.__main__ import main
from benchmarks.corpus.directions import directed
from benchmarks.corpus.layers import ELEMENT
from benchmarks.corpus.registry import networks
from benchmarks.corpus.sample import Choices, distinct_layers, draw, population
from benchmarks.problems.problem_sets import changed, pass_of
from dnncore.problem import DRIVERS, Unsupported, read, read_files
from dnncore.testing.problems.cases import case_files

NETWORKS = networks()
LAYERS = distinct_layers()
# Networks with more than one result.
RESULTS = {"conv_tasnet": 3, "deeplab_v3": 2, "faster_rcnn": 12, "lstm_ptb": 35, "nerf": 4,
           "seq2seq": 20, "ssd_300": 12, "yolo_v3": 3}  # fmt: skip


def problem(layer, batch=1):
    (found,) = read(layer.text(batch))
    return found


def test_there_are_enough_networks_and_problems():
    assert len(NETWORKS) >= 40
    assert sum(layer.driver in DRIVERS for layer in LAYERS.values()) >= 2500


def test_every_kind_of_layer_is_listed():
    """Also layers of operations that dnncore does not have."""
    assert {layer.driver for layer in LAYERS.values()} == {
        "binary", "bnorm", "concat", "conv", "deconv", "eltwise", "gnorm", "ip", "lnorm", "lrn",
        "matmul", "pool", "reduction", "reorder", "resampling", "shuffle", "softmax",
    }  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_figures_are_the_published_ones(name):
    network = NETWORKS[name]
    assert network.figures
    for published in network.figures:
        assert published.source
        assert network.figure(published.what) == pytest.approx(published.value, rel=0.02)


# -- each layer reads what an earlier one writes ---------------------------------------------------


def letters(text):
    return {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", text)}


def image(sizes, kind):
    """The sizes of a kind, i or o, of all axes; an axis without numbers has those before it."""
    found = []
    for axis in "dhw":
        if f"i{axis}" in sizes:
            found.append(sizes.get(kind + axis, sizes["i" + axis]))
        elif found:
            found.append(found[-1])
    return found


def tensors(text):
    """The dims of inputs and of the output of a problem text, without dnncore's operations."""
    *words, shape = text.split()
    driver, shape = words[0].removeprefix("--"), shape.partition('n"')[0]
    options = dict(word.removeprefix("--").split("=") for word in words[1:])
    if "x" in shape and not shape.startswith(("mb", "g")):
        dims = [tuple(map(int, part.split("x"))) for part in shape.split(":")]
        if driver == "concat":
            axis = int(options["axis"])
            joined = list(dims[0])
            joined[axis] = sum(part[axis] for part in dims)
            return dims, tuple(joined)
        if driver == "matmul":
            return dims, (*dims[0][:-1], dims[1][-1])
        if driver == "sum":
            return dims * len(options["sdt"].split(":")), dims[0]
        return (dims[:1], dims[1]) if driver == "reduction" else (dims, dims[0])
    sizes = letters(shape)
    src = (sizes["mb"], sizes["ic"], *image(sizes, "i"))
    if driver == "ip":
        return [src], (sizes["mb"], sizes["oc"])
    return [src], (sizes["mb"], sizes.get("oc", sizes["ic"]), *image(sizes, "o"))


def matrix(dims):
    """The dims of a tensor as a matrix, as products of matrices without a batch read it."""
    return math.prod(dims[:-1]), dims[-1]


def unread(layers):
    """The names of layers that no later one reads. Fails if a layer reads other dims."""
    written, read_by = [], Counter()
    for index, layer in enumerate(layers):
        inputs, output = tensors(layer.text())
        for dims, value in zip(inputs, layer.inputs, strict=False):  # weights have no source
            if value.source < 0:
                continue
            assert value.source < index
            read_by[value.source] += 1
            source = written[value.source]
            if value.view == "part":
                assert math.prod(dims) < math.prod(source)
            elif value.view == "reshape":
                assert math.prod(dims) == math.prod(source), layer.text()
            else:
                assert matrix(dims) == matrix(source), layer.text()
                assert dims == source or 2 in (len(dims), len(source)), layer.text()
        written.append(output)
    return [layer.name for index, layer in enumerate(layers) if not read_by[index]]


@pytest.mark.parametrize("name", NETWORKS)
def test_each_layer_reads_what_an_earlier_one_writes(name):
    """According to their texts, which the test reads itself."""
    found = unread(NETWORKS[name].layers)
    assert len(found) == RESULTS.get(name, 1), found


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("vgg_16", "oc128_ih112", "oc96_ih112"), ("resnet_50", "ih112oh56kh3", "ih112oh55kh3"),
     ("bert_base", ":768x3072", ":768x3071"), ("densenet_201", "x32x56x56", "x31x56x56")],
)  # fmt: skip
def test_a_changed_layer_does_not_fit(name, old, new):
    layers = list(NETWORKS[name].layers)
    place = next(i for i, layer in enumerate(layers) if old in layer.shape)
    layers[place] = replace(layers[place], shape=layers[place].shape.replace(old, new))
    with pytest.raises(AssertionError):
        unread(layers)


def test_views_are_rare():
    """So most layers read exactly what another one writes."""
    views = Counter(value.view for network in NETWORKS.values() for layer in network.layers
                    for value in layer.inputs)  # fmt: skip
    assert views[""] > 0.8 * views.total()


# -- texts -----------------------------------------------------------------------------------------


def test_texts_read_as_the_operations_of_the_layers():
    """Their inputs, results and costs are those of the layers."""
    for layer in LAYERS.values():
        if layer.driver not in DRIVERS:
            with pytest.raises(Unsupported, match=layer.primitive):
                read(layer.text())
            continue
        op = problem(layer).op
        inputs, output = tensors(layer.text())
        arguments = [desc.dims for row, desc in op.tensors() if row.direction == "in"]
        assert all(dims in arguments for dims in inputs)
        assert op.result.dims == output
        if layer.multiply_adds:  # the operation also counts additions of a bias
            assert 0 <= op.flops - 2 * layer.multiply_adds <= op.result.nelems
        moved = ELEMENT * (layer.activations + layer.weights)
        if layer.driver.endswith("norm"):  # the operation also moves statistics
            assert moved <= op.bytes, layer
            continue
        assert moved == op.bytes or (layer.driver in ("conv", "pool") and moved > op.bytes), layer


def test_the_batch_size_is_a_factor():
    for layer in LAYERS.values():
        if layer.driver in DRIVERS:
            one, three = (problem(layer, batch).op.result for batch in (1, 3))
            assert three.nelems == 3 * one.nelems


def plain(problem):
    """The text of one image in plain formats, without a name."""
    return str(replace(changed(problem, {"mb": "1", "tag": "abx"}), name=""))


def test_the_kit_has_the_layers_of_the_corpus():
    """As often as its names say. It has no element-wise layers."""
    for path in case_files("networks"):
        name = {"mobilenet": "mobilenet_v1"}.get(path.stem, path.stem)
        kit = Counter()
        for p in read_files(path):
            if pass_of(p.op) == "forward":
                kit[plain(p)] += int(p.name.partition("*")[2])
        drivers = ("conv", "ip", "lrn", "pool", "softmax")
        layers = [layer for layer in NETWORKS[name].layers if layer.driver in drivers]
        assert Counter(plain(problem(layer)) for layer in layers) == kit


@pytest.mark.parametrize("direction", ["FWD_I", "FWD_D", "BWD_D", "BWD_W"])
def test_every_layer_has_a_problem_in_each_direction_that_it_has(direction):
    for layer in LAYERS.values():
        text = directed(layer, direction, 2) if layer.driver in DRIVERS else ""
        if text:
            (found,) = read(text)
            assert pass_of(found.op) == PASSES[direction] or layer.driver == "matmul"
            assert found.name == layer.name
    shapes = [layer for layer in LAYERS.values() if layer.driver in ("conv", "ip", "matmul")]
    without = [layer for layer in shapes if not directed(layer, direction, 2)]
    assert all(direction == "BWD_D" and layer.inputs[0].source < 0 for layer in without)


PASSES = {"FWD_I": "forward", "FWD_D": "forward", "BWD_D": "data", "BWD_W": "weights"}


def layer_of(text):
    layer = NETWORKS["bert_base"].layers[0]
    options, shape = text.split()
    return replace(layer, driver="matmul", options=(options,), shape=shape, has_bias=False,
                   inputs=(replace(layer.output, source=0),))  # fmt: skip


def test_gradients_of_matrix_products_are_matrix_products():
    """dst = src W has the gradients diff_dst W' and src' diff_dst."""
    m, k, n = 2, 3, 5
    layer = layer_of(f"--stag=ab @{m}x{k}:{k}x{n}")
    rng = np.random.default_rng(1)
    values = {(m, k): rng.integers(-9, 9, (m, k)), (k, n): rng.integers(-9, 9, (k, n)),
              (m, n): rng.integers(-9, 9, (m, n))}  # fmt: skip
    for direction, a, b in (("BWD_D", (m, n), (k, n)), ("BWD_W", (m, k), (m, n))):
        (found,) = read(directed(layer, direction, 1))
        stored = []
        for desc, dims in ((found.op.src, a), (found.op.weights, b)):
            strides = sorted(desc.strides, reverse=True)
            assert strides == [dims[1], 1]  # the values lie in memory as the forward pass has them
            stored.append(values[dims] if desc.strides[1] == 1 else values[dims].T)
            assert stored[-1].shape == desc.dims
        diff, src, weights = values[m, n], values[m, k], values[k, n]
        expected = diff @ weights.T if direction == "BWD_D" else src.T @ diff
        assert (stored[0] @ stored[1] == expected).all()


# -- samples ---------------------------------------------------------------------------------------


def test_the_order_of_networks_is_that_of_their_names():
    """Not that of imports. So a seed gives the same sample in every program."""
    assert list(NETWORKS) == sorted(NETWORKS)


def test_a_seed_determines_a_sample():
    first, again, other = (draw(40, seed) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first.problems)) == len(first.problems) == 40
    assert len(set(first.problems) & set(other.problems)) < 20


def test_weights_are_shares_of_networks():
    """Each network has the same weight, and none dominates what can be measured."""
    for batch in (1, 32):
        weights = population(batch)
        assert list(weights) == list(LAYERS)
        assert sum(weights.values()) == pytest.approx(1)
        assert max(weights.values()) < 0.02
        expected, measured = defaultdict(float), {}
        for name, network in NETWORKS.items():
            total = sum(layer.cost(batch) for layer in network.layers)
            shares = [(layer, layer.cost(batch) / total) for layer in network.layers]
            for layer, share in shares:
                expected[layer.key] += share / len(NETWORKS)
            measured[name] = sum(share for layer, share in shares if layer.driver in DRIVERS)
        assert weights == pytest.approx(expected)
        assert max(measured.values()) < 1.5 * sum(measured.values()) / len(NETWORKS)


def test_layers_that_move_much_or_compute_much_weigh_more():
    """A convolution of VGG-16 by its operations, and fc6 of one image by its weights."""
    weights = {LAYERS[key].name: weight * len(NETWORKS) for key, weight in population(1).items()}
    layers = {layer.name: layer for layer in NETWORKS["vgg_16"].layers}
    largest = layers["vgg_16:conv2"]
    total = sum(layer.cost() for layer in layers.values())
    assert largest.cost() == pytest.approx(2 * largest.multiply_adds / 12)
    assert weights["vgg_16:conv2"] == pytest.approx(largest.cost() / total, rel=1e-6)
    assert layers["vgg_16:ip1"].cost() == pytest.approx(4 * 25088 * 4096, rel=0.01)
    assert layers["vgg_16:ip1"].cost(512) == pytest.approx(2 * 512 * 25088 * 4096 / 12, rel=0.01)


def test_draws_follow_the_weights():
    """The shares of drivers and networks among first draws are the weights, within 5 sigma."""
    count = 1000
    choices = Choices(directions=("FWD_I",), match="^--(conv|ip|matmul|pool)")
    weights = population(4, choices.match)
    expected, drawn = defaultdict(float), Counter()
    for key, weight in weights.items():
        for group in (LAYERS[key].name.partition(":")[0], f"--{LAYERS[key].driver}"):
            expected[group] += weight / sum(weights.values())
    for seed in range(count):
        (found,) = draw(1, seed, choices).problems
        drawn.update([found.name.partition(":")[0], str(found).split()[0]])
    for group, share in expected.items():
        sigma = math.sqrt(count * share * (1 - share))
        assert abs(drawn[group] - count * share) <= 5 * sigma + 1, group


def test_batch_direction_and_type_are_drawn_from_lists():
    choices = Choices(("FWD_I", "BWD_W"), (1, 8), ("f32", "f16"), "auto", "squeezenet:conv")
    found = [p.op for p in draw(20, 3, choices).problems]
    assert {op.src.dims[0] for op in found} == {1, 8}
    assert {op.result.data_type for op in found} == {"f32", "f16"}
    assert {pass_of(op) for op in found} == {"forward", "weights"}
    assert {op.algorithm for op in found} == {"auto"}


def test_large_problems_have_smaller_batches():
    found = [p.op for p in draw(60, 5, Choices(("FWD_I",), (256,), match="^--conv")).problems]
    assert all(op.bytes <= 1e9 or op.src.dims[0] == 1 for op in found)
    assert {256} < {op.src.dims[0] for op in found}


def test_missing_operations_are_skipped_and_counted(monkeypatch):
    others = {name: driver for name, driver in DRIVERS.items() if name != "bnorm"}
    monkeypatch.setattr("benchmarks.corpus.sample.DRIVERS", others)
    skipped = sum((draw(40, seed).skipped for seed in range(10)), Counter())
    assert skipped.keys() == {"bnorm"}
    assert skipped["bnorm"] > 10


def test_a_new_operation_is_drawn(monkeypatch):
    """Nothing else in the corpus changes when dnncore gets an operation."""
    choices = Choices(directions=("FWD_I",), match="^--deconv")
    with monkeypatch.context() as before:
        others = {name: driver for name, driver in DRIVERS.items() if name != "deconv"}
        before.setattr("benchmarks.corpus.sample.DRIVERS", others)
        with pytest.raises(dnn.DescriptorError, match="at most 0 problems"):
            draw(1, 1, choices)
    (found,) = draw(1, 1, choices).problems
    assert isinstance(found.op, dnn.DeconvolutionForward)


def test_more_problems_than_there_are_is_an_error():
    count = sum(layer.driver == "lrn" for layer in LAYERS.values())
    assert len(draw(count, 1, Choices(match="^--lrn")).problems) == count
    with pytest.raises(dnn.DescriptorError, match=rf"at most {count} problems.*got {count + 1}"):
        draw(count + 1, 1, Choices(match="^--lrn"))


def test_the_list_of_networks_and_the_layers_of_one():
    listed = CliRunner().invoke(main, []).output.splitlines()
    assert len(listed) == len(NETWORKS) + 1
    (line,) = (line for line in listed if line.startswith("squeezenet "))
    assert line.endswith("parameters 1.248e+06 (1.248e+06 in table 1)")
    lines = CliRunner().invoke(main, ["alexnet", "--mb=4"]).output.splitlines()
    assert lines[0].startswith("# AlexNet. Krizhevsky")
    found = [re.fullmatch(r" *([0-9.]+)% +(\d+)  (--\w+ .*)", line) for line in lines[1:]]
    counts = [match for match in found if match]
    assert len(counts) == len(lines) - 1
    assert sum(int(match[2]) for match in counts) == len(NETWORKS["alexnet"].layers)
    assert sum(float(match[1]) for match in counts) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_documents_give_the_number_of_networks(name):
    text = " ".join((Path(__file__).parents[2] / name).read_text().split())
    assert set(re.findall(r"(\d+) networks", text)) == {str(len(NETWORKS))}
