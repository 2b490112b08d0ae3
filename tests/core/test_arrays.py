"""Arrays become memories and memories arrays: copy=, DLPack, lifetimes."""

import gc
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import dnncore as dnn
from dnncore.tensors.datatypes import DATA_TYPES

CPU = dnn.engine("cpu")
PACKED = [name for name, row in DATA_TYPES.items() if row.is_packed]
WHOLE = [name for name in DATA_TYPES if name not in PACKED]


def numbers(name, *shape):
    """Distinct small numbers; 0 and 1 in turn for the types that hold little else."""
    values = np.arange(np.prod(shape, dtype=int)) % (2 if name in ("boolean", *PACKED) else 100)
    if name == "e8m0":
        values = 2.0 ** (values % 8)
    return values.reshape(shape).astype(DATA_TYPES[name].dtype)


def equal(a, b):
    """Whether two arrays have equal shapes, types and bits, whatever their order of bytes."""
    a, b = (np.ascontiguousarray(x.astype(x.dtype.newbyteorder("="))) for x in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


# -- numpy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_copy_decides_whether_an_array_is_shared(name):
    array = numbers(name, 3, 4)
    for copy, is_shared in ((None, True), (False, True), (True, False)):
        memory = dnn.Memory.from_numpy(array, engine=CPU, copy=copy)
        assert np.shares_memory(memory.buffer, array) == is_shared
        assert memory.desc.data_type == name
        assert equal(memory.numpy(), array)


def unshareable():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "read-only": (frozen, "the array is read-only"),
        "broadcast": (np.broadcast_to(array[0], (4, 6)), "read-only"),
        "big-endian": (array.astype(">f4"), "another order of bytes"),
        "reversed": (array[::-1], "strides are"),
        "overlapping": (as_strided(array, (3, 3), (4, 4)), "strides are"),
        "s4": (numbers("s4", 3), "two elements of s4 share a byte"),
    }


@pytest.mark.parametrize("case", unshareable())
def test_what_cannot_be_shared_is_copied_or_refused_with_the_reason(case):
    array, reason = unshareable()[case]
    for copy in (None, True):
        memory = dnn.Memory.from_numpy(array, engine=CPU, copy=copy)
        assert not np.shares_memory(memory.buffer, array)
        assert equal(memory.numpy(), array)
    with pytest.raises(dnn.DescriptorError, match=f"copy=False needs .*{reason}.*use copy=None"):
        dnn.Memory.from_numpy(array, engine=CPU, copy=False)


def test_without_a_copy_a_memory_has_the_arrays_strides():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (array.T, array[:, ::2], array[1:, :, 1:3], array.swapaxes(0, 1)):
        memory = dnn.Memory.from_numpy(view, engine=CPU, copy=False)
        assert np.shares_memory(memory.buffer, array)
        assert equal(memory.numpy(), view)
        memory.fill(view.max() + 1)
        assert (view == view.max()).all()
    record = np.zeros(3, [("a", "i2"), ("b", "f4")])
    memory = dnn.Memory.from_numpy(record["b"], engine=CPU)
    assert memory.numpy().tolist() == [0, 0, 0]
    with pytest.raises(dnn.DescriptorError, match="copy=False"):
        dnn.Memory.from_numpy(record["b"], engine=CPU, copy=False)


def test_an_array_inside_another_changes_nothing_around_it():
    array = np.full((6, 6), 7, np.float32)
    inner = array[1:5, 2:4]
    memory = dnn.Memory.from_numpy(inner, engine=CPU, copy=False)
    ones = dnn.Memory.from_numpy(np.ones((4, 2), np.float32), memory.desc.like(memory.desc), CPU)
    op = dnn.EltwiseForward("forward_inference", "square", src=ones.desc, dst=memory.desc)
    dnn.PrimitiveDesc(op, CPU).primitive().execute(CPU.stream(), src=ones, dst=memory)
    assert (inner == 1).all()
    assert array.sum() == 7 * 28 + 8


