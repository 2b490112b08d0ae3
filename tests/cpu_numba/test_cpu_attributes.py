"""Scales, zero points, dropout and stochastic rounding of the CPU backend outside of products.

Results are the reference's, bit by bit, where docs/types.md fixes each step. All types of reorders
are drawn, with any masks, groups and layouts.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba")

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case

CPU = dnn.engine("cpu")
STREAM = CPU.stream()
TYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s32", "s8", "u8", "s4", "u4")
INTEGERS = ("s32", "s8", "u8", "s4", "u4")
TAGS = {1: ("a",), 2: ("ab", "ba", "aB16b", "BA4b8a"), 3: ("abc", "cba", "acb", "aBc8b")}
PROBLEMS = read("""
--eltwise --dt=f64 --alg=mish --dir=BWD_D 3x37x5
--eltwise --dt=f64 --alg=hardswish --alpha=0.3 --beta=0.5 --attr-post-ops=sum:0.5 3x37x5
--eltwise --dt=f64 --alg=clip --alpha=-0.3 --beta=0.7 --dir=BWD_D 3x37x5
--softmax --sdt=f64 --ddt=f64 --axis=1 3x37x5
--softmax --dir=BWD_D --alg=LOGSOFTMAX --sdt=f64 --ddt=f64 --axis=1 3x37
--softmax --sdt=s8 --ddt=u8 --axis=1 --attr-scales=src:common+dst:common 3x50x7
--binary --alg=select --sdt=s8:u8:s8 --ddt=f32 --attr-scales=src0:0+src1:0 3x5x7:3x1x7:3x5x7
--pool --dt=f64 --alg=max --tag=axb mb2ic19ih9oh5kh3sh2ph1
--pool --dt=f64 --alg=avg_np mb2ic19ih9oh5kh3sh2ph1
--pool --dir=BWD_D --dt=f64 --alg=avg_np mb2ic19ih9oh5kh3sh2ph1
--reduction --sdt=f64 --ddt=f64 --alg=mean 3x9000:1x1
--reduction --sdt=f64 --ddt=f64 --alg=norm_lp_sum --p=1.5 --stag=ba 40x30:1x30
--reorder --sdt=f64 --ddt=f8_e4m3 33x7
--reorder --sdt=f32 --ddt=u4 --dtag=aBx8b 3x5x7
--reorder --sdt=s8 --ddt=u8 --attr-scales=dst:per_oc --attr-zero-points=src:0+dst:0 33x7
""")


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_problems(problem):
    result = run_case(problem, CPU, impl="cpu_numba:*", checks=["integers", "random"])
    assert not result.failures, str(result)
    assert result.impl_names


def filled(rng, name, desc):
    """A memory of random values; what pads its layout and lies beside it is random, too."""
    memory = dnn.Memory(desc, CPU)
    memory.buffer[...] = rng.integers(0, 256, memory.buffer.size)
    values = rng.standard_normal(desc.dims) * 8
    if name == "dropout_probability":
        values = np.full(desc.dims, 0.5)  # so that products are exact
    elif name.endswith("scales"):
        values = np.abs(values) + 0.1
    elif desc.data_type in INTEGERS or "seed" in name or "offset" in name:
        wide = np.iinfo(np.int32) if desc.data_type[0] == "s" and desc.itemsize >= 4 else None
        if wide and rng.random() < 0.5:
            values = rng.integers(wide.min, wide.max, desc.dims).astype(np.float64)
        limits = ml_dtypes.iinfo(desc.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max).astype(np.int64)
    desc.pack(values.astype(np.float32 if values.dtype == float else np.int64).astype(desc.dtype),
              memory.buffer)  # fmt: skip
    return memory


def outputs(op, attr, impl, seed):
    """The memories that an implementation writes, by name."""
    pd, rng = dnn.PrimitiveDesc(op, CPU, attr, impl=impl), np.random.default_rng(seed)
    given = {argument.name: filled(rng, argument.name, desc) for argument, desc in pd.arguments}
    pd.primitive().execute(STREAM, **given).wait()
    return {a.name: given[a.name] for a, _ in pd.arguments if a.direction == "out"}


def assert_equal(op, attr, seed):
    """The same bytes in all outputs as the reference's, but any NaN for NaN."""
    found, wanted = (outputs(op, attr, f"{name}:*", seed) for name in ("cpu_numba", "reference"))
    for name, memory in found.items():
        desc, other = memory.desc, wanted[name]
        values, expected = (desc.unpack(own.buffer).astype(np.float64) for own in (memory, other))
        np.testing.assert_array_equal(values, expected, err_msg=f"{name} of {op!r}, {attr!r}")
        if not np.isnan(values).any():
            np.testing.assert_array_equal(memory.buffer, other.buffer)


