"""Products of 8-bit integers on the instruction sets: equal to the reference, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.isa import AVAILABLE
from instruction_sets import in_turn

import dnncore as dnn

CPU = dnn.engine("cpu")
STREAM = CPU.stream()
STORED = ("u8", "s8", "s32", "f32", "f16", "bf16")
CASES = 12  # drawn for each test


def values(rng, desc, low=-120, high=120):
    """Random values of a type, of all its integers if it has 8 bits."""
    if desc.data_type in ("u8", "s8"):
        limits = np.iinfo(desc.dtype)
        return rng.integers(limits.min, limits.max, desc.dims, desc.dtype, endpoint=True)
    return rng.integers(low, high, desc.dims).astype(desc.dtype)


def memory(array, desc):
    plain = dnn.Memory.from_numpy(
        np.ascontiguousarray(array), dnn.MemoryDesc(desc.dims, desc.data_type), CPU
    )
    return dnn.reorder(plain, desc, CPU, STREAM)


def result(pd, inputs):
    """What a primitive computes; dst begins with ones."""
    dst = dnn.Memory(pd.dst_desc, CPU)
    dst.fill(1)
    given = {
        argument.name: memory(inputs[argument.name], desc)
        for argument, desc in pd.arguments
        if argument.direction == "in"
    }
    pd.primitive().execute(STREAM, dst=dst, **given)
    return dst.numpy()


def check(op, attr, rng):
    """Implementations of this backend give the reference's result; one accepts for each set of
    vectors. Of each algorithm, two sets in turn compute."""
    reference = dnn.PrimitiveDesc(op, CPU, attr, impl="reference:*")
    inputs = {}
    for argument, desc in reference.arguments:
        if argument.direction == "in":
            inputs[argument.name] = values(rng, desc)
            if argument.name.endswith("_scales"):
                inputs[argument.name] = (2.0 ** rng.uniform(-9, -1, desc.dims)).astype(desc.dtype)
    expected = result(reference, inputs)
    found = list(dnn.primitive_descs(op, CPU, attr, impl="cpu_numba:*"))
    assert len(found) >= len(AVAILABLE), dnn.PrimitiveDesc(op, CPU, attr).explain()
    for pd in in_turn(found):
        got = result(pd, inputs)
        np.testing.assert_array_equal(
            got.astype(np.float64), expected.astype(np.float64), f"{pd.impl_name} {op} {attr}"
        )


def drawn_attributes(rng, op, weights_mask, *, weights_zero=True):
    """Scales, zero points and post-ops, each with even chances."""
    scales, zero_points, post_ops = {}, {}, []
    for name, masks in (("src", (0,)), ("weights", (0, weights_mask)), ("dst", (0,))):
        if rng.random() < 0.5:
            scales[name] = dnn.Scales(mask=int(rng.choice(masks)))
        integer = getattr(op, name).data_type in ("u8", "s8", "s32")
        if integer and (weights_zero or name != "weights") and rng.random() < 0.5:
            zero_points[name] = dnn.ZeroPoints(data_type=str(rng.choice(["s32", "s8", "u8"])))
    dims = (1, op.dst.dims[1], *[1] * (op.dst.ndims - 2))
    steps = [
        dnn.PostOp.eltwise("relu"),
        dnn.PostOp.eltwise("linear", 0.3, 0.7),
        dnn.PostOp.sum(0.7),
        dnn.PostOp.binary("mul", dnn.MemoryDesc(dims)),
        dnn.PostOp.eltwise("hardswish", 0.1, 0.5),
    ]
    post_ops = [step for step in steps if rng.random() < 0.3]
    return dnn.Attributes(scales=scales, zero_points=zero_points, post_ops=post_ops)


def plain_or_any(rng, dims, data_type, *tags):
    return dnn.MemoryDesc(dims, data_type, str(rng.choice(["any", *tags])))


@pytest.mark.parametrize("seed", range(CASES))
def test_convolutions(seed):
    rng = np.random.default_rng(seed)
    groups, n = (int(x) for x in (rng.choice([1, 1, 2]), rng.integers(0 if seed == 5 else 1, 3)))
    ic, oc = (int(x) for x in rng.integers(1, 36, 2))
    kh, kw = (int(x) for x in rng.integers(1, 4, 2))
    stride, pad, dilation = (int(x) for x in (rng.integers(1, 3), rng.integers(0, 3), seed % 2))
    h, w = (int(x) for x in rng.integers(6, 10, 2))
    out = [
        (size + 2 * pad - (k - 1) * (dilation + 1) - 1) // stride + 1
        for size, k in ((h, kh), (w, kw))
    ]
    tags = ("abcd", "acdb", "aBcd16b")
    grouped = (groups,) if groups > 1 else ()
    bias = str(rng.choice(["", *STORED]))
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=plain_or_any(rng, (n, groups * ic, h, w), str(rng.choice(["u8", "s8"])), *tags),
        weights=dnn.MemoryDesc((*grouped, oc, ic, kh, kw), "s8", "any"),
        bias=dnn.MemoryDesc((groups * oc,), bias) if bias else None,
        dst=plain_or_any(rng, (n, groups * oc, *out), str(rng.choice(STORED)), *tags),
        strides=(stride, stride), dilations=(dilation, dilation), padding_l=(pad, pad),
    )  # fmt: skip
    check(op, drawn_attributes(rng, op, 3 if grouped else 1), rng)


@pytest.mark.parametrize("seed", range(6))
def test_depthwise_convolutions(seed):
    rng = np.random.default_rng(50 + seed)
    groups, multiplier = int(rng.integers(2, 40)), int(rng.integers(1, 3))
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=plain_or_any(
            rng, (2, groups, 9, 8), str(rng.choice(["u8", "s8"])), "abcd", "acdb", "aBcd16b"
        ),
        weights=dnn.MemoryDesc((groups, multiplier, 1, 3, 3), "s8", "any"),
        bias=dnn.MemoryDesc((groups * multiplier,), str(rng.choice(STORED))),
        dst=plain_or_any(rng, (2, groups * multiplier, 9, 8), str(rng.choice(STORED)), "acdb"),
        padding_l=(1, 1),
    )
    attr = drawn_attributes(rng, op, 3)
    if seed % 2:
        attr = dnn.Attributes(scales=attr.scales, post_ops=attr.post_ops)
    if seed % 2 or multiplier == 1:
        assert dnn.PrimitiveDesc(op, CPU, attr, impl="cpu_numba:depthwise:*")
    check(op, attr, rng)


def test_small_types_of_attributes_of_several_channels_per_group():
    """Depthwise convolution reads the channels in another order then."""
    src, weights = dnn.MemoryDesc((2, 9, 7), "s8"), dnn.MemoryDesc((9, 2, 1, 3), "s8")
    dst = dnn.MemoryDesc((2, 18, 5), "s32")
    op = dnn.ConvolutionForward("forward_inference", src=src, weights=weights, dst=dst)
    attr = dnn.Attributes(
        scales={"weights": dnn.Scales(3, (), "bf16"), "dst": dnn.Scales(0, (), "f16")},
        zero_points={"dst": dnn.ZeroPoints(2, (), "u8")},
    )
    check(op, attr, np.random.default_rng(0))
    assert dnn.PrimitiveDesc(op, CPU, attr, impl="cpu_numba:depthwise:*")


def test_windows_that_leave_out_a_part_of_a_block():
    src = dnn.MemoryDesc((1, 2, 3, 27), "s8", "abcD16d")
    op = dnn.ConvolutionForward(
        "forward_inference", src=src, weights=dnn.MemoryDesc((5, 2, 1, 4), "s8"),
        dst=dnn.MemoryDesc((1, 5, 3, 7), "s32"), strides=(1, 4), padding_l=(0, 3), padding_r=(0, 0),
    )  # fmt: skip
    check(op, dnn.Attributes(), np.random.default_rng(0))


@pytest.mark.parametrize("tag", ["abcd", "acdb"])
@pytest.mark.parametrize("batch", [1, 2])
def test_single_taps_beyond_the_end_of_images(batch, tag):
    src = dnn.MemoryDesc((batch, 5, 4, 3), "u8", tag)
    weights = dnn.MemoryDesc((7, 5, 1, 1), "s8")
    dst = dnn.MemoryDesc((batch, 7, 3, 3), "s32")
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=src,
        weights=weights,
        dst=dst,
        strides=(2, 2),
        padding_r=(1, 2),
    )
    rng = np.random.default_rng(0)
    for zero_points in ({}, {"src": dnn.ZeroPoints()}):
        check(op, dnn.Attributes(zero_points=zero_points), rng)


@pytest.mark.parametrize("seed", range(CASES))
def test_matrices(seed):
    rng = np.random.default_rng(100 + seed)
    m, k, n = (int(x) for x in rng.choice([1, 3, 16, 33, 100], 3))
    batch = () if seed % 2 else (2,)
    tags = ("abc", "acb") if batch else ("ab", "ba")
    bias = str(rng.choice(["", *STORED]))
    weights_type = "u8" if seed % 5 == 4 else "s8"
    op = dnn.MatMul(
        src=plain_or_any(rng, (*batch, m, k), str(rng.choice(["u8", "s8"])), *tags),
        weights=plain_or_any(rng, (*batch, k, n), weights_type, *tags),
        bias=dnn.MemoryDesc((*(1 for _ in batch), 1, n), bias) if bias else None,
        dst=plain_or_any(rng, (*batch, m, n), str(rng.choice(STORED)), *tags),
    )
    check(op, drawn_attributes(rng, op, 1 << (len(batch) + 1)), rng)


@pytest.mark.parametrize("seed", range(CASES))
def test_inner_products(seed):
    rng = np.random.default_rng(200 + seed)
    n, ic, oc = (int(x) for x in rng.choice([1, 4, 17, 40], 3))
    spatial = (3, 2) if seed % 2 else ()
    tags = ("abcd", "acdb") if spatial else ("ab", "ba")
    bias = str(rng.choice(["", *STORED]))
    op = dnn.InnerProductForward(
        "forward_inference",
        src=plain_or_any(rng, (n, ic, *spatial), str(rng.choice(["u8", "s8"])), *tags),
        weights=dnn.MemoryDesc((oc, ic, *spatial), "s8", "any"),
        bias=dnn.MemoryDesc((oc,), bias) if bias else None,
        dst=plain_or_any(rng, (n, oc), str(rng.choice(STORED)), "ab", "ba"),
    )
    check(op, drawn_attributes(rng, op, 1), rng)


def test_sums_wrap_around():
    """A sum of 300,000 products of 255 and 127 is more than 2^31."""
    k = 300_000
    op = dnn.MatMul(
        src=dnn.MemoryDesc((2, k), "u8"), weights=dnn.MemoryDesc((k, 3), "s8"),
        dst=dnn.MemoryDesc((2, 3), "s32"),
    )  # fmt: skip
    inputs = {"src": np.full((2, k), 255, np.uint8), "weights": np.full((k, 3), 127, np.int8)}
    expected = np.array(255 * 127 * k).astype(np.int32).astype(np.float32)
    for pd in dnn.primitive_descs(op, CPU, impl="cpu_numba:*"):
        assert (result(pd, inputs) == expected.astype(np.int64)).all()