def test_arrays_without_elements_and_single_numbers():
    for copy in (None, True, False):
        empty = np.empty((2, 0, 3), np.float32)
        assert dnn.Memory.from_numpy(empty, engine=CPU, copy=copy).desc.dims == (2, 0, 3)
        single = np.array(2.5, np.float32)
        memory = dnn.Memory.from_numpy(single, engine=CPU, copy=copy)
        assert memory.desc.dims == (1,)
        assert memory.numpy().tolist() == [2.5]
        assert np.shares_memory(memory.buffer, single) == (copy is not True)
    assert dnn.Memory.from_numpy(np.float32(2), engine=CPU).numpy() == 2


class Own(np.ndarray):
    """A subclass of numpy's array."""


def test_subclasses_are_shared():
    for kind in (Own, np.matrix, np.recarray):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        memory = dnn.Memory.from_numpy(array.view(kind), engine=CPU, copy=False)
        assert np.shares_memory(memory.buffer, array)
        assert type(memory.numpy()) is np.ndarray


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ma.array([1.0, 2.0], mask=[0, 1]), r"no mask.*filled\(value\)"),
        (np.array([1, None]), "objects of Python"),
        (np.zeros(2, [("x", "f4"), ("y", "f4")]), r"records of the fields x, y.*array\['x'\]"),
        ([[1], [2, 3]], "an array in host memory or nested lists"),
        (np.zeros(2, "c8"), "data type: numpy dtype .* is not supported"),
        (np.zeros(2, "M8[s]"), "data type"),
        (np.array(["a"]), "data type"),
    ],
    ids=["masked", "objects", "records", "ragged", "complex", "dates", "texts"],
)
@pytest.mark.parametrize("copy", [None, True, False])
def test_arrays_without_numbers_are_refused(values, message, copy):
    with pytest.raises(dnn.DescriptorError, match=f"(?s){message}"):
        dnn.Memory.from_numpy(values, engine=CPU, copy=copy)


