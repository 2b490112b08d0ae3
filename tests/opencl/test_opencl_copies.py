"""Copies through pinned memory, in pieces: every size, landing when waited for, order, faults."""

import threading
import time

import numpy as np
import pytest
from opencl_engine import DEVICES, Gate, matmul, run_python, square

import dnncore as dnn
from dnncore.backend import COMPLETED, ExecutionError

pytest.importorskip("pyopencl")

from dnncore_opencl.runtime import pinned
from dnncore_opencl.runtime.events import Point

cl = pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")

PIECE, BLOCKS, LEAST = 4096, 6, 1024
SIZES = (
    LEAST - 1,
    LEAST,
    LEAST + 1,
    PIECE - 1,
    PIECE,
    PIECE + 1,
    BLOCKS * PIECE,
    3 * BLOCKS * PIECE + 5,
)


@pytest.fixture(params=DEVICES)
def engine(request, monkeypatch, planned_for_gpus):
    """An engine of its own that copies as for a GPU, with small pieces."""
    from dnncore_opencl.runtime import engine as engines

    monkeypatch.setattr(engines, "LEAST_BYTES", LEAST)
    monkeypatch.setattr(pinned, "PIECE", PIECE)
    monkeypatch.setattr(pinned, "BLOCKS", BLOCKS)
    monkeypatch.setattr(pinned, "THREADS", 2)
    monkeypatch.setattr(pinned, "SMALL_PIECE", PIECE // 4)
    monkeypatch.setattr(pinned, "SMALL_COPY", PIECE)
    return engines.OpenCLEngine(dnn.engine(request.param).index)


def random_bytes(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def arguments(engine):
    return {"src": square(engine, 1), "weights": square(engine, 1), "dst": square(engine, 0)}


def in_buffer(engine, buffer, size):
    """What a buffer holds, by the driver's own copy."""
    host = np.zeros(size, np.uint8)
    queue = cl.CommandQueue(engine.native.context, engine.native.device)
    cl.enqueue_copy(queue, host, buffer)
    return host


@pytest.mark.parametrize("size", SIZES)
def test_all_bytes_arrive(engine, size):
    stream, host, back = engine.stream(), random_bytes(size), np.zeros(size + 2, np.uint8)
    buffer = engine.allocate(size)
    engine.copy_in(stream, host, buffer).wait()
    assert np.array_equal(in_buffer(engine, buffer, size), host)
    event = engine.copy_out(stream, buffer, back[1:-1])
    event.wait()
    assert event.done
    assert event.error is None
    assert np.array_equal(back[1:-1], host)
    assert back[0] == back[-1] == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_lands_when_its_stream_is_waited_for(engine, size):
    stream, host, back = engine.stream(), random_bytes(size), np.zeros(size, np.uint8)
    buffer = engine.allocate(size)
    engine.copy_in(stream, host, buffer)
    engine.copy_out(stream, buffer, back)
    stream.wait()
    assert np.array_equal(back, host)


@pytest.mark.parametrize("wishes", [{"order": "out"}, {"profiling": True}, {}])
def test_copies_that_overlap_or_are_timed_are_the_drivers(engine, wishes):
    stream, host, back = engine.stream(**wishes), random_bytes(PIECE), np.zeros(PIECE, np.uint8)
    buffer = engine.allocate(PIECE)
    engine.copy_in(stream, host, buffer).wait()
    read = engine.copy_out(stream, buffer, back)
    read.wait()
    assert np.array_equal(host, back)
    assert isinstance(read, pinned.Landing) == (not wishes)
    assert bool(read.start) == ("profiling" in wishes)


def test_a_copy_of_nothing_has_ended(engine):
    stream, nothing, buffer = engine.stream(), np.zeros(0, np.uint8), engine.allocate(1)
    assert engine.copy_in(stream, nothing, buffer) is COMPLETED
    assert engine.copy_out(stream, buffer, nothing) is COMPLETED
    gate = Gate()
    event = engine.copy_in(stream, nothing, buffer, [gate])
    assert not event.done
    gate.open()
    event.wait()


def test_large_copies_behind_events_that_are_no_wait_are_pinned(engine):
    """Those of the stream's own launches, and those that have ended, but not those that failed."""
    stream, other, size = engine.stream(), engine.stream(), PIECE
    buffer, host = engine.allocate(size), np.zeros(size, np.uint8)
    failed, ended, going = Gate(), Gate(), Gate()
    failed.open(ValueError("as the test wants"))
    ended.open()
    primitive, memories = matmul(engine), arguments(engine)
    own = primitive.execute(stream, **memories)
    others = primitive.execute(other, **arguments(engine))
    assert isinstance(own, Point)
    assert stream.is_behind(own)
    assert not other.is_behind(own) or own.done
    others.wait()
    for event, is_pinned in ((own, True), (others, True), (ended, True), (failed, False)):
        assert stream.is_behind(event) == is_pinned
        copy = engine.copy_out(stream, buffer, host, [event])
        assert isinstance(copy, pinned.Landing) == is_pinned
    assert not stream.is_behind(going)
    with pytest.raises(ExecutionError):
        stream.wait()


def test_without_threads_of_its_own_a_copy_is_made_by_the_caller(engine, monkeypatch):
    """This happens at the end of a process."""
    monkeypatch.setattr(pinned, "SMALL_COPY", 1)  # no copy is small enough for one thread
    monkeypatch.setattr(engine._pinned, "_workers", None)
    size = 3 * BLOCKS * PIECE + 5
    stream, host, back = engine.stream(), random_bytes(size), np.zeros(size, np.uint8)
    buffer = engine.allocate(size)
    engine.copy_in(stream, host, buffer).wait()
    engine.copy_out(stream, buffer, back).wait()
    assert np.array_equal(host, back)


def test_a_copy_has_landed_when_it_is_done(engine):
    stream, host, back = engine.stream(), random_bytes(PIECE * 2), np.zeros(PIECE * 2, np.uint8)
    buffer = engine.allocate(host.size)
    engine.copy_in(stream, host, buffer).wait()
    event = engine.copy_out(stream, buffer, back)
    while not event.done:
        pass
    assert np.array_equal(back, host)


@pytest.mark.parametrize("ended", ["wait", "timeout", "done"])
@pytest.mark.parametrize("other", [None, "in", "out"])
def test_a_copy_has_landed_when_a_later_command_has_ended(engine, ended, other):
    stream, host, back = engine.stream(), random_bytes(PIECE * 2), np.zeros(PIECE * 2, np.uint8)
    buffer = engine.allocate(host.size)
    engine.copy_in(stream, host, buffer)
    engine.copy_out(stream, buffer, back)
    event = stream.marker()
    if other:
        event = engine.stream(other).marker([event])
    if ended == "wait":
        event.wait()
    elif ended == "timeout":
        event.wait(timeout=60)
    else:
        while not event.done:
            pass
    assert np.array_equal(back, host)


def test_what_has_landed_is_let_go(engine):
    stream, host, back = engine.stream(), random_bytes(PIECE), np.zeros(PIECE, np.uint8)
    buffer, small = engine.allocate(PIECE), np.zeros(LEAST // 2, np.uint8)
    for _ in range(3):
        engine.copy_in(stream, host, buffer)
        engine.copy_in(stream, small, buffer)
        engine.copy_out(stream, buffer, back)
        stream.marker().wait()
        assert not stream.under_way.events


DROPPED = """
    import gc, threading
    import numpy as np
    import dnncore as dnn
    from opencl_engine import Gate

    engine, gate = dnn.engine({name!r}), Gate()
    stream, host = engine.stream({order!r}), np.arange(64, dtype=np.uint8)
    buffer, back = engine.allocate(64), np.zeros(64, np.uint8)
    blocked = stream.marker([gate])
    wait_for = [blocked] if stream.order == "out" else []
    engine.copy_in(stream, host, buffer, wait_for)
    engine.copy_out(stream, buffer, back, wait_for)
    del blocked, wait_for
    {drop}
    gc.collect()
    {end}
    print("alive")
"""
OPEN = "threading.Timer(0.1, gate.open).start(); gate.wait(); engine.stream().wait()"


@pytest.mark.parametrize("order", ["in", "out"])
@pytest.mark.parametrize(("drop", "end"), [("", OPEN), ("del stream", OPEN), ("", "")])
def test_events_of_copies_may_be_dropped(order, drop, end):
    code = DROPPED.format(name=DEVICES[0], order=order, drop=drop, end=end)
    done = run_python(code, timeout=60)
    assert done.stdout.split() == ["alive"], done.stderr


def blocked(engine, gate):
    """A stream whose next commands wait for the gate."""
    stream = engine.stream()
    stream.marker([gate])
    return stream


def test_copies_do_not_wait_for_what_comes_before_them(engine):
    gate, host, back = Gate(), random_bytes(PIECE * 3), np.zeros(PIECE * 3, np.uint8)
    stream, buffer = blocked(engine, gate), engine.allocate(host.size)
    kept = host.copy()
    engine.copy_in(stream, host, buffer)
    host[:] = 0
    event = engine.copy_out(stream, buffer, back)
    with pytest.raises(TimeoutError):
        event.wait(timeout=0.05)
    assert not event.done
    assert not back.any()
    gate.open()
    event.wait(timeout=60)
    assert np.array_equal(back, kept)


def test_a_large_copy_behind_another_runtime_does_not_hold_up_the_caller(engine):
    gate, host = Gate(), random_bytes(PIECE * (BLOCKS + 2))
    stream, buffer, back = blocked(engine, gate), engine.allocate(host.size), np.zeros_like(host)
    engine.wait_timeout = 5  # a wait by the caller would end with an error
    engine.copy_in(stream, host, buffer)
    event = engine.copy_out(stream, buffer, back)
    assert not event.done
    gate.open()
    event.wait(timeout=60)
    assert np.array_equal(back, host)


def test_a_blocked_stream_holds_up_no_other(engine):
    gate, host = Gate(), random_bytes(PIECE * BLOCKS)
    held = engine.allocate(host.size)
    stream = blocked(engine, gate)
    engine.copy_in(stream, host, held)
    other, buffer, back = engine.stream(), engine.allocate(host.size), np.zeros_like(host)
    engine.copy_in(other, host, buffer)
    engine.copy_out(other, buffer, back)
    other.wait(timeout=60)
    assert np.array_equal(back, host)
    gate.open()
    stream.wait(timeout=60)


def test_an_array_that_was_read_into_can_be_written_from(engine):
    stream, values = engine.stream(), random_bytes(PIECE * 2)
    first, second, host = engine.allocate(values.size), engine.allocate(values.size), values.copy()
    engine.copy_in(stream, values, first)
    host[:] = 0
    engine.copy_out(stream, first, host)
    engine.copy_in(stream, host, second).wait()
    assert np.array_equal(in_buffer(engine, second, values.size), values)


@pytest.mark.parametrize("read", [LEAST // 2, PIECE])
@pytest.mark.parametrize("written", [LEAST // 2, PIECE])
@pytest.mark.parametrize("asked", ["marker", "wait_for"])
def test_an_array_that_another_stream_reads_into_is_written_from_afterwards(
    engine, read, written, asked
):
    gate, host, values = Gate(), np.zeros(PIECE, np.uint8), random_bytes(PIECE)
    buffer, target = engine.allocate(PIECE), engine.allocate(PIECE)
    engine.copy_in(engine.stream(), values, buffer).wait()
    stream, other = blocked(engine, gate), engine.stream()
    engine.copy_out(stream, buffer, host[:read])
    event = stream.marker()
    if asked == "marker":
        other.marker([event])
    engine.copy_in(other, host[:written], target, [event] if asked == "wait_for" else [])
    gate.open()
    other.wait(timeout=60)
    both = min(read, written)
    assert np.array_equal(in_buffer(engine, target, PIECE)[:both], values[:both])
    stream.wait()


@pytest.mark.parametrize(("start", "end"), [(64, PIECE), (0, PIECE // 2), (192, 256)])
def test_a_part_of_an_array_that_another_stream_reads_into_is_written_from_afterwards(
    engine, start, end
):
    gate, host, values = Gate(), np.zeros(PIECE, np.uint8), random_bytes(PIECE)
    buffer, target = engine.allocate(PIECE), engine.allocate(PIECE)
    engine.copy_in(engine.stream(), values, buffer).wait()
    stream, other = blocked(engine, gate), engine.stream()
    engine.copy_out(stream, buffer, host)
    engine.copy_in(other, host[start:end], target)
    gate.open()
    other.wait(timeout=60)
    assert np.array_equal(in_buffer(engine, target, end - start), values[start:end])
    stream.wait()


@pytest.mark.parametrize("size", [LEAST // 2, PIECE])
@pytest.mark.parametrize("asked", ["array", "wait_for"])
def test_the_limit_for_waits_is_not_one_for_what_a_copy_waits_for(engine, size, asked):
    gate, host, values = Gate(), np.zeros(PIECE, np.uint8), random_bytes(size)
    buffer, target = engine.allocate(PIECE), engine.allocate(PIECE)
    engine.copy_in(engine.stream(), values, buffer).wait()
    stream, other = blocked(engine, gate), engine.stream()
    read = engine.copy_out(stream, buffer, host[:size])
    engine.wait_timeout = 0.1
    source, wait_for = (host, []) if asked == "array" else (random_bytes(PIECE), [read])
    expected = values if asked == "array" else source[:size]
    event = engine.copy_in(other, source, target, wait_for)
    with pytest.raises(TimeoutError):
        event.wait()
    time.sleep(0.1)
    gate.open()
    event.wait(timeout=60)
    assert np.array_equal(in_buffer(engine, target, PIECE)[:size], expected)
    stream.wait(timeout=60)


def test_an_array_that_a_small_copy_reads_into_can_be_written_from(engine):
    gate, host, values = Gate(), np.zeros(PIECE, np.uint8), random_bytes(LEAST // 2)
    buffer, target = engine.allocate(PIECE), engine.allocate(PIECE)
    engine.copy_in(engine.stream(), values, buffer).wait()
    stream = blocked(engine, gate)
    engine.copy_out(stream, buffer, host[: values.size])
    engine.copy_in(stream, host, target)
    gate.open()
    stream.wait(timeout=60)
    assert np.array_equal(in_buffer(engine, target, PIECE)[: values.size], values)


@pytest.mark.parametrize("size", [LEAST // 2, PIECE])
def test_the_last_copy_into_an_array_wins(engine, size):
    stream, host = engine.stream(), np.zeros(PIECE, np.uint8)
    buffers = [engine.allocate(PIECE) for _ in range(2)]
    for value, buffer in enumerate(buffers, 1):
        engine.copy_in(stream, np.full(PIECE, value, np.uint8), buffer)
    engine.copy_out(stream, buffers[0], host)
    engine.copy_out(stream, buffers[1], host[:size])
    stream.wait()
    assert set(host[:size]) == {2}
    assert set(host[size:]) <= {1}


def test_a_copy_waits_for_the_events_it_is_given(engine):
    gate, host = Gate(), np.zeros(PIECE, np.uint8)
    stream, buffer = engine.stream(), engine.allocate(PIECE)
    event = engine.copy_in(stream, host, buffer, [gate])
    host[:] = 7  # the host array is read when the gate is open
    gate.open()
    event.wait(timeout=60)
    assert set(in_buffer(engine, buffer, PIECE)) == {7}


def test_a_kernel_behind_a_copy_of_another_stream_sees_its_buffer(engine):
    size = 64
    memories = {"src": square(engine, 1, size), "weights": square(engine, 1, size)}
    dst, back = square(engine, 0, size), np.zeros(size * size * 4, np.uint8)
    first, second = engine.stream(), engine.stream()
    ended = engine.copy_out(first, memories["src"].buffer, back)
    matmul(engine, size).execute(second, **memories, dst=dst, wait_for=[ended]).wait(60)
    assert np.all(back.view(np.float32) == 1)
    assert np.all(dst.numpy(second) == size)


def test_blocks_are_used_again(engine, monkeypatch):
    map_buffer, made = cl.enqueue_map_buffer, []

    def counted(*args):
        made.append(args)
        return map_buffer(*args)

    monkeypatch.setattr(cl, "enqueue_map_buffer", counted)
    host = random_bytes(PIECE * BLOCKS * 20)
    buffer, stream = engine.allocate(host.size), engine.stream()
    for _ in range(3):
        engine.copy_in(stream, host, buffer)
        engine.copy_out(stream, buffer, host)
        stream.wait()
    assert BLOCKS <= len(made) <= 2 * BLOCKS
    assert len(engine._pinned._idle) <= BLOCKS
    assert len(engine._pinned._sent) <= BLOCKS


def test_blocks_of_copies_that_are_over_are_used_again(engine, monkeypatch):
    map_buffer, made = cl.enqueue_map_buffer, []

    def counted(*args):
        made.append(args)
        return map_buffer(*args)

    monkeypatch.setattr(cl, "enqueue_map_buffer", counted)
    buffer, hosts = engine.allocate(PIECE), [np.zeros(PIECE, np.uint8) for _ in range(50)]
    streams = [engine.stream(), engine.stream()]
    engine.copy_in(streams[0], np.ones(PIECE, np.uint8), buffer).wait()
    for number, host in enumerate(hosts):
        stream = streams[number % 2]
        engine.copy_out(stream, buffer, host)
        stream.native.finish()
    assert len(made) <= BLOCKS
    for stream in streams:
        stream.wait()
    assert np.all(hosts)


def test_threads_copy_at_once(engine):
    failures = []

    def work(seed):
        stream, host = engine.stream(), random_bytes(PIECE * 7 + seed, seed)
        buffer, back = engine.allocate(host.size), np.zeros_like(host)
        for _ in range(10):
            back[:] = 0
            engine.copy_in(stream, host, buffer)
            engine.copy_out(stream, buffer, back).wait()
            if not np.array_equal(back, host):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_copy_that_fails_is_told(engine, monkeypatch):
    stream, host, buffer = engine.stream(), random_bytes(PIECE), engine.allocate(PIECE)

    def fail(*args, **kwargs):
        raise cl.RuntimeError(cl._cl._ErrorRecord("clEnqueueWriteBuffer", -5, "as the test wants"))

    monkeypatch.setattr(cl, "enqueue_copy", fail)
    for copy in (
        lambda: engine.copy_in(stream, host, buffer),
        lambda: engine.copy_out(stream, buffer, host),
    ):
        with pytest.raises(ExecutionError, match=r"cannot copy 4096 bytes: OUT_OF_RESOURCES"):
            copy()


BROKEN = """
    import threading
    import numpy as np
    import pyopencl as cl
    import dnncore as dnn
    from dnncore_opencl.runtime import pinned
    from dnncore_opencl.runtime.engine import OpenCLEngine
    from opencl_engine import Gate

    OpenCLEngine.is_cpu = property(lambda _engine: False)
    pinned.SMALL_PIECE = 1 << 16
    engine, gate, copy, queued = dnn.engine({name!r}), Gate(), cl.enqueue_copy, []
    stream, host, buffer = engine.stream(), np.zeros(1 << 18, np.uint8), engine.allocate(1 << 18)

    def breaking(*args, **kwargs):
        if len(queued) == 2:
            raise cl.RuntimeError(cl._cl._ErrorRecord("clSomething", -5, "as the test wants"))
        queued.append(None)
        return copy(*args, **kwargs)

    engine.copy_in(stream, np.ones(1 << 18, np.uint8), buffer).wait()
    stream.marker([gate])
    cl.enqueue_copy = breaking
    try:
        engine.copy_out(stream, buffer, host)
    except dnn.ExecutionError as error:
        print(error)
    threading.Timer(0.1, gate.open).start()
    stream.wait()
    cl.enqueue_copy = copy
    engine.copy_in(stream, host, buffer)
    assert not host.any()
    stream.wait()
"""


def test_a_copy_that_fails_midway_keeps_what_is_under_way(engine):
    code = BROKEN.format(name=engine.name)
    done = run_python(code, timeout=60)
    assert "cannot copy 262144 bytes: OUT_OF_RESOURCES" in done.stdout, done.stderr
    assert not done.stderr


def test_a_copy_that_fails_behind_pieces_that_have_landed_gives_each_block_back_once(
    engine, monkeypatch
):
    size, copy, queued = 3 * BLOCKS * PIECE, cl.enqueue_copy, []
    stream, values, host = engine.stream(), random_bytes(size), np.zeros(size, np.uint8)
    buffer = engine.allocate(size)
    engine.copy_in(stream, values, buffer).wait()

    def breaking(*args, **kwargs):
        if len(queued) == BLOCKS + 1:
            raise cl.RuntimeError(cl._cl._ErrorRecord("clSomething", -5, "as the test wants"))
        queued.append(None)
        return copy(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_copy", breaking)
        with pytest.raises(ExecutionError, match="OUT_OF_RESOURCES"):
            engine.copy_out(stream, buffer, host)
    stream.wait()
    host[:] = 0
    engine.copy_in(stream, values, buffer).wait()
    assert not host.any()
    engine.copy_out(stream, buffer, host).wait()
    assert np.array_equal(host, values)
    blocks = [block.ctypes.data for block in engine._pinned._idle]
    assert len(set(blocks)) == len(blocks) <= BLOCKS


def test_a_copy_that_fails_is_told_by_its_event_and_its_stream_not_by_later_copies(engine):
    gate, host, error = Gate(), np.zeros(PIECE * 3, np.uint8), ValueError("as the test wants")
    stream, buffer = engine.stream(), engine.allocate(host.size)
    failed = engine.copy_out(stream, buffer, host)
    failed._flights[0].event.causes = [gate]
    gate.open(error)
    with pytest.raises(ExecutionError) as info:
        failed.wait()
    assert info.value.__cause__ is error
    assert all(flight.target is None for flight in failed._flights)
    engine.copy_in(stream, host, buffer)
    landed = np.zeros(PIECE, np.uint8)
    engine.copy_in(stream, np.ones(PIECE, np.uint8), buffer)
    engine.copy_out(stream, buffer, landed)
    with pytest.raises(ExecutionError):
        stream.wait()
    assert landed.all()
    stream.wait()


@pytest.mark.parametrize("tag", ["ab", "ba"])
def test_memories_are_made_of_arrays_that_may_only_be_read(engine, tag):
    values = np.arange(3000, dtype=np.float32).reshape(30, 100)
    values.flags.writeable = False
    memory = dnn.Memory.from_numpy(values, dnn.MemoryDesc(values.shape, "f32", tag), engine)
    assert np.array_equal(memory.numpy(), values)
