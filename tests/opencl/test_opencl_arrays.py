"""The user's own objects of pyopencl: buffers, parts, SVM, arrays, contexts and queues."""

import gc
import itertools
import threading
import weakref

import dnncore_opencl
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opencl_engine import DEVICES, run_python

import dnncore as dnn
from dnncore import functional as F

cl = pytest.importorskip("pyopencl")
cla = pytest.importorskip("pyopencl.array")

pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")

DESC = dnn.MemoryDesc((4, 4))
VALUES = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)


@pytest.fixture(params=DEVICES)
def engine(request):
    return dnn.engine(request.param)


@pytest.fixture
def queue(engine):
    return cl.CommandQueue(engine.native.context)


@pytest.fixture
def own_queue(engine):
    """A queue of a context that dnncore did not make."""
    context = cl.Context([engine.native.device])  # Intel's queues do not keep it
    yield cl.CommandQueue(context)
    del context


def relu(engine, src, dst):
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=dst.desc)
    dnn.PrimitiveDesc(op, engine).primitive().execute(engine.stream(), src=src, dst=dst).wait()


# -- memories over buffers ------------------------------------------------------------------------


def test_buffers_and_their_parts_become_memories(engine, queue):
    whole = cl.Buffer(engine.native.context, cl.mem_flags.READ_WRITE, 4096)
    assert dnn.Memory.wrap(whole, engine=engine).desc == dnn.MemoryDesc((4096,), "u8")
    step = engine.device.limits["alignment"]
    part = dnn.Memory.wrap(whole.get_sub_region(step, 64), DESC, engine)
    part.fill(3)
    found = np.empty(4096, np.uint8)
    cl.enqueue_copy(queue, found, whole)
    assert (found[step : step + 64].view(np.float32) == 3).all()
    with pytest.raises(dnn.DescriptorError, match="at least 65 bytes"):
        dnn.Memory.wrap(part.buffer, dnn.MemoryDesc((65,), "u8"), engine)


