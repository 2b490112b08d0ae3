"""Reorder: any format to any other, conversions of type, and across engines."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnncore as dnn
from dnncore.comparison.fills import fill_integers, fill_normal

TAGS = {
    1: ("a",),
    2: ("ab", "ba", "Ab8a", "BA16a4b"),
    3: ("abc", "cab", "aBc8b", "ABc4a4b"),
    4: ("abcd", "acdb", "bcda", "aBcd8b", "aBcd16b", "ABcd8b8a", "ABcd4a8b2a"),
    5: ("abcde", "acdeb", "aBCde4c4b"),
}
TYPES = ("f32", "f64", "f16", "bf16", "s32", "s8", "u8")


def reorder(src, dst):
    return dnn.Reorder(src=src, dst=dst)


FOUR = ("abcd", "acdb", "bcda", "aBcd8b", "ABcd4a8b2a")
pairs = [(a, b) for a in FOUR for b in FOUR if a != b]


@pytest.mark.parametrize(("src", "dst"), pairs, ids=["-".join(p) for p in pairs])
def test_between_formats(target: Target, src, dst):
    dims = (3, 19, 2, 5)
    check(target, reorder(dnn.MemoryDesc(dims, "f32", src), dnn.MemoryDesc(dims, "f32", dst)))


@pytest.mark.parametrize(("src", "dst"), [("aBc24b", "aBc16b"), ("aBc4b", "aBc6b")])
def test_blocks_that_do_not_nest(target: Target, src, dst):
    dims = (2, 70, 3)
    check(target, reorder(dnn.MemoryDesc(dims, "f32", src), dnn.MemoryDesc(dims, "f32", dst)))


@pytest.mark.parametrize("tag", ["OIhw8i8o", "OIhw16i16o", "hwio", "OIhw4i16o4i"])
def test_weights(target: Target, tag):
    plain = dnn.MemoryDesc((21, 13, 3, 2), "f32", "oihw")
    packed = plain.with_format(tag)
    check(target, reorder(plain, packed))
    check(target, reorder(packed, plain))


def test_grouped_weights(target: Target):
    plain = dnn.MemoryDesc((3, 5, 9, 2, 2), "f32", "goihw")
    check(target, reorder(plain, plain.with_format("gOIhw8i8o")))


@pytest.mark.parametrize("data_type", TYPES)
def test_between_types(target: Target, data_type):
    """f32 to and from every type must work everywhere; f64 where a device has it."""
    a = dnn.MemoryDesc((5, 9), "f32", "ab")
    b = dnn.MemoryDesc((5, 9), data_type, "ba")
    check(target, reorder(a, b), may_refuse=data_type == "f64")
    check(target, reorder(b, a), may_refuse=data_type == "f64")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("src", TYPES)
@pytest.mark.parametrize("dst", TYPES)
def test_between_all_types(target: Target, src, dst):
    descs = (dnn.MemoryDesc((5, 9), data_type) for data_type in (src, dst))
    check(target, reorder(*descs), may_refuse="f64" in (src, dst))


HALF_VALUES = [
    0.0, -0.0, 1.0, 1 + 2.0**-11, 1 + 2.0**-10, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 2.0**-9,
    1 + 3 * 2.0**-9, 65504.0, 65519.9, 65520.0, 3.3895e38, 3.4e38, 2.0**-14, 2.0**-24, 2.0**-25,
    1.5 * 2.0**-25, 3 * 2.0**-26, 1e-40, 1e-45, np.inf, -np.inf, np.nan, -65520.0, 1e30, -1e-30,
]  # fmt: skip


@pytest.mark.parametrize("dst", ["f16", "bf16"])
def test_halves_are_rounded_to_even_at_the_edges(target: Target, dst):
    """Ties, the largest numbers, denormal ones and what is beyond."""
    src = np.array(HALF_VALUES, np.float32)
    op = reorder(dnn.MemoryDesc(src.shape), dnn.MemoryDesc(src.shape, dst))
    check(target, op, inputs={"src": src})


@pytest.mark.parametrize("dst", ["f16", "bf16"])
def test_f64_is_rounded_once(target: Target, dst):
    """By way of float32 these would become a tie, and then round the other way."""
    tie = 1 + 2.0 ** (-11 if dst == "f16" else -8)
    src = np.array([tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, tie, np.nan, 1e300, 1e-300])
    src = np.concatenate([src, src[:4] / 2])
    op = reorder(dnn.MemoryDesc(src.shape, "f64"), dnn.MemoryDesc(src.shape, dst))
    check(target, op, inputs={"src": src}, may_refuse=True)
    step = 2.0 ** (-10 if dst == "f16" else -7)
    golden = [1 + step, 1.0, -1 - step, 1.0, np.nan, np.inf, 0.0]
    golden += [value / 2 for value in golden[:4]]
    got = reference_outputs(op, {"src": src})["dst"].astype(np.float64)
    assert np.array_equal(got, golden, equal_nan=True)


@pytest.mark.parametrize("src", ["f16", "bf16"])
def test_every_half_number_is_kept(target: Target, src):
    """All 65,536 bit patterns, NaN's payload aside."""
    desc = dnn.MemoryDesc((65536,), src)
    values = np.arange(65536, dtype=np.uint16).view(desc.dtype)
    check(target, reorder(desc, desc.with_data_type("f32")), inputs={"src": values})


