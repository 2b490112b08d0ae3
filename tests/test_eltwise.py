"""Eltwise: every algorithm, forward and backward, over layouts, in place, at the edges of float."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, agree, check, reference_outputs, run
from oracles import torch_outputs

import dnncore as dnn
from dnncore.compare import Expected, expected_outputs, fill_integers
from dnncore.ops.algorithms import ELTWISE_ALGORITHMS

PARAMETERS = {
    "relu": {},
    "leaky_relu": {"algorithm": "relu", "alpha": 0.25},
    "tanh": {},
    "logistic": {},
    "linear": {"alpha": 2.0, "beta": -3.0},
}
ALGORITHMS = {name: {"algorithm": name, **rest} for name, rest in PARAMETERS.items()}

LAYOUTS = {
    "1": dnn.MemoryDesc((1,)),
    "row_major": dnn.MemoryDesc((3, 5)),
    "column_major": dnn.MemoryDesc((13, 70), "f32", "ba"),
    "nchw": dnn.MemoryDesc((2, 7, 3, 5)),
    "nhwc": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nhwc"),
    "blocked": dnn.MemoryDesc((2, 16, 3, 5), "f32", "nChw8c"),
    "blocked_padded": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nChw8c"),
    "blocked_twice": dnn.MemoryDesc((5, 7, 2), "f32", "ABc4a4b"),
    "gaps": dnn.MemoryDesc((4, 3, 5), strides=(40, 10, 2)),
    "part": dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3)),
    "3d": dnn.MemoryDesc((2, 3, 4, 3, 2), "f32", "ndhwc"),
    "empty": dnn.MemoryDesc((0, 4, 3, 3)),
    "large": dnn.MemoryDesc((100_003,)),
}

# Every layout with one algorithm, every algorithm on one layout: devices compile each pair.
PAIRS = [(layout, "leaky_relu") for layout in LAYOUTS]
PAIRS += [("blocked_padded", name) for name in ALGORITHMS if name != "leaky_relu"]
all_pairs = pytest.mark.parametrize(("layout", "algorithm"), PAIRS, ids=map("-".join, PAIRS))
all_algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def forward(desc, algorithm, dst=None):
    return dnn.EltwiseForward("forward_training", src=desc, dst=dst or desc, **algorithm)


def backward(desc, algorithm):
    return dnn.EltwiseBackward(src=desc, diff_dst=desc, diff_src=desc, **algorithm)


def test_every_algorithm_is_tested():
    assert {a["algorithm"] for a in ALGORITHMS.values()} == set(ELTWISE_ALGORITHMS)


@all_pairs
def test_forward(target: Target, layout, algorithm):
    check(target, forward(LAYOUTS[layout], ALGORITHMS[algorithm]))


@all_pairs
def test_backward(target: Target, layout, algorithm):
    check(target, backward(LAYOUTS[layout], ALGORITHMS[algorithm]))


@pytest.mark.peer
@all_algorithms
@pytest.mark.parametrize("direction", [forward, backward])
def test_agrees_with_torch(target: Target, direction, algorithm):
    check(target, direction(LAYOUTS["nhwc"], algorithm), oracle=torch_outputs)


@all_algorithms
@pytest.mark.parametrize("layout", ["nhwc", "blocked_padded"])
def test_in_place(target: Target, layout, algorithm):
    desc = LAYOUTS[layout]
    check(target, forward(desc, algorithm), in_place=("src", "dst"))
    check(target, backward(desc, algorithm), in_place=("diff_dst", "diff_src"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "blocked_padded"])
def test_any_takes_the_format_of_src(target: Target, layout):
    desc = LAYOUTS[layout]
    op = forward(desc, ALGORITHMS["relu"], desc.with_format("any"))
    assert target.primitive_descs(op)[0].dst_desc == desc
    check(target, op)


def test_from_one_format_to_another(target: Target):
    op = forward(LAYOUTS["nhwc"], ALGORITHMS["tanh"], LAYOUTS["blocked_padded"])
    check(target, op, may_refuse=True)


@all_algorithms
@pytest.mark.parametrize("direction", [forward, backward])
def test_special_values(target: Target, direction, algorithm):
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-30, 88.0, -104.0]
    src = np.array(values, np.float32)
    op = direction(dnn.MemoryDesc(src.shape), algorithm)
    check(target, op, inputs={"src": src, "diff_dst": np.ones_like(src)})


@pytest.mark.parametrize("name", ["tanh", "logistic"])
def test_small_results_keep_their_relative_accuracy(target: Target, name):
    """8 ulp or one smallest normal number, where the formula itself would cancel."""
    half = np.geomspace(1e-6, 80.0, 500)
    src = np.concatenate([-half, half]).astype(np.float32)
    op = forward(dnn.MemoryDesc(src.shape), ALGORITHMS[name])
    right = expected_outputs(op, dnn.Attributes(), {"src": src})["dst"].values
    limits = {"dst": Expected(right, 8 * np.finfo(np.float32).eps * np.abs(right))}
    for pd in target.primitive_descs(op):
        agree(pd, run(pd, {"src": src}), limits)


# -- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "src", "dst"),
    [
        ("relu", [-2.0, 0.0, 3.0], [0.0, 0.0, 3.0]),
        ("leaky_relu", [-2.0, 0.0, 3.0], [-0.5, 0.0, 3.0]),
        ("tanh", [0.0, 0.5, -40.0], [0.0, 0.46211716, -1.0]),
        ("logistic", [0.0, 2.0, -200.0], [0.5, 0.88079708, 0.0]),
        ("linear", [-2.0, 0.0, 3.0], [-7.0, -3.0, 3.0]),
    ],
)
def test_golden_forward(algorithm, src, dst):
    op = forward(dnn.MemoryDesc((3,)), ALGORITHMS[algorithm])
    got = reference_outputs(op, {"src": np.array(src)})["dst"]
    assert np.allclose(got, dst, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("algorithm", "src", "diff_src"),
    [
        ("relu", [-2.0, 0.0, 3.0], [0.0, 0.0, 10.0]),
        ("leaky_relu", [-2.0, 0.0, 3.0], [2.5, 2.5, 10.0]),
        ("tanh", [0.0, 0.5, -400.0], [10.0, 7.8644773, 0.0]),
        ("logistic", [0.0, 2.0, -400.0], [2.5, 1.0499359, 0.0]),
        ("linear", [-2.0, 0.0, 3.0], [20.0, 20.0, 20.0]),
    ],
)
def test_golden_backward(algorithm, src, diff_src):
    op = backward(dnn.MemoryDesc((3,)), ALGORITHMS[algorithm])
    got = reference_outputs(op, {"src": np.array(src), "diff_dst": np.full(3, 10.0)})["diff_src"]
    assert np.allclose(got, diff_src, rtol=1e-7, atol=0)


@all_algorithms
def test_the_slope_is_that_of_the_function(algorithm):
    desc = dnn.MemoryDesc((40,), "f32")
    src = np.linspace(-4.1, 4.0, 40)
    step = 1e-2
    high, low = (
        reference_outputs(forward(desc, algorithm), {"src": src + s})["dst"] for s in (step, -step)
    )
    inputs = {"src": src, "diff_dst": np.ones(40)}
    slope = reference_outputs(backward(desc, algorithm), inputs)["diff_src"]
    assert np.allclose(slope, (high - low) / (2 * step), atol=1e-4)


def test_integers_stay_integers():
    desc = dnn.MemoryDesc((50,))
    src = fill_integers(desc, 0)
    got = reference_outputs(forward(desc, ALGORITHMS["linear"]), {"src": src})["dst"]
    assert np.array_equal(got, 2 * src - 3)
