"""What only the CPU backend's products of matrices do: few rows that share a large B."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

from checks import Target, check
from dnncore_cpu_numba.gemm import product, tiling

import dnncore as dnn

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
