"""Checks of threads, streams and events."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

import numpy as np

from dnncore.cache import primitives
from dnncore.engines.stream import Event
from dnncore.selection import ranking
from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.guarded import Arguments
from dnncore.testing.checks.results import CheckFailed
from dnncore.verbose import set_verbose

__all__ = ["Late", "disturbed", "engine_threads", "events", "steady_inputs", "threads",
           "verbose_lines"]  # fmt: skip

BRIEF = 2**22  # bytes of arguments; executions with fewer are short and seldom overlap
REPEATS = 8  # executions of each thread if they are brief, so that two of them overlap
LATE_SECONDS = 1e-3  # seconds: a launch that does not wait for an event runs before it
THREADS = (1, 2, 3, 7)  # numbers of parts of work; some do not divide the usual sizes
WATCH_SECONDS = 0.02  # seconds in which another thread reads the inputs of executions
SWITCH_SECONDS = 1e-5  # between Python threads, so that short calls overlap


def threads(trial: Trial) -> None:
    """Two threads, each with a stream, share the primitive on different memories."""
    given = {fill: trial.case.round(fill) for fill in USUAL_FILLS}
    brief = sum(desc.nbytes for _, desc in trial.pd.arguments) < BRIEF
    repeats = range(REPEATS if brief else 2)
    work = {fill: [trial.arguments(r.inputs) for _ in repeats] for fill, r in given.items()}
    start = threading.Barrier(len(work))
    errors: list[Exception] = []

    def run(arguments: list[Arguments]) -> None:
        stream = trial.case.engine.stream()
        start.wait()
        try:
            for one in arguments:
                trial.primitive.execute(stream, **one.memories)
            stream.wait()
        except Exception as error:
            errors.append(error)

    trial.primitive  # noqa: B018 - built before the threads start
    with _quick_switches():
        workers = [threading.Thread(target=run, args=(a,)) for a in work.values()]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if errors:
        raise errors[0]
    for fill, arguments in work.items():
        for one in arguments:
            trial.verify(fill, trial.finish(one), "two threads")


@contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def disturbed(others: int) -> Iterator[None]:
    """Let this number of other threads compute during a block."""
    stop = threading.Event()
    numbers = np.ones(2**12, np.float32)

    def work() -> None:
        while not stop.is_set():
            np.sqrt(numbers)  # without the interpreter's lock

    workers = [threading.Thread(target=work) for _ in range(others)]
    for worker in workers:
        worker.start()
    try:
        with _quick_switches():
            yield
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def steady_inputs(trial: Trial) -> None:
    """Inputs have their values at every moment of an execution. Another thread reads them."""
    arguments = trial.arguments(trial.case.round("random").inputs)
    written = {row.name for row in trial.pd.op.ARGUMENTS if row.direction == "out"}
    others = written | {*arguments.outputs, "scratchpad"}
    boxes = {name: box for name, box in arguments.boxes.items() if name not in others}
    stop = threading.Event()
    found: set[str] = set()

    def look() -> None:
        while not stop.is_set():
            found.update(name for name, box in boxes.items() if box.touched())

    watcher = threading.Thread(target=look)
    stream = trial.case.engine.stream()
    with _quick_switches():
        watcher.start()
        end = time.perf_counter() + WATCH_SECONDS
        while time.perf_counter() < end:
            trial.primitive.execute(stream, **arguments.memories).wait()
        stop.set()
        watcher.join()
    if found:
        raise CheckFailed(f"an execution changes inputs and restores them: {sorted(found)}")


class Late(Event):
    """An event without an engine. The first wait calls `deliver` after some seconds, and completes
    the event.
    """

    __slots__ = ("_deliver", "_done", "_lock", "_seconds")

    def __init__(self, deliver: Callable[[], None], seconds: float = LATE_SECONDS) -> None:
        self._deliver = deliver
        self._seconds = seconds
        self._done = False
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> None:
        """Call `deliver`, once."""
        with self._lock:
            if not self._done:
                time.sleep(self._seconds)
                self._deliver()
                self._done = True

    @property
    def done(self) -> bool:
        """Whether a wait has completed the event."""
        return self._done


def events(trial: Trial) -> None:
    """A launch waits for the events in `wait_for`. A wait for its event or stream ends after it.

    Verbose lines do not change this.
    """
    for way in ("execute", "bound call"):
        for waits in ("event", "stream"):
            _behind_an_event(trial, way, waits)
    with verbose_lines():
        _behind_an_event(trial, "execute", "event")


@contextmanager
def verbose_lines() -> Iterator[None]:
    """Enable verbose lines for each execution, and discard them."""
    with redirect_stdout(io.StringIO()), set_verbose("profile_exec"):
        yield


def _behind_an_event(trial: Trial, way: str, waits: str) -> None:
    arguments = trial.arguments(trial.case.round("random").inputs)
    arguments.spoil()
    late = Late(arguments.restore)
    stream, other = trial.case.engine.stream(), trial.case.engine.stream()
    if way == "execute":
        event = trial.primitive.execute(stream, wait_for=[late], **arguments.memories)
    else:
        event = trial.primitive.bind(**arguments.memories)(stream, [late])
    if not isinstance(event, Event):
        raise CheckFailed(f"{way} must return an Event; got {type(event).__name__}")
    if waits == "event":
        outputs = arguments.fetch(other, event)
        event.wait()
        trial.verify("random", outputs, f"{way}, copied by another stream after its event")
    else:
        stream.wait()
    if not late.done:
        raise CheckFailed(f"{way} ended without having waited for the event in wait_for")
    if not event.done or event.error is not None:
        raise CheckFailed(f"{way}: its {waits} was waited for, but it is not done; {event.error!r}")
    stream.wait()
    trial.verify("random", trial.finish(arguments), f"{way} behind an event")


def engine_threads(trial: Trial) -> None:
    """Results with other thread counts of the engine are correct, if it has `num_threads`."""
    engine = trial.case.engine
    usual = getattr(engine, "num_threads", None)
    if usual is None:
        return
    try:
        for count in THREADS:
            engine.num_threads = count  # type: ignore[attr-defined]  # checked above
            _forget_all()
            pd = trial.case.sibling(trial, trial.case.attr)
            if pd is not None:
                outputs = trial.execute(trial.case.round("random").inputs, pd=pd)
                trial.verify("random", outputs, f"num_threads={count}")
    finally:
        engine.num_threads = usual  # type: ignore[attr-defined]  # checked above
        _forget_all()


def _forget_all() -> None:
    """Drop selections and primitives of one thread count before another one is used."""
    ranking.forget()
    primitives.clear()
