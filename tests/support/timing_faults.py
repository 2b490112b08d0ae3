"""Engines whose streams run commands in another thread. Each has one fault of ordering.

`FAULTS` lists the faults. The engine "timely" has none. All engines compute eltwise operations as
the reference does. The module is a plugin.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
from dnncore_reference import eltwise

from dnncore import backend


class Command(backend.Event):
    """A command in a thread's queue."""

    queue = 0  # a number of its stream

    def __init__(self, future):
        self.future = future

    def wait(self, timeout=None):
        self.future.result(timeout)

    @property
    def done(self):
        return self.future.done()

    @property
    def error(self):
        return self.future.exception() if self.future.done() else None


class ThreadStream(backend.Stream):
    """Runs commands in order in a thread of its own."""

    lag = 0.0

    def __init__(self, engine):
        super().__init__(engine)
        self.thread = ThreadPoolExecutor(1)
        self.commands = []

    def submit(self, function, wait_for=()):
        def work(lag):
            for event in wait_for:
                event.wait()
            time.sleep(lag or 0)
            function()

        command = self.event(self.thread.submit(work, self.lag))
        command.queue = id(self)
        self.commands = [c for c in self.commands if c.error or not c.done] + [command]
        return command

    def event(self, future):
        return Command(future)

    def wait(self, timeout=None):
        if wait([command.future for command in self.commands], timeout).not_done:
            raise TimeoutError
        ended, self.commands = self.commands, []
        for command in ended:
            command.wait()


class Timely(backend.HostEngine):
    """Has no fault. Freed buffers are reused at once."""

    kind = "timely"

    def __init__(self, index=0):
        super().__init__(index)
        self.idle = {}

    def allocate(self, nbytes):
        idle = self.idle.setdefault(nbytes, [])
        return idle.pop() if idle else super().allocate(nbytes)

    def free(self, buffer):
        self.idle.setdefault(buffer.size, []).append(buffer)

    def stream(self, order="in", *, profiling=False):
        return ThreadStream(self)

    def copy_in(self, stream, host, buffer, wait_for=()):
        return stream.submit(partial(np.copyto, buffer[: host.size], host), wait_for)

    def copy_out(self, stream, buffer, host, wait_for=()):
        return stream.submit(partial(np.copyto, host, buffer[: host.size]), wait_for)

    def launch(self, stream, function, memories, wait_for):
        return stream.submit(partial(function, *memories), wait_for)


def copied(buffer, host, wait_for):
    for event in wait_for:
        event.wait()
    np.copyto(buffer[: host.size], host[: buffer.size])
    return backend.COMPLETED


# -- faults ----------------------------------------------------------------------------------------


class EarlyEvents(Timely):
    """The event of a launch is complete at once."""

    def launch(self, stream, function, memories, wait_for):
        super().launch(stream, function, memories, wait_for)
        return backend.COMPLETED


class FirstHalfsEvent(Timely):
    """A launch consists of two commands, and returns the event of the first one."""

    def launch(self, stream, function, memories, wait_for):
        event = stream.submit(int, wait_for)
        super().launch(stream, function, memories, ())
        return event


class HastyCopyIn(Timely):
    """A copy to the device does not wait for the commands before it."""

    def copy_in(self, stream, host, buffer, wait_for=()):
        return copied(buffer, host, wait_for)


class HastyCopyOut(Timely):
    """A copy from the device does not wait for the commands before it."""

    def copy_out(self, stream, buffer, host, wait_for=()):
        return copied(host, buffer, wait_for)


class EarlyCopyIn(Timely):
    """The event of a copy to the device is complete before the host array is read."""

    def copy_in(self, stream, host, buffer, wait_for=()):
        super().copy_in(stream, host, buffer, wait_for)
        return backend.COMPLETED


class EarlyCopyOut(Timely):
    """The event of a copy from the device is complete at once."""

    def copy_out(self, stream, buffer, host, wait_for=()):
        super().copy_out(stream, buffer, host, wait_for)
        return backend.COMPLETED


class OneTemporary(Timely):
    """All launches first write their results to one temporary buffer."""

    def launch(self, stream, function, memories, wait_for):
        *inputs, dst = memories
        size = dst.desc.nbytes
        shared = self.idle.setdefault("shared", np.zeros(2**20, np.uint8))[:size]
        temporary = SimpleNamespace(desc=dst.desc, buffer=shared)
        stream.submit(partial(function, *inputs, temporary), wait_for)
        return stream.submit(partial(_move, temporary, dst))


def _move(source, target):
    target.desc.pack(source.desc.unpack(source.buffer), target.buffer)


class FreesInFlight(Timely):
    """A command does not keep its memories alive."""

    def launch(self, stream, function, memories, wait_for):
        raw = [SimpleNamespace(desc=memory.desc, buffer=memory.buffer) for memory in memories]
        return super().launch(stream, function, raw, wait_for)


