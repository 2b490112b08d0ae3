"""The OpenCL engine beneath the operations: devices, streams, events, stored programs, memory."""

import gc
import textwrap
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opencl_engine import DEVICES, Gate, matmul, run_python, square

import dnncore as dnn
from dnncore.backend import ExecutionError
from dnncore.problem import read
from dnncore.testing import run_case

pytest.importorskip("pyopencl")

from dnncore_opencl.runtime import peaks
from dnncore_opencl.runtime.events import OpenCLEvent
from dnncore_opencl.runtime.launch import Launch, Source
from dnncore_opencl.runtime.schema import Buffer, Schema

pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")


@pytest.fixture(params=DEVICES)
def engine(request):
    return dnn.engine(request.param)


# -- devices --------------------------------------------------------------------------------------


def test_devices_tell_their_limits(engine):
    limits = engine.device.limits
    assert engine.device.name
    assert engine.device.type in ("cpu", "gpu", "accelerator")
    assert limits["compute_units"] >= 1
    assert limits["alignment"] >= 4
    assert engine.native.device in engine.native.context.devices


def test_an_index_without_a_device_tells_how_many_there_are():
    with pytest.raises(dnn.EngineUnavailable, match=f"devices is {len(DEVICES)}"):
        dnn.engine("opencl:99")


NO_PYOPENCL = 'sys.modules["pyopencl"] = None'
NO_PLATFORM = """
import pyopencl
def none():
    raise pyopencl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
pyopencl.get_platforms = none
"""


@pytest.mark.parametrize(
    ("breakage", "reason"),
    [(NO_PYOPENCL, "pyopencl cannot be imported"), (NO_PLATFORM, "there is no OpenCL platform")],
)
def test_unavailable_engines_tell_the_reason_and_the_remedy(breakage, reason):
    code = (
        "import sys, dnncore as dnn\n"
        + breakage
        + textwrap.dedent("""
        try:
            dnn.engine("opencl")
        except dnn.EngineUnavailable as error:
            print(error)
    """)
    )
    done = run_python(code)
    assert reason in done.stdout, done.stderr
    assert 'pip install "dnncore[opencl]"' in done.stdout


def test_native_objects_can_be_wrapped(engine):
    cl = pytest.importorskip("pyopencl")
    context = cl.Context([engine.native.device])
    mine = type(engine).from_native(context)
    queue = cl.CommandQueue(context)
    stream = mine.stream(native=queue)
    assert mine.native.context is context
    assert stream.native is queue
    assert square(mine, 2.0).numpy(stream)[0, 0] == 2.0


def test_engines_of_one_context_share_it(engine):
    cl = pytest.importorskip("pyopencl")
    context = cl.Context([engine.native.device])
    mine, other = (type(engine).from_native(context) for _ in range(2))
    assert mine.shares_context(other)
    assert mine.shares_context(mine)
    assert not mine.shares_context(engine)
    first, second = other.stream(), mine.stream()
    dst = square(other, 0)
    one = matmul(other).execute(first, src=square(other, 1), weights=square(other, 1), dst=dst)
    assert second._native_events([one]) == ([one.native], [])
    second.marker([one]).wait()
    assert np.all(dst.numpy(first) == 8)


@pytest.mark.parametrize("format", ["ab", "ba", "aB8b"])
@pytest.mark.parametrize("way", ["there", "back"])
def test_values_move_between_contexts_of_one_device(engine, format, way):
    """Both engines have one kind, and a queue of one context cannot serve the other."""
    cl = pytest.importorskip("pyopencl")
    mine = type(engine).from_native(cl.Context([engine.native.device]))
    start, end = (engine, mine) if way == "there" else (mine, engine)
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    src = dnn.Memory.from_numpy(values, engine=start)
    op = dnn.Reorder(src=src.desc, dst=dnn.MemoryDesc((4, 6), "f32", format))
    for pd in dnn.primitive_descs(op, end, src_engine=start):
        for stream in (start.stream(), end.stream()):
            dst = dnn.Memory(op.dst, end)
            pd.primitive().execute(stream, src=src, dst=dst).wait()
            np.testing.assert_array_equal(dst.numpy(), values, pd.impl_name)


def test_a_device_that_is_not_listed_can_be_wrapped(engine, monkeypatch):
    """Such as a part of one."""
    monkeypatch.setattr("dnncore_opencl.runtime.engine.cl_devices", lambda: ())
    cl = pytest.importorskip("pyopencl")
    mine = type(engine).from_native(cl.Context([engine.native.device]))
    assert (mine.index, mine.name) == (-1, "opencl:-1")
    assert square(mine, 2.0).numpy()[0, 0] == 2.0


