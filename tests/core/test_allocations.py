"""Each buffer that an engine allocates is given to its `free` once, and not while it is in use."""

import gc
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from toy import plugin

import dnncore as dnn
from dnncore import functional as F
from dnncore.backend import (
    API_VERSION,
    COMPLETED,
    Accepted,
    Backend,
    EltwiseForward,
    Engine,
    Executable,
    Implementation,
    Peaks,
    Reorder,
    Stream,
    TimedEvent,
)
from dnncore.cache import primitives
from dnncore.functional import compiled
from dnncore.problem import read
from dnncore.testing import run_case


def collect():
    """Collect garbage and free its buffers, which the next allocation does."""
    gc.collect()
    dnn.Memory(dnn.MemoryDesc((1,)), dnn.engine("cpu"))


class Bytes:
    """A device's buffer, whose bytes become garbage when it is freed."""

    def __init__(self, nbytes):
        self.array = np.zeros(nbytes, np.uint8)
        self.frees = 0


class Counted(Engine):
    """A device that counts its buffers and notices the use of freed ones."""

    kind = "counted"

    def __init__(self, index=0):
        super().__init__(index)
        self.made = []
        self.misuses = []
        self.failing = False

    @classmethod
    def devices(cls):
        return [dnn.Device(name="counted 0"), dnn.Device(name="counted 1")]

    @property
    def peaks(self):
        return Peaks({"f32": 1e9}, bandwidth=1e9, launch=1e-6)

    def allocate(self, nbytes):
        self.made.append(Bytes(nbytes))
        return self.made[-1]

    def free(self, buffer):
        buffer.frees += 1
        buffer.array[:] = 0xFF

    def used(self, buffer):
        if buffer.frees:
            self.misuses.append(buffer)
        if self.failing:
            raise RuntimeError("the device failed")
        return buffer.array

    def copy_in(self, stream, host, buffer, wait_for=()):
        self.used(buffer)[: host.size] = host
        return COMPLETED

    def copy_out(self, stream, buffer, host, wait_for=()):
        host[:] = self.used(buffer)[: host.size]
        return COMPLETED

    def stream(self, order="in", *, profiling=False):
        return Stream(self, order, profiling=profiling)

    def balance(self):
        """The number of buffers that are not freed; each other one was freed once."""
        collect()
        assert not self.misuses
        assert {buffer.frees for buffer in self.made} <= {0, 1}
        return sum(not buffer.frees for buffer in self.made)


class Copies(Executable):
    """dst = src, by way of the scratchpad."""

    def __init__(self, late):
        self.late = late

    def bind(self, memories, scratchpad):
        src, dst = memories
        engine = dst.engine

        def run(stream, wait_for=()):
            n = src.nbytes
            engine.used(scratchpad)[:n] = engine.used(src.buffer)[:n]
            engine.used(dst.buffer)[:n] = engine.used(scratchpad)[:n]
            return Late() if self.late else COMPLETED

        return run


class Late(TimedEvent):
    """The event of a command that has not ended."""

    def __init__(self):
        super().__init__(0.0, 0.0)

    @property
    def done(self):
        return False


class Copying(Implementation):
    name = "counted:copy"
    late = False

    def accept(self, op, attr, engine, hint):
        op = op.resolve_any(dst=op.src)
        return Accepted(op, lambda: Copies(self.late), 0.5, scratchpad_bytes=op.src.nbytes)


TABLE = (Copying(),)


@pytest.fixture
def counted():
    module = plugin(
        lambda: Backend(
            "counted",
            API_VERSION,
            engines={"counted": f"{__name__}:Counted"},
            implementations={
                ("counted", EltwiseForward): f"{__name__}:TABLE",
                ("counted", Reorder): f"{__name__}:TABLE",
            },
        )
    )
    dnn.register(module)
    try:
        engine = dnn.engine("counted:0")
        yield engine
        primitives.clear()
        assert engine.balance() == 0
        assert engine.made
    finally:
        dnn.unregister(module)


def relu(n, **options):
    src = dnn.MemoryDesc((n,))
    return dnn.EltwiseForward("forward_inference", "relu", src=src, dst=src, **options)


def launch(engine, stream, n=8):
    op = relu(n)
    x, y = (dnn.Memory(op.src, engine) for _ in range(2))
    x.fill(3.0)
    dnn.PrimitiveDesc(op, engine).primitive().execute(stream, src=x, dst=y)
    assert (y.numpy() == 3.0).all()


def test_memories_and_their_parts(counted):
    memory = dnn.Memory(dnn.MemoryDesc((4, 17), "f32", "aB16b"), counted)
    plain = dnn.Memory.from_numpy(np.ones((4, 6), np.float32), engine=counted)
    part = plain.submemory((2, 6), (2, 0))
    del plain
    gc.collect()
    assert counted.balance() == 2
    assert (part.numpy() == 1.0).all()
    with pytest.raises(dnn.DescriptorError):
        part.fill("x")
    del memory


