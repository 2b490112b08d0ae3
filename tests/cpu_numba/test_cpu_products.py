"""What only the CPU backend's products of matrices do: few rows that share a large B."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from checks import Target, check
from dnncore_cpu_numba.gemm import product, tiling

import dnncore as dnn
from dnncore import functional
from dnncore.problem import read

CPU = Target("cpu", "cpu", skip_impl="reference:*")


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    """Any B is larger than a second-level cache; chunks have a few steps of k."""
    monkeypatch.setattr(product, "SECOND_LEVEL", 0)
    monkeypatch.setattr(tiling, "SECOND_LEVEL", 0)
    monkeypatch.setattr(product, "SHARED_DEPTH", 12)


def matmul(src, weights, tags=(None, "any"), **desc):
    """The operation on row-major dst."""
    dims = (*(max(pair) for pair in zip(src[:-2], weights[:-2], strict=True)), src[-2], weights[-1])
    return dnn.MatMul(
        src=dnn.MemoryDesc(src, "f32", tags[0]),
        weights=dnn.MemoryDesc(weights, "f32", tags[1]),
        dst=dnn.MemoryDesc(dims),
        **desc,
    )


@pytest.mark.parametrize("weights_tag", ["any", "ab", "ba"])
@pytest.mark.parametrize("src_tag", ["ab", "ba"])
@pytest.mark.parametrize("rows", [8, 9, 20, 33, 64, 65])
def test_few_rows(rows, src_tag, weights_tag):
    bias = dnn.MemoryDesc((1, 83))
    check(CPU, matmul((rows, 51), (51, 83), (src_tag, weights_tag), bias=bias))


@pytest.mark.parametrize("depth", [33, 256])
def test_many_rows_that_are_contiguous_along_m(monkeypatch, depth):
    """They are copied. The rows of the copy do not share sets of a cache."""
    monkeypatch.setattr(product, "FAR_BYTES", 0)
    check(CPU, matmul((2, 130, depth), (2, depth, 129), ("acb", "any")))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_tiles_of_few_rows(rows):
    """Panels of 3, 4 and 8 vectors, and a last one with fewer."""
    check(CPU, matmul((rows, 51), (51, 210)))


@pytest.mark.parametrize("rows", [1, 20])
def test_a_small_sum_after_a_large_one_is_not_lost(rows):
    """Each chunk is summed by itself. In one sum, 2^24 + 1 would be 2^24 each time."""
    depth = 2 * product.DEPTH
    src = np.ones((rows, depth), np.float32)
    src[:, : product.DEPTH] = 0
    src[:, 0] = 2**24
    dst = functional.matmul(src, np.ones((depth, 40), np.float32))
    assert (dst == 2**24 + product.DEPTH).all()


@pytest.mark.parametrize("weights", [(3, 31, 83), (1, 31, 83)], ids=["own", "shared"])
@pytest.mark.parametrize("tags", [("abc", "abc"), ("acb", "acb")], ids="-".join)
def test_batches(weights, tags):
    check(CPU, matmul((3, 12, 31), weights, tags))


@pytest.mark.parametrize("sums", [False, True])
def test_post_ops(sums):
    steps = [dnn.PostOp.eltwise("relu"), dnn.PostOp.binary("add", dnn.MemoryDesc((1, 83)))]
    attr = dnn.Attributes([*steps, dnn.PostOp.sum()] if sums else steps)
    check(CPU, matmul((33, 51), (51, 83)), attr)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_inner_product(direction):
    src, dst = dnn.MemoryDesc((20, 5, 3, 3), "f32", "any"), dnn.MemoryDesc((20, 83), "f32", "any")
    weights = dnn.MemoryDesc((83, 5, 3, 3), "f32", "any")
    if direction == "forward":
        check(CPU, dnn.InnerProductForward("forward_inference", src=src, weights=weights, dst=dst))
    else:
        check(CPU, dnn.InnerProductBackwardData(diff_src=src, weights=weights, diff_dst=dst))


@pytest.mark.parametrize("text", [
    "--matmul --dt=bf16:bf16:f32 3x64:64x5",
    "--ip --dir=FWD_D --dt=bf16:bf16:f32 mb3ic64oc5",
    "--ip --dir=BWD_W --dt=bf16:f32:bf16 mb64ic3oc5",
    "--conv --dir=FWD_D --dt=bf16:bf16:f32 mb1ic64ih1oc5oh1kh1ph0",
    "--conv --dir=BWD_D --dt=f32:bf16:bf16 mb1ic5ih1oc64oh1kh1ph0",
    "--conv --dir=BWD_W --dt=bf16:f32:bf16 mb64ic3ih1oc5oh1kh1ph0",
])  # fmt: skip
def test_subnormal_numbers_of_bf16_count_with_fpmath_ieee(text):
    (problem,) = read(text)
    cpu = dnn.engine("cpu")
    served = list(dnn.primitive_descs(problem.op, cpu, dnn.Attributes(fpmath="ieee")))
    assert len(served) > 1  # one is the reference
    for pd in served:
        memories = {name: dnn.Memory(desc, cpu) for name, desc in pd.descs.items()}
        factors = [memories[a.name] for a, _ in pd.arguments if a.direction == "in"]
        for memory, value in zip(factors, (2.0**-127, 2.0**127), strict=True):
            values = np.full(memory.desc.dims, value, memory.desc.dtype)
            memory.desc.pack(values, memory.buffer)
        pd.primitive().execute(cpu.stream(), **memories).wait()
        assert np.all(memories[pd.op.result_name].numpy() == 64), pd.impl_name
