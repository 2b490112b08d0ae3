"""Out-of-order OpenCL streams: commands that overlap do not share a scratchpad."""

import gc
import itertools
import threading
import weakref
from functools import cache

import numpy as np
import pytest
from opencl_engine import DEVICES, Gate

import dnncore as dnn
from dnncore.backend import ExecutionError
from dnncore.engines.scratchpads import MOST

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")

SIZE = 40
BLOCKED = dnn.MemoryDesc((SIZE, SIZE), "f32", "AB16a16b")  # each is copied to scratchpad and back


@pytest.fixture(params=DEVICES)
def engine(request):
    """An engine that no other test uses."""
    shared = dnn.engine(request.param)
    return type(shared)(shared.index)


def product(engine, size=SIZE, attr=None):
    desc = dnn.MemoryDesc((size, size), "f32", "AB16a16b")
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    primitive = dnn.PrimitiveDesc(op, engine, attr, impl="opencl:*").primitive()
    assert primitive.pd.scratchpad_bytes
    return primitive


def memory(engine, value, size=SIZE):
    desc = dnn.MemoryDesc((size, size), "f32", "AB16a16b")
    array = np.asarray(np.broadcast_to(np.float32(value), (size, size)))
    return dnn.reorder(dnn.Memory.from_numpy(array.copy(), engine=engine), desc)


def arguments(engine, value, size=SIZE):
    return {
        "src": memory(engine, value, size),
        "weights": memory(engine, 1, size),
        "dst": memory(engine, 0, size),
    }


@cache
def overtakes(name):
    """Whether the driver runs a command beside an earlier one of its queue that waits."""
    engine, gate = dnn.engine(name), Gate()
    primitive, stream = product(engine), engine.stream("out")
    events = [
        primitive.execute(stream, wait_for=wait_for, **arguments(engine, 1))
        for wait_for in ((gate,), ())
    ]
    try:
        events[1].wait(timeout=5)
    except TimeoutError:
        return False
    finally:
        gate.open()
        for event in events:
            event.wait(timeout=60)
    return True


@pytest.fixture
def overtaking_engine(engine):
    """An engine whose commands may overtake others. NVIDIA's driver lets none do so.

    There, all commands behind one that waits for a user event wait, and fail if the event fails.
    """
    if not overtakes(engine.name):
        pytest.skip("this driver runs no command beside an earlier one of its queue that waits")
    return engine


def dst(args):
    return args["dst"].numpy()


def calls(primitive, how, args):
    """A function of (stream, wait_for) that launches in one of the ways there are."""
    bound = primitive.bind(**args)
    return {
        "execute": lambda stream, wait_for=(): primitive.execute(stream, wait_for=wait_for, **args),
        "bound": bound,
        "sequence": dnn.Sequence([bound, bound]),
    }[how]


def hold(stream, number):
    """Let the stream's kernel `number`, counted from 0, wait for a gate; returns the gate."""
    gate, submit, count = Gate(), stream.submit, itertools.count()

    def held(enqueue, wait_for, what, **others):
        behind = (*wait_for, gate) if next(count) == number else wait_for
        return submit(enqueue, behind, what, **others)

    stream.submit = held
    return gate


@pytest.mark.parametrize("how", ["execute", "bound", "sequence"])
def test_a_command_does_not_disturb_one_that_is_between_its_kernels(overtaking_engine, how):
    engine = overtaking_engine
    primitive, stream = product(engine), engine.stream("out")
    a, b = arguments(engine, 1), arguments(engine, 2)
    for number in (1, 2, 3):
        gate = hold(stream, number)
        first = calls(primitive, how, a)(stream)
        second = calls(primitive, how, b)(stream)
        second.wait(timeout=60)
        assert not first.done
        gate.open()
        first.wait(timeout=60)
        assert np.all(dst(a) == SIZE)
        assert np.all(dst(b) == 2 * SIZE)
        stream = engine.stream("out")


def test_launches_of_one_bound_call_do_not_share(overtaking_engine):
    engine = overtaking_engine
    primitive, stream = product(engine), engine.stream("out")
    args = arguments(engine, 1)
    bound = primitive.bind(**args)
    gate = hold(stream, 2)
    first = bound(stream)
    bound(stream).wait(timeout=60)
    used = [pad.buffer.int_ptr for pad in stream.scratchpads._pads]
    assert len(set(used)) == 2
    gate.open()
    first.wait(timeout=60)
    assert np.all(dst(args) == SIZE)


def test_many_commands_take_few_scratchpads_and_do_not_block(engine):
    primitive, stream = product(engine), engine.stream("out")
    args = [arguments(engine, value) for value in range(12)]
    buffers = engine.memory_info().buffers
    for _ in range(20):
        events = [primitive.execute(stream, **one) for one in args]
        for event in events:
            event.wait(timeout=60)
    assert engine.memory_info().buffers - buffers <= MOST
    for value, one in enumerate(args):
        assert np.all(dst(one) == value * SIZE)


