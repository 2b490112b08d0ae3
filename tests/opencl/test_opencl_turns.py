"""Persistent kernels of one context run one after the other, on all streams."""

from __future__ import annotations

import functools
import gc
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS
from dnncore_opencl.devices.pocl import miscompiles_barriers
from dnncore_opencl.rnn import steps
from dnncore_opencl.runtime import turns
from dnncore_opencl.runtime.turns import Turns, turns_of

import dnncore as dnn
from dnncore.problem import read

cl = pytest.importorskip("pyopencl")
OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
IMPL, PERSISTENT = "opencl:steps", {"persistent": "yes"}
CELLS = "--rnn --dir=FWD_I --alg=VANILLA_LSTM l1t9mb3_slc8dhc8"
RUNS, ENDED, FAILED = 1, 0, -14


class Event:
    """A pyopencl event with a status."""

    def __init__(self, status: int = RUNS) -> None:
        self.command_execution_status = status
        self.waits = 0

    def wait(self) -> None:
        """Count the wait."""
        self.waits += 1


class Queue:
    """A queue that counts its flushes."""

    flushed = 0

    def flush(self) -> None:
        """Count the flush."""
        self.flushed += 1


class Launches:
    """Launches that are queued at once, and the events that each waited for."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.waits: list[list[Event]] = []

    def launch(self, queue: Queue, event: Event, *, is_in_order: bool = True) -> None:
        """Launch on a queue; the launch has this event."""

        def enqueue(before):
            self.waits.append(list(before))
            return event

        assert self.turns.launch(queue, enqueue, is_in_order=is_in_order) is event


@pytest.mark.parametrize(
    ("status", "waits"),
    [(RUNS, True), (ENDED, False), (FAILED, False)],
    ids=["runs", "ended", "failed"],
)
def test_a_launch_waits_for_a_launch_on_another_queue(status, waits):
    launches, queue, first = Launches(), Queue(), Event(status)
    launches.launch(queue, first)
    launches.launch(Queue(), Event())
    assert launches.waits == [[], [first] if waits else []]
    assert queue.flushed == waits


@pytest.mark.parametrize("is_in_order", [True, False])
def test_launches_on_one_queue(is_in_order):
    """They wait for each other if the queue does not keep their order."""
    launches, queue, first = Launches(), Queue(), Event()
    for event in (first, Event()):
        launches.launch(queue, event, is_in_order=is_in_order)
    assert launches.waits == [[], [] if is_in_order else [first]]


def test_a_launch_that_failed_at_once_does_not_hide_the_one_before():
    launches, first = Launches(), Event()
    launches.launch(Queue(), first)
    launches.launch(Queue(), Event(FAILED))
    launches.launch(Queue(), Event())
    assert launches.waits[-1] == [first]


def test_a_launch_on_a_lost_device_is_over():
    class Lost(Event):
        @property
        def command_execution_status(self):
            raise cl.LogicError("the device is lost")

        @command_execution_status.setter
        def command_execution_status(self, status):
            """The status is unknown."""

    launches = Launches()
    launches.launch(Queue(), Lost())
    launches.launch(Queue(), Event())
    assert launches.waits == [[], []]


def test_an_interrupted_launch_is_not_forgotten(monkeypatch):
    """The driver may have queued it."""
    marker, launches, queue = Event(), Launches(), Queue()
    fake = SimpleNamespace(enqueue_marker=lambda own: marker if own is queue else None)
    monkeypatch.setattr(turns, "pyopencl", lambda: fake)

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launches.turns.launch(queue, interrupted, is_in_order=True)
    launches.launch(Queue(), Event())
    assert launches.waits == [[marker]]


def test_a_signal_handler_launches_within_a_launch(monkeypatch):
    """Its launch waits for what the interrupted launch may have queued, and has ended before it."""
    marker, launches, inner, queue = Event(), Launches(), Event(), Queue()
    fake = SimpleNamespace(enqueue_marker=lambda own: marker if own is queue else None)
    monkeypatch.setattr(turns, "pyopencl", lambda: fake)
    outer = Event()

    def enqueue(_):
        launches.launch(Queue(), inner)
        assert inner.waits == 1
        return outer

    assert launches.turns.launch(queue, enqueue, is_in_order=True) is outer
    launches.launch(Queue(), Event())
    assert launches.waits == [[marker], [outer, inner]]
    assert outer.waits == 0


def test_turns_live_as_long_as_their_launches():
    context, queue, event = SimpleNamespace(int_ptr=-7), Queue(), Event()
    own = turns_of(context)
    own.launch(queue, lambda _: event, is_in_order=True)
    number = id(own)
    del own
    gc.collect()
    assert id(turns_of(context)) == number
    event.command_execution_status = ENDED
    turns_of(context)
    gc.collect()
    assert context.int_ptr not in turns._of_contexts


def test_engines_of_a_context_share_turns():
    engine = OPENCL[0].engine
    other = type(engine).from_native(engine.native.context, engine.native.device)
    assert other.turns is engine.turns is turns_of(engine.native.context)


def test_single_work_groups_take_no_turns(planned_for_gpus):
    (problem,) = read(CELLS)
    pd = dnn.PrimitiveDesc(problem.op, OPENCL[0].engine, impl=IMPL, knobs=PERSISTENT)
    launches = pd.primitive().executable.launches
    assert any("PERSISTENT" in launch.source.defines for launch in launches)
    assert not any(launch.is_persistent for launch in launches)


def with_turns(launch, *args, **options):
    """A launch that takes turns although it may not need to."""
    return launch(*args, **{**options, "is_persistent": True})


@pytest.mark.parametrize("target", OPENCL, ids=str)
def test_three_streams_with_persistent_kernels(target, planned_for_gpus, monkeypatch):
    """Executions, bound calls and sequences, on streams of both orders, are right and in turn."""
    if miscompiles_barriers(target.engine.native.device):
        pytest.skip("this driver miscompiles barriers in loops")
    monkeypatch.setattr(steps, "Launch", functools.partial(with_turns, steps.Launch))
    (problem,) = read(CELLS)
    engine = target.engine
    pd = dnn.PrimitiveDesc(problem.op, engine, impl=IMPL, knobs=PERSISTENT)
    primitive = pd.primitive()
    count = sum(launch.is_persistent for launch in primitive.executable.launches)
    assert count
    rng = np.random.default_rng(3)
    inputs = {
        row.name: rng.uniform(-1, 1, desc.dims).astype(np.float32)
        for row, desc in pd.op.tensors()
        if row.direction == "in"
    }
    outs = [row.name for row, _ in pd.op.tensors() if row.direction == "out"]

    def memories():
        given = {n: dnn.Memory.from_numpy(a, pd.descs[n], engine) for n, a in inputs.items()}
        return given | {name: dnn.Memory(pd.descs[name], engine) for name in outs}

    taken, launch = [], Turns.launch

    def recorded(self, queue, enqueue, *, is_in_order):
        taken.append(queue)
        return launch(self, queue, enqueue, is_in_order=is_in_order)

    monkeypatch.setattr(Turns, "launch", recorded)
    streams = engine.stream(), engine.stream(), engine.stream(order="out")
    results = []
    for stream in streams:
        for way in range(3):
            own = memories()
            if way == 0:
                primitive.execute(stream, **own)
            elif way == 1:
                primitive.bind(**own)(stream)
            else:
                dnn.Sequence([primitive.bind(**own)] * 2)(stream)
            results.append(own)
    for stream in streams:
        stream.wait()
    assert len(taken) == len(streams) * 4 * count
    for own in results[1:]:
        for name in outs:
            np.testing.assert_array_equal(own[name].numpy(), results[0][name].numpy())
            assert np.abs(own[name].numpy()).max() > 0
