"""Results of all plans for CPUs with small blocks, chunks and tiles, on drawn problems.

With their usual sizes only large problems have several of each, and tests of these are slow.
"""

import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS
from small_blocks import DRAWS, failures, shrunk

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
    "gemm.cpu:PANEL_DEPTH": 64,  # with less, compilers of CPUs make wrong code or crash
    "gemm.strided:TASKS_PER_CORE": 0.25,
    "reduction.implementations:BOX": 64,
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
    found, executed = failures(driver, direction, 8, target.engine, "opencl:*")
    assert not found
    assert executed > 15
