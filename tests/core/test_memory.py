"""Memories: allocation, sharing, mapping, layouts."""

import gc
import math
import weakref
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import dnncore as dnn

CPU = dnn.engine("cpu")


def test_allocation_is_aligned_and_has_room():
    for dims in [(1,), (3, 5, 7), (64, 64)]:
        memory = dnn.Memory(dnn.MemoryDesc(dims), CPU)
        assert memory.address % 64 == 0
        assert memory.buffer.size >= memory.nbytes == 4 * np.prod(dims)


def test_a_contiguous_array_is_shared():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = dnn.Memory.from_numpy(array, engine=CPU)
    array[1, 2] = 99
    assert memory.numpy()[1, 2] == 99
    assert np.shares_memory(memory.numpy(), array)


def test_a_transposed_array_is_shared_when_the_descriptor_says_so():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = dnn.Memory.from_numpy(array.T, dnn.MemoryDesc((4, 3), "f32", "ba"), CPU)
    assert np.shares_memory(memory.buffer, array)
    np.testing.assert_array_equal(memory.numpy(), array.T)


@pytest.mark.parametrize("case", ["read-only", "strided", "blocked", "reversed", "broadcast"])
def test_what_cannot_be_shared_is_copied(case):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    format = "aBc16b" if case == "blocked" else None
    if case == "read-only":
        array.flags.writeable = False
    view = {"strided": array[:, :, ::2], "reversed": array[::-1]}.get(case, array)
    if case == "broadcast":
        view = np.broadcast_to(array[:1], (2, 3, 4))
    memory = dnn.Memory.from_numpy(view, dnn.MemoryDesc(view.shape, "f32", format), CPU)
    assert not np.shares_memory(memory.buffer, array)
    np.testing.assert_array_equal(memory.numpy(), view)


def test_blocked_values_lie_where_the_layout_says_and_padding_is_zero():
    array = np.arange(1, 41, dtype=np.float32).reshape(2, 20, 1, 1)
    memory = dnn.Memory.from_numpy(array, dnn.MemoryDesc(array.shape, "f32", "nChw16c"), CPU)
    physical = memory.physical()
    assert physical.shape == (2, 2, 1, 1, 16)
    np.testing.assert_array_equal(physical[0, 0, 0, 0], np.arange(1, 17))
    np.testing.assert_array_equal(physical[1, 1, 0, 0], [37, 38, 39, 40] + [0] * 12)


def test_fill_leaves_padding_zero():
    memory = dnn.Memory(dnn.MemoryDesc((1, 3, 2), "f32", "aBc8b"), CPU)
    memory.fill(2.5)
    assert (memory.numpy() == 2.5).all()
    assert memory.physical().sum() == 6 * 2.5


def test_map_reads_and_writes_bytes():
    memory = dnn.Memory(dnn.MemoryDesc((4,), "s32"), CPU)
    with memory.map(mode="w") as buffer:
        buffer.view(np.int32)[:] = [1, 2, 3, 4]
    with memory.map(mode="r") as buffer:
        assert buffer.view(np.int32).tolist() == [1, 2, 3, 4]
    with pytest.raises(dnn.DescriptorError, match="mode must be 'r', 'w' or 'rw'; got 'x'"):
        memory.map(mode="x").__enter__()


@pytest.mark.parametrize("dims", [(0,), (2, 0, 3)])
def test_empty_tensors(dims):
    memory = dnn.Memory.from_numpy(np.empty(dims, np.float32), engine=CPU)
    assert (memory.nbytes, memory.numpy().shape) == (0, dims)
    memory.fill(1)


def test_submemory_shares_the_buffer():
    parent = dnn.Memory.from_numpy(np.zeros((4, 6), np.float32), engine=CPU)
    parent.submemory((2, 3), (1, 2)).fill(7)
    expected = np.zeros((4, 6))
    expected[1:3, 2:5] = 7
    np.testing.assert_array_equal(parent.numpy(), expected)


def test_bfloat16_values():
    array = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
    memory = dnn.Memory.from_numpy(array, engine=CPU)
    assert memory.desc.data_type == "bf16"
    np.testing.assert_array_equal(memory.numpy(), array)


def test_asarray_and_repr():
    memory = dnn.Memory.from_numpy(np.ones((2, 2), np.float32), engine=CPU)
    assert np.asarray(memory).sum() == 4
    assert "cpu" in repr(memory)


