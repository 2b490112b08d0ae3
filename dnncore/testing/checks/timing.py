"""Checks of times: limits of waits, and the times of commands on profiling streams."""

from __future__ import annotations

import time

from dnncore.engines.stream import COMPLETED, Event, Stream, wait_all
from dnncore.errors import DnnError
from dnncore.testing.checks.calls import streams_of
from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.concurrency import LATE_SECONDS, Late
from dnncore.testing.checks.guarded import GARBAGE
from dnncore.testing.checks.results import CheckFailed

__all__ = ["late_accesses", "profiling", "several_events", "time_limits"]

LAG_SECONDS = 0.08  # seconds; a wait of a quarter of this time ends long before the command
TRIES = 4
LATE, LATER = LATE_SECONDS, 0.01  # seconds; a launch ends between them, even on a busy machine
BRIEF_LAG = 0.005
LATER_SECONDS = 3 * BRIEF_LAG  # for so long after its end, a command must not touch memories
POLL_SECONDS = 60.0
CLOCK_SECONDS = 2e-4  # seconds; the error of the difference between two clocks


def time_limits(trial: Trial) -> None:
    """A wait with a limit ends with the command or raises `TimeoutError`.

    `done` is true only after the end of the command. This needs streams with a lag.
    """
    if trial.case.engine.stream().lag is None:
        return
    for waits in ("event", "stream"):
        _limited(trial, waits)
    arguments = trial.arguments(trial.case.round("random").inputs)
    event = trial.primitive.execute(_slow(trial), **arguments.memories)
    end = time.monotonic() + POLL_SECONDS
    while not event.done:
        if time.monotonic() > end:
            raise CheckFailed(f"an event is not done after {POLL_SECONDS:g} s without a wait")
        time.sleep(1e-3)
    trial.verify("random", trial.finish(arguments), "when its event is done, without a wait")


def _slow(trial: Trial) -> Stream:
    stream = trial.case.engine.stream()
    stream.lag = LAG_SECONDS
    return stream


def _slow_if_possible(trial: Trial) -> Stream:
    stream = trial.case.engine.stream()
    if stream.lag is not None:
        stream.lag = BRIEF_LAG
    return stream


def _limited(trial: Trial, waits: str) -> None:
    for limit in (0.0, LAG_SECONDS / 4):
        # On a busy machine, a command may end before the wait.
        if not any(_times_out(trial, waits, limit) for _ in range(TRIES)):
            raise CheckFailed(
                f"a wait for the {waits} with a timeout of {limit:g} s must raise TimeoutError if"
                " the command ends later; it returned"
            )


def _times_out(trial: Trial, waits: str, limit: float) -> bool:
    """Whether a wait for a slow command has raised `TimeoutError`.

    The result is also true if the command has ended when its call returns, as on the CPU engine.
    """
    arguments = trial.arguments(trial.case.round("random").inputs)
    stream = _slow(trial)
    event = trial.primitive.execute(stream, **arguments.memories)
    waiter = event if waits == "event" else stream
    has_raised = event.done
    try:
        waiter.wait(timeout=limit)
    except TimeoutError:
        has_raised = True
    if not (has_raised or event.done):
        raise CheckFailed(f"a wait for the {waits} returned before the command has ended")
    waiter.wait(timeout=POLL_SECONDS)
    if not event.done:
        raise CheckFailed(f"the {waits} was waited for, but the event is not done")
    trial.verify("random", trial.finish(arguments), f"after a second wait for its {waits}")
    stream.wait()
    return has_raised


# -- events to wait for ---------------------------------------------------------------------------


def several_events(trial: Trial) -> None:
    """A command waits for all events that are passed to it, in a list or a tuple."""
    for as_list in (True, False):
        arguments = trial.arguments(trial.case.round("random").inputs)
        arguments.spoil()
        boxes = arguments.boxes.values()
        late = [Late(lambda box=box: box.write(box.before)) for box in boxes]  # type: ignore[misc]
        events: list[Event] = [COMPLETED, *late, COMPLETED]
        stream, memories = trial.case.engine.stream(), arguments.memories
        if as_list:
            event = trial.primitive.execute(stream, wait_for=events, **memories)
        else:
            event = trial.primitive.bind(**memories)(stream, tuple(events))
        event.wait()
        if not all(one.done for one in late):
            raise CheckFailed(f"a command that waits for {len(late)} events left out one of them")
        trial.verify("random", trial.finish(arguments), "behind several events")
    for stream in streams_of(trial.case.engine):
        for order in (1, -1):
            _behind_copies(trial, stream, order)


