"""Results of all plans with small blocks, chunks, bands and parts, on drawn problems.

With their usual sizes only large problems have several of each, and tests of these are slow.
"""

import pytest
from small_blocks import DRAWS, failures, shrunk

import dnncore as dnn

CPU = dnn.engine("cpu")
SIZES = {
    "codegen.nontemporal:SHORTEST_ROW": 64,
    "codegen.nontemporal:STREAM_BYTES": 0,
    "convolution.brgemm_weights:BORDERED_BYTES": 1,
    "convolution.brgemm_weights:REDUCTION": 12,
    "convolution.depthwise.data:AHEAD_BYTES": dict.fromkeys((1, 2, 4, 8), 0),
    "convolution.depthwise.data:VECTORS": 1,
    "convolution.gemm:COLUMN_BYTES": 2000,
    "convolution.winograd.blocks:FILTER_BYTES_PER_TILE": 1,
    "convolution.winograd.blocks:LEAST_TILES": 2,
    "convolution.winograd.blocks:MOST_TILES": 4,
    "copies.gather:GRAIN": 16,
    "copies.gather:LONGEST_AXIS": 64,
    "copies.reformat:_GRAIN": 16,
    "copies.reformat:_LONGEST": 16,
    "copies.reformat:_LONG_ROW": 16,
    "copies.reformat:_TILE": 64,
    "elementwise.chains:_GRAIN": 16,
    "gemm.bands:BAND": 4,
    "gemm.bands:LONG": 9,
    "gemm.problem:LARGE_C": 0,
    "gemm.product:DEPTH": 24,
    "gemm.product:FAR_BYTES": 0,
    "gemm.product:IN_PLACE_BYTES": 0,
    "gemm.product:SHARED_DEPTH": 12,
    "gemm.product:SHARED_SETS": 1,
    "gemm.tiling:CACHE_BYTES": 2048,
    "gemm.tiling:LARGE_B": 0,
    "gemm.tiling:SECOND_LEVEL": 0,
    "lrn.implementations:_GRAIN": 16,
    "lrn.implementations:_MOST_COLUMNS": 16,
    "lrn.implementations:_MOST_POINTS": 16,
    "pooling.plan:_BAND": 64,
    "pooling.plan:_FETCH_BYTES": 0,
    "pooling.plan:_MAX_COLUMNS": 16,
    "reduction.implementations:_GRAIN": 16,
    "reduction.implementations:_LONG": 64,
    "reduction.implementations:_PART": 64,
    "resampling.implementation:_MOST_ROWS": 3,
    "resampling.rows_task:MOST_SUMMED": 200,
    "resampling.whole_images:_MOST_ITEM": 60,
    "rnn.implementations:BLOCK_KIB": 2,
    "rnn.layers:SHARED_SETS": 1,
    "rows.channels:_GRAIN": 16,
    "rows.channels:_LONG": 16,
    "rows.channels:_MOST_ROWS": 3,
    "rows.channels:_PART": 64,
    "rows.channels:_TILE": 64,
    "rows.channels_tasks:MOST_COLUMNS": 16,
    "rows.channels_tasks:MOST_ROW": 16,
    "rows.whole:MOST": 64,
    "rows.whole:_GRAIN": 16,
    "rows.whole:_LONG_ROWS": 2,
    "rows.whole:_MANY": 4,
    "rows.whole:_ROWS": 2,
    "runtime.tensor:STREAM_RESULT_BYTES": 0,
    "softmax.implementations:_ACROSS": 128,
    "softmax.implementations:_ALONG": 64,
    "softmax.implementations:_GRAIN": 16,
    "softmax.implementations:_PIECE": 32,
    "softmax.implementations:_RUN": 3,
    "softmax.tasks:HELD": 256,
}  # constants that plans read; those of compiled loops are not in the keys of their code


@pytest.fixture
def small(monkeypatch):
    yield from shrunk(monkeypatch, "dnncore_cpu_numba", SIZES)


@pytest.mark.parametrize(("driver", "direction"), DRAWS)
def test_small_blocks(driver, direction, small):
    found, executed = failures(driver, direction, 6, CPU, "cpu_numba:*", types=("f32",))
    assert not found
    assert executed > 6