def test_parts_of_one_buffer_that_overlap_are_refused(engine):
    step = engine.device.limits["alignment"]
    whole = cl.Buffer(engine.native.context, cl.mem_flags.READ_WRITE, 8 * step)
    desc = dnn.MemoryDesc((2 * step // 4,))
    first, second, apart = (
        dnn.Memory.wrap(whole.get_sub_region(start * step, 2 * step), desc, engine)
        for start in (0, 1, 2)
    )
    again = dnn.Memory.wrap(whole, desc, engine)
    first.fill(-1)
    relu(engine, first, apart)
    relu(engine, first, again)  # in place
    assert (first.numpy() == 0).all()
    for dst in (second, again.submemory((4,), (0,))):
        src = first if dst is second else first.submemory((4,), (1,))
        with pytest.raises(dnn.DescriptorError, match="dst overlaps src"):
            relu(engine, src, dst)


def test_shared_virtual_memory_becomes_a_memory(engine, queue):
    if not engine.native.device.svm_capabilities:
        pytest.skip("the device has no SVM")
    context, flags = engine.native.context, cl.svm_mem_flags.READ_WRITE
    # Without a queue: PoCL 3.0 frees allocations twice that are bound to one.
    allocation = cl.SVMAllocation(context, 64, 128, flags)
    alive = weakref.ref(allocation) if hasattr(allocation, "__weakref__") else None
    memory = dnn.Memory.wrap(allocation, DESC, engine)
    memory.fill(5)
    found = np.empty((4, 4), np.float32)
    cl.enqueue_copy(queue, found, allocation)
    queue.finish()
    assert (found == 5).all()
    del allocation
    gc.collect()
    assert alive is None or alive() is not None
    assert (memory.numpy() == 5).all()
    array = cl.svm_empty(context, flags, (4, 4), np.float32)
    dnn.Memory.wrap(cl.SVM(array), DESC, engine).fill(2)


def test_read_only_buffers_are_inputs_but_no_outputs(engine, queue):
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(engine.native.context, flags, hostbuf=VALUES)
    src, dst = dnn.Memory.wrap(buffer, DESC, engine), dnn.Memory(DESC, engine)
    relu(engine, src, dst)
    assert np.array_equal(dst.numpy(), np.maximum(VALUES, 0))
    step = engine.device.limits["alignment"]
    parent = cl.Buffer(engine.native.context, cl.mem_flags.READ_ONLY, step + 64)
    rows = src.submemory((2, 4), (2, 0))
    if engine.dlpack_device is not None:
        assert dnn.Memory.from_dlpack(src, engine=engine).is_read_only
        assert not dnn.Memory.from_dlpack(dst, engine=engine).is_read_only
    for wrong in (
        src,
        dnn.Memory(DESC, engine, buffer),
        dnn.Memory.wrap(parent[step:], DESC, engine),
    ):
        with pytest.raises(dnn.DescriptorError, match="to dst; its buffer is read-only; create"):
            relu(engine, dst, wrong)
    half = dnn.Memory(rows.desc.with_format(None), engine)
    with pytest.raises(dnn.DescriptorError, match="read-only"):
        relu(engine, half, rows)
    with pytest.raises(dnn.DescriptorError, match="read-only"):
        dnn.PrimitiveDesc(dnn.Reorder(src=DESC, dst=DESC), engine).primitive().bind(
            src=dst, dst=src
        )


def test_the_advice_for_an_array_of_a_device_leads_to_wrap(engine, own_queue):
    """Each message names the next call, until one succeeds."""
    array = cla.to_device(own_queue, VALUES)
    for take in (dnn.Memory.from_dlpack, dnn.Memory.from_numpy):
        with pytest.raises(dnn.DescriptorError, match=r"Memory\.wrap\(array, engine=\.\.\.\)"):
            take(array, engine=engine)
    with pytest.raises(dnn.DescriptorError, match=r"pass engine=\.\.\., the engine of its device"):
        dnn.Memory.wrap(array, engine=dnn.engine("cpu"))
    with pytest.raises(dnn.DescriptorError, match=r"dnncore_opencl\.OpenCLEngine\.from_native"):
        dnn.Memory.wrap(array, engine=engine)
    own = dnncore_opencl.OpenCLEngine.from_native(array.context)
    assert np.array_equal(dnn.Memory.wrap(array, engine=own).numpy(), VALUES)


def test_other_objects_are_refused_with_the_reason(engine, own_queue):
    foreign = cl.Buffer(own_queue.context, cl.mem_flags.READ_WRITE, 64)
    with pytest.raises(dnn.DescriptorError, match=r"of this engine.s context.*from_native"):
        dnn.Memory.wrap(foreign, DESC, engine)
    for native in (np.ones(4), None, 3):
        with pytest.raises(dnn.DescriptorError, match="has no buffers such as"):
            dnn.Memory.wrap(native, DESC, engine)
    with pytest.raises(dnn.DescriptorError, match="cpu has no buffers such as Buffer"):
        dnn.Memory.wrap(foreign, DESC, dnn.engine("cpu"))


def test_memories_pass_by_dlpack_within_a_context(engine):
    memory = dnn.Memory.from_numpy(VALUES, engine=engine)
    other = dnn.Memory.from_dlpack(memory, engine=engine)
    other.fill(1)
    assert (memory.numpy() == 1).all()
    assert memory.__dlpack_device__() == (4, engine.index)
    part = dnn.Memory.from_dlpack(memory.submemory((2, 2), (1, 1)), engine=engine)
    part.fill(7)
    assert memory.numpy().sum() == 12 + 4 * 7
    separate = dnn.Memory.from_dlpack(memory, engine=engine, copy=True)
    separate.fill(0)
    assert memory.numpy().sum() == 12 + 4 * 7
    on_host = np.from_dlpack(memory, device="cpu")
    assert np.array_equal(on_host, memory.numpy())
    cpu = dnn.engine("cpu")
    with pytest.raises(dnn.DescriptorError, match=r"not on cpu.*copy=True"):
        dnn.Memory.from_dlpack(memory, engine=cpu)
    assert dnn.Memory.from_dlpack(memory, engine=cpu, copy=True).numpy().sum() == 12 + 4 * 7
    with pytest.raises(BufferError, match="not in host memory"):
        memory.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match=r"must name the device.*dl_device=\(4, "):
        memory.__dlpack__()  # torch would free it twice
    mine = type(engine).from_native(cl.Context([engine.native.device]), engine.native.device)
    with pytest.raises(dnn.DescriptorError, match="of this engine's context"):
        dnn.Memory.from_dlpack(memory, engine=mine)


def test_a_buffer_lives_as_long_as_a_tensor_of_it(engine):
    memory = dnn.Memory.from_numpy(VALUES, engine=engine)
    alive = weakref.ref(memory)
    other = dnn.Memory.from_dlpack(memory, engine=engine)
    del memory
    gc.collect()
    assert alive() is not None
    assert np.array_equal(other.numpy(), VALUES)
    del other
    gc.collect()
    assert alive() is None


def test_a_map_of_a_cpu_is_the_buffer_itself(engine):
    memory = dnn.Memory.from_numpy(VALUES, engine=engine)
    addresses = []
    for mode in ("r", "rw", "w"):
        with memory.map(engine.stream(), mode) as data:
            addresses.append(data.ctypes.data)
            if mode == "w":
                data.view(np.float32)[:] = 4
            elif mode == "rw":
                data.view(np.float32)[0] = 100
    assert (memory.numpy() == 4).all()
    if engine.is_cpu:
        assert len(set(addresses)) == 1
    with memory.map() as data:
        kept = data
    del memory
    gc.collect()
    assert kept.view(np.float32).tolist() == [4] * 16  # its buffer is alive


# -- arrays of functions --------------------------------------------------------------------------


def test_functions_return_arrays_on_the_queue_of_their_inputs(engine, queue, own_queue):
    for place in (queue, own_queue, queue):
        array = cla.to_device(place, VALUES)
        result = F.matmul(array, array, activation="relu")
        assert isinstance(result, cla.Array)
        assert result.queue is place
        assert np.array_equal(result.get(), np.maximum(VALUES @ VALUES, 0))
        assert np.array_equal(F.add(array, 1).get(), VALUES + 1)
        assert np.array_equal(F.add([1, 2, 3, 4], array).get(), np.add(VALUES, [1, 2, 3, 4]))


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16, "i1", "u1", "i2", "f4"])
def test_types_are_those_of_numpys_arrays(queue, dtype):
    values = (VALUES + (8 if dtype == "u1" else 0)).astype(dtype)
    array = cla.to_device(queue, values)
    for got, right in (
        (F.relu(array), F.relu(values)),
        (F.sum(array, 1), F.sum(values, 1)),
        (F.relu(array[1:, ::2]), F.relu(values[1:, ::2])),
        (F.square(array.T), F.square(values.T)),
    ):
        assert got.dtype == right.dtype
        assert np.array_equal(got.get(), right)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    starts=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    steps=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    perm=st.permutations(range(3)),
)
def test_views_of_arrays_are_read_as_numpy_reads_them(shape, starts, steps, perm):
    queue = cl.CommandQueue(dnn.engine(DEVICES[0]).native.context)
    values = np.arange(np.prod([2 * n for n in shape]), dtype=np.float32) - 20
    values = values.reshape([2 * n for n in shape])
    index = tuple(itertools.starmap(slice, zip(starts, (None,) * 3, steps, strict=True)))
    index = index[: len(shape)]
    order = [p for p in perm if p < len(shape)]
    array = cla.to_device(queue, values)[index].transpose(order)
    assert np.array_equal(F.relu(array).get(), F.relu(values[index].transpose(order)))