class IgnoresOwnEvents(Timely):
    """A launch does not wait for events of other streams of the engine."""

    def launch(self, stream, function, memories, wait_for):
        foreign = [event for event in wait_for if not isinstance(event, Command)]
        return super().launch(stream, function, memories, foreign)


class CopiesIgnoreOwnEvents(Timely):
    """A copy does not wait for events of other streams of the engine."""

    def copy_out(self, stream, buffer, host, wait_for=()):
        foreign = [event for event in wait_for if not isinstance(event, Command)]
        return super().copy_out(stream, buffer, host, foreign)


class IgnoresOtherEngines(Timely):
    """A launch does not wait for events of other engines."""

    def launch(self, stream, function, memories, wait_for):
        own = [event for event in wait_for if isinstance(event, Command)]
        return super().launch(stream, function, memories, own)


class CopiesIgnoreOtherEngines(Timely):
    """Copies do not wait for events of other engines."""

    def copy_in(self, stream, host, buffer, wait_for=()):
        own = [event for event in wait_for if isinstance(event, Command)]
        return super().copy_in(stream, host, buffer, own)

    def copy_out(self, stream, buffer, host, wait_for=()):
        own = [event for event in wait_for if isinstance(event, Command)]
        return super().copy_out(stream, buffer, host, own)


class ReadsWhenLaunched(Timely):
    """A launch reads its inputs at once, before the commands that precede it have run."""

    def launch(self, stream, function, memories, wait_for):
        for event in wait_for:
            event.wait()
        *inputs, dst = memories
        now = [SimpleNamespace(desc=m.desc, buffer=m.buffer.copy()) for m in inputs]
        return super().launch(stream, function, [*now, dst], ())


class StreamEndsEarly(Timely):
    """A wait for the stream returns at once."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        stream.wait = lambda timeout=None: None
        return stream


class QuietCommand(Command):
    def wait(self, timeout=None):
        with suppress(TimeoutError):
            super().wait(timeout)


class QuietTimeouts(Timely):
    """A wait with a time limit returns without an error when the limit is reached."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        stream.event = QuietCommand
        return stream


class ForgetfulCommand(Command):
    def wait(self, timeout=None):
        wait([self.future], timeout)

    error = None


class ForgetsErrors(Timely):
    """The event of a command that failed has no error."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        stream.event = ForgetfulCommand
        return stream


class Settled(backend.Event):
    """An event that is complete when another event has ended or failed."""

    def __init__(self, event):
        self.other = event

    def wait(self, timeout=None):
        with suppress(backend.ExecutionError):
            self.other.wait(timeout)


class RunsOnGarbage(Timely):
    """A launch that waits for a failed event runs and reports no error."""

    def launch(self, stream, function, memories, wait_for):
        return super().launch(stream, function, memories, [*map(Settled, wait_for)])


class CopiesGarbage(Timely):
    """A copy that waits for a failed event runs and reports no error."""

    def copy_out(self, stream, buffer, host, wait_for=()):
        return super().copy_out(stream, buffer, host, [*map(Settled, wait_for)])


class StreamForgetsErrors(Timely):
    """A wait for the stream does not raise the errors of its commands."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        stream.wait = lambda timeout=None: stream.submit(int).wait(timeout)
        return stream


class KeepsFailing(Timely):
    """After a failed command, all commands of the stream fail."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        own = stream.wait

        def wait(timeout=None):
            failed = [command for command in stream.commands if command.error]
            own(timeout) if not failed else failed[0].wait()

        stream.wait = wait
        return stream


class FailsAllBehind(Timely):
    """A command fails if an earlier command of its stream has failed."""

    def launch(self, stream, function, memories, wait_for):
        return super().launch(stream, function, memories, [*wait_for, *stream.commands])


class LastEventOnly(Timely):
    """A launch waits only for the last event."""

    def launch(self, stream, function, memories, wait_for):
        return super().launch(stream, function, memories, wait_for[-1:])


class LastOfAStream(Timely):
    """A launch waits only for the last listed event of each stream."""

    def launch(self, stream, function, memories, wait_for):
        latest = {getattr(event, "queue", event): event for event in wait_for}
        return super().launch(stream, function, memories, list(latest.values()))


class KeepsEvents(Timely):
    """A launch keeps alive the events of other engines that it has waited for."""

    kept = ()

    def launch(self, stream, function, memories, wait_for):
        self.kept = (*self.kept, *(event for event in wait_for if not isinstance(event, Command)))
        return super().launch(stream, function, memories, wait_for)


class EagerCommand(Command):
    done = True


class EagerDone(Timely):
    """`done` is True before the command has ended. Waits are correct."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        stream.event = EagerCommand
        return stream


class WritesTwice(Timely):
    """Each command is executed twice. Its event is complete after the first execution."""

    def launch(self, stream, function, memories, wait_for):
        event = super().launch(stream, function, memories, wait_for)
        super().launch(stream, function, memories, wait_for)
        return event