def drawn_values(rng, kind, types, dims):
    """Scales or zero points with any mask and groups."""
    mask = int(rng.integers(0, 1 << len(dims)))
    groups: tuple[int, ...] = ()
    if len(dims) > 1 and rng.random() < 0.5:
        groups = tuple(
            int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            if mask >> dim & 1 else 1
            for dim, size in list(enumerate(dims))[-2:]
        )  # fmt: skip
    return kind(mask, groups, str(rng.choice(types)))


def drawn_reorder(rng):
    dims = tuple(map(int, rng.integers(1, 19, rng.integers(1, 4))))
    descs = {}
    for name in ("src", "dst"):
        desc = dnn.MemoryDesc(dims, str(rng.choice(TYPES)), str(rng.choice(TAGS[len(dims)])))
        descs[name] = desc.with_offset0(int(rng.choice([0, 0, 1, 2, 3])))
    scales = {
        name: drawn_values(rng, dnn.Scales, ("f32", "f16", "bf16"), dims)
        for name in descs if rng.random() < 0.6
    }  # fmt: skip
    zero_points = {
        name: drawn_values(rng, dnn.ZeroPoints, INTEGERS, dims)
        for name, desc in descs.items() if desc.data_type in INTEGERS and rng.random() < 0.6
    }  # fmt: skip
    quantized = scales or zero_points  # each step is rounded to f32 then
    post_ops = [dnn.PostOp.sum(-1.3)] if quantized and rng.random() < 0.4 else []
    small = descs["dst"].data_type in ("f16", "bf16", "f8_e4m3", "f8_e5m2")
    rounding = "stochastic" if small and rng.random() < 0.5 else "environment"
    attr = dnn.Attributes(post_ops, scales=scales, zero_points=zero_points, rounding=rounding)
    return dnn.Reorder(**descs), attr


def test_drawn_reorders():
    for seed in range(120):
        assert_equal(*drawn_reorder(np.random.default_rng(seed)), seed)


def test_zero_points_that_no_f32_holds():
    desc = dnn.MemoryDesc((5, 7), "s32")
    zero_points = {"src": dnn.ZeroPoints(1, (), "s32"), "dst": dnn.ZeroPoints(2, (), "s32")}
    attr = dnn.Attributes(zero_points=zero_points, scales={"src": dnn.Scales(2)})
    for seed in range(6):
        assert_equal(dnn.Reorder(src=desc, dst=desc), attr, seed)


@pytest.mark.parametrize("tag", ["abc", "acb", "aBc8b"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f64"])
@pytest.mark.parametrize(
    "dropout",
    [dnn.Dropout(), dnn.Dropout("s32", has_offset=True, has_mask=False)],
    ids=["mask", "offset"],
)
def test_dropout(dropout, kind, tag):
    desc = dnn.MemoryDesc((3, 11, 13), kind, tag)
    attr = dnn.Attributes([dnn.PostOp.eltwise("linear", 2.0, 1.0)], dropout=dropout)
    op = dnn.EltwiseForward("forward_training", "linear", src=desc, dst=desc, alpha=0.5)
    assert_equal(op, attr, 3)


@pytest.mark.parametrize("tag", ["abcd", "aBcd8b"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_stochastic_rounding(kind, tag):
    desc = dnn.MemoryDesc((2, 9, 5, 6), kind, tag)
    attr = dnn.Attributes(rounding="stochastic")
    assert_equal(dnn.Sum([0.25, 0.5], srcs=[desc, desc], dst=desc), attr, 1)
    assert_equal(dnn.Binary("mul", src0=desc, src1=desc, dst=desc), attr, 2)
    op = dnn.PoolingForward("forward_inference", "max", src=desc, dst=desc, kernel=(1, 1))
    assert_equal(op, dnn.Attributes([dnn.PostOp.eltwise("linear", 0.25)], rounding="stochastic"), 3)


PROBABILITIES = (-np.inf, -0.5, 0.0, 2.0**-20, 1.0, 1.5, np.inf, np.nan)


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("impl", ["cpu_numba:*", "reference:*"])
def test_any_probability_of_dropout(impl, probability):
    desc = dnn.MemoryDesc((7, 9))
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    attr = dnn.Attributes(dropout=dnn.Dropout(has_mask=True))
    pd = dnn.PrimitiveDesc(op, CPU, attr, impl=impl)
    values = {"src": 1, "dropout_probability": probability, "dropout_seed": 7}
    given = {argument.name: dnn.Memory(own, CPU) for argument, own in pd.arguments}
    for name, value in values.items():
        given[name].fill(value)
    pd.primitive().execute(STREAM, **given).wait()
    assert (given["dropout_mask"].numpy() == (not probability >= 1)).all()
    one = np.float32(1)
    wanted = 0 if probability >= 1 else one / (one - np.float32(probability))
    np.testing.assert_array_equal(given["dst"].numpy(), np.full(desc.dims, wanted))
