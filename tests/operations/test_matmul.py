"""Matmul: shapes, layouts, batches and broadcasts, bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import Target, check, reference_outputs, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnncore as dnn
from dnncore.comparison.fills import fill_integers


def matmul(src, weights, tags=(None, None, None), *, bias=None):
    """The operation for these dims; `bias` holds the dims of one."""
    batch = tuple(b if a == 1 else a for a, b in zip(src[:-2], weights[:-2], strict=True))
    return dnn.MatMul(
        src=dnn.MemoryDesc(src, "f32", tags[0]),
        weights=dnn.MemoryDesc(weights, "f32", tags[1]),
        bias=dnn.MemoryDesc(bias) if bias else None,
        dst=dnn.MemoryDesc((*batch, src[-2], weights[-1]), "f32", tags[2]),
    )


PROBLEMS = {
    "1x1x1": matmul((1, 1), (1, 1)),
    "5x7x3": matmul((5, 7), (7, 3)),
    "17x33x19": matmul((17, 33), (33, 19)),
    "64x64x64": matmul((64, 64), (64, 64)),
    "row": matmul((1, 100), (100, 37)),
    "column": matmul((37, 100), (100, 1)),
    "outer": matmul((20, 1), (1, 30)),
    "inner": matmul((1, 500), (500, 1)),
    "long": matmul((6, 1000), (1000, 10)),
    "bias_row": matmul((5, 7), (7, 3), bias=(1, 3)),
    "bias_full": matmul((5, 7), (7, 3), bias=(5, 3)),
    "batch_bias": matmul((3, 5, 7), (3, 7, 4), bias=(3, 1, 4)),
    "one_weights": matmul((3, 5, 7), (1, 7, 4), bias=(1, 1, 4)),
    "one_src": matmul((1, 5, 7), (3, 7, 4)),
    "two_batch_dims": matmul((2, 3, 5, 7), (2, 3, 7, 4)),
    "crossed_batch_dims": matmul((2, 1, 5, 7), (1, 3, 7, 4)),
    "many_batch_dims": matmul(
        (2, 1, 3, 1, 2, 5, 7), (1, 2, 3, 1, 1, 7, 4), bias=(1, 1, 3, 1, 2, 1, 1)
    ),
    "bias_column": matmul((5, 7), (7, 3), bias=(5, 1)),
    "bias_of_a_batch": matmul((3, 5, 7), (3, 7, 4), bias=(3, 5, 1)),
    "no_rows": matmul((0, 7), (7, 3)),
    "no_columns": matmul((5, 7), (7, 0)),
    "no_batch": matmul((0, 5, 7), (0, 7, 3)),
    "no_terms": matmul((5, 0), (0, 3), bias=(1, 3)),
}
all_problems = pytest.mark.parametrize("op", PROBLEMS.values(), ids=PROBLEMS)


@pytest.mark.in_turn(2)
@all_problems
def test_agrees_with_the_reference(target: Target, op):
    check(target, op)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("dst", ["ab", "ba"])
@pytest.mark.parametrize("weights", ["ab", "ba"])
@pytest.mark.parametrize("src", ["ab", "ba"])
def test_transposed(target: Target, src, weights, dst):
    check(target, matmul((13, 21), (21, 18), (src, weights, dst), bias=(1, 18)))


def test_any(target: Target):
    check(target, matmul((13, 21), (21, 18), ("any", "any", "any")))
    check(target, matmul((13, 21), (21, 18), ("ab", "any", "ab")))


@pytest.mark.parametrize("tags", [("abc", "acb", "abc"), ("acb", "abc", "abc"), ("bac",) * 3])
def test_transposed_batches(target: Target, tags):
    check(target, matmul((3, 5, 7), (3, 7, 4), tags))


def test_blocked(target: Target):
    check(target, matmul((13, 21), (21, 18), ("ab", "BA16b8a", "ab")))


def test_rows_further_apart_than_they_are_long(target: Target):
    """Parts of larger matrices: leading dimensions, and an offset."""
    op = matmul((5, 7), (7, 3))
    part = {
        argument.name: dnn.MemoryDesc([d + 4 for d in desc.dims]).submemory(desc.dims, (1, 3))
        for argument, desc in op.tensors()
    }
    check(target, op.with_descs(**part))


sizes = st.integers(1, 40)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(m=sizes, k=sizes, n=sizes, batch=st.integers(1, 3), shared=st.booleans())
def test_any_shape(target: Target, m, k, n, batch, shared):
    check(target, matmul((batch, m, k), (1 if shared else batch, k, n)))


# -- the reference itself -------------------------------------------------------------------------


def test_golden():
    inputs = {
        "src": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "weights": np.array([[1.0, 0.0, -1.0], [10.0, 1.0, 0.0]]),
        "bias": np.array([[100.0, 200.0, 300.0]]),
    }
    got = reference_outputs(matmul((2, 2), (2, 3), bias=(1, 3)), inputs)["dst"]
    assert got.tolist() == [[121.0, 202.0, 299.0], [143.0, 204.0, 297.0]]


def test_the_transpose_of_a_product_is_the_product_of_transposes():
    a, b = (fill_integers(dnn.MemoryDesc(dims), i) for i, dims in enumerate([(5, 7), (7, 3)]))
    forward = reference_outputs(matmul((5, 7), (7, 3)), {"src": a, "weights": b})["dst"]
    inputs = {"src": b.T.copy(), "weights": a.T.copy()}
    transposed = reference_outputs(matmul((3, 7), (7, 5)), inputs)["dst"]
    assert np.array_equal(forward, transposed.T)


def test_large_zero_points_wrap_around(target: Target):
    """(3 + 2^31 - 1) * (5 - 2^31 + 3) is 16 more than a multiple of 2^32, and beyond 2^53."""
    src, weights, dst = (dnn.MemoryDesc((1, 1), own) for own in ("u8", "s8", "s32"))
    op = dnn.MatMul(src=src, weights=weights, dst=dst)
    attr = dnn.Attributes(zero_points={"src": dnn.ZeroPoints(), "weights": dnn.ZeroPoints()})
    inputs = {
        "src": np.uint8([[3]]),
        "weights": np.int8([[5]]),
        "src_zero_points": np.int32([[1 - 2**31]]),
        "weights_zero_points": np.int32([[2**31 - 3]]),
    }
    assert (3 + 2**31 - 1) * (5 - 2**31 + 3) % 2**32 == 16
    for pd in target.primitive_descs(op, attr):
        assert run(pd, inputs)["dst"].tolist() == [[16]], pd.impl_name


def test_the_reference_sums_wide_integers_exactly():
    """All but one of 2^20 products are (2^17 - 1)^2. The sum is odd, and too large for float64."""
    terms, wide = 1 << 20, 2**17 - 1
    src, weights = (dnn.MemoryDesc(dims, "u8") for dims in [(1, terms), (terms, 1)])
    op = dnn.MatMul(src=src, weights=weights, dst=dnn.MemoryDesc((1, 1), "s32"))
    inputs: dict[str, Any] = {
        "src": np.full(src.dims, 255, np.uint8),
        "weights": np.full(weights.dims, 255, np.uint8),
        "src_zero_points": np.int32([[255 - wide]]),
        "weights_zero_points": np.int32([[255 - wide]]),
    }
    inputs["src"][0, 0] = 254
    total = wide**2 * (terms - 1) + (wide - 1) * wide
    assert total > 2**53
    assert total % 2 == 1
    points = {"src": dnn.ZeroPoints(), "weights": dnn.ZeroPoints()}
    got = reference_outputs(op, inputs, zero_points=points)["dst"]
    assert got.tolist() == [[(total + 2**31) % 2**32 - 2**31]]