def test_numbers_and_empty_arrays(queue):
    single = cla.to_device(queue, np.array(-3, np.float32))
    assert F.abs(single).get() == 3
    assert F.abs(single).shape == ()
    assert F.exp(cla.empty(queue, (2, 0, 3), np.float32)).shape == (2, 0, 3)


@pytest.mark.filterwarnings("ignore:Array has different queue")
def test_memory_of_pools_and_shared_virtual_memory_is_taken(engine, queue):
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(queue))
    arrays = [cla.to_device(queue, VALUES, allocator=pool)]
    if engine.native.device.svm_capabilities:
        # Without a queue: PoCL 3.0 frees allocations twice that are bound to one.
        flags = cl.svm_mem_flags.READ_WRITE
        allocation = cl.SVMAllocation(engine.native.context, 64, 128, flags)
        cl.enqueue_copy(queue, allocation, VALUES)
        arrays.append(cla.Array(queue, (4, 4), np.float32, data=allocation))
    for array in arrays:
        results = [F.add(array, i) for i in range(5)]
        assert all(np.array_equal(r.get(), VALUES + i) for i, r in enumerate(results))
        queue.finish()
    assert type(F.relu(arrays[0]).base_data) is type(arrays[0].base_data)


def test_work_waits_for_the_events_of_its_arrays(engine, queue):
    other = cl.CommandQueue(engine.native.context)
    array = cla.to_device(queue, VALUES)
    queue.finish()
    gate = cl.UserEvent(engine.native.context)
    values = -VALUES
    late = cl.enqueue_copy(other, array.base_data, values, is_blocking=False, wait_for=[gate])
    other.flush()
    array.add_event(late)
    threading.Timer(0.2, gate.set_status, (cl.command_execution_status.COMPLETE,)).start()
    assert np.array_equal(F.relu(array).get(), np.maximum(-VALUES, 0))


