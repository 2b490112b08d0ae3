"""OpenCL devices at fault: memory runs out, kernels hang, devices vanish, queues are others'."""

import gc
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from opencl_engine import DEVICES, Gate, matmul, run_python, square

import dnncore as dnn
from dnncore.backend import ExecutionError

pytest.importorskip("pyopencl")

from dnncore_opencl.runtime.in_flight import Command, UnderWay

cl = pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")

VANISHED = -2  # CL_DEVICE_NOT_AVAILABLE
OUT_OF_MEMORY = -4  # CL_MEM_OBJECT_ALLOCATION_FAILURE
LOST_QUEUE = -36  # CL_INVALID_COMMAND_QUEUE


@pytest.fixture
def engine():
    """An engine that no other test uses."""
    shared = dnn.engine(DEVICES[0])
    return type(shared)(shared.index)


def cl_error(status):
    return cl.RuntimeError(cl._cl._ErrorRecord("clSomething", status, "as the test wants"))


def raising(status):
    def fail(*args, **kwargs):
        raise cl_error(status)

    return fail


def break_launches(stream, monkeypatch, status):
    """Have every launch on a stream end with a status, whatever function queues it."""
    stream.raw_enqueue = lambda *_arguments: status
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", raising(status))


def arguments(engine):
    return {"src": square(engine, 1), "weights": square(engine, 1), "dst": square(engine, 0)}


# -- memory ---------------------------------------------------------------------------------------


def test_out_of_memory_tells_who_holds_how_much(engine):
    large = [dnn.Memory(dnn.MemoryDesc((500, 1000)), engine) for _ in range(2)]
    small = dnn.Memory(dnn.MemoryDesc((4, 1000), "f32", "ba"), engine)
    stream = engine.stream()
    stream.reserve(300_000)
    held = engine.allocate(50_000)
    engine.account.capacity = 5_000_000
    with pytest.raises(ExecutionError) as info:
        engine.allocate(2_000_000)
    text = str(info.value)
    assert text.startswith(f"{engine.name}: cannot allocate 2000000 bytes")
    for part in (
        "holds 4.4 MB of the device's 5.0 MB",
        f"3 memories 4.0 MB (the largest: {large[0].desc} 2.0 MB",
        f"{small.desc} 16.0 KB",
        "1 scratchpads of streams 300.0 KB",
        "others 50.0 KB",
    ):
        assert part in text
    del held


def test_scratchpads_of_both_kinds_of_streams_are_told(engine):
    """A buffer that a memory has, too, is listed once, with the memory."""
    in_order, out_of_order = engine.stream(), engine.stream("out")
    in_order.reserve(200_000)
    own = dnn.Memory(dnn.MemoryDesc((50_000,)), engine, in_order.scratchpad)
    for nbytes in (300_000, 100_000):
        gate = Gate()
        out_of_order.scratchpads.launch(
            nbytes, (), lambda _pad, events, gate=gate: out_of_order.marker([*events, gate])
        )
        gate.open()
    engine.account.capacity = 700_000
    with pytest.raises(ExecutionError) as info:
        engine.allocate(500_000)
    text = str(info.value)
    assert f"1 memories 200.0 KB (the largest: {own.desc} 200.0 KB)" in text
    pads = {"1 scratchpads of streams 300.0 KB", "2 scratchpads of streams 400.0 KB"}
    assert any(part in text for part in pads), text
    assert "others 0 B" in text
    out_of_order.wait()


@pytest.mark.parametrize("status", [OUT_OF_MEMORY, VANISHED, -30])
def test_the_error_of_an_allocation_has_advice(engine, monkeypatch, status):
    monkeypatch.setattr("dnncore_opencl.runtime.device._buffer_class", lambda: raising(status))
    with pytest.raises(ExecutionError, match=r"cannot allocate 1000 bytes: ") as info:
        engine.allocate(1000)
    assert ("as the test wants" in str(info.value)) == (status == -30)  # which has no advice


def test_a_driver_out_of_memory_is_told_alike(engine, monkeypatch):
    memory = square(engine, 1)
    monkeypatch.setattr(
        "dnncore_opencl.runtime.device._buffer_class", lambda: raising(OUT_OF_MEMORY)
    )
    with pytest.raises(ExecutionError, match=r"MEM_OBJECT_ALLOCATION_FAILURE; .* 1 memories 256 B"):
        engine.allocate(1000)
    assert memory.engine is engine


