"""Sequences: bound calls that are replayed in one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Calls
from typing import Any, NoReturn

from dnncore import observers
from dnncore.backend import Run
from dnncore.engines.stream import COMPLETED, Event, Stream, checked_event, checked_events, wait_all
from dnncore.errors import DescriptorError, DnnError, ExecutionError, describe
from dnncore.execution.primitive import BoundPrimitive
from dnncore.interrupts import pass_on

__all__ = ["Sequence"]


class Sequence:
    """Bound calls that run in order: `sequence(stream)` returns the event of the last one.

    Consecutive calls whose executables have the same `chain` function become one launch: a native
    loop on the CPU, one loop that enqueues kernels on OpenCL.
    """

    def __init__(self, calls: Iterable[BoundPrimitive | Sequence]) -> None:
        self.calls: list[BoundPrimitive] = []
        if not isinstance(calls, Iterable):
            raise DescriptorError(f"sequence: calls must be a sequence; got {type(calls).__name__}")
        for call in calls:
            if isinstance(call, Sequence):
                self.calls += call.calls
            elif isinstance(call, BoundPrimitive):
                self.calls.append(call)
            else:
                raise DescriptorError(
                    f"sequence: each call must be a bound primitive or a sequence; got"
                    f" {type(call).__name__}; make one with primitive.bind(...)"
                )
        self._attached: tuple[object, Any, list[Run], list[str]]
        observers.fill(self)

    def __reduce__(self) -> NoReturn:
        raise DescriptorError(
            "sequence: its calls belong to their memories, so it cannot be copied or pickled; bind"
            " the primitives to copies of the memories"
        )

    def __repr__(self) -> str:
        return f"<sequence of bound calls: {len(self)}>"

    def refill(self) -> None:
        """Forget the stream. The next call resolves its runs with the present observers."""
        self._attached = (_NO_STREAM, None, [], [])

    def __len__(self) -> int:
        return len(self.calls)

    def __call__(self, stream: Stream, wait_for: Calls[Event] = ()) -> Event:
        """Launch all calls on `stream`; raises `ExecutionError` if one fails."""
        attached = self._attached
        if attached[0] is not stream or attached[1] is not stream.scratchpad:
            attached = self._attach(stream)
        wait_for = checked_events(wait_for)
        if not attached[2]:
            wait_all(wait_for)
        event = COMPLETED
        try:
            for run in attached[2]:
                event = run(stream, wait_for)
                if not isinstance(event, Event):
                    checked_event(event)
                wait_for = () if stream.order == "in" else (event,)
        except DnnError:
            raise
        except Exception as error:
            pass_on(error)
            who = attached[3][attached[2].index(run)]
            raise ExecutionError(f"sequence: {who} failed: {describe(error)}") from error
        return event

    def _attach(self, stream: Stream) -> tuple[Stream | None, Any, list[Run], list[str]]:
        if not self.calls and not isinstance(stream, Stream):  # otherwise the calls check it
            raise DescriptorError(
                f"sequence: the stream must be a Stream; got {type(stream).__name__};"
                " open one with engine.stream()"
            )
        present = observers.active
        for call in self.calls:
            call.reserve(stream)
        runs: list[Run] = []
        names: list[str] = []
        for chain, group in itertools.groupby(self.calls, lambda call: call.chain_on(stream)):
            calls = list(group)
            bound = [call.run_on(stream) for call in calls]
            found = _chained(chain, bound, _watched(calls, bound))
            runs += found
            names += _names(calls) if len(found) == len(calls) else [", ".join(_names(calls))]
        self._attached = attached = (stream, stream.scratchpad, runs, names)
        return attached if observers.active is present else self._attach(stream)


_NO_STREAM = object()


def _chained(chain: Any, bound: list[Run], watched: list[Run]) -> list[Run]:
    """Join consecutive calls into one launch, unless an observer wraps one of them."""
    return [chain(bound)] if chain and len(bound) > 1 and watched == bound else watched


def _watched(calls: list[BoundPrimitive], bound: list[Run]) -> list[Run]:
    pairs = zip(calls, bound, strict=True)
    return [observers.watched(call.primitive, call.memories, run) for call, run in pairs]


def _names(calls: list[BoundPrimitive]) -> list[str]:
    return [f"{call.primitive.pd.op.KIND} by {call.primitive.impl_name}" for call in calls]