def test_queues_out_of_order_have_events(engine):
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    try:
        queue = cl.CommandQueue(engine.native.context, properties=properties)
    except cl.Error:
        pytest.skip("the device has no queues out of order")
    array = cla.to_device(queue, VALUES)
    for _ in range(10):
        result = F.relu(F.add(F.square(array), -9))
        assert result.events
        assert np.array_equal(result.get(), np.maximum(VALUES**2 - 9, 0))


def test_functions_with_several_results(engine, queue):
    batch = cla.to_device(queue, VALUES)
    old = np.float32([0, 1, 2, 3])
    running = cla.to_device(queue, old), cla.to_device(queue, old + 1)
    got = F.batch_norm_training(batch, *running, average_factor=0.5)
    right = F.batch_norm_training(VALUES, old, old + 1, average_factor=0.5)
    for one, other in zip(got, right, strict=True):
        np.testing.assert_allclose(one.get(), other, rtol=1e-5)
    half = F.batch_norm_training(cla.to_device(queue, VALUES.astype("f2")))
    assert half.dst.dtype == np.float16
    np.testing.assert_allclose(half.dst.get(), right.dst, rtol=2e-3)


def test_arrays_without_a_queue_are_complete(engine):
    array = cla.to_device(cl.CommandQueue(engine.native.context), VALUES).with_queue(None)
    result = F.square(array)
    assert result.queue is None
    assert np.array_equal(result.get(cl.CommandQueue(engine.native.context)), VALUES**2)


def test_arrays_of_several_kinds_and_places_are_refused(engine, queue, own_queue):
    array, foreign = cla.to_device(queue, VALUES), cla.to_device(own_queue, VALUES)
    for call, message in (
        (lambda: F.add(array, VALUES), r"one kind;.*to_device\(queue, array\) or array\.get\(\)"),
        (lambda: F.add(array, foreign), "of this engine's context"),
        (lambda: F.relu(array, engine="cpu"), r"cpu: the arrays are in the memory of an OpenCL"),
        (lambda: F.relu(foreign, engine=engine), "of this engine's context"),
        (lambda: F.relu(array[::-1]), r"must be multiples of 4 bytes, at least 0; pass"),
        (lambda: F.relu(cla.to_device(queue, np.arange(3))), "float32 holds exactly.*int64"),
    ):
        with pytest.raises(dnn.DescriptorError, match=message):
            call()
    condition = cla.to_device(queue, (VALUES > 0).astype(np.int8))
    chosen = F.where(condition, array, 0)
    assert np.array_equal(chosen.get(), np.maximum(VALUES, 0))