@st.composite
def arrays(draw):
    """A view of an array: any type, shape, step, order of dims, order of bytes and flag."""
    name = draw(st.sampled_from(list(DATA_TYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    steps = draw(st.lists(st.sampled_from((-2, -1, 1, 2)), min_size=4, max_size=4))
    array = numbers(name, *(2 * n for n in shape))
    array = array[..., *(slice(None, None, step) for step in steps[: len(shape)])]
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()) and name in ("f64", "f32", "f16", "s64", "s32"):
        array = array.astype(array.dtype.newbyteorder())
    if draw(st.booleans()):
        array = array.view()
        array.flags.writeable = False
    return array


@settings(max_examples=150, deadline=None)
@given(array=arrays(), copy=st.sampled_from((None, True, False)), other=st.booleans())
def test_any_array_is_shared_copied_or_refused(array, copy, other):
    """The values never change, and shared memories write to the array."""
    engine = dnn.engine("opencl") if other and HAS_OPENCL else CPU
    kept = array.copy()
    try:
        memory = dnn.Memory.from_numpy(array, engine=engine, copy=copy)
    except dnn.DescriptorError:
        if copy is not False:
            raise
        return
    shape = array.shape or (1,)
    assert equal(memory.numpy(), kept.reshape(shape))
    is_shared = engine is CPU and np.shares_memory(memory.buffer, array)
    assert not (copy is True and is_shared)
    assert copy is not False or is_shared or not array.size
    memory.fill(1)
    assert equal(array, np.ones_like(kept) if is_shared else kept)


HAS_OPENCL = any(d.name.startswith("opencl") and d.status == "ok" for d in dnn.devices())


# -- numpy's arrays of memories -------------------------------------------------------------------


def test_memories_are_arrays_for_numpy():
    plain = dnn.Memory.from_numpy(numbers("f32", 2, 3), engine=CPU)
    for copy in (None, False):
        assert np.shares_memory(np.array(plain, copy=copy), plain.buffer)
    assert not np.shares_memory(np.array(plain, copy=True), plain.buffer)
    assert np.asarray(plain, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.array(plain, np.float64, copy=False)
    blocked = dnn.Memory(dnn.MemoryDesc((1, 3), "f32", "aB8b"), CPU)
    packed = dnn.Memory.from_numpy(numbers("s4", 3), engine=CPU)
    for memory in (blocked, packed):
        assert np.asarray(memory).shape == memory.desc.dims
        with pytest.raises(dnn.DescriptorError, match="numpy shares plain memories"):
            np.array(memory, copy=False)


# -- DLPack ---------------------------------------------------------------------------------------


class Exporter:
    """Exports a numpy array as older libraries do, or as those that lack parts of the protocol."""

    def __init__(self, array, *, versions=True, device=None):
        self.array, self.versions, self.device = array, versions, device

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versions and options:
            raise TypeError("unexpected keyword arguments")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versions", [True, False])
def test_dlpack_shares_numpys_arrays(versions):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (array, array.T, array[:, ::2], array[..., :0]):
        memory = dnn.Memory.from_dlpack(Exporter(view, versions=versions), engine=CPU)
        assert equal(memory.numpy(), view)
        assert np.shares_memory(memory.buffer, array) == (view.size > 0)
    single = dnn.Memory.from_dlpack(Exporter(np.array(3.0), versions=versions), engine=CPU)
    assert single.numpy().tolist() == [3]
    reversed_ = dnn.Memory.from_dlpack(Exporter(array[::-1]), engine=CPU)
    assert equal(reversed_.numpy(), array[::-1])
    assert not np.shares_memory(reversed_.buffer, array)
    with pytest.raises(dnn.DescriptorError, match="copy=False"):
        dnn.Memory.from_dlpack(Exporter(array[::-1]), engine=CPU, copy=False)


def test_read_only_tensors_are_copied():
    array = np.arange(6.0)
    array.flags.writeable = False
    memory = dnn.Memory.from_dlpack(array, engine=CPU)
    memory.fill(7)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(dnn.DescriptorError, match=r"copy=False.*read-only"):
        dnn.Memory.from_dlpack(array, engine=CPU, copy=False)
    with pytest.raises(dnn.DescriptorError, match="cannot be exported"):
        dnn.Memory.from_dlpack(Exporter(array, versions=False), engine=CPU)


def test_a_descriptor_may_be_given():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    memory = dnn.Memory.from_dlpack(array, dnn.MemoryDesc((2, 3), "f32", "aB8b"), CPU)
    assert memory.physical().shape == (2, 1, 8)
    assert equal(memory.numpy(), array)
    for desc, message in (
        (dnn.MemoryDesc((3, 2)), "dims"),
        (dnn.MemoryDesc((2, 3), "f16"), "type f16"),
    ):
        with pytest.raises(dnn.DescriptorError, match=message):
            dnn.Memory.from_dlpack(array, desc, CPU)


@pytest.mark.parametrize("name", list(DATA_TYPES))
@pytest.mark.parametrize("copy", [None, True, False])
def test_memories_pass_from_one_to_another(name, copy):
    for values in (numbers(name, 3, 5), numbers(name, 2, 0), numbers(name, 7)):
        memory = dnn.Memory.from_numpy(values, engine=CPU)
        other = dnn.Memory.from_dlpack(memory, engine=CPU, copy=copy)
        assert equal(other.numpy(), values)
        assert other.desc == memory.desc
        is_shared = np.shares_memory(other.buffer, memory.buffer)
        assert is_shared == (copy is not True and values.size > 0)


def test_layouts_are_exported():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    memory = dnn.Memory.from_numpy(array, engine=CPU)
    part = memory.submemory((2, 3), (1, 2))
    columns = dnn.Memory(memory.desc.permute_axes((1, 0)), CPU, memory.buffer)
    for layout, right in ((part, array[1:3, 2:5]), (columns, array.T)):
        shared = np.from_dlpack(layout)
        assert equal(shared, right)
        assert np.shares_memory(shared, array)
    repeated = dnn.Memory(dnn.MemoryDesc((3, 6), strides=(0, 1)), CPU, memory.buffer)
    assert not np.from_dlpack(repeated).flags.writeable
    with pytest.raises(BufferError, match="elements repeat"):
        repeated.__dlpack__()
    packed = dnn.Memory.from_numpy(numbers("s4", 4), engine=CPU).submemory((2,), (1,))
    with pytest.raises(BufferError, match="begins inside a byte"):
        packed.__dlpack__()


def test_exports_that_cannot_be_are_refused_with_the_remedy():
    plain = dnn.Memory.from_numpy(np.ones(3, np.float32), engine=CPU)
    blocked = dnn.Memory(dnn.MemoryDesc((1, 3), "f32", "aB8b"), CPU)
    for call, message in (
        (blocked.__dlpack__, r"plain layouts only.*memory\.physical\(\)"),
        (lambda: plain.__dlpack__(stream=1), "stream must be None or a stream of cpu"),
        (lambda: plain.__dlpack__(dl_device=(2, 0)), r"devices \(1, 0\).*got \(2, 0\)"),
    ):
        with pytest.raises(dnn.DescriptorError, match=message) as caught:
            call()
        assert isinstance(caught.value, BufferError)
    assert np.from_dlpack(blocked.physical()).shape == (1, 1, 8)
    assert plain.__dlpack__(stream=CPU.stream(), max_version=(1, 1), copy=True)


class Negated(Exporter):
    """Stored with the opposite sign, as some views of torch are."""

    def is_neg(self):
        return True


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.ones(3), None),
        (Negated(np.ones(2)), r"opposite sign; use tensor\.resolve_neg"),
        ([1, 2], "needs an object with __dlpack__"),
        (Exporter(np.ones(2, "c8")), r"elements complex64 of this tensor; convert"),
        (Exporter(np.ones(2, "u2")), "elements uint16 of"),
        (Exporter(np.ones(2), device=(2, 0)), r"device \(2, 0\), not on cpu.*copy=True"),
        (Exporter(np.ones(2), device=3), "cannot be exported"),
    ],
)
def test_tensors_that_cannot_be_taken_are_refused(tensor, message):
    if message is None:
        assert dnn.Memory.from_dlpack(tensor, engine=CPU).numpy().sum() == 3
    else:
        with pytest.raises(dnn.DescriptorError, match=message):
            dnn.Memory.from_dlpack(tensor, engine=CPU)


