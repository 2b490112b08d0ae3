"""Launches as on a GPU: by the driver's own function, with points of the queue for events."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from opencl_engine import DEVICES, Gate, matmul, square

import dnncore as dnn
from dnncore.backend import ExecutionError

cl = pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")


@pytest.fixture(params=DEVICES)
def engine(request, planned_for_gpus):
    shared = dnn.engine(request.param)
    return type(shared)(shared.index)


def arguments(engine, value=1):
    return {"src": square(engine, value), "weights": square(engine, 1), "dst": square(engine, 0)}


def is_point(event):
    from dnncore_opencl.runtime.events import Point

    return isinstance(event, Point)


def test_launches_share_a_point_until_somebody_asks_for_it(engine):
    stream, memories = engine.stream(), arguments(engine)
    primitive = matmul(engine)
    bound = primitive.bind(**memories)
    first = primitive.execute(stream, **memories)
    assert is_point(first)
    assert bound(stream) is first
    assert dnn.Sequence([bound, bound])(stream) is first
    first.wait()
    assert first.done
    assert first.error is None
    assert first.start is first.end is None
    assert bound(stream) is not first
    assert np.all(memories["dst"].numpy(stream) == 8)


def test_a_point_is_over_when_its_stream_was_waited_for(engine):
    stream = engine.stream()
    event = matmul(engine).execute(stream, **arguments(engine))
    stream.wait()
    assert event.done
    event.wait(timeout=0)
    assert event.error is None


def test_a_point_does_not_wait_for_what_later_commands_wait_for(engine):
    stream, gate, primitive = engine.stream(), Gate(), matmul(engine)
    memories, others = arguments(engine), arguments(engine)
    event = primitive.execute(stream, **memories)
    blocked = primitive.execute(stream, **others, wait_for=[gate])
    event.wait(timeout=60)
    assert not blocked.done
    gate.open()
    stream.wait()
    assert np.all(others["dst"].numpy(stream) == 8)


def test_a_delay_begins_behind_the_point_before_it(engine):
    stream, primitive = engine.stream(), matmul(engine)
    memories = arguments(engine)
    first = primitive.execute(stream, **memories)
    stream.lag = 0.3
    start = time.perf_counter()
    second = primitive.execute(stream, **memories)
    first.wait()
    assert first is not second
    stream.lag = None
    stream.wait()
    assert time.perf_counter() - start >= 0.3
    assert np.all(memories["dst"].numpy(stream) == 8)


def test_a_point_that_is_asked_for_late_leaves_the_present_one(engine):
    """Two threads may ask for an old point and launch behind it."""
    stream, primitive = engine.stream(), matmul(engine)
    first = primitive.execute(stream, **arguments(engine))
    present = stream.new_point()
    first.wait()
    assert stream.point is present
    present.wait()
    assert stream.point is None


def test_a_point_orders_other_streams_and_threads(engine):
    first, second, primitive = engine.stream(), engine.stream(), matmul(engine)
    a, b = arguments(engine), arguments(engine)
    for _ in range(20):
        event = primitive.execute(first, **a)
    done = primitive.execute(
        second, src=a["dst"], weights=b["weights"], dst=b["dst"], wait_for=[event]
    )
    assert np.all(b["dst"].numpy(second) == 64)
    assert done.done
    seen = []
    event = primitive.execute(first, **a)
    thread = threading.Thread(target=lambda: seen.append(event.wait(timeout=60)))
    thread.start()
    for _ in range(20):
        primitive.execute(first, **a)
    thread.join()
    assert seen == [None]


@pytest.mark.parametrize("asked", ["done", "wait_for"])
def test_a_point_is_queued_before_its_queue_is_flushed(engine, monkeypatch, asked):
    enqueue_marker, calls = cl.enqueue_marker, []

    class Queue(cl.CommandQueue):  # type: ignore[name-defined]  # pyopencl has no types
        def flush(self):
            calls.append("flush")
            super().flush()

    def counted(native, wait_for=None):
        calls.append("marker")
        return enqueue_marker(native, wait_for)

    stream = engine.stream(native=Queue(engine.native.context, engine.native.device))
    memories, gate = arguments(engine), Gate()
    stream.marker([gate])
    event = matmul(engine).execute(stream, **memories)
    calls.clear()
    monkeypatch.setattr(cl, "enqueue_marker", counted)
    if asked == "done":
        assert not event.done
    else:
        engine.stream().marker([event])
    gate.open()
    event.wait(timeout=60)
    assert calls[:2] == ["marker", "flush"]


@pytest.mark.parametrize("wishes", [{"profiling": True}, {"order": "out"}])
def test_streams_of_other_kinds_have_events_of_each_command(engine, wishes):
    stream = engine.stream(**wishes)
    event = matmul(engine).execute(stream, **arguments(engine))
    assert not is_point(event)
    event.wait()


def test_other_memories_are_other_arguments(engine):
    stream, primitive = engine.stream(), matmul(engine)
    weights = square(engine, 1)
    for value in (1, 2, 3):
        memories = {"src": square(engine, value), "dst": square(engine, 0)}
        alive = weakref.ref(memories["src"])
        primitive.execute(stream, weights=weights, **memories)
        primitive.execute(stream, weights=weights, **memories)
        assert np.all(memories["dst"].numpy(stream) == 8 * value)
        del memories
        gc.collect()
        assert alive() is None


def test_buffers_of_the_user_are_arguments_too(engine):
    stream, primitive = engine.stream(), matmul(engine)
    desc = dnn.MemoryDesc((8, 8))
    flags, memories = cl.mem_flags, arguments(engine)
    for value in (1, 2, 3):
        values = np.full((8, 8), value, np.float32)
        native = cl.Buffer(engine.native.context, flags.COPY_HOST_PTR, hostbuf=values)
        memories["src"] = dnn.Memory(desc, engine, native)
        primitive.execute(stream, **memories)
        assert np.all(memories["dst"].numpy(stream) == 8 * value)
        del native, memories["src"]


class Counting:
    """A kernel that records which arguments are set."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.places = []

    def set_arg(self, place, value):
        self.places.append(place)
        self.kernel.set_arg(place, value)