def test_the_scratchpad_of_a_stream(counted):
    stream = counted.stream()
    for n in (8, 16, 8, 64):
        launch(counted, stream, n)
    assert counted.balance() == 1  # the largest


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20, 1 << 21])
def test_a_stream_has_a_scratchpad_after_one_that_could_not_be_allocated(monkeypatch, nbytes):
    engine = dnn.engine("cpu")
    stream = engine.stream()
    stream.reserve(64)

    def refuse(nbytes):
        raise dnn.ExecutionError(f"cannot allocate {nbytes} bytes")

    monkeypatch.setattr(engine, "allocate", refuse)
    with pytest.raises(dnn.ExecutionError, match="cannot allocate"):
        stream.reserve(1 << 20)
    monkeypatch.undo()
    assert stream.reserve(nbytes).nbytes >= nbytes


@pytest.mark.parametrize("late", [False, True])
def test_the_scratchpads_of_an_out_of_order_stream(counted, monkeypatch, late):
    monkeypatch.setattr(Copying, "late", late)
    stream = counted.stream("out")
    for n in (8, 16, 8, 64, 64, 64, 64, 128):
        launch(counted, stream, n)
    assert 1 <= counted.balance() <= 6


def test_bound_calls_and_sequences(counted):
    op = relu(32)
    x, y, z = (dnn.Memory(op.src, counted) for _ in range(3))
    primitive = dnn.PrimitiveDesc(op, counted).primitive()
    calls = [primitive.bind(src=x, dst=y), primitive.bind(src=y, dst=z)]
    sequence = dnn.Sequence(calls)
    x.fill(2.0)
    for order in ("in", "out"):
        for _ in range(3):
            sequence(counted.stream(order)).wait()
    assert (z.numpy() == 2.0).all()
    stream = counted.stream()
    sequence(stream)
    launch(counted, stream, 256)  # whose larger scratchpad replaces the one that the calls had
    sequence(stream)


@pytest.mark.parametrize("there", ["cpu", "counted:0", "counted:1"])
@pytest.mark.parametrize("tag", ["ab", "ba"])
def test_reorders_between_engines(counted, there, tag):
    other = dnn.engine(there)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = dnn.Memory.from_numpy(values, engine=counted)
    wanted = dnn.MemoryDesc((3, 4), "f32", tag) if there == "cpu" else memory.desc
    for _ in range(3):
        moved = dnn.reorder(memory, wanted, other)
        assert (dnn.reorder(moved, memory.desc, counted).numpy() == values).all()
    assert counted.balance() <= 2
    if there == "counted:1":
        del moved
        assert other.balance() == 0


def test_the_host_fallback(counted):
    src = dnn.MemoryDesc((4, 9))
    op = dnn.SoftmaxForward("forward_inference", "accurate", axis=1, src=src, dst=src)
    pd = dnn.PrimitiveDesc(op, counted, host_fallback=True)
    x, y = (dnn.Memory(src, counted) for _ in range(2))
    x.fill(1.0)
    with balanced(dnn.engine("cpu")):
        softmax = pd.primitive().bind(src=x, dst=y)
        for _ in range(3):
            softmax(counted.stream())
        assert np.allclose(y.numpy(), 1 / 9)
        del softmax


def test_one_line_functions(counted):
    for n in (3, 30, 300):
        F.relu(np.ones(n, np.float32), engine=counted)
    assert counted.balance() == 1
    compiled._streams.of.pop(counted)  # whose scratchpad serves all calls of a thread


@pytest.mark.parametrize("order", ["in", "out"])
def test_errors_in_the_middle(counted, order):
    op = relu(16)
    primitive = dnn.PrimitiveDesc(op, counted).primitive()
    x, y = (dnn.Memory(op.src, counted) for _ in range(2))
    stream = counted.stream(order)
    counted.failing = True
    for failing in (
        lambda: primitive.execute(stream, src=x, dst=y),
        lambda: primitive.bind(src=x, dst=y)(stream),
        lambda: dnn.Sequence([primitive.bind(src=x, dst=y)] * 2)(stream),
        lambda: dnn.reorder(x, engine=dnn.engine("cpu")),
    ):
        with pytest.raises(dnn.ExecutionError):
            failing()
    with pytest.raises(RuntimeError):
        dnn.Memory.from_numpy(np.ones(4, np.float32), engine=counted)
    counted.failing = False


