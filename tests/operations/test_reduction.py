"""Reduction: algorithms, which dims, formats, sizes that need more than one stage."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs

import dnncore as dnn
from dnncore.algorithms.reduction import REDUCTION as ALGORITHMS

DIMS = (3, 10, 5, 4)


def reduction(algorithm, src, kept, tags=(None, None), **fields):
    """Reduce all dims of src but those in `kept`."""
    dst = [n if i in kept else 1 for i, n in enumerate(src)]
    return dnn.Reduction(
        algorithm,
        src=dnn.MemoryDesc(src, "f32", tags[0]),
        dst=dnn.MemoryDesc(dst, "f32", tags[1]),
        **fields,
    )


SHAPES = {
    "all": (DIMS, ()),
    "last": (DIMS, (0, 1, 2)),
    "first": (DIMS, (1, 2, 3)),
    "to_channels": (DIMS, (1,)),
    "to_images": (DIMS, (0,)),
    "to_places": (DIMS, (2, 3)),
    "alternating": (DIMS, (1, 3)),
    "1d": ((1000,), ()),
    "long_row": ((100_003,), ()),
    "long_rows": ((3, 20_011), (0,)),
    "long_columns": ((20_011, 3), (1,)),
    "many_rows": ((3000, 7), (0,)),
    "5d": ((2, 3, 4, 2, 3), (0, 3)),
    "of_ones": ((1, 4, 1, 3), (0, 1)),
    "batch0": ((0, 4, 3), (0,)),
    "nothing_kept_of_nothing": ((4, 0, 3), (1,)),
}
all_algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("src", "kept"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("algorithm", ["sum", "max", "norm_lp_sum"])
def test_shapes(target: Target, algorithm, src, kept):
    check(target, reduction(algorithm, src, kept, eps=0.25))


@all_algorithms
@pytest.mark.parametrize("kept", [(0, 1, 2), (1,), (1, 2, 3)], ids=["rows", "channels", "columns"])
def test_algorithms(target: Target, algorithm, kept):
    check(target, reduction(algorithm, DIMS, kept, p=3.0, eps=0.5))


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, 7.0])
def test_powers(target: Target, p):
    check(target, reduction("norm_lp_max", DIMS, (1,), p=p))


FORMATS = {
    "nhwc": ("nhwc", "nhwc"),
    "nhwc_to_nchw": ("nhwc", "nchw"),
    "blocked": ("nChw8c", "nChw8c"),
    "blocked_to_plain": ("nChw16c", "nchw"),
    "plain_to_blocked": ("nchw", "nChw8c"),
    "blocked_twice": ("NChw4n4c", "nchw"),
    "any": ("nhwc", "any"),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("tags", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("kept", [(1,), (0, 2, 3)], ids=["channels", "all_but_channels"])
@pytest.mark.parametrize("algorithm", ["sum", "mul", "min"])
def test_formats(target: Target, algorithm, kept, tags):
    check(target, reduction(algorithm, DIMS, kept, tags))


def test_parts_of_larger_tensors(target: Target):
    part = dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3))
    dst = dnn.MemoryDesc((5, 7, 9)).submemory((3, 1, 5), (1, 2, 3))
    check(target, dnn.Reduction("mean", src=part, dst=dst))


@all_algorithms
def test_nan_and_inf(target: Target, algorithm):
    src = np.array([[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, 1, -2], [0, -0.0, 0]], np.float32)
    check(target, reduction(algorithm, src.shape, (0,)), inputs={"src": src})


@pytest.mark.parametrize("algorithm", ["max", "min"])
def test_one_nan_in_a_long_row(target: Target, algorithm):
    src = np.tile(np.linspace(-3, 3, 1000, dtype=np.float32), (3, 1))
    src[0, 777] = src[1, 998] = np.nan
    check(target, reduction(algorithm, src.shape, (0,)), inputs={"src": src})


@pytest.mark.parametrize("algorithm", ["sum", "max", "norm_lp_max"])
def test_post_ops(target: Target, algorithm):
    op = reduction(algorithm, DIMS, (0, 1))
    chain = [
        dnn.PostOp.sum(2.0),
        dnn.PostOp.binary("sub", dnn.MemoryDesc((1, 10, 1, 1))),
        dnn.PostOp.prelu(dnn.MemoryDesc((1, 1, 1, 1))),
        dnn.PostOp.eltwise("linear", 0.5, 1.0),
    ]
    check(target, op, dnn.Attributes(chain))


def test_the_same_twice(target: Target):
    """Sums of many numbers do not depend on timing."""
    op = reduction("sum", (300_007,), ())
    check(target, op, dnn.Attributes(deterministic=True))


# -- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "dst"),
    [
        ("max", [3.0, 5.0]), ("min", [-4.0, 0.0]), ("sum", [-1.0, 5.0]), ("mul", [-12.0, 0.0]),
        ("mean", [-0.5, 2.5]), ("norm_lp_max", [5.0, 5.0]), ("norm_lp_sum", [6.0, 6.0]),
        ("norm_lp_power_p_max", [25.0, 25.0]), ("norm_lp_power_p_sum", [36.0, 36.0]),
    ],
)  # fmt: skip
def test_golden(algorithm, dst):
    src = np.array([[3.0, -4.0], [0.0, 5.0]])
    op = reduction(algorithm, (2, 2), (0,), eps=11.0)
    assert reference_outputs(op, {"src": src})["dst"].ravel().tolist() == dst


def test_golden_eps_is_a_lower_limit():
    op = reduction("norm_lp_max", (1, 2), (0,), eps=16.0)
    assert reference_outputs(op, {"src": np.array([[1.0, 2.0]])})["dst"].tolist() == [[4.0]]
