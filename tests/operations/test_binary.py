"""Binary: algorithms, broadcasts, formats, in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import Target, check, reference_outputs

import dnncore as dnn
from dnncore.algorithms.binary import BINARY

SHAPES = {
    "equal": ((2, 7, 3, 5), (2, 7, 3, 5)),
    "per_channel": ((2, 7, 3, 5), (1, 7, 1, 1)),
    "per_tensor": ((2, 7, 3, 5), (1, 1, 1, 1)),
    "per_row": ((2, 7, 3, 5), (1, 1, 3, 1)),
    "per_image": ((2, 7, 3, 5), (2, 1, 1, 1)),
    "per_pixel": ((2, 7, 3, 5), (2, 1, 3, 5)),
    "last": ((4, 33), (1, 33)),
    "both": ((4, 1, 6), (1, 5, 6)),
    "src0_is_smaller": ((1, 7), (3, 7)),
    "1d": ((1000,), (1000,)),
    "batch0": ((0, 7), (1, 7)),
}


def binary(algorithm, src0, src1, tags=(None, None, None)):
    dims = tuple(b if a == 1 else a for a, b in zip(src0, src1, strict=True))
    descs = {
        name: dnn.MemoryDesc(d, "f32", tag)
        for name, d, tag in zip(("src0", "src1", "dst"), (src0, src1, dims), tags, strict=True)
    }
    if algorithm == "select":
        descs["src2"] = dnn.MemoryDesc(dims, "s8", tags[2])
    return dnn.Binary(algorithm, **descs)


# Every algorithm on one broadcast, every broadcast with some: devices compile each pair.
PAIRS = [("per_channel", algorithm) for algorithm in BINARY]
PAIRS += [(name, algorithm) for name in SHAPES for algorithm in ("add", "div", "ge", "select")]


@pytest.mark.parametrize(("name", "algorithm"), PAIRS, ids=map("-".join, PAIRS))
def test_agrees_with_the_reference(target: Target, name, algorithm):
    check(target, binary(algorithm, *SHAPES[name]))


@pytest.mark.parametrize("condition", [(2, 7, 3, 5), (1, 7, 1, 1), (2, 1, 1, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", ["equal", "per_channel"])
def test_a_condition_is_broadcast(target: Target, name, condition):
    op = binary("select", *SHAPES[name])
    check(target, replace(op, src2=dnn.MemoryDesc(condition, "s8")))


FORMATS = {
    "nhwc": ("nhwc", "nhwc", "nhwc"),
    "nhwc_to_any": ("nhwc", "nhwc", "any"),
    "blocked": ("nChw8c", "nChw8c", "nChw8c"),
    "mixed": ("nchw", "nhwc", "nhwc"),
    "all_different": ("nhwc", "nChw8c", "nchw"),
}


@pytest.mark.parametrize("name", ["equal", "per_channel"])
@pytest.mark.parametrize("tags", FORMATS.values(), ids=FORMATS)
def test_in_other_formats(target: Target, name, tags):
    check(target, binary("add", *SHAPES[name], tags))


@pytest.mark.parametrize("algorithm", ["add", "sub", "max", "le", "select"])
@pytest.mark.parametrize("name", ["equal", "per_channel", "per_tensor"])
def test_in_place(target: Target, name, algorithm):
    check(target, binary(algorithm, *SHAPES[name]), in_place=("src0", "dst"))


def test_on_parts_of_larger_tensors(target: Target):
    part = dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3))
    check(target, dnn.Binary("add", src0=part, src1=part, dst=part))


def test_nan_and_inf_follow_ieee(target: Target):
    src0 = np.array([np.nan, np.inf, np.inf, 0.0], np.float32)
    src1 = np.array([1.0, -np.inf, 1.0, np.inf], np.float32)
    for algorithm in BINARY:
        op = binary(algorithm, (4,), (4,))
        condition = np.array([1, 0, -1, 0], np.int8)
        check(target, op, inputs={"src0": src0, "src1": src1, "src2": condition})


def test_golden():
    src0, src1 = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0, 20.0]])
    inputs = {"src0": src0, "src1": src1}
    got = reference_outputs(binary("add", (2, 2), (1, 2)), inputs)["dst"]
    assert got.tolist() == [[11.0, 22.0], [13.0, 24.0]]
    got = reference_outputs(binary("mul", (2, 2), (1, 2)), inputs)["dst"]
    assert got.tolist() == [[10.0, 40.0], [30.0, 80.0]]


@pytest.mark.parametrize(
    ("algorithm", "dst"),
    [
        ("sub", [-2.0, 0.0, 3.0]), ("div", [0.5, 1.0, 4.0]), ("max", [4.0, 3.0, 4.0]),
        ("min", [2.0, 3.0, 1.0]), ("ge", [0.0, 1.0, 1.0]), ("gt", [0.0, 0.0, 1.0]),
        ("le", [1.0, 1.0, 0.0]), ("lt", [1.0, 0.0, 0.0]), ("eq", [0.0, 1.0, 0.0]),
        ("ne", [1.0, 0.0, 1.0]), ("select", [2.0, 3.0, 4.0]),
    ],
)  # fmt: skip
def test_golden_algorithms(algorithm, dst):
    inputs = {"src0": np.array([2.0, 3.0, 4.0]), "src1": np.array([4.0, 3.0, 1.0])}
    inputs["src2"] = np.array([1, 0, -128], np.int8)
    assert reference_outputs(binary(algorithm, (3,), (3,)), inputs)["dst"].tolist() == dst