@pytest.mark.parametrize("index", [-1, len(DEVICES), 99])
def test_an_engine_of_an_index_without_a_device_tells_how_many_there_are(engine, index):
    found = len(engine.devices())
    index = max(index, found) if index > 0 else index
    with pytest.raises(dnn.EngineUnavailable, match=f"opencl:{index}: there are {found} OpenCL"):
        type(engine)(index)


def test_whether_an_engine_is_a_cpu_is_what_its_device_says(engine, monkeypatch):
    for kind in ("cpu", "gpu", "accelerator"):
        monkeypatch.setattr(engine, "device_type", kind)
        assert engine.is_cpu == (kind == "cpu")


CONTEXT_OF_TWO = """
    import numpy as np
    import pyopencl as cl
    import dnncore as dnn
    from dnncore_opencl.runtime.engine import OpenCLEngine

    platform = next(p for p in cl.get_platforms() if p.name == "Portable Computing Language")
    context = cl.Context(platform.get_devices())
    assert len(context.devices) == 2
    desc = dnn.MemoryDesc((8, 8))
    for device in context.devices:
        engine = OpenCLEngine.from_native(context, device)
        one = dnn.Memory.from_numpy(np.ones((8, 8), np.float32), engine=engine)
        dst, op = dnn.Memory(desc, engine), dnn.MatMul(src=desc, weights=desc, dst=desc)
        stream = engine.stream()
        dnn.PrimitiveDesc(op, engine).primitive().execute(stream, src=one, weights=one, dst=dst)
        assert np.all(dst.numpy(stream) == 8)
    print(dnn.cache.stats()["from_disk"])
"""


def test_a_context_of_two_devices_can_be_wrapped(tmp_path):
    if not any("pthread" in dnn.engine(name).device.name for name in DEVICES):
        pytest.skip("only PoCL has two devices on any machine")
    environment = {"POCL_DEVICES": "pthread pthread", "DNNCORE_CACHE_DIR": str(tmp_path)}
    done = [run_python(CONTEXT_OF_TWO, **environment) for _ in range(2)]
    assert [int(one.stdout or 0) > 0 for one in done] == [True, True], done[0].stderr


def test_peaks_are_measured_once(engine):
    peaks = engine.peaks
    extensions = engine.native.device.extensions.split()
    assert peaks.flops["f32"] > 1e8
    assert ("f64" in peaks.flops) == ("cl_khr_fp64" in extensions)
    assert ("f16" in peaks.flops) == ("cl_khr_fp16" in extensions)
    assert peaks.bandwidth > 1e8
    assert 0 < peaks.launch < 1e-2
    assert engine.peaks is peaks


@pytest.mark.usefixtures("planned_for_gpus")
def test_peaks_of_gpus_are_measured_in_groups(engine, monkeypatch):
    monkeypatch.setattr(peaks, "SECONDS", 0.0)
    monkeypatch.setitem(peaks.ROUNDS, "gpu", 64)
    monkeypatch.setitem(peaks.COPY_BYTES, "gpu", 1 << 20)
    figures = peaks._figures(engine)
    assert figures["flops"]["f32"] > 1e6
    assert figures["bandwidth"] > 1e6
    assert 0 < figures["launch"] < 1


# -- memory ---------------------------------------------------------------------------------------


def test_living_buffers_are_counted(engine):
    gc.collect()
    before = engine.memory_info()
    memory = dnn.Memory(dnn.MemoryDesc((1000,)), engine)
    after = engine.memory_info()
    assert (after.allocated - before.allocated, after.buffers - before.buffers) == (4000, 1)
    del memory
    gc.collect()
    assert engine.memory_info() == before


def test_nothing_is_allocated_per_execution(engine):
    stream = engine.stream()
    primitive = matmul(engine)
    arguments = {"src": square(engine, 1), "weights": square(engine, 2), "dst": square(engine, 0)}
    bound = primitive.bind(**arguments)
    bound(stream)
    before = engine.memory_info()
    for _ in range(20):
        bound(stream)
        primitive.execute(stream, **arguments)
    assert engine.memory_info() == before
    stream.wait()


def test_empty_memories_work(engine):
    memory = dnn.Memory.from_numpy(np.zeros((0, 3), np.float32), engine=engine)
    assert memory.numpy().shape == (0, 3)