def test_memory_that_only_garbage_holds_is_found(engine):
    cycle = [dnn.Memory(dnn.MemoryDesc((1000,)), engine)]
    cycle.append(cycle)
    engine.account.capacity = 6000
    gc.disable()
    try:
        del cycle
        assert dnn.Memory(dnn.MemoryDesc((1000,)), engine).buffer.size == 4000
    finally:
        gc.enable()


def test_a_launch_out_of_memory_tells_it_too(engine, monkeypatch):
    primitive, memories, stream = matmul(engine), arguments(engine), engine.stream()
    break_launches(stream, monkeypatch, OUT_OF_MEMORY)
    with pytest.raises(ExecutionError, match=r"cannot launch: MEM_OBJECT.* 3 memories 768 B"):
        primitive.execute(stream, **memories)


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (VANISHED, "DEVICE_NOT_AVAILABLE; the device has gone; this engine is lost"),
        (LOST_QUEUE, "INVALID_COMMAND_QUEUE; the driver has given up"),
        (-9999, "status -9999; a kernel read or wrote outside its buffers"),
    ],
)
def test_a_device_that_vanishes_is_told(engine, monkeypatch, status, told):
    primitive, memories = matmul(engine), arguments(engine)
    stream = engine.stream()
    bound = primitive.bind(**memories)
    break_launches(stream, monkeypatch, status)
    monkeypatch.setattr(cl, "enqueue_copy", raising(status))
    for call in (
        lambda: primitive.execute(stream, **memories),
        lambda: bound(stream),
        lambda: dnn.Sequence([bound, bound])(stream),
        lambda: memories["dst"].numpy(stream),
    ):
        with pytest.raises(ExecutionError) as info:
            call()
        assert told in str(info.value)


def test_a_marker_that_fails_is_told(engine, monkeypatch):
    stream, waited_for = engine.stream(), engine.stream().marker()
    empty, buffer = np.zeros(0, np.uint8), engine.allocate(1)
    monkeypatch.setattr(cl, "enqueue_marker", raising(VANISHED))
    for call in (
        stream.marker,
        lambda: stream.marker([waited_for]),
        lambda: engine.copy_in(stream, empty, buffer, [waited_for]),
    ):
        with pytest.raises(ExecutionError, match="cannot queue a marker: DEVICE_NOT_AVAILABLE"):
            call()


def test_a_device_without_a_context_is_told(engine, monkeypatch):
    monkeypatch.setattr(cl, "Context", raising(-9999))
    with pytest.raises(dnn.EngineUnavailable, match=r"no context on .*: status -9999; a kernel"):
        type(engine)(engine.index)


class Lost:
    """An event of a device that answers nothing any more."""

    @property
    def command_execution_status(self):
        raise cl_error(-9999)

    def wait(self):
        raise cl_error(-9999)


class Ended:
    """A queue's event that has ended with a status."""

    def __init__(self, status):
        self.command_execution_status = status

    def wait(self):
        raise cl_error(self.command_execution_status)


def test_an_event_of_a_vanished_device_tells_it(engine):
    from dnncore_opencl.runtime.events import OpenCLEvent

    for native, told in ((Ended(VANISHED), "the device has gone"), (Lost(), "open a new one")):
        event = OpenCLEvent(engine.stream(), native)
        with pytest.raises(ExecutionError, match=told):
            event.wait()
        with pytest.raises(ExecutionError, match=told):
            event.wait(timeout=1)
        assert event.done
        assert told in str(event.error)


# -- waits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["in", "out"])
def test_a_wait_for_a_kernel_that_hangs_has_an_end(engine, order):
    stream, gate = engine.stream(order), Gate()
    memories = arguments(engine)
    event = matmul(engine).execute(stream, **memories, wait_for=[gate])
    start = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        stream.wait(timeout=0.05)
    with pytest.raises(TimeoutError):
        event.wait(timeout=0.05)
    assert time.perf_counter() - start < 5
    gate.open()
    stream.wait(timeout=60)
    assert np.all(memories["dst"].numpy(stream) == 8)


def test_the_engine_has_a_limit_for_all_waits(engine):
    stream, gate = engine.stream(), Gate()
    memories = arguments(engine)
    event = matmul(engine).execute(stream, **memories, wait_for=[gate])
    engine.wait_timeout = 0.05
    for wait in (stream.wait, event.wait, lambda: memories["dst"].numpy(stream)):
        with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
            wait()
    gate.open()
    engine.wait_timeout = 60
    assert np.all(memories["dst"].numpy(stream) == 8)


