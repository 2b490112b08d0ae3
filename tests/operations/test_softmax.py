"""Softmax and log-softmax on every axis, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs

import dnncore as dnn
from dnncore.comparison.fills import fill_normal

CASES = {
    "10_classes": ((64, 10), None, 1),
    "columns": ((64, 10), None, 0),
    "columns_longer_than_a_buffer": ((700, 20), None, 0),
    "one_class": ((5, 1), None, 1),
    "long": ((3, 2000), None, 1),
    "longer_than_a_buffer": ((1, 33000), None, 1),
    "channels": ((2, 7, 3, 5), None, 1),
    "rows_nhwc": ((2, 7, 3, 5), "nhwc", 2),
    "channels_blocked_padded": ((2, 7, 3, 5), "nChw8c", 1),
    "rows_blocked_padded": ((2, 7, 3, 5), "nChw8c", 2),
    "5d": ((2, 3, 2, 3, 2), None, 2),
    "batch0": ((0, 10), None, 1),
    "no_classes": ((4, 0), None, 1),
}
# Every case with one algorithm, some with the other: devices compile each pair.
PAIRS = [(name, "log") for name in CASES]
ACCURATE = (
    "10_classes", "columns_longer_than_a_buffer", "longer_than_a_buffer", "channels",
    "rows_blocked_padded",
)  # fmt: skip
PAIRS += [(name, "accurate") for name in ACCURATE]
all_pairs = pytest.mark.parametrize(("name", "algorithm"), PAIRS, ids=map("-".join, PAIRS))
both = pytest.mark.parametrize("algorithm", ["accurate", "log"])


def forward(case, algorithm):
    dims, tag, axis = case
    desc = dnn.MemoryDesc(dims, "f32", tag)
    return dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=axis)


def backward(case, algorithm):
    dims, tag, axis = case
    desc = dnn.MemoryDesc(dims, "f32", tag)
    return dnn.SoftmaxBackward(algorithm, dst=desc, diff_dst=desc, diff_src=desc, axis=axis)


def backward_inputs(case, algorithm):
    src = fill_normal(dnn.MemoryDesc(case[0]), 1)
    dst = reference_outputs(forward(case, algorithm), {"src": src})["dst"]
    return {"dst": dst, "diff_dst": fill_normal(dnn.MemoryDesc(case[0]), 2)}


@all_pairs
def test_forward(target: Target, name, algorithm):
    check(target, forward(CASES[name], algorithm))


@both
def test_one_block_of_classes_may_have_a_step_of_1(target: Target, algorithm):
    """The classes of a plain dim are neighbours, too."""
    desc = dnn.MemoryDesc((4, 40), "f32", "aB64b", strides=(64, 1))
    op = dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=1)
    check(target, op)


@all_pairs
def test_backward(target: Target, name, algorithm):
    case = CASES[name]
    check(target, backward(case, algorithm), inputs=backward_inputs(case, algorithm))


@both
@pytest.mark.parametrize("name", ["10_classes", "channels"])
def test_in_place(target: Target, name, algorithm):
    case = CASES[name]
    check(target, forward(case, algorithm), in_place=("src", "dst"))
    inputs = backward_inputs(case, algorithm)
    pair = ("diff_dst", "diff_src")
    check(target, backward(case, algorithm), inputs=inputs, in_place=pair)


@both
def test_on_a_part_of_a_larger_tensor(target: Target, algorithm):
    part = dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3))
    op = dnn.SoftmaxForward("forward_inference", algorithm, src=part, dst=part, axis=1)
    check(target, op, may_refuse=True)


@both
def test_long_columns_keep_their_digits(target: Target, algorithm):
    """With one running sum of 70,000 numbers, the error would be 3e-4."""
    case = ((70000, 2), None, 0)
    check(target, forward(case, algorithm))
    check(target, backward(case, algorithm), inputs=backward_inputs(case, algorithm))


@both
def test_large_numbers_do_not_overflow(target: Target, algorithm):
    src = np.array([[1000.0, 999.0, 0.0], [-1e30, -1e30, -1e30], [3e38, 0.0, -3e38]], np.float32)
    op = forward(((3, 3), None, 1), algorithm)
    check(target, op, inputs={"src": src})


@both
def test_minus_infinity_has_no_share(target: Target, algorithm):
    src = np.array([[0.0, -np.inf, 0.0], [-np.inf, 5.0, -np.inf], [1.0, 2.0, 3.0]], np.float32)
    check(target, forward(((3, 3), None, 1), algorithm), inputs={"src": src})


@both
def test_nan_spoils_its_own_row_only(target: Target, algorithm):
    src = np.array([[0.0, np.nan, 0.0], [1.0, 5.0, 2.0], [1.0, 2.0, 3.0]], np.float32)
    check(target, forward(((3, 3), None, 1), algorithm), inputs={"src": src})


# -- the reference itself -------------------------------------------------------------------------


def test_golden():
    src = np.log(np.array([[1.0, 2.0, 5.0]]))
    case = ((1, 3), None, 1)
    dst = reference_outputs(forward(case, "accurate"), {"src": src})["dst"]
    assert np.allclose(dst, [[0.125, 0.25, 0.625]], rtol=1e-7)
    log = reference_outputs(forward(case, "log"), {"src": src})["dst"]
    assert np.allclose(log, np.log([[0.125, 0.25, 0.625]]), rtol=1e-7)
    inputs = {"dst": np.array([[0.125, 0.25, 0.625]]), "diff_dst": np.array([[8.0, 0.0, 0.0]])}
    got = reference_outputs(backward(case, "accurate"), inputs)["diff_src"]
    assert got.tolist() == [[0.875, -0.25, -0.625]]
    got = reference_outputs(backward(case, "log"), {**inputs, "dst": log})["diff_src"]
    assert np.allclose(got, [[7.0, -2.0, -5.0]], rtol=1e-6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shares_add_up_to_one_and_gradients_to_zero(case):
    dims, _, axis = case
    inputs = backward_inputs(case, "accurate")
    if dims[axis]:
        assert np.allclose(inputs["dst"].sum(axis), 1.0, atol=1e-6)
    diff_src = reference_outputs(backward(case, "accurate"), inputs)["diff_src"]
    assert np.allclose(diff_src.sum(axis), 0.0, atol=1e-5)
