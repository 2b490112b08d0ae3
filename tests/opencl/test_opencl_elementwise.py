"""OpenCL kernels that work element by element: what shapes and chains make them change course."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check
from conftest import TARGETS

import dnncore as dnn

OPENCL = [t for t in TARGETS if t.engine_name.startswith("opencl")]
DIMS = (2, 19, 3, 2)


@pytest.fixture(params=OPENCL, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """Each OpenCL device."""
    return request.param


@pytest.mark.in_turn
@pytest.mark.parametrize("count", [16, 17, 33])
@pytest.mark.parametrize("tag", ["abcd", "nChw16c"])
def test_sums_in_several_passes_run_their_chain_once(target: Target, count, tag):
    """Partial sums must neither run the chain nor spoil the old dst that it reads."""
    desc = dnn.MemoryDesc(DIMS, "f32", tag)
    other = desc.with_format("acdb")
    op = dnn.Sum(
        [(-1.0) ** i * (1 + i % 3) for i in range(count)],
        srcs=[desc if i % 3 else other for i in range(count)],
        dst=desc,
    )
    factors = dnn.MemoryDesc((1, 19, 1, 1), "f32", "abcd")
    chain = (
        dnn.PostOp.eltwise("relu"),
        dnn.PostOp.sum(0.5),
        dnn.PostOp.binary("mul", factors),
        dnn.PostOp.eltwise("linear", 1.0, 2.0),
    )
    check(target, op, dnn.Attributes(chain))


@pytest.mark.parametrize("scales", [(-1.0,), (-1.0, -2.0), (-1.0, 1.0)])
def test_padding_is_plus_zero_where_scales_are_negative(target: Target, scales):
    desc = dnn.MemoryDesc(DIMS, "f32", "nChw16c")
    check(target, dnn.Sum(scales, srcs=[desc] * len(scales), dst=desc))


@pytest.mark.parametrize("algorithm", ["elu", "hardsigmoid", "linear", "relu"])
def test_padding_is_plus_zero_where_slopes_are_negative(target: Target, algorithm):
    desc = dnn.MemoryDesc(DIMS, "f32", "nChw16c")
    tensors = {"src": desc, "diff_dst": desc, "diff_src": desc}
    check(target, dnn.EltwiseBackward(algorithm, alpha=-0.5, beta=0.25, **tensors))


@pytest.mark.in_turn
@pytest.mark.parametrize("blocks", [(16, 24), (24, 16), (6, 4)])
def test_blocks_that_do_not_nest_are_one_loop(target: Target, blocks):
    src, dst = (dnn.MemoryDesc((2, 50, 3), "f32", f"aBc{block}b") for block in blocks)
    check(target, dnn.Reorder(src=src, dst=dst))
    descs = {"src0": src, "src1": dst, "dst": src}
    check(target, dnn.Binary("add", **descs), dnn.Attributes((dnn.PostOp.sum(0.5),)))


@pytest.mark.in_turn
@pytest.mark.parametrize("length", [19, 300])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_softmax_adds_to_a_dst_that_it_may_not_use(target: Target, length, axis, algorithm):
    """Exponentials are kept in dst, unless the chain reads what was there."""
    dims = (3, length, 4)
    desc = dnn.MemoryDesc(dims, "f32", "abc")
    along = dnn.MemoryDesc(tuple(n if i == axis else 1 for i, n in enumerate(dims)), "f32", "abc")
    chain = (dnn.PostOp.sum(0.5), dnn.PostOp.binary("mul", along), dnn.PostOp.prelu(along))
    op = dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=axis)
    check(target, op, dnn.Attributes(chain))


@pytest.mark.in_turn
@pytest.mark.parametrize("src", ["f32", "f16", "bf16", "s8"])
@pytest.mark.parametrize("dst", ["f32", "f16", "bf16"])
def test_reorders_of_small_types_run_chains(target: Target, src, dst):
    source = dnn.MemoryDesc(DIMS, src, "abcd")
    result = dnn.MemoryDesc(DIMS, dst, "acdb")
    chain = (dnn.PostOp.eltwise("linear", 2.0, 1.0), dnn.PostOp.sum(0.5))
    check(target, dnn.Reorder(src=source, dst=result), dnn.Attributes(chain))


@pytest.mark.parametrize("dst", ["f16", "bf16"])
@pytest.mark.parametrize("src", ["s32", "f64"])
def test_wide_numbers_are_rounded_once(target: Target, src, dst):
    """By way of a rounded float32 many of these would be ties."""
    rng = np.random.default_rng(0)
    whole = rng.integers(2**8, 2**9, 4096) * 2**22 + rng.integers(-2, 3, 4096) + 2**21
    values = np.concatenate([whole, -whole]).clip(-(2**31), 2**31 - 1)
    desc = dnn.MemoryDesc(values.shape, src)
    op = dnn.Reorder(src=desc, dst=desc.with_data_type(dst))
    check(target, op, inputs={"src": values.astype(desc.dtype)}, may_refuse=src == "f64")


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_softmax_of_one_row_with_gaps(target: Target, algorithm):
    desc = dnn.MemoryDesc((19,), strides=(3,))
    op = dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=0)
    check(target, op)
