"""Sum: any number of scaled tensors, in any formats, in place."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs

import dnncore as dnn

SCALES = {
    "one": (2.0,),
    "momentum": (0.9, 1.0),
    "step": (1.0, -0.01),
    "with_zero": (1.0, 0.0, -1.0),
    "eight": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0),
    "many": tuple(float(i % 7 - 3) for i in range(75)),
}
LAYOUTS = {
    "1d": dnn.MemoryDesc((1003,)),
    "nhwc": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nhwc"),
    "blocked_padded": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nChw8c"),
    "weights": dnn.MemoryDesc((9, 5, 3, 3), "f32", "OIhw8i8o"),
    "empty": dnn.MemoryDesc((0, 3)),
}
all_scales = pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
all_layouts = pytest.mark.parametrize("desc", LAYOUTS.values(), ids=LAYOUTS)


@pytest.mark.in_turn(2)
@all_scales
@all_layouts
def test_agrees_with_the_reference(target: Target, scales, desc):
    check(target, dnn.Sum(scales, srcs=[desc] * len(scales), dst=desc))


@pytest.mark.in_turn(2)
@all_scales
@all_layouts
def test_in_place(target: Target, scales, desc):
    op = dnn.Sum(scales, srcs=[desc] * len(scales), dst=desc)
    check(target, op, in_place=("src0", "dst"))


def test_any_takes_the_format_of_the_first(target: Target):
    desc = LAYOUTS["nhwc"]
    op = dnn.Sum((1.0, 1.0), srcs=[desc, desc], dst=desc.with_format("any"))
    assert target.primitive_descs(op)[0].dst_desc == desc
    check(target, op)


def test_of_different_formats(target: Target):
    nchw, nhwc = LAYOUTS["nhwc"].with_format("nchw"), LAYOUTS["nhwc"]
    op = dnn.Sum((1.0, 3.0), srcs=[nchw, nhwc], dst=LAYOUTS["blocked_padded"])
    check(target, op)


def test_on_parts_of_larger_tensors(target: Target):
    part = dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3))
    check(target, dnn.Sum((1.0, -2.0), srcs=[part, part], dst=part))


def test_golden():
    desc = dnn.MemoryDesc((2,))
    inputs = {"src0": np.array([1.0, 2.0]), "src1": np.array([10.0, 20.0])}
    got = reference_outputs(dnn.Sum((3.0, -0.5), srcs=[desc, desc], dst=desc), inputs)
    assert got["dst"].tolist() == [-2.0, -4.0]
