"""OpenCL's inner product on CPUs by vectors of columns: formats, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks import Target, check
from conftest import TARGETS

import dnncore as dnn

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]


@pytest.fixture(params=OPENCL, ids=str)
def target(request) -> Target:
    """Each CPU, with this implementation alone."""
    if not request.param.engine.is_cpu:
        pytest.skip("GPUs have other inner products")
    return replace(request.param, impl="opencl:direct:simd")


def backward(src: dnn.MemoryDesc, oc: int = 21) -> dnn.InnerProductBackwardData:
    """The gradient by data, with weights in any format."""
    weights = dnn.MemoryDesc((oc, *src.dims[1:]), "f32", "any")
    diff_dst = dnn.MemoryDesc((src.dims[0], oc))
    return dnn.InnerProductBackwardData(diff_src=src, weights=weights, diff_dst=diff_dst)


def forward(src: dnn.MemoryDesc, oc: int = 21) -> dnn.InnerProductForward:
    """Forward, with weights in any format."""
    weights = dnn.MemoryDesc((oc, *src.dims[1:]), "f32", "any")
    dst = dnn.MemoryDesc((src.dims[0], oc))
    return dnn.InnerProductForward("forward_training", src=src, weights=weights, dst=dst)


def test_images_with_gaps_are_copied(target):
    check(target, forward(dnn.MemoryDesc((5, 6, 3, 4), strides=(100, 16, 5, 1))))
    check(target, forward(dnn.MemoryDesc((5, 19), strides=(20, 1))))
    check(target, backward(dnn.MemoryDesc((5, 19), strides=(20, 1))))
    check(target, backward(dnn.MemoryDesc((5, 19), strides=(40, 2))))
    op = backward(dnn.MemoryDesc((1, 19)), oc=1)
    check(target, op.with_descs(diff_dst=dnn.MemoryDesc((1, 1), strides=(3, 3), offset0=2)))


@pytest.mark.parametrize("dims", [(5, 32), (5, 32, 3, 2)])
def test_post_ops_of_gradients(target, dims):
    """Pixels have no index, so that operands need a matrix."""
    op = backward(dnn.MemoryDesc(dims, "f32", "any"))
    factors = dnn.MemoryDesc((1, *dims[1:]))
    check(target, op, dnn.Attributes([dnn.PostOp.eltwise("relu")]))
    attr = dnn.Attributes([dnn.PostOp.eltwise("relu"), dnn.PostOp.binary("mul", factors)])
    if len(dims) == 2:
        check(target, op, attr)
        return
    with pytest.raises(dnn.NoImplementation, match="operands of post-ops if src has 2 dims; got 4"):
        dnn.PrimitiveDesc(op, target.engine, attr, impl=target.impl)


def test_more_elements_than_32_bits_count_are_refused(target):
    op = forward(dnn.MemoryDesc((70_000, 40_000)), oc=1)
    with pytest.raises(dnn.NoImplementation, match="src must span 2147418112 elements at most"):
        dnn.PrimitiveDesc(op, target.engine, impl=target.impl)