def test_too_large_a_buffer_is_refused_with_the_limit(engine):
    limit = engine.device.limits["max_allocation"]
    with pytest.raises(ExecutionError, match=str(limit)):
        engine.allocate(limit + 1)


def test_a_bound_call_keeps_its_memories(engine):
    stream = engine.stream()
    dst = square(engine, 0)
    src = square(engine, 3)
    alive = weakref.ref(src)
    bound = matmul(engine).bind(src=src, weights=square(engine, 1), dst=dst)
    del src
    gc.collect()
    garbage = [square(engine, 99) for _ in range(8)]
    bound(stream)
    assert alive() is not None
    assert np.all(dst.numpy(stream) == 24)
    del bound, garbage
    gc.collect()
    assert alive() is None


# -- streams and events ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["in", "out"])
def test_dependent_commands_run_in_order(engine, order):
    stream = engine.stream(order)
    primitive = matmul(engine)
    one, memories = square(engine, 0.125), [square(engine, 1), square(engine, 0), square(engine, 0)]
    event: Any = None
    wait_for: tuple[dnn.Event, ...] = ()
    for i in range(6):
        src, dst = memories[i % 3], memories[(i + 1) % 3]
        event = primitive.execute(stream, src=src, weights=one, dst=dst, wait_for=wait_for)
        wait_for = (event,)
    event.wait()
    assert event.done
    assert event.error is None
    assert np.all(memories[0].numpy(stream) == 1)


def test_an_array_that_another_stream_reads_into_is_written_from_afterwards(engine):
    values, host = np.arange(4096, dtype=np.uint8), np.zeros(4096, np.uint8)
    buffer, target, gate = engine.allocate(4096), engine.allocate(4096), Gate()
    stream, other = engine.stream(), engine.stream()
    engine.copy_in(stream, values, buffer).wait()
    engine.copy_out(stream, buffer, host, [gate])
    event = engine.copy_in(other, host, target)
    assert not event.done
    gate.open()
    event.wait(timeout=60)
    back = np.zeros(4096, np.uint8)
    engine.copy_out(other, target, back).wait()
    assert np.array_equal(back, values)
    stream.wait()


def test_a_sequence_is_one_run_of_all_kernels(engine):
    stream = engine.stream()
    primitive = matmul(engine)
    a, b, c, half = (square(engine, v) for v in (1, 0, 0, 0.125))
    calls = [primitive.bind(src=a, weights=half, dst=b), primitive.bind(src=b, weights=half, dst=c)]
    dnn.Sequence(calls)(stream).wait()
    assert np.all(c.numpy(stream) == 1)


def test_profiling_gives_times(engine):
    stream = engine.stream(profiling=True)
    event = matmul(engine).execute(
        stream, src=square(engine, 1), weights=square(engine, 1), dst=square(engine, 0)
    )
    event.wait()
    assert 0 < event.start <= event.end
    plain = engine.stream()
    assert dnn.Memory.from_numpy(np.ones(4, np.float32), engine=engine).numpy(plain)[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "--binary --dtag=abx --alg=MUL 2x0x3:2x1x3",
        "--eltwise 0x3",
        "--conv mb0_ic3oc4_ih5oh3kh3",
    ],
)
def test_commands_of_no_elements_have_times_where_markers_have_none(engine, text, monkeypatch):
    """NVIDIA's markers begin at 0, or at a time long before."""
    cl = pytest.importorskip("pyopencl")
    time_of = OpenCLEvent._time

    def without_markers(event, which):
        is_old = which == "start" and event.native.command_type == cl.command_type.MARKER
        return time_of(event, which) and (0.0 if is_old else time_of(event, which))

    monkeypatch.setattr(OpenCLEvent, "_time", without_markers)
    (problem,) = read(text)
    result = run_case(problem, engine, impl="opencl:*", checks=("profiling",))
    assert result.executed
    assert not result.failures
    for order in ("in", "out"):
        event = engine.stream(order, profiling=True).nothing()
        event.wait()
        assert 0 < event.start <= event.end


def test_a_command_that_has_not_ended_has_no_times(engine):
    stream, gate = engine.stream(profiling=True), Gate()
    event = stream.marker([gate])
    for which in ("start", "end"):
        with pytest.raises(ExecutionError, match=f"has no {which} yet; wait for it first"):
            getattr(event, which)
    gate.open()
    stream.wait()


