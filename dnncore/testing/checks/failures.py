"""Checks of failures of events for which a command waits, and of allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import numpy as np

from dnncore.cache import primitives
from dnncore.engines.engine import Engine
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DnnError, ExecutionError
from dnncore.execution.sequence import Sequence
from dnncore.testing.checks.calls import streams_of
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.concurrency import Late, verbose_lines
from dnncore.testing.checks.results import CheckFailed

__all__ = ["allocations", "failures"]

CAUSE = "the planted failure of another engine"
MOST_ALLOCATIONS = 20  # allocations that fail, one after the other

Launch = Callable[[Stream, list[Event]], Event]


class Failing(Late):
    """An event of another engine whose wait raises an error.

    has_error: whether its `error` is also set.
    """

    __slots__ = ("_has_error",)

    def __init__(self, *, has_error: bool) -> None:
        super().__init__(lambda: None)
        self._has_error = has_error

    def wait(self, timeout: float | None = None) -> None:
        """Raise `ExecutionError`."""
        super().wait(timeout)
        raise ExecutionError(CAUSE)

    @property
    def error(self) -> BaseException | None:
        """The error, if `has_error`."""
        return ExecutionError(CAUSE) if self.done and self._has_error else None


def failures(trial: Trial) -> None:
    """A command that waits for an event that fails reports an error that names its cause.

    Either the launch raises, or waits for its event and its stream raise, and its event has an
    error. The same holds for commands that wait for this command, on its stream and on another
    stream, before and after its end. Other later commands in its stream return correct results, and
    the next wait of the stream returns.
    """
    arguments = trial.arguments(trial.case.round("random").inputs)
    memories = arguments.memories
    call = trial.primitive.bind(**memories)
    box = next(iter(arguments.boxes.values()))
    host = np.empty_like(box.before)

    def with_verbose_lines(stream: Stream, events: list[Event]) -> Event:
        with verbose_lines():
            return trial.primitive.execute(stream, wait_for=events, **memories)

    ways: dict[str, Launch] = {
        "execute": lambda s, events: trial.primitive.execute(s, wait_for=events, **memories),
        "execute with verbose lines": with_verbose_lines,
        "a bound call": call,
        "a sequence": Sequence([call]),
        "copy_in": lambda s, events: box.copy_in(s, box.before, events),
        "copy_out": lambda s, events: box.copy_out(s, host, events),
    }
    draw = trial.case.seed
    for place, (way, launch) in enumerate(ways.items()):
        has_error, by_stream = bool((draw + place) & 1), bool((draw + place) & 2)
        _fails(trial, way, launch, has_error=has_error, by_stream=by_stream)
    for stream in streams_of(trial.case.engine):
        _goes_on(trial, stream)


def _goes_on(trial: Trial, stream: Stream) -> None:
    """A stream with a failed command raises its error once and remains usable.

    On an out-of-order stream, later commands wait for the end of the failed command. Its kernels
    may still run, and nothing else orders them.
    """
    for waits_between in (False, True) if stream.order == "in" else (True,):
        arguments = trial.arguments(trial.case.round("random").inputs)
        memories = arguments.memories
        with suppress(DnnError):
            trial.primitive.execute(stream, wait_for=[Failing(has_error=True)], **memories)
        if waits_between:
            with suppress(DnnError):
                stream.wait()
        copies = [box.copy_in(stream, box.before) for box in arguments.boxes.values()]
        try:
            event = trial.primitive.execute(stream, wait_for=copies, **memories)
            event.wait()
        except DnnError as error:
            raise CheckFailed(
                f"a command behind one that failed, in its stream, must not fail; got {error!r}"
            ) from error
        trial.verify("random", trial.finish(arguments), "behind a command that failed")
        with suppress(DnnError):
            stream.wait()
    try:
        stream.wait()
    except DnnError as error:
        raise CheckFailed(
            f"a stream must raise the error of a failed command once; its second wait failed with"
            f" {error!r}"
        ) from error


def _fails(trial: Trial, way: str, launch: Launch, *, has_error: bool, by_stream: bool) -> None:
    stream, other = trial.case.engine.stream(), trial.case.engine.stream()
    what = f"{way} behind an event that fails"
    event = _launched(what, launch, stream, Failing(has_error=has_error))
    if event is None:
        return
    for on in (stream, other):
        which = "the same stream" if on is stream else "another stream"
        dependent = _launched(f"{what}, and another on {which}", launch, on, event)
        if dependent is not None:
            _check_failed(f"{what}, and another on {which}", dependent, [])
    _check_failed(what, event, [("its stream", stream.wait)] if by_stream else [])
    after = f"{what}, and another after its end"
    dependent = _launched(after, launch, other, event)
    if dependent is not None:
        _check_failed(after, dependent, [("its stream", other.wait)])


def _launched(what: str, launch: Launch, stream: Stream, failing: Event) -> Event | None:
    """Return the event of a command that waits for a failing event; None if the launch raises."""
    try:
        return launch(stream, [failing])
    except DnnError as error:
        _check_cause(what, error)
        return None


def _check_failed(what: str, event: Event, first: list[tuple[str, Callable[[], Any]]]) -> None:
    """Wait in all ways. Each wait must raise an error.

    first: other waits, with their names, which are made before the wait for the event.
    """
    for name, wait in [*first, ("its event", event.wait)]:
        try:
            wait()
        except DnnError as error:
            _check_cause(what, error)
        else:
            raise CheckFailed(f"{what}: a wait for {name} must raise; it returned")
    if event.error is None or not event.done:
        raise CheckFailed(f"{what}: its event must be done and have an error; got {event.error!r}")


def _check_cause(what: str, error: BaseException) -> None:
    link: BaseException | None = error
    while link is not None:
        if CAUSE in str(link):
            return
        link = link.__cause__
    raise CheckFailed(f"{what}: the error must name the cause, {CAUSE!r}; got {error!r}")


# -- allocations -----------------------------------------------------------------------------------


def allocations(trial: Trial) -> None:
    """If an allocation fails, the call raises an error of dnncore, and the next call is correct.

    In turn, the first, the second and each further allocation fails, from the building of the
    primitive to the end of two executions. Then the primitive is executed without a failure.
    """
    engine = trial.case.engine
    for number in range(MOST_ALLOCATIONS):
        primitives.clear()
        arguments = trial.arguments(trial.case.round("random").inputs)
        stream = engine.stream()
        with _fails_once(engine, number) as failed:
            try:
                _launch_twice(trial, stream, arguments.memories)
            except DnnError:
                pass
            except Exception as error:
                raise CheckFailed(
                    f"allocation {number + 1} fails: the call must raise ExecutionError; got"
                    f" {error!r}"
                ) from error
        stream.wait()
        arguments.restore()
        trial.pd.primitive().execute(stream, **arguments.memories).wait()
        what = f"after allocation {number + 1} had failed"
        trial.verify("random", trial.finish(arguments), what)
        if not failed:
            return


def _launch_twice(trial: Trial, stream: Stream, memories: dict[str, Any]) -> None:
    primitive = trial.pd.primitive()
    primitive.execute(stream, **memories).wait()
    primitive.bind(**memories)(stream).wait()


@contextmanager
def _fails_once(engine: Engine, number: int) -> Iterator[list[int]]:
    """Let one allocation in a block fail, including the core's second attempt.

    Yields a list of the sizes that failed.
    """
    allocate, failed, made = engine.allocate, list[int](), 0

    def limited(nbytes: int) -> Any:
        nonlocal made
        made += 1
        if made in (number + 1, number + 2):
            failed.append(nbytes)
            raise ExecutionError(f"{engine.name}: out of memory for {nbytes} bytes")
        return allocate(nbytes)

    with mock.patch.object(engine, "allocate", limited):
        yield failed