@pytest.mark.parametrize("dst", ["s32", "s8", "u8"])
@pytest.mark.parametrize("src_type", [np.float32, np.float64])
def test_rounding_is_half_to_even_and_saturates(target: Target, src_type, dst):
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128.0, 255.5, 256.0, -128.5, -129.0, -1.0]
    values += [1e9, 2147483520.0, 2147483648.0, -2147483648.0, 3e38, -3e38, np.inf, -np.inf, np.nan]
    if src_type is np.float64:
        values += [2147483600.0, 2147483645.5, 2147483646.5, 2147483647.5, -2147483647.5]
        values += [-2147483648.5, 1e300, -1e300]
    src = np.array(values, src_type)
    types = {np.float32: "f32", np.float64: "f64"}
    op = reorder(dnn.MemoryDesc(src.shape, types[src_type]), dnn.MemoryDesc(src.shape, dst))
    check(target, op, inputs={"src": src})


def test_large_integers_round_to_the_nearest_float(target: Target):
    src = np.array([2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**31 - 1, -(2**31)], np.int32)
    op = reorder(dnn.MemoryDesc(src.shape, "s32"), dnn.MemoryDesc(src.shape))
    check(target, op, inputs={"src": src})


def test_float_values_keep_every_bit(target: Target):
    src = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38], np.float32).reshape(2, 3)
    desc = dnn.MemoryDesc(src.shape)
    op = reorder(desc, desc.with_format("ba"))
    for pd in target.primitive_descs(op):
        got = run(pd, {"src": src})["dst"]
        same = (got.view(np.int32) == src.view(np.int32)) | np.isnan(src)
        assert same.all(), pd.impl_name


def test_parts_of_larger_tensors(target: Target):
    part = dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3))
    dense = dnn.MemoryDesc((3, 4, 5), "f32", "cab")
    check(target, reorder(part, dense))
    check(target, reorder(dense, part))
    check(target, reorder(part, dnn.MemoryDesc((3, 4, 5), "f32", "aBc8b")))


def test_a_repeated_source(target: Target):
    """Stride 0 repeats a dim of src."""
    src = dnn.MemoryDesc((4, 6), strides=(0, 1))
    op = reorder(src, dnn.MemoryDesc((4, 6), "f32", "ba"))
    row = fill_normal(dnn.MemoryDesc((6,)), 0)
    for pd in target.primitive_descs(op, may_refuse=True):
        memory = dnn.Memory.from_numpy(row, engine=pd.engine)
        dst = dnn.Memory(pd.dst_desc, pd.engine)
        stream = pd.engine.stream()
        repeated = dnn.Memory(src, pd.engine, memory.buffer)
        pd.primitive().execute(stream, src=repeated, dst=dst).wait()
        assert np.array_equal(dst.numpy(stream), np.tile(row, (4, 1))), pd.impl_name