def test_the_error_names_negative_strides_as_the_reason():
    array = np.ones((2, 3), "f4")
    with pytest.raises(dnn.DescriptorError, match=r"-12, 4.* no negative strides; use copy=None"):
        dnn.Memory.from_numpy(array[::-1], copy=False)
    with pytest.raises(dnn.DescriptorError, match=r"4, 12.* are not; use copy=None"):
        dnn.Memory.from_numpy(array.T, dnn.MemoryDesc((3, 2)), copy=False)


def test_a_capsule_must_have_the_protocols_name():
    class Wrong:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            return self

    with pytest.raises(dnn.DescriptorError, match="must return a capsule named"):
        dnn.Memory.from_dlpack(Wrong(), engine=CPU)


# -- lifetimes ------------------------------------------------------------------------------------


def test_exporters_and_memories_live_as_long_as_their_elements_are_used():
    array = np.ones(1000, np.float32).view(Own)
    alive = weakref.ref(array)
    memory = dnn.Memory.from_dlpack(Exporter(array), engine=CPU)
    view = memory.numpy()
    del array, memory
    gc.collect()
    assert alive() is not None
    assert view.sum() == 1000
    del view
    gc.collect()
    assert alive() is None

    memory = dnn.Memory(dnn.MemoryDesc((1000,)), CPU)
    memory.fill(2)
    alive = weakref.ref(memory)
    consumed, capsule = np.from_dlpack(memory), memory.__dlpack__(max_version=(1, 0))
    del memory
    gc.collect()
    assert alive() is not None
    del capsule
    assert consumed.sum() == 2000
    del consumed
    gc.collect()
    assert alive() is None


def test_a_thousand_exchanges_leave_nothing():
    def exchange():
        memory = dnn.Memory.from_numpy(np.ones(64, np.float32), engine=CPU)
        memory.__dlpack__()
        again = dnn.Memory.from_dlpack(memory, engine=CPU)
        return np.from_dlpack(again).sum()

    exchange()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        exchange()
    gc.collect()
    assert len(gc.get_objects()) - before < 100


@pytest.mark.parametrize(
    "code",
    [
        "kept = [np.from_dlpack(memory), memory.__dlpack__(max_version=(1, 0))]",
        "kept = memory.__dlpack__()",
        "kept = dnn.Memory.from_dlpack(np.ones(3)).numpy()",
        "threading.Thread(target=lambda: np.from_dlpack(memory)).start()",
        "sys.modules['kept'] = np.from_dlpack(memory)",
        "pid = os.fork(); np.from_dlpack(memory)[:] = 1; assert not pid or not os.wait()[1]",
    ],
)
def test_the_end_of_a_process_frees_what_is_exported(code):
    start = "import os, sys, threading\nimport numpy as np\nimport dnncore as dnn\n"
    _run(f"{start}memory = dnn.Memory.from_numpy(np.ones(3, np.float32))\n{code}")


