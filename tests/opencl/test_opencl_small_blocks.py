"""Results of all plans for CPUs with small blocks, chunks and tiles, on drawn problems.

With their usual sizes only large problems have several of each, and tests of these are slow.
"""

import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.matmul import MatMulImplementation
from small_blocks import DRAWS, failures, shrunk

import dnncore as dnn

pytestmark = pytest.mark.quick_builds

SIZES = {
    "codegen.grid:CPU_GROUPS": 1,
    "codegen.grid:CPU_ITEM": 8,
    "convolution.direct_weights:LINE_BYTES": 1,
    "convolution.direct_weights:LONGEST_LINE": 5,
    "convolution.direct_weights:SUM_BYTES": 1,
    "convolution.lines:CHUNK_BYTES": 1,
    "convolution.winograd.cpu:CHUNK_BYTES": 1 << 14,
    "copies.transpose:CPU_TILE": 8,
    "gemm.cpu:MAX_ROWS": 16,
    "gemm.cpu:PANEL_DEPTH": 16,
    "gemm.strided:TASKS_PER_CORE": 0.25,
    "rows.staged:BOX": 64,
    "rows.statistics:CPU_HELD": 2,
    "sum:MOST_SRCS": 3,
}

CPUS = [t for t in TARGETS if t.engine_name.startswith("opencl") and t.engine.is_cpu]


@pytest.fixture
def small(monkeypatch):
    yield from shrunk(monkeypatch, "dnncore_opencl", SIZES)


@pytest.mark.in_turn
@pytest.mark.parametrize("target", CPUS, ids=str)
@pytest.mark.parametrize(("driver", "direction"), DRAWS)
def test_small_blocks(driver, direction, target, small):
    count = 16 if driver == "sdpa" else 4  # most problems of attention are refused
    found, executed = failures(driver, direction, count, target.engine, "opencl:*")
    assert not found
    assert executed > (2 if driver == "sdpa" else 6)  # gradients of attention have one launch


@pytest.mark.parametrize("vector", [4, 8, 16])
@pytest.mark.parametrize("data_type", ["f32", "f64"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_rows_of_a_panel_are_whole_vectors(rows, data_type, vector, small):
    """Converted values are written to a panel as vectors, also those at the end of a row."""
    dims = ((rows, 300), (300, 200), (rows, 200))
    src, weights, dst = (dnn.MemoryDesc(own, data_type) for own in dims)
    op = dnn.MatMul(src=src, weights=weights, dst=dst)
    (gemm,) = MatMulImplementation(CpuFamily).gemms(op, dnn.Attributes())
    defines = CpuFamily(2, vector, has_fetch=False).cover(gemm).defines
    assert int(defines["DEPTH"]) % int(defines["VECTOR"]) == 0