def _behind_copies(trial: Trial, stream: Stream, order: int) -> None:
    """A command waits for all events of another stream, whichever of them ends last.

    The memories get their values from copies of `stream`. Each copy waits for a late event. The
    first event of the list ends last.

    order: -1 to list the last copy first.
    """
    arguments = trial.arguments(trial.case.round("random").inputs)
    arguments.spoil()
    boxes = list(arguments.boxes.values())
    latest = boxes[0 if order == 1 else -1]
    events = [
        box.copy_in(stream, box.before, [Late(lambda: None, LATER if box is latest else LATE)])
        for box in boxes
    ]
    own = trial.case.engine.stream()
    trial.primitive.execute(own, wait_for=events[::order], **arguments.memories).wait()
    wait_all(events)  # a copy that ends too late makes a result wrong
    what = f"behind several copies of a stream of order {stream.order!r}"
    trial.verify("random", trial.finish(arguments), what)


def late_accesses(trial: Trial) -> None:
    """A command that has ended no longer reads its inputs or writes its outputs."""
    arguments = trial.arguments(trial.case.round("random").inputs)
    stream = _slow_if_possible(trial)  # kept, so that its commands continue
    trial.primitive.execute(stream, **arguments.memories).wait()
    outputs = arguments.outputs
    for name, box in arguments.boxes.items():
        if name not in outputs:
            box.write(box.garbage)
    time.sleep(LATER_SECONDS)
    values = {name: box.values(box.after()) for name, box in outputs.items()}
    trial.verify("random", values, "with inputs that were overwritten after its end")
    for box in outputs.values():
        box.write(box.garbage)
    time.sleep(LATER_SECONDS)
    if any((box.after() != GARBAGE).any() for box in outputs.values()):
        raise CheckFailed("an output was written after the wait for its event")


# -- profiling ------------------------------------------------------------------------------------


def profiling(trial: Trial) -> None:
    """Times of a profiling stream are in order and within the time of the calls. All streams of an
    engine share one clock. Streams without profiling have no times. Results are the same.
    """
    try:
        stream = trial.case.engine.stream(profiling=True)
    except DnnError:
        return
    given = [trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS]
    memories = given[0].memories
    call = trial.primitive.bind(**given[1].memories)
    begin = time.perf_counter()
    first = trial.primitive.execute(stream, **memories)
    second = call(stream)
    second.wait()
    first.wait()
    elapsed = time.perf_counter() - begin
    for fill, arguments in zip(USUAL_FILLS, given, strict=True):
        trial.verify(fill, trial.finish(arguments), "on a profiling stream")
    _check_times(first, second, elapsed)
    _check_one_clock(second, call(trial.case.engine.stream(profiling=True), [second]))
    event = trial.primitive.execute(trial.case.engine.stream(), **memories)
    event.wait()
    if (event.start, event.end) != (None, None):
        raise CheckFailed("an event has times, but its stream was opened without profiling")


def _check_one_clock(first: Event, second: Event) -> None:
    """Check the times of two streams. The second command has waited for the first."""
    second.wait()
    end, start = first.end, second.start
    if end is not None and start is not None and start < end:
        raise CheckFailed(
            f"all streams of an engine must have one clock; a command began at {start:.9f} s, but"
            f" the one of another stream that it waited for ended at {end:.9f} s"
        )


def _check_times(first: Event, second: Event, elapsed: float) -> None:
    times = [(event.start, event.end) for event in (first, second)]
    if all(pair == (None, None) for pair in times):
        return
    flat = [moment for pair in times for moment in pair]
    known = [moment for moment in flat if moment is not None]
    if len(known) < len(flat):
        raise CheckFailed(f"each event has a start and an end, or none has; got {times}")
    if known != sorted(known):
        raise CheckFailed(f"two commands must start and end in order; got the times {times}")
    if known[-1] - known[0] > elapsed + CLOCK_SECONDS:
        raise CheckFailed(
            f"two commands took {known[-1] - known[0]:.3g} s by their events, but their calls and"
            f" waits {elapsed:.3g} s"
        )
