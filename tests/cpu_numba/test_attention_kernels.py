"""Attention's kernels against numpy, on each instruction set of this machine; its memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.attention.product_kernel import PRODUCT, ProductKernel
from dnncore_cpu_numba.attention.slopes_kernel import SLOPES, SlopesKernel
from dnncore_cpu_numba.codegen.isa import AVAILABLE

import dnncore as dnn
from dnncore.problem import read

INF = np.float32("inf")


@pytest.fixture(params=AVAILABLE, ids=lambda isa: isa.name)
def isa(request):
    return request.param


def run(kernel, record, **values):
    given = [values[name] for name in record.fields]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(given))(kernel.address)(*given)


def integers(shape):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("depth", [3, 8, 13])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_products(isa, is_transposed, depth):
    kernel = ProductKernel(isa, is_transposed)
    rows, wide, gap = 2 * kernel.rows, kernel.columns, 5
    a = integers((depth, rows + gap) if is_transposed else (rows, depth + gap))
    own = a[:, :rows].T if is_transposed else a[:, :depth]
    b, c = integers((3, depth + 1, wide)), integers((rows, 3 * wide + gap))
    product = own @ np.concatenate(list(b[:, :depth]), 1)
    for accumulate in (1, 0):
        right = c.copy()
        right[:, : 3 * wide] = product + accumulate * c[:, : 3 * wide]
        run(
            kernel, PRODUCT, a=a.ctypes.data, b=b.ctypes.data, c=c.ctypes.data,
            a_row=a.strides[0], b_panel=b.strides[0], c_row=c.strides[0], tiles=2, panels=3,
            depth=depth, accumulate=accumulate,
        )  # fmt: skip
        np.testing.assert_array_equal(c, right)


@pytest.mark.parametrize("by_columns", [False, True])
def test_slopes(isa, by_columns):
    rng = np.random.default_rng(2)
    rows, columns, factor = 3, 2 * isa.lanes, np.float32(0.75)
    scores, slopes = (rng.standard_normal((rows, columns + 1)).astype(np.float32) for _ in "ab")
    scores[1, 2] = -INF
    lse, mean = (
        rng.uniform(2, 4, columns if by_columns else rows).astype(np.float32) for _ in "ab"
    )
    lse[0] = INF
    x, y, lse_of, mean_of = (each.astype(np.float64) for each in (scores, slopes, lse, mean))
    if not by_columns:
        lse_of, mean_of = lse_of[:, None], mean_of[:, None]
    own = np.exp2(x[:, :columns] * factor - lse_of)
    right = own * (y[:, :columns] - mean_of)
    last = scores[:, -1].copy(), slopes[:, -1].copy()
    run(
        SlopesKernel(isa, by_columns), SLOPES, weights=scores.ctypes.data,
        slopes=slopes.ctypes.data, rows=rows, row=scores.strides[0], vectors=2,
        lse=lse.ctypes.data, mean=mean.ctypes.data, factor=int(factor.view(np.uint32)),
    )  # fmt: skip
    np.testing.assert_allclose(scores[:, :columns], own, rtol=1e-6, atol=2.0**-126)
    np.testing.assert_allclose(slopes[:, :columns], right, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal((scores[:, -1], slopes[:, -1]), last)


@pytest.mark.parametrize("direction", ["FWD_I", "BWD_D"])
@pytest.mark.parametrize("data_type", ["f32", "bf16"])
def test_memory_is_linear_in_tokens(direction, data_type):
    """A matrix of scores would make it four times as large if there are twice as many tokens."""

    def nbytes(tokens):
        rows, columns = f"1x2x{tokens}x64", f"1x2x64x{tokens}"
        (problem,) = read(f"--sdpa --dt={data_type} --dir={direction} {rows}:{columns}:{rows}")
        pd = dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"), impl="cpu_numba:blocks")
        return pd.scratchpad_bytes

    assert 0 < nbytes(16384) <= 2.05 * nbytes(8192)
