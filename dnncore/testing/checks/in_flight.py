"""Check of running commands: later commands and frees do not change their tensors.

A stream with a lag delays each command, so that a missing wait is always detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dnncore.engines.allocation import Allocation
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Order, Stream
from dnncore.errors import DnnError
from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.concurrency import Late
from dnncore.testing.checks.guarded import GARBAGE, Arguments, Guarded
from dnncore.testing.checks.results import CheckFailed

__all__ = ["in_flight", "remarks"]

Array = np.ndarray[Any, Any]
LAG_SECONDS = 0.02  # delay of each command: longer than usual interruptions of a busy thread
REUSES = 3  # new buffers for each freed buffer, so that an allocator reuses its memory


def in_flight(trial: Trial) -> None:
    """Commands read the values that earlier commands have written, and no later values.

    This holds for the commands of a stream, for events of other streams and engines, and for
    memories that the program frees while a command uses them.
    """
    _event(trial)
    _events_of_copies(trial)
    _order(trial)
    for order in _orders(trial.case.engine):
        _other_streams(trial, order)
    _two_launches(trial)
    _other_engines(trial)
    _freed(trial)


def remarks(engine: Engine) -> Iterator[str]:
    """Return remarks about the checks that an engine does not permit."""
    if engine.stream().lag is None:
        yield (
            f"{engine.name}: its streams cannot delay commands (Stream.lag), so a missing wait"
            " shows by chance alone"
        )


def _orders(engine: Engine) -> Iterator[Order]:
    """Return the orders of streams that an engine supports."""
    yield "in"
    with suppress(DnnError):
        engine.stream("out")
        yield "out"


def _slow(trial: Trial, seconds: float = LAG_SECONDS, order: Order = "in") -> Stream:
    """Open a stream that delays its commands, if it can."""
    stream = trial.case.engine.stream(order)
    _delay(stream, seconds)
    return stream


def _delay(stream: Stream, seconds: float) -> None:
    if stream.lag is not None:
        stream.lag = seconds


def _event(trial: Trial) -> None:
    """After a wait for the event the outputs are complete."""
    arguments = trial.arguments(trial.case.round("random").inputs)
    trial.primitive.execute(_slow(trial), **arguments.memories).wait()
    trial.verify("random", trial.finish(arguments), "read right after the wait for its event")


def _events_of_copies(trial: Trial) -> None:
    """After a wait for a copy's event, its host array is no longer read, or has the values."""
    arguments = _spoiled(trial)
    box = next(iter(arguments.boxes.values()))
    stream, host = _slow(trial), box.before.copy()
    box.copy_in(stream, host).wait()
    host[:] = GARBAGE
    box.copy_out(stream, host).wait()
    _expect(host, box.before, "the event of copy_in or of copy_out has ended before the copy")


def _order(trial: Trial) -> None:
    """Copies before and after a launch in one stream keep their order."""
    arguments, stream = _spoiled(trial), _slow(trial)
    _restore(arguments, stream)
    trial.primitive.execute(stream, **arguments.memories)
    _delay(stream, 0.0)
    outputs = arguments.outputs
    inputs = [box for name, box in arguments.boxes.items() if name not in outputs]
    garbage = [box.garbage for box in inputs]
    for box, bytes_ in zip(inputs, garbage, strict=True):
        box.copy_in(stream, bytes_)
    hosts = {name: np.empty_like(box.before) for name, box in outputs.items()}
    for name, box in outputs.items():
        box.copy_out(stream, hosts[name])
    stream.wait()
    values = {name: box.values(hosts[name]) for name, box in outputs.items()}
    trial.verify("random", values, "between copies of the same stream")


def _other_streams(trial: Trial, order: Order) -> None:
    """A launch waits for copies of another stream, and copies wait for the launch."""
    arguments = _spoiled(trial)
    first, second = _slow(trial, 3 * LAG_SECONDS, order), _slow(trial, LAG_SECONDS, order)
    copies = _restore(arguments, first)
    event = trial.primitive.execute(second, wait_for=copies, **arguments.memories)
    outputs = arguments.fetch(trial.case.engine.stream(), event)
    trial.verify("random", outputs, f"between copies of other streams, order {order!r}")


def _two_launches(trial: Trial) -> None:
    """Two launches on two streams may overlap."""
    both = {fill: trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS}
    events = [trial.primitive.execute(_slow(trial), **one.memories) for one in both.values()]
    for event in events:
        event.wait()
    for fill, arguments in both.items():
        trial.verify(fill, trial.finish(arguments), "beside a launch on another stream")


def _other_engines(trial: Trial) -> None:
    """Copies wait for an event of another engine."""
    arguments = trial.arguments(trial.case.round("random").inputs)
    box = next(iter(arguments.boxes.values()))
    stream, host, garbage = trial.case.engine.stream(), np.empty_like(box.before), box.garbage
    box.write(garbage)
    box.copy_out(stream, host, [Late(arguments.restore)]).wait()
    _expect(host, box.before, "copy_out did not wait for an event of another engine")
    box.copy_in(stream, box.before, [Late(lambda: box.write(garbage))]).wait()
    _expect(box.after(), box.before, "copy_in did not wait for an event of another engine")


def _expect(got: Array, expected: Array, message: str) -> None:
    if not np.array_equal(got, expected):
        raise CheckFailed(message)


def _freed(trial: Trial) -> None:
    """A command keeps its memories, even if the program deletes them and allocates others."""
    inputs = trial.case.round("random").inputs
    for bound in (False, True):
        memories = _plain_memories(trial, inputs)
        outputs = {n: m for n, m in memories.items() if n in trial.outputs("random")}
        sizes = [m.nbytes for n, m in memories.items() if n not in outputs]
        stream = _slow(trial)
        if bound:
            event = trial.primitive.bind(**memories)(stream)
        else:
            event = trial.primitive.execute(stream, **memories)
        del memories
        _reuse(trial, sizes)
        event.wait()
        values = {name: np.array(memory.numpy()) for name, memory in outputs.items()}
        trial.verify("random", values, "with inputs that were freed in flight")


def _plain_memories(trial: Trial, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return memories that the core has allocated, so that it frees their buffers."""
    guarded = trial.arguments(inputs)
    memories = {}
    for name, box in guarded.boxes.items():
        memory = Memory(box.desc, box.engine)
        values = box.before[box.start : box.start + box.desc.nbytes]
        box.engine.copy_in(box.engine.stream(), values, memory.buffer).wait()
        memories[name] = memory
    return memories


def _reuse(trial: Trial, sizes: Iterable[int]) -> None:
    """Overwrite new buffers of these sizes with garbage."""
    engine = trial.case.engine
    stream = engine.stream()
    for size in sizes:
        garbage = np.full(size, GARBAGE, np.uint8)
        for _ in range(REUSES):
            allocation = Allocation(engine, size)
            engine.copy_in(stream, garbage, allocation.buffer).wait()


def _spoiled(trial: Trial) -> Arguments:
    arguments = trial.arguments(trial.case.round("random").inputs)
    arguments.spoil()
    return arguments


def _restore(arguments: Arguments, stream: Stream) -> list[Event]:
    """Queue copies of the correct values."""

    def copy(box: Guarded) -> Event:
        return box.copy_in(stream, box.before)

    return [copy(box) for box in arguments.boxes.values()]
