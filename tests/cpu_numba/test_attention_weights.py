"""The kernel of online softmax against numpy, on each instruction set that this machine has."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.attention.weights_kernel import STEP, WEIGHTS, WeightsKernel
from dnncore_cpu_numba.codegen.isa import AVAILABLE

INF, NAN = np.float32("inf"), np.array([0xFFFFFFFF], np.uint32).view(np.float32)[0]
ROUNDOFF = 2.0**-24
GUARD = np.float32(7.5)


def weights(isa, scores, top, total, sums):
    """Call the kernel with rows of scores; it changes all arrays."""
    rows, columns = scores.shape
    given = {
        "x": scores.ctypes.data, "rows": rows, "row": scores.strides[0], "steps": columns // STEP,
        "top": top.ctypes.data, "total": total.ctypes.data, "sums": sums.ctypes.data,
        "sum_row": sums.strides[0], "sum_vectors": sums.shape[1] // isa.lanes,
    }  # fmt: skip
    values = [given[name] for name in WEIGHTS.fields]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(WeightsKernel(isa).address)(*values)


@pytest.fixture(params=AVAILABLE, ids=lambda isa: isa.name)
def isa(request):
    return request.param


def test_rows_against_numpy(isa):
    rng = np.random.default_rng(1)
    scores = (rng.standard_normal((5, 2 * STEP)) * 30).astype(np.float32)
    scores[2, 3:] = -INF
    top = np.array([-INF, 5, 90, -20, -INF], np.float32)
    total, sums = np.array([0, 1, 2, 3, 0], np.float32), np.full((5, 16), GUARD)
    now = np.maximum(scores.max(1), top)
    right = np.exp2(scores.astype(np.float64) - now[:, None])
    factor = np.exp2(top.astype(np.float64) - now)
    added = total * factor + right.sum(1)
    weights(isa, scores, top, total, sums)
    np.testing.assert_array_equal(top, now)
    # the difference is rounded, and the polynomial has an error of 4 roundoffs
    limit = right * (4 + np.abs(np.log2(np.maximum(right, 1e-38)))) * ROUNDOFF + 2.0**-126
    assert (np.abs(scores - right) <= limit).all()
    np.testing.assert_allclose(total, added, rtol=1e-5)
    np.testing.assert_allclose(sums, np.repeat(GUARD * factor[:, None], 16, 1), rtol=1e-5)


def test_rows_without_finite_scores(isa):
    """A row of -inf has no weights. NaN stays, also one with all bits set."""
    scores = np.full((2, STEP), -INF)
    scores[1, 5] = NAN
    top, total, sums = np.full(2, -INF), np.zeros(2, np.float32), np.zeros((2, 16), np.float32)
    weights(isa, scores, top, total, sums)
    assert not scores[0].any()
    assert np.isnan(scores[1]).sum() == 1
    assert total[0] == 0
    assert np.isnan(total[1])
    assert top[0] == -INF