def test_commands_held_up_by_another_engine_hold_up_no_others(overtaking_engine):
    engine = overtaking_engine
    primitive, stream, gate = product(engine), engine.stream("out"), Gate()
    held = [arguments(engine, 1) for _ in range(2 * MOST)]
    free = [arguments(engine, 2) for _ in range(2 * MOST)]
    waiting = [primitive.execute(stream, wait_for=[gate], **args) for args in held]
    for args in free:
        primitive.execute(stream, **args).wait(timeout=60)
        assert np.all(dst(args) == 2 * SIZE)
    assert not any(event.done for event in waiting)
    gate.open()
    for event, args in zip(waiting, held, strict=True):
        event.wait(timeout=60)
        assert np.all(dst(args) == SIZE)
    buffers = engine.memory_info().buffers
    primitive.execute(stream, **held[0]).wait(timeout=60)
    assert engine.memory_info().buffers == buffers - (2 * MOST + 1) + MOST


def test_a_command_that_fails_fails_no_other(overtaking_engine):
    engine = overtaking_engine
    primitive, stream, gate = product(engine), engine.stream("out"), Gate()
    bad = [arguments(engine, 1) for _ in range(MOST + 2)]
    good = [arguments(engine, value) for value in range(3 * MOST)]
    failing = [primitive.execute(stream, wait_for=[gate], **args) for args in bad]
    events = [primitive.execute(stream, **args) for args in good]
    gate.open(ValueError("the other runtime failed"))
    for event in failing:
        with pytest.raises(ExecutionError):
            event.wait(timeout=60)
    for event in events:
        event.wait(timeout=60)
    with pytest.raises(ExecutionError):
        stream.wait()
    stream.wait()
    for _ in range(2):
        for value, args in enumerate(good):
            assert np.all(dst(args) == value * SIZE)
            args["dst"].fill(0)
            primitive.execute(stream, **args).wait(timeout=60)


def test_sequences_share_one_scratchpad_among_their_calls(engine):
    primitive, stream = product(engine), engine.stream("out")
    a, b = arguments(engine, 1), arguments(engine, 2)
    chained = {"src": a["dst"], "weights": b["src"], "dst": b["dst"]}
    sequence = dnn.Sequence([primitive.bind(**a), primitive.bind(**chained)])
    buffers = engine.memory_info().buffers
    event = sequence(stream)
    event.wait(timeout=60)
    assert engine.memory_info().buffers == buffers + 1
    assert np.all(dst(b) == 2 * SIZE * SIZE)


def test_the_users_scratchpad_is_the_one_that_is_used(engine):
    primitive = product(engine, attr=dnn.Attributes(scratchpad="user"))
    stream, args = engine.stream("out"), arguments(engine, 3)
    pad = dnn.Memory(primitive.pd.scratchpad_desc, engine)
    buffers = engine.memory_info().buffers
    primitive.execute(stream, scratchpad=pad, **args).wait(timeout=60)
    primitive.bind(scratchpad=pad, **args)(stream).wait(timeout=60)
    assert engine.memory_info().buffers == buffers
    assert np.all(dst(args) == 3 * SIZE)


def test_profiling_streams_have_times(engine):
    stream, args = engine.stream("out", profiling=True), arguments(engine, 1)
    event = product(engine).execute(stream, **args)
    event.wait(timeout=60)
    assert 0 < event.start <= event.end


def test_a_stream_that_is_dropped_gives_its_scratchpads_back(engine):
    primitive, stream = product(engine), engine.stream("out")
    args = [arguments(engine, value) for value in range(3)]
    buffers = engine.memory_info().buffers
    for one in args:
        primitive.execute(stream, **one)
    stream.wait()
    assert engine.memory_info().buffers > buffers
    alive = weakref.ref(stream)
    del stream
    assert alive() is None
    assert engine.memory_info().buffers == buffers


def test_a_stream_may_be_dropped_while_commands_are_under_way(engine):
    primitive, gate = product(engine), Gate()
    a, b = arguments(engine, 1), arguments(engine, 2)
    stream = engine.stream("out")
    events = [primitive.execute(stream, wait_for=[gate], **a), primitive.execute(stream, **b)]
    del stream
    gc.collect()
    gate.open()
    for event in events:
        event.wait(timeout=60)
    assert np.all(dst(a) == SIZE)
    assert np.all(dst(b) == 2 * SIZE)


@pytest.mark.parametrize("how", ["execute", "bound", "sequence"])
def test_commands_that_really_overlap_are_right(engine, how):
    """Products of several sizes, launched on a few streams from as many threads."""
    rng = np.random.default_rng(1)
    failures = []

    def work(seed):
        stream, jobs = engine.stream("out"), []
        for size in sizes[seed]:
            value = seed + size
            args = arguments(engine, value, size)
            jobs.append((calls(primitives[size], how, args), args, value * size))
        for _ in range(10):
            for _, args, _ in jobs:
                args["dst"].fill(0)
            events = [call(stream) for call, _, _ in jobs]
            for event in events:
                event.wait(timeout=60)
            failures.extend(1 for _, args, value in jobs if not np.all(dst(args) == value))

    primitives = {size: product(engine, size) for size in (24, 56, 104)}
    sizes = [rng.choice(list(primitives), 12) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
