"""Persistent kernels of one context run one after the other, on all streams."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS
from dnncore_opencl.devices.pocl import miscompiles_barriers
from dnncore_opencl.runtime.turns import Turns, turns_of

import dnncore as dnn
from dnncore.problem import read

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
RUNS, ENDED, FAILED = 1, 0, -14


class Queue:
    """A queue that records what was enqueued and whether it was flushed."""

    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


class Seen:
    """Functions that enqueue a launch, and the events that the launches waited for."""

    def __init__(self) -> None:
        self.waits: list[tuple[object, ...]] = []

    def enqueue(self, event):
        """Return a function that returns an event."""

        def enqueue(before):
            self.waits.append(tuple(before))
            return event

        return enqueue


@pytest.mark.parametrize(
    ("status", "waits"),
    [(RUNS, True), (ENDED, False), (FAILED, False)],
    ids=["runs", "ended", "failed"],
)
def test_a_launch_waits_for_the_launch_before_it(status, waits):
    turns, queues = Turns(), (Queue(), Queue())
    events = [SimpleNamespace(command_execution_status=status) for _ in range(2)]
    seen = Seen()
    for queue, event in zip(queues, events, strict=True):
        assert turns.launch(queue, seen.enqueue(event)) is event
    assert seen.waits == [(), (events[0],) if waits else ()]
    assert [queue.flushed for queue in queues] == [1, 1]


def test_a_launch_that_fails_keeps_the_turn_of_the_one_before():
    turns, queue = Turns(), Queue()
    first = SimpleNamespace(command_execution_status=RUNS)
    turns.launch(queue, lambda _: first)

    def fails(_):
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        turns.launch(queue, fails)
    seen = Seen()
    turns.launch(queue, seen.enqueue(first))
    assert seen.waits == [(first,)]


def test_engines_of_a_context_share_turns():
    engine = OPENCL[0].engine
    other = type(engine).from_native(engine.native.context, engine.native.device)
    assert other.turns is engine.turns is turns_of(engine.native.context)


@pytest.mark.parametrize("target", OPENCL, ids=str)
def test_three_streams_with_persistent_kernels(target, planned_for_gpus, monkeypatch):
    """Executions, bound calls and sequences, on streams of both orders, are right and in turn."""
    if miscompiles_barriers(target.engine.native.device):
        pytest.skip("this driver miscompiles barriers in loops")
    (problem,) = read("--rnn --dir=FWD_I --alg=VANILLA_LSTM l1t9mb3_slc8dhc8")
    engine = target.engine
    pd = dnn.PrimitiveDesc(problem.op, engine, impl="opencl:steps", knobs={"persistent": "yes"})
    primitive = pd.primitive()
    assert any(launch.is_persistent for launch in primitive.executable.launches)
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

    def recorded(self, queue, enqueue):
        taken.append(queue)
        return launch(self, queue, enqueue)

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
    assert len(taken) == len(streams) * 4
    for own in results[1:]:
        for name in outs:
            np.testing.assert_array_equal(own[name].numpy(), results[0][name].numpy())
            assert np.abs(own[name].numpy()).max() > 0