def test_a_dropped_memory_gives_its_buffer_back():
    memory = dnn.Memory(dnn.MemoryDesc((8,)), CPU)
    buffer = weakref.ref(memory.buffer.base)
    del memory
    gc.collect()
    assert buffer() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dnn.Memory(dnn.MemoryDesc((2,), "f32", "any"), CPU),
            "must have a concrete layout",
        ),
        (
            lambda: dnn.Memory(dnn.MemoryDesc((9,)), CPU, np.zeros(8, np.uint8)),
            r"at least 36 bytes; got uint8\(8,\)",
        ),
        (
            lambda: dnn.Memory(dnn.MemoryDesc((2,)), CPU, np.zeros(2, np.float32)),
            "1-D uint8 array.*got float32",
        ),
        (
            lambda: dnn.Memory.from_numpy(
                np.zeros((2, 3), np.float32), dnn.MemoryDesc((3, 2)), CPU
            ),
            r"dims \(3, 2\); got \(2, 3\)",
        ),
        (
            lambda: dnn.Memory.from_numpy(np.zeros(3), dnn.MemoryDesc((3,)), CPU),
            "of type f32.*got float64.*astype",
        ),
        (lambda: dnn.Memory.from_numpy(np.array(["a"]), engine=CPU), "data type"),
    ],
    ids=["any", "small-buffer", "typed-buffer", "dims", "type", "strings"],
)
def test_unfit_buffers_and_arrays_are_refused(make, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        make()


def test_writing_a_part_leaves_its_neighbours():
    for name in [d.name for d in dnn.devices() if d.status == "ok"]:
        parent = dnn.Memory.from_numpy(np.full((4, 4), 7, np.float32), engine=dnn.engine(name))
        parent.submemory((2, 2), (0, 0)).fill(1)
        with parent.submemory((1, 2), (3, 1)).map(mode="w") as buffer:
            buffer.view(np.float32)[-2:] = 2
        expected = np.full((4, 4), 7)
        expected[:2, :2] = 1
        expected[3, 1:3] = 2
        np.testing.assert_array_equal(parent.numpy(), expected)


def test_a_device_s_buffer_must_be_its_own():
    for name in [d.name for d in dnn.devices() if d.name.startswith("opencl")]:
        engine, desc = dnn.engine(name), dnn.MemoryDesc((10_000,))
        for buffer in (np.zeros(40_000, np.uint8), engine.allocate(16)):
            with pytest.raises(dnn.DescriptorError, match=r"must be a pyopencl\.Buffer of its"):
                dnn.Memory(desc, engine, buffer)
        assert dnn.Memory(desc, engine, engine.allocate(40_000)).nbytes == 40_000


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64", "s32", "s8", "u8"])
@pytest.mark.parametrize(
    "value",
    [None, 1j, 1 + 0j, np.complex64(1), "x", "3", b"3", [1], [1, 2], {}, object(), np.ones(2)],
)
def test_fill_needs_a_real_number(name, value):
    memory = dnn.Memory(dnn.MemoryDesc((2, 2), name), dnn.engine("cpu"))
    memory.fill(1)
    with pytest.raises(dnn.DescriptorError, match=f"a number that {name} can hold, such as 0; got"):
        memory.fill(value)
    assert (memory.numpy().astype(float) == 1).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s32", math.nan), ("u8", math.inf), ("s8", 1.5), ("s32", 2**31), ("u8", 256), ("u8", -1),
        ("u8", np.int64(300)), ("s8", np.float32(-129)), ("s32", np.float64(1e10)), ("u8", 10**400),
        ("s8", Fraction(1, 2)),
    ],
)  # fmt: skip
def test_fill_of_an_integer_type_needs_a_value_in_its_range(name, value):
    memory = dnn.Memory(dnn.MemoryDesc((2,), name), dnn.engine("cpu"))
    with pytest.raises(dnn.DescriptorError, match=f"a number that {name} can hold, such as 0; got"):
        memory.fill(value)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("u8", 255, 255), ("s8", -128.0, -128), ("s32", np.int64(2**31 - 1), 2**31 - 1),
        ("f32", Fraction(1, 4), 0.25), ("f16", 1e6, math.inf), ("bf16", True, 1.0),
        ("f32", np.array(2), 2.0), ("s8", np.bool_(True), 1), ("f32", -math.inf, -math.inf),
    ],
)  # fmt: skip
def test_fill_takes_any_real_number(name, value, wanted):
    memory = dnn.Memory(dnn.MemoryDesc((2,), name), dnn.engine("cpu"))
    memory.fill(value)
    assert (memory.numpy().astype(float) == wanted).all()


@pytest.mark.parametrize("dims", [b"x", bytearray(b"ab"), memoryview(b"x"), {3, 4}, {3: 4}, "34"])
def test_dims_are_a_sequence_of_integers(dims):
    with pytest.raises(dnn.DescriptorError, match="dims must be a sequence of integers"):
        dnn.MemoryDesc(dims)
    with pytest.raises(dnn.DescriptorError, match="must be a sequence of integers"):
        dnn.MemoryDesc((3, 4), strides=dims)
