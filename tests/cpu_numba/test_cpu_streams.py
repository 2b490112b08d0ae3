"""Results that are written past the caches, as large ones are, for small tensors of all formats."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

import llvmlite.binding as llvm
from checks import Target, check
from dnncore_cpu_numba.codegen import native, nontemporal
from dnncore_cpu_numba.codegen.isa import AVAILABLE, AVX512_CORE, SSE41
from dnncore_cpu_numba.convolution.depthwise import data as depthwise
from dnncore_cpu_numba.copies import reformat
from dnncore_cpu_numba.gemm import problem as gemm
from dnncore_cpu_numba.rows.apply_kernel import ApplyKernel
from dnncore_cpu_numba.runtime import tensor
from dnncore_cpu_numba.softmax import implementations as softmax
from instruction_sets import names_in_turn

import dnncore as dnn
from dnncore.problem import DRIVERS
from dnncore.testing import run_case
from dnncore.testing.problems.cases import cases

CPU = Target("cpu", "cpu", impl="cpu_numba:*")


@pytest.fixture(autouse=True)
def _all_is_streamed(monkeypatch):
    for module in (depthwise, reformat, gemm, softmax):
        monkeypatch.setattr(module, "STREAM_BYTES", 0)
    monkeypatch.setattr(tensor, "STREAM_RESULT_BYTES", 0)
    dnn.cache.primitives.clear()
    yield
    dnn.cache.primitives.clear()


def f32(driver):
    """About eight f32 problems of the kit's list "smoke"."""
    found = [p for p in cases("smoke", more=False) if str(p).startswith(f"--{driver} ")]
    found = [p for p in found if {d.data_type for _, d in p.op.tensors()} == {"f32"}]
    return found[:: max(1, len(found) // 8)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_streamed_results_are_right(driver):
    checks = ["integers", "random", "padding", "shifted"]
    results = [
        run_case(p, CPU.engine, impl=names_in_turn(p, CPU.engine, CPU.impl), checks=checks)
        for p in f32(driver)
    ]
    assert any(result.status == "passed" for result in results)
    assert not [str(result) for result in results if result.failures]


@pytest.mark.skipif(SSE41 not in AVAILABLE, reason="the instructions are those of x86 processors")
@pytest.mark.parametrize("data_type", ["f32", "bf16", "f16", "u8"])
def test_stores_are_non_temporal_with_avx512(data_type, monkeypatch):
    """LLVM could narrow the elements in the same instruction that stores them."""
    monkeypatch.setattr(nontemporal, "BEST", AVX512_CORE)
    kernel = ApplyKernel("f32", data_type, along=True, streamed=True)
    module = llvm.parse_assembly(kernel.llvm_text("kernel"))
    features = ",".join(f"+{name}" for name in sorted(AVX512_CORE.x86))
    machine = native._target().create_target_machine("x86-64-v4", features, 3)
    assert "vmovnt" in machine.emit_assembly(module)


@pytest.mark.parametrize("gap", [0, 1, 4, 16])
@pytest.mark.parametrize("columns", [64, 68, 76])
def test_products_whose_rows_begin_anywhere_in_a_line(columns, gap):
    """Rows are aligned only where their distance is a multiple of a cache line."""
    for rows in (1, 7, 70):
        src, weights = dnn.MemoryDesc((rows, 33)), dnn.MemoryDesc((33, columns))
        dst = dnn.MemoryDesc((rows, columns), strides=(columns + gap, 1))
        check(CPU, dnn.MatMul(src=src, weights=weights, dst=dst))