def _run(code):
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.peer
def test_torch_takes_whatever_layout_a_memory_has():
    """torch aborts the process for negative strides, which no memory has."""
    _run(
        textwrap.dedent("""
        import ml_dtypes
        import numpy as np
        import torch
        import dnncore as dnn
        engine = dnn.engine("cpu")
        array = np.arange(24, dtype=np.float32).reshape(4, 6)
        for view in (array, array[::-1], array.T, array[:, ::-2], array[:0], array[1:, 1:]):
            for copy in (None, True):
                memory = dnn.Memory.from_numpy(view, engine=engine, copy=copy)
                assert np.array_equal(torch.from_dlpack(memory).numpy(), view)
        kept = torch.from_dlpack(memory)
        del memory
        kept += 1
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool):
            tensor = torch.ones(2, 3).to(dtype)
            memory = dnn.Memory.from_dlpack(tensor, engine=engine)
            assert memory.address == tensor.data_ptr()
            back = torch.from_dlpack(memory)
            assert back.dtype == dtype and back.data_ptr() == tensor.data_ptr()
            wide = torch.ones(3).to(dtype).expand(2, 3)
            assert dnn.Memory.from_dlpack(wide, engine=engine).desc.dims == (2, 3)
        for bad in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.complex64)):
            try:
                dnn.Memory.from_dlpack(bad, engine=engine)
            except dnn.DescriptorError as error:
                assert "grad" in str(error) or "elements complex64" in str(error)
            else:
                raise AssertionError(bad)
        """)
    )


# -- single numbers, lists and consumed capsules ---------------------------------------------------


@pytest.mark.parametrize("values", [[1.0, 2.0], (1, 2), 3.0, np.float32(1)], ids=str)
def test_lists_and_numbers_cannot_be_shared(values):
    with pytest.raises(dnn.DescriptorError, match="not in an array; use copy=None"):
        dnn.Memory.from_numpy(values, copy=False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("s64", 2**53 + 1, 2**53 + 1), ("s64", 2**63 - 1, 2**63 - 1), ("s64", -(2**63), -(2**63)),
        ("f16", 10**400, np.inf), ("bf16", -(10**400), -np.inf),
        ("bf16", 1 + 2**-8 + 2**-30, 1 + 2**-7), ("bf16", 1 + 2**-8, 1.0),
        ("bf16", -(1 + 2**-8 + 2**-30), -(1 + 2**-7)), ("f8_e5m2", 1 + 2**-3 + 2**-40, 1.25),
    ],
)  # fmt: skip
def test_fill_rounds_once(name, value, expected):
    """Not by way of float64 for integers, nor of float32 for small types."""
    memory = dnn.Memory(dnn.MemoryDesc((3,), name))
    memory.fill(value)
    assert [type(expected)(x) for x in memory.numpy()] == [expected] * 3


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400, 0.5, float("nan")])
def test_fill_refuses_what_64_bits_cannot_hold(value):
    with pytest.raises(dnn.DescriptorError, match="that s64 can hold"):
        dnn.Memory(dnn.MemoryDesc((3,), "s64")).fill(value)


def test_an_imported_capsule_is_consumed():
    class OneCapsule:
        """Gives its only capsule to everybody who asks."""

        def __init__(self, array):
            self.capsule = array.__dlpack__()

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    array = np.arange(5.0)
    exporter = OneCapsule(array)
    memory = dnn.Memory.from_dlpack(exporter)
    assert "used_dltensor" in repr(exporter.capsule)
    with pytest.raises(dnn.DescriptorError, match="must return a capsule named dltensor"):
        dnn.Memory.from_dlpack(exporter)
    np.testing.assert_array_equal(memory.numpy(), np.arange(5.0))
    alive = weakref.ref(array)
    del array, memory, exporter
    gc.collect()
    assert alive() is None
