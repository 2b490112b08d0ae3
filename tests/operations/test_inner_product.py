"""Inner product in its three directions."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs

import dnncore as dnn
from dnncore.comparison.fills import fill_integers

DIRECTIONS = ("forward", "backward_data", "backward_weights")


def inner_product(direction, src, oc, tags=(None, None, None), *, bias=True):
    """The operation for src dims and output channels; tags are those of src, weights and dst."""
    x = dnn.MemoryDesc(src, "f32", tags[0])
    w = dnn.MemoryDesc((oc, *src[1:]), "f32", tags[1])
    y = dnn.MemoryDesc((src[0], oc), "f32", tags[2])
    b = dnn.MemoryDesc((oc,)) if bias else None
    if direction == "forward":
        return dnn.InnerProductForward("forward_training", src=x, weights=w, bias=b, dst=y)
    if direction == "backward_data":
        return dnn.InnerProductBackwardData(diff_src=x, weights=w, diff_dst=y)
    return dnn.InnerProductBackwardWeights(src=x, diff_weights=w, diff_bias=b, diff_dst=y)


PROBLEMS = {
    "1x1x1": ((1, 1), 1),
    "4x10x7": ((4, 10), 7),
    "batch1": ((1, 64), 33),
    "oc1": ((9, 70), 1),
    "ic1": ((9, 1), 20),
    "aligned": ((16, 64), 32),
    "long": ((5, 700), 10),
    "image": ((3, 5, 4, 3), 11),
    "1d": ((2, 4, 6), 5),
    "3d": ((2, 3, 2, 3, 2), 5),
    "batch0": ((0, 12), 4),
    "no_features": ((3, 0), 5),
    "no_columns": ((3, 12), 0),
    "no_columns_of_vectors": ((3, 44), 0),  # more than a vector of any processor
}
all_problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
all_directions = pytest.mark.parametrize("direction", DIRECTIONS)


@pytest.mark.in_turn(3)
@all_problems
@all_directions
@pytest.mark.parametrize("formats", ["plain", "any"])
def test_agrees_with_the_reference(target: Target, problem, direction, formats):
    tag = None if formats == "plain" else "any"
    check(target, inner_product(direction, *problem, (tag, tag, tag)))


@all_directions
@pytest.mark.parametrize("tag", ["abc", "cba", "bca"])
def test_no_image_in_any_order_of_dims(target: Target, direction, tag):
    check(target, inner_product(direction, (0, 1, 2), 7, (tag, "any", "any")))


@all_directions
def test_with_the_users_scratchpad(target: Target, direction):
    op = inner_product(direction, *PROBLEMS["image"])
    check(target, op, dnn.Attributes(scratchpad="user"))


@all_directions
def test_without_bias(target: Target, direction):
    check(target, inner_product(direction, (4, 10), 7, bias=False))


FORMATS = {
    "weights_transposed": ((6, 20), ("nc", "io", "nc")),
    "all_transposed": ((6, 20), ("cn", "io", "cn")),
    "dst_transposed": ((6, 20), ("nc", "any", "cn")),
    "nhwc": ((3, 5, 4, 3), ("nhwc", "ohwi", "nc")),
    "nhwc_to_any": ((3, 5, 4, 3), ("nhwc", "any", "any")),
    "mixed": ((3, 5, 4, 3), ("nhwc", "oihw", "nc")),
    "blocked": ((3, 16, 4, 3), ("nChw8c", "oIhw8i", "nc")),
    "blocked_padded": ((3, 5, 4, 3), ("nChw8c", "any", "nc")),
    "blocks_of_samples": ((3, 5, 4, 3), ("NChw8n16c", "any", "nc")),
    "matrix_in_blocks": ((5, 20), ("BA16a4b", "any", "nc")),
}


@pytest.mark.in_turn(3)
@all_directions
@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
def test_in_other_formats(target: Target, direction, formats):
    src, tags = formats
    check(target, inner_product(direction, src, 7, tags))


# -- the reference itself -------------------------------------------------------------------------


def test_golden():
    inputs = {
        "src": np.array([[1.0, 2.0]]),
        "weights": np.array([[3.0, 4.0], [5.0, 6.0]]),
        "bias": np.array([100.0, 200.0]),
    }
    got = reference_outputs(inner_product("forward", (1, 2), 2), inputs)
    assert got["dst"].tolist() == [[111.0, 217.0]]
    inputs["diff_dst"] = np.array([[1.0, 10.0]])
    got = reference_outputs(inner_product("backward_data", (1, 2), 2), inputs)
    assert got["diff_src"].tolist() == [[53.0, 64.0]]
    got = reference_outputs(inner_product("backward_weights", (1, 2), 2), inputs)
    assert got["diff_weights"].tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert got["diff_bias"].tolist() == [1.0, 10.0]


@all_problems
def test_the_gradients_are_adjoint(problem):
    src, oc = problem
    x, w, y = (
        fill_integers(dnn.MemoryDesc(dims), seed).astype(np.float64)
        for seed, dims in enumerate((src, (oc, *src[1:]), (src[0], oc)))
    )
    forward = inner_product("forward", *problem, bias=False)
    dst = reference_outputs(forward, {"src": x, "weights": w})["dst"]
    data = reference_outputs(
        inner_product("backward_data", *problem), {"diff_dst": y, "weights": w}
    )
    weights = reference_outputs(
        inner_product("backward_weights", *problem), {"src": x, "diff_dst": y}
    )
    assert np.vdot(dst, y) == np.vdot(x, data["diff_src"]) == np.vdot(w, weights["diff_weights"])