def test_a_foreign_event_is_waited_for_without_blocking_the_caller(engine):
    stream, gate = engine.stream(), Gate()
    dst = square(engine, 0)
    start = time.perf_counter()
    event = matmul(engine).execute(
        stream, src=square(engine, 1), weights=square(engine, 1), dst=dst, wait_for=[gate]
    )
    assert time.perf_counter() - start < 5
    with pytest.raises(TimeoutError):
        event.wait(timeout=0.05)
    assert not event.done
    gate.open()
    event.wait(timeout=60)
    assert np.all(dst.numpy(stream) == 8)


def test_an_event_of_another_engine_is_waited_for(engine):
    others = [dnn.engine(name) for name in DEVICES if dnn.engine(name) is not engine]
    other = others[0] if others else type(engine)(engine.index)
    first, second = other.stream(), engine.stream()
    a, b = square(other, 0), square(engine, 0)
    one = matmul(other).execute(first, src=square(other, 1), weights=square(other, 1), dst=a)
    two = matmul(engine).execute(
        second, src=square(engine, 1), weights=square(engine, 1), dst=b, wait_for=[one]
    )
    two.wait(timeout=60)
    assert one.done
    assert np.all(a.numpy(first) == b.numpy(second))


def test_errors_have_names_reach_dependents_and_leave_the_stream_usable(engine):
    stream, gate = engine.stream(), Gate()
    reason = ValueError("the other runtime failed")
    memories = {"src": square(engine, 1), "weights": square(engine, 1), "dst": square(engine, 0)}
    primitive = matmul(engine)
    event = primitive.execute(stream, **memories, wait_for=[gate])
    other = engine.stream()
    dependent = primitive.execute(other, **memories, wait_for=[event])
    gate.open(reason)
    with pytest.raises(ExecutionError, match="EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST") as info:
        event.wait()
    assert info.value.__cause__ is reason
    assert event.error is not None
    with pytest.raises(ExecutionError):
        dependent.wait()
    with pytest.raises(ExecutionError):
        stream.wait()
    stream.wait()
    primitive.execute(stream, **memories).wait()
    assert np.all(memories["dst"].numpy(stream) == 8)


def test_an_error_reaches_the_last_of_several_kernels(engine):
    stream, gate, reason = engine.stream(), Gate(), ValueError("the other runtime failed")
    bound = matmul(engine).bind(
        src=square(engine, 1), weights=square(engine, 1), dst=square(engine, 0)
    )
    event = dnn.Sequence([bound, bound])(stream, wait_for=[gate])
    gate.open(reason)
    with pytest.raises(ExecutionError, match="EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST") as info:
        event.wait()
    assert info.value.__cause__ is reason


def test_bound_calls_on_two_threads_and_streams(engine):
    primitive = matmul(engine, 32)
    failures = []

    def work(value):
        stream = engine.stream()
        dst = square(engine, 0, 32)
        one = square(engine, 1, 32)
        bound = primitive.bind(src=square(engine, value, 32), weights=one, dst=dst)
        for _ in range(50):
            bound(stream)
            primitive.execute(stream, src=square(engine, value, 32), weights=one, dst=dst)
        if not np.all(dst.numpy(stream) == 32 * value):
            failures.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# -- programs -------------------------------------------------------------------------------------

COUNT = """
    import numpy as np
    import dnncore as dnn

    engine = dnn.engine({name!r})
    desc = dnn.MemoryDesc((16, 16))
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    primitive = dnn.PrimitiveDesc(op, engine).primitive()
    memories = [dnn.Memory.from_numpy(np.ones((16, 16), np.float32), engine=engine) for _ in "abc"]
    stream = engine.stream()
    primitive.execute(stream, **dict(zip(("src", "weights", "dst"), memories)))
    assert np.all(memories[2].numpy(stream) == 16)
    stats = dnn.cache.stats()
    print(stats["compiled"], stats["from_disk"])
"""