def test_only_changed_arguments_are_set(engine):
    stream, primitive, memories = engine.stream(), matmul(engine), arguments(engine)
    primitive.execute(stream, **memories)
    (one,) = primitive.executable._own.call.ready
    one.kernel = counting = Counting(one.kernel)
    primitive.execute(stream, **memories)
    assert counting.places == []
    memories["src"] = square(engine, 2)
    primitive.execute(stream, **memories)
    assert len(counting.places) == 1
    assert np.all(memories["dst"].numpy(stream) == 16)


def test_a_buffer_of_the_user_is_set_at_each_call(engine):
    """It has no number of its own, and its object may have the address of one that is gone."""
    stream, primitive, memories = engine.stream(), matmul(engine), arguments(engine)
    values = np.full((8, 8), 2, np.float32)
    native = cl.Buffer(engine.native.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
    memories["src"] = dnn.Memory(dnn.MemoryDesc((8, 8)), engine, native)
    primitive.execute(stream, **memories)
    (one,) = primitive.executable._own.call.ready
    one.kernel = counting = Counting(one.kernel)
    for count in (1, 2):
        primitive.execute(stream, **memories)
        assert len(counting.places) == count
    stream.wait()


def test_each_thread_has_kernel_objects_of_its_own(engine):
    primitive, failures = matmul(engine), []

    def work(value):
        stream, memories = engine.stream(), arguments(engine, value)
        for _ in range(200):
            primitive.execute(stream, **memories)
            if not np.all(memories["dst"].numpy(stream) == 8 * value):
                failures.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("call", ["execute", "bound", "sequence"])
def test_a_launch_that_fails_is_told(engine, call):
    stream, memories, primitive = engine.stream(), arguments(engine), matmul(engine)
    bound = primitive.bind(**memories)
    calls = {
        "execute": lambda: primitive.execute(stream, **memories),
        "bound": lambda: bound(stream),
        "sequence": lambda: dnn.Sequence([bound, bound])(stream),
    }
    stream.raw_enqueue = lambda *_arguments: -5
    with pytest.raises(ExecutionError, match="cannot launch: OUT_OF_RESOURCES; a kernel ran"):
        calls[call]()


def test_where_the_function_is_hidden_pyopencl_launches(engine, monkeypatch):
    monkeypatch.setattr("dnncore_opencl.runtime.stream.enqueue_function", lambda: None)
    stream, memories = engine.stream(), arguments(engine)
    event = matmul(engine).execute(stream, **memories)
    assert not is_point(event)
    event.wait()
    assert np.all(memories["dst"].numpy(stream) == 8)