def test_the_limit_comes_from_the_environment():
    done = run_python(
        f"""
        import dnncore as dnn
        print(dnn.engine({DEVICES[0]!r}).wait_timeout)
        """,
        DNNCORE_WAIT_TIMEOUT="2.5",
    )
    assert done.stdout.split() == ["2.5"], done.stderr


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(engine, monkeypatch, text):
    monkeypatch.setenv("DNNCORE_WAIT_TIMEOUT", text)
    with pytest.raises(dnn.DescriptorError, match=f"above 0; got '{text}'"):
        type(engine)(engine.index)


def test_an_error_behind_the_limit_is_still_raised(engine):
    stream, gate = engine.stream(), Gate()
    matmul(engine).execute(stream, **arguments(engine), wait_for=[gate])
    with pytest.raises(TimeoutError):
        stream.wait(timeout=0.01)
    gate.open(ValueError("the other runtime failed"))
    with pytest.raises(ExecutionError):
        stream.wait(timeout=60)
    stream.wait()


# -- queues ---------------------------------------------------------------------------------------


def test_an_error_is_asked_for_before_a_command_and_its_causes_have_ended(engine):
    stream, gate = engine.stream(), Gate()
    event = stream.marker([gate])
    assert event.error is None
    gate.open(ValueError("as the test wants"))
    with pytest.raises(ExecutionError):
        event.wait()
    assert event.error is not None


def test_an_order_that_is_none_is_refused(engine):
    with pytest.raises(dnn.DescriptorError, match="order must be 'in' or 'out'; got 'sideways'"):
        engine.stream("sideways")


def test_a_buffer_of_another_context_is_not_this_engines(engine):
    other = type(engine).from_native(cl.Context([engine.native.device]))
    buffer = other.allocate(256)
    assert other.owns(buffer, 256)
    assert not other.owns(buffer, 1 << 20)
    assert not engine.owns(buffer, 256)
    assert not engine.owns(bytearray(256), 256)


class Over(Command):
    """A command that is over, or is held up. While it lands, a signal handler tidies."""

    def __init__(self, stream=None, *, is_over=True, causes=()):
        self._stream = stream
        self._is_over = is_over
        self.causes = causes

    @property
    def is_over(self):
        return self._is_over

    @property
    def error(self):
        return self

    def land(self):
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.tidy()

    def wait(self, timeout=None):
        raise NotImplementedError

    done = is_over


def test_what_a_signal_handler_tidies_counts_once():
    under_way = UnderWay(in_order=True)
    events = [Over(under_way), Over()]
    under_way.events.update(dict.fromkeys(events))
    assert under_way.errors() == events
    assert not under_way.events
    assert under_way.errors() == []


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("causes", [(), (Gate(),)])
def test_a_stream_is_held_up_by_what_waits_for_another_runtime(is_over, causes):
    under_way = UnderWay(in_order=True)
    under_way.events[Over(is_over=is_over, causes=causes)] = None
    assert under_way.is_held_up == (bool(causes) and not is_over)


def test_a_queue_of_another_context_is_refused(engine):
    context = cl.Context([engine.native.device])
    other = cl.CommandQueue(context)
    with pytest.raises(dnn.DescriptorError, match=r"must be of this engine's context"):
        engine.stream(native=other)
    with pytest.raises(dnn.DescriptorError, match=r"pyopencl\.CommandQueue; got str"):
        engine.stream(native="queue")


def test_a_wrapped_queue_keeps_its_properties(engine):
    flags = cl.command_queue_properties
    both = flags.OUT_OF_ORDER_EXEC_MODE_ENABLE | flags.PROFILING_ENABLE
    native = engine.native
    stream = engine.stream(native=cl.CommandQueue(native.context, native.device, both))
    assert (stream.order, stream.profiling) == ("out", True)
    assert not engine.stream().profiling
    event = matmul(engine).execute(stream, **arguments(engine))
    event.wait()
    assert event.end >= event.start > 0


# -- processes ------------------------------------------------------------------------------------

TWO = """
    import numpy as np
    import dnncore as dnn

    engine = dnn.engine({name!r})
    for size in (16, 24, 40):
        desc = dnn.MemoryDesc((size, size))
        op = dnn.MatMul(src=desc, weights=desc, dst=desc)
        primitive = dnn.PrimitiveDesc(op, engine).primitive()
        one = np.ones((size, size), np.float32)
        memories = [dnn.Memory.from_numpy(one, engine=engine) for _ in "abc"]
        stream = engine.stream()
        for _ in range(100):
            primitive.execute(stream, **dict(zip(("src", "weights", "dst"), memories)))
        assert np.all(memories[2].numpy(stream) == size)
    print("right")
"""


def test_two_processes_share_a_device_and_a_cold_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    code = textwrap.dedent(TWO).format(name=DEVICES[0])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert out.split() == ["right"], err