def test_threads_use_one_array(queue):
    array = cla.to_device(queue, VALUES)
    queue.finish()
    right = []

    def work(i):
        sums = [F.add(array, i + n).get() for n in range(20)]
        right.append(all(np.array_equal(s, VALUES + i + n) for n, s in enumerate(sums)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4


def test_contexts_come_and_go(engine):
    for i in range(12):
        context = cl.Context([engine.native.device])
        queue = cl.CommandQueue(context)
        assert F.add(cla.to_device(queue, VALUES), i).get()[0, 0] == i - 8


@pytest.mark.parametrize("name", DEVICES[:1])
def test_the_end_of_a_process_and_forks(name):
    code = f"""
        import os
        import numpy as np
        import pyopencl as cl
        import pyopencl.array as cla
        import dnncore as dnn
        from dnncore import functional as F
        engine = dnn.engine({name!r})
        queue = cl.CommandQueue(engine.native.context)
        array = cla.to_device(queue, np.ones((3, 3), np.float32))
        kept = F.relu(array), dnn.Memory.wrap(array, engine=engine)
        capsule = kept[1].__dlpack__(max_version=(1, 0), dl_device=kept[1].__dlpack_device__())
        pid = os.fork()
        if not pid:
            try:
                F.relu(array)
            except dnn.EngineUnavailable:
                os._exit(0)
            os._exit(1)
        print(os.waitpid(pid, 0)[1], kept[0].get().sum())
    """
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "0 9.0\n"), done.stderr


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.uint16])
def test_functions_take_arrays_of_types_that_no_memory_has(queue, dtype):
    values = np.array([0, 1, 7], dtype)
    ones, twos = (cla.to_device(queue, np.full(3, x, np.float32)) for x in (1, 2))
    found = F.add(cla.to_device(queue, values), ones)
    np.testing.assert_array_equal(found.get(), values + np.float32(1))
    chosen = F.where(cla.to_device(queue, values), ones, twos) if dtype is np.bool_ else None
    assert chosen is None or chosen.get().tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "tiny"),
    [
        ("f4", 1e-45), ("f8", 5e-324), ("f2", 6e-8), (ml_dtypes.bfloat16, 1e-40), ("i1", -1),
        ("u1", 255), ("i2", -300), ("u2", 65535), ("i4", 256), ("u4", 2**31), ("i8", 2**40),
        ("u8", 2**63), ("?", 1),
    ],
)  # fmt: skip
def test_a_condition_may_have_any_type(queue, dtype, tiny):
    values = np.array([[0, 1, tiny], [1, 0, 0]], np.float64 if dtype == "f8" else object)
    values = values.astype(float).astype(dtype) if dtype in ("f4", "f2") else values.astype(dtype)
    array, ones = cla.to_device(queue, values), cla.to_device(queue, np.ones((2, 3), np.float32))
    right = [[2, 1, 1], [1, 2, 2]]
    for _ in range(2):
        assert F.where(array, ones, 2).get().tolist() == right
    assert F.where(array.T, ones.T, 2).get().tolist() == np.transpose(right).tolist()
    assert F.where(array[:, 1:], 3, ones[:, 1:]).get().tolist() == [[3, 3], [1, 1]]


def test_a_comparison_is_a_condition(queue):
    array = cla.to_device(queue, np.array([[-1, 2, np.nan]], np.float32))
    assert F.where(F.gt(array, 0), array, 0).get().tolist() == [[0, 2, 0]]
    assert F.where(array, 1, cla.zeros(queue, (2, 3), np.float32)).get().tolist() == [[1] * 3] * 2
    signed = cla.to_device(queue, np.array([-0.0, 0.0, -1.0], np.float64))
    assert F.where(signed, 1, cla.zeros(queue, 3, np.float32)).get().tolist() == [0, 0, 1]


def test_numbers_stay_on_the_device(queue, own_queue):
    for place in (queue, own_queue):
        array = cla.to_device(place, np.array([1, -2], np.float32))
        for value in (0.0, -0.0, 1, 1.0, True, 2.5, *range(70), 0.0):
            assert np.array_equal(F.mul(array, value).get(), np.float32([value, -2 * value]))
        signs = [np.signbit(F.mul(array, value).get()).tolist() for value in (0.0, -0.0)]
        assert signs == [[False, True], [True, False]]