class LosesBuffers(Timely):
    """Each launch allocates a buffer that nobody frees."""

    def launch(self, stream, function, memories, wait_for):
        self.allocate(64)
        return super().launch(stream, function, memories, wait_for)


class FreesItself(Timely):
    """A launch frees its last memory, which belongs to the caller."""

    def free(self, buffer):
        pass

    def launch(self, stream, function, memories, wait_for):
        event = super().launch(stream, function, memories, wait_for)
        self.free(memories[-1].buffer)
        return event


class TimedCommand(Command):
    start, end = 2.0, 1.0


class WrongTimes(Timely):
    """The times of an event say that the command ended before it began."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        if profiling:
            stream.event = TimedCommand
        return stream


class SlowCommand(Command):
    start, end = 0.0, 1000.0


class WrongUnit(Timely):
    """The times of events are not in seconds."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        if profiling:
            stream.event = SlowCommand
        return stream


class PlannedCommand(Command):
    """A command whose event has given times."""

    start = end = None

    def __init__(self, future, start):
        super().__init__(future)
        self.start, self.end = start, start + 1e-7


class ClockPerStream(Timely):
    """Each stream has its own clock, which starts at 0."""

    def stream(self, order="in", *, profiling=False):
        stream = super().stream()
        times = itertools.count()
        if profiling:
            stream.event = lambda future: PlannedCommand(future, 1e-6 * next(times))
        return stream


class WrongInChild(Timely):
    """After a fork, launches compute nothing."""

    def __init__(self, index=0):
        super().__init__(index)
        self.process = os.getpid()

    def launch(self, stream, function, memories, wait_for):
        own = function if os.getpid() == self.process else lambda *memories: None
        return super().launch(stream, own, memories, wait_for)


class HangsInChild(WrongInChild):
    """After a fork, launches never end, as if they waited for a thread of the parent."""

    def launch(self, stream, function, memories, wait_for):
        if os.getpid() == self.process:
            return super().launch(stream, function, memories, wait_for)
        return Command(Future())


# -- implementations -------------------------------------------------------------------------------


class Asynchronous(backend.Executable):
    """Launches a function in the stream's thread."""

    def __init__(self, function):
        self.function = function

    def bind(self, memories, scratchpad):
        def run(stream, wait_for=()):
            return stream.engine.launch(stream, self.function, memories, wait_for)

        return run


class Elementwise(backend.Implementation):
    name = "timing:elementwise"

    def accept(self, op, attr, engine, hint):
        (definition,) = eltwise.FORWARD
        answer = definition.accept(op, attr, engine, hint)
        if isinstance(answer, backend.Refused):
            return answer
        return replace(answer, build=lambda: Asynchronous(answer.build().function))


TABLE = [Elementwise()]

FAULTS: dict[str, Callable[..., Timely]] = {
    "early_events": EarlyEvents,
    "first_halfs_event": FirstHalfsEvent,
    "hasty_copy_in": HastyCopyIn,
    "hasty_copy_out": HastyCopyOut,
    "early_copy_in": EarlyCopyIn,
    "early_copy_out": EarlyCopyOut,
    "one_temporary": OneTemporary,
    "frees_in_flight": FreesInFlight,
    "ignores_own_events": IgnoresOwnEvents,
    "copies_ignore_own_events": CopiesIgnoreOwnEvents,
    "ignores_other_engines": IgnoresOtherEngines,
    "copies_ignore_other_engines": CopiesIgnoreOtherEngines,
    "reads_when_launched": ReadsWhenLaunched,
    "stream_ends_early": StreamEndsEarly,
    "quiet_timeouts": QuietTimeouts,
    "forgets_errors": ForgetsErrors,
    "runs_on_garbage": RunsOnGarbage,
    "copies_garbage": CopiesGarbage,
    "stream_forgets_errors": StreamForgetsErrors,
    "keeps_failing": KeepsFailing,
    "fails_all_behind": FailsAllBehind,
    "last_event_only": LastEventOnly,
    "last_of_a_stream": LastOfAStream,
    "keeps_events": KeepsEvents,
    "eager_done": EagerDone,
    "writes_twice": WritesTwice,
    "loses_buffers": LosesBuffers,
    "frees_itself": FreesItself,
    "wrong_times": WrongTimes,
    "wrong_unit": WrongUnit,
    "clock_per_stream": ClockPerStream,
    "wrong_in_child": WrongInChild,
    "hangs_in_child": HangsInChild,
}
for _name, _engine in FAULTS.items():
    _engine.kind = _name
ENGINES = {"timely": Timely, **FAULTS}


@backend.hookimpl
def dnncore_backends():
    """All engines and the implementation."""
    return backend.Backend(
        "timing",
        backend.API_VERSION,
        engines={kind: f"{__name__}:{engine.__name__}" for kind, engine in ENGINES.items()},
        implementations={(kind, backend.EltwiseForward): f"{__name__}:TABLE" for kind in ENGINES},
    )