def test_a_second_process_compiles_nothing_and_a_damaged_store_is_a_miss(engine, tmp_path):
    places = {"DNNCORE_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    code = COUNT.format(name=engine.name)

    def counts():
        done = run_python(code, **places)
        assert done.returncode == 0, done.stderr
        return tuple(map(int, done.stdout.split()))

    compiled, from_disk = counts()
    assert compiled > 0
    assert from_disk == 0
    assert counts() == (0, 1)  # the other one measured the device's peaks, which are stored too
    for path in (tmp_path / "opencl").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    assert counts() == (1, 0)


def test_a_build_failure_tells_the_kernel_the_options_the_log_and_the_source(engine):
    from dnncore_opencl.runtime.program import LaunchProgram

    source = Source("reduction", Schema(), {"SIDE": 1}, ("this is no OpenCL",))
    with pytest.raises(dnn.BuildError) as info:
        LaunchProgram(engine, [Launch(source, {}, (1,), (1,))])
    text = str(info.value)
    for part in ("reduction", "-cl-mad-enable", ".cl", "error"):
        assert part in text


@pytest.mark.parametrize(
    ("sizes", "local"), [((0,), (1,)), ((3,), (2,)), ((4, 0), (2, 1)), ((4, 5), (4, 4))]
)
def test_launches_are_of_whole_groups(sizes, local):
    source = Source("reduction", Schema())
    with pytest.raises(dnn.DescriptorError, match="global sizes of reduction must be multiples"):
        Launch(source, {}, sizes, local)


def test_large_grids_have_programs_of_their_own(engine):
    """Both are right, and the second use of each compiles nothing."""
    if not engine.is_cpu:
        pytest.skip("programs for GPUs are launched by nobody before they are stored")
    source = Source("numbers_for_a_test", Schema(out=Buffer("int")))
    text = "__kernel void numbers_for_a_test(__global int *out) {"
    text += " if (out) out[get_global_id(0)] = get_global_id(0); }"
    small, large = (
        SimpleNamespace(
            source=SimpleNamespace(text=text, options=(), is_exact=False),
            kernel=source.template,
            args=(None,),
            work=1e9,
            global_size=(count,),
            local_size=(1,),
        )
        for count in (1000, 70_000)
    )
    programs = [engine.builder.launchable(launch) for launch in (small, large)]
    assert programs[0] is not programs[1]
    assert engine.builder.launchable(large) is programs[1]
    cl = pytest.importorskip("pyopencl")
    queue = cl.CommandQueue(engine.native.context, engine.native.device)
    for program, launch in zip(programs, (small, large), strict=True):
        host = np.zeros(launch.global_size, np.int32)
        buffer = engine.allocate(host.nbytes)
        kernel = cl.Kernel(program, launch.kernel)
        kernel.set_args(buffer)
        cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
        cl.enqueue_copy(queue, host, buffer)
        assert np.array_equal(host, np.arange(len(host)))


STORED = """
    import warnings
    from types import SimpleNamespace
    import dnncore as dnn
    from dnncore_opencl.runtime.build import Builder

    warnings.simplefilter("ignore", dnn.CacheWarning)
    builder = dnn.engine({name!r}).builder
    for binaries in ([], [b""], [b"a", b"b"], [b"code"]):
        builder._put("key", SimpleNamespace(get_info=lambda _kind: binaries))
        print(builder._store.get("key"))
"""


def test_a_program_without_a_single_binary_is_not_stored(engine, tmp_path):
    code = STORED.format(name=engine.name)
    done = run_python(code, DNNCORE_CACHE_DIR=str(tmp_path))
    assert done.stdout.split() == ["None", "None", "None", "b'code'"], done.stderr
    (tmp_path / "file").touch()
    done = run_python(code, DNNCORE_CACHE_DIR=str(tmp_path / "file" / "x"))
    assert done.stdout.split() == ["None"] * 4, done.stderr


def test_strangers_can_build_programs(engine):
    program = engine.program("__kernel void twice(__global float *x) { x[0] *= 2; }")
    assert program is engine.program("__kernel void twice(__global float *x) { x[0] *= 2; }")


def nvidia_device(capability, extensions="cl_khr_fp64 cl_nv_device_attribute_query"):
    major, minor = capability
    return SimpleNamespace(
        extensions=extensions,
        compute_capability_major_nv=major,
        compute_capability_minor_nv=minor,
        local_mem_size=49152,
        warp_size_nv=32,
    )


@pytest.mark.parametrize(
    ("capability", "nbytes"), [((9, 0), 232444), ((8, 0), 166908), ((6, 1), 49152)]
)
def test_nvidia_gpus_tell_what_kernels_may_declare(capability, nbytes):
    from dnncore_opencl.devices import nvidia

    assert nvidia.limits(nvidia_device(capability)) == {
        "compute_capability": capability,
        "local_memory": nbytes,
        "sub_group": 32,
    }
    assert nvidia.limits(nvidia_device(capability, extensions="cl_khr_fp64")) == {}