@contextmanager
def balanced(engine):
    """Check that all buffers that an engine allocates in a block are freed once."""
    made, freed = Counter(), Counter()
    kept = []  # so that no identity is used again
    cls = type(engine)
    allocate, free = cls.allocate, cls.free

    def counting(self, nbytes):
        buffer = allocate(self, nbytes)
        kept.append(buffer)
        made[id(buffer)] += 1
        return buffer

    def freeing(self, buffer):
        freed[id(buffer)] += 1
        free(self, buffer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "allocate", counting)
        patch.setattr(cls, "free", freeing)
        yield
        collect()
        assert made
        assert made.total() == freed.total()
        assert set(freed.values()) == {1}


@pytest.mark.parametrize("name", ["cpu", "opencl:0"])
def test_the_conformance_kit(name):
    engine = dnn.engine(name)
    (problem,) = read("--eltwise --alg=relu 2x17x3")
    primitives.clear()
    with balanced(engine):
        result = run_case(problem, engine, impl="*simd*,opencl:*", skip=["memory"])
        assert result.status == "passed"
        primitives.clear()


# -- collections of garbage ------------------------------------------------------------------------


class Watched(Counted):
    """Notes the frees in collections of garbage. Its lock cannot be acquired twice by a thread."""

    collecting = False
    in_collections = 0

    def __init__(self, index=0):
        super().__init__(index)
        self.lock = threading.Lock()

    def allocate(self, nbytes):
        with self.lock:
            gc.collect()  # which may begin at any place
            return super().allocate(nbytes)

    def free(self, buffer):
        self.in_collections += Watched.collecting
        with self.lock:
            super().free(buffer)


@pytest.fixture
def watched(monkeypatch):
    def note(phase, info):
        Watched.collecting = phase == "start"

    gc.callbacks.append(note)
    yield Watched()
    gc.callbacks.remove(note)


def cycle(engine):
    """A memory in a cycle that only the collector of garbage finds."""
    memory = [dnn.Memory(dnn.MemoryDesc((8,)), engine)]
    memory.append(memory)


def left(engine):
    return sum(not buffer.frees for buffer in engine.made)


def test_a_buffer_is_freed_at_once_by_its_last_reference(watched):
    memory = dnn.Memory(dnn.MemoryDesc((8,)), watched)
    assert left(watched) == 1
    del memory
    assert left(watched) == 0


def test_buffers_are_freed_beside_a_thread_that_collects(monkeypatch):
    engine, errors, ended = Counted(), [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", errors.append)

    def collect():
        while not ended.is_set():
            gc.collect(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=collect)
    try:
        thread.start()
        for _ in range(30_000):
            dnn.Memory(dnn.MemoryDesc((8,)), engine)
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    dnn.Memory(dnn.MemoryDesc((8,)), engine)
    assert not errors
    assert left(engine) == 0


@pytest.mark.parametrize("way", ["allocate", "map"])
def test_no_buffer_is_freed_in_a_collection_and_each_soon_afterwards(watched, way):
    kept = dnn.Memory(dnn.MemoryDesc((8,)), watched)
    for _ in range(3):
        cycle(watched)
    gc.collect()
    assert left(watched) > 1
    if way == "map":
        kept.numpy()
    else:
        kept = dnn.Memory(dnn.MemoryDesc((8,)), watched)
    assert left(watched) == 1
    assert watched.in_collections == 0


def test_garbage_does_not_pile_up(watched):
    for _ in range(15):
        cycle(watched)
        assert left(watched) <= 3
    assert watched.in_collections == 0


SWALLOWING = """
import gc, signal, time
import dnncore

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
raised = 0
for _ in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            gc.collect(0)
    except KeyboardInterrupt:
        raised += 1
print(raised)
"""


def test_collections_do_not_swallow_errors_of_signal_handlers():
    """They would, if dnncore had a function in Python among the callbacks of the collector."""
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_memory_that_only_garbage_holds_is_found_when_there_is_no_room(monkeypatch):
    engine = Counted()
    allocate = Counted.allocate

    def limited(self, nbytes):
        if left(self):
            raise dnn.ExecutionError("no room")
        return allocate(self, nbytes)

    monkeypatch.setattr(Counted, "allocate", limited)
    cycle(engine)
    memory = dnn.Memory(dnn.MemoryDesc((8,)), engine)
    with pytest.raises(dnn.ExecutionError, match="no room") as caught:
        dnn.Memory(dnn.MemoryDesc((8,)), engine)
    assert caught.value.__context__ is None
    assert memory.engine is engine


def test_a_free_that_raises_is_a_warning(watched, monkeypatch):
    def free(self, buffer):
        raise OSError("no such buffer")

    monkeypatch.setattr(Counted, "free", free)
    cycle(watched)
    gc.collect()
    with pytest.warns(dnn.PluginWarning, match="counted:0: free must not raise.*no such buffer"):
        memory = dnn.Memory(dnn.MemoryDesc((8,)), watched)
    with pytest.warns(dnn.PluginWarning, match="no such buffer"):
        del memory