@pytest.mark.parametrize("dims", [(0,), (0, 5), (3, 0, 4)])
def test_nothing(target: Target, dims):
    desc = dnn.MemoryDesc(dims)
    check(target, reorder(desc, desc.with_data_type("s32")))


@st.composite
def reorders(draw):
    ndims = draw(st.integers(1, 5))
    dims = draw(st.tuples(*[st.integers(1, 20 if ndims < 4 else 9)] * ndims))
    src, dst = (draw(st.sampled_from(TAGS[ndims])) for _ in range(2))
    types = draw(st.sampled_from([("f32", "f32"), ("f32", "s8"), ("u8", "f32"), ("s32", "f32")]))
    descs = (dnn.MemoryDesc(dims, t, tag) for t, tag in zip(types, (src, dst), strict=True))
    return reorder(*descs)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(op=reorders())
def test_any_shape(target: Target, op):
    check(target, op)


# -- across engines -------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["abcd", "aBcd8b"])
@pytest.mark.parametrize("data_type", ["f32", "s32"])
def test_to_an_engine_and_back(target: Target, cpu, tag, data_type):
    source = dnn.MemoryDesc((2, 5, 3, 4), "f32", "acdb")
    values = fill_integers(source, 0)
    there = dnn.reorder(
        dnn.Memory.from_numpy(values, source, cpu),
        dnn.MemoryDesc(source.dims, data_type, tag),
        engine=target.engine,
    )
    assert there.engine is target.engine
    assert np.array_equal(there.numpy(), values)
    back = dnn.reorder(there, source, engine=cpu)
    assert np.array_equal(back.numpy(), values)


# -- the reference itself -------------------------------------------------------------------------


def test_golden_formats(cpu):
    src = dnn.Memory.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), engine=cpu)
    desc = dnn.MemoryDesc((2, 3), "f32", "Ba2b")
    op = reorder(src.desc, desc)
    dst = dnn.Memory(desc, cpu)
    pd = dnn.PrimitiveDesc(op, cpu, impl="reference:*")
    pd.primitive().execute(cpu.stream(), src=src, dst=dst)
    # blocks of two columns: columns 0 and 1 of both rows, then column 2 with its padding
    assert dst.buffer.view(np.float32)[:8].tolist() == [0, 1, 3, 4, 2, 0, 5, 0]


def test_golden_types():
    src = np.array([0.5, 1.5, 300.0, -300.0, np.nan])
    for data_type, expected in [("s8", [0, 2, 127, -128, 0]), ("u8", [0, 2, 255, 0, 0])]:
        op = reorder(dnn.MemoryDesc((5,)), dnn.MemoryDesc((5,), data_type))
        assert reference_outputs(op, {"src": src})["dst"].tolist() == expected


@pytest.mark.parametrize(
    ("data_type", "limit", "largest", "beyond"),
    [("f8_e4m3", 464.0, 448.0, np.nan), ("f8_e5m2", 61439.996, 57344.0, np.inf)],
)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_numbers_beyond_f8_do_not_saturate(
    target: Target, source, data_type, limit, largest, beyond
):
    dtype = dnn.MemoryDesc((1,), source).dtype
    over = np.nextafter(np.float32(limit), np.float32(np.inf))
    values = np.array([limit, over, 1e9, np.inf, np.nan, -limit, -over], dtype)
    op = reorder(dnn.MemoryDesc(values.shape, source), dnn.MemoryDesc(values.shape, data_type))
    right = np.array([largest, beyond, beyond, beyond, np.nan, -largest, -beyond], np.float32)
    for pd in target.primitive_descs(op):
        found = run(pd, {"src": values})["dst"].astype(np.float32)
        np.testing.assert_array_equal(found, right)
