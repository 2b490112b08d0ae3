"""Checks of kinds of calls: bound, in sequences, in place, shifted, with the user's scratchpad."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

from dnncore.attributes import ScratchpadMode
from dnncore.engines.engine import Engine
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DnnError
from dnncore.execution.sequence import Sequence
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.checks.case import USUAL_FILLS, Arrays, Case, Trial, equal, unequal
from dnncore.testing.checks.results import CheckFailed

__all__ = [
    "bound",
    "in_place",
    "long_sequence",
    "scratchpad",
    "sequence",
    "shared",
    "shifted",
    "streams_of",
]

SHIFTS = ((0,), (1,), (4,), (8,), (0, 1, 4, 8, 16))  # bytes of shift of each argument
OFFSETS = (4, 8, 16)  # bytes
LONG_SECONDS = 0.15  # about twice the longest time after which a CPU program checks for signals
OF_DYNAMIC = 4  # one in this many cases is also executed by a dynamic primitive
FEW_CALLS, MOST_CALLS = 64, 20_000


def bound(trial: Trial) -> None:
    """Bound calls give the results of `execute`, for the present values of their memories.

    For some cases, so does a dynamic primitive, which gets the dims from the memories.
    """
    _call_bound(trial, as_sequence=False)
    if trial.case.seed % OF_DYNAMIC == 0:
        _call_dynamic(trial)


def _call_dynamic(trial: Trial) -> None:
    primitive = trial.case.dynamic(trial)

    def launch(_primitive: Any, stream: Stream, memories: dict[str, Any]) -> Event:
        return primitive.execute(stream, **memories)

    inputs = trial.case.round("random").inputs
    outputs = trial.execute(inputs, in_place=trial.in_place, launch=launch)
    trial.verify("random", outputs, "of a dynamic primitive")


def sequence(trial: Trial) -> None:
    """A `Sequence` of bound calls gives the results of `execute`, in the order of its calls."""
    _call_bound(trial, as_sequence=True)
    _overwrite(trial)
    _feed(trial)


def long_sequence(trial: Trial) -> None:
    """A `Sequence` runs to its end, however long it takes.

    An implementation may interrupt it after a while, so that signal handlers can run.
    """
    if trial.case.attr.reads_dst:
        return
    given = [trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS]
    first, last = (trial.primitive.bind(**arguments.memories) for arguments in given)
    stream = trial.case.engine.stream()
    seconds = _seconds(Sequence([first] * FEW_CALLS), stream) / FEW_CALLS
    count = min(MOST_CALLS, math.ceil(LONG_SECONDS / seconds))
    for arguments in given:
        arguments.restore()
    Sequence([first] * count + [last])(stream).wait()
    for fill, arguments in zip(USUAL_FILLS, given, strict=True):
        trial.verify(fill, trial.finish(arguments), f"in a sequence of {count + 1} calls")


def _seconds(sequence: Sequence, stream: Stream) -> float:
    sequence(stream).wait()  # the first launch takes longer
    start = time.perf_counter()
    sequence(stream).wait()
    return time.perf_counter() - start


def _overwrite(trial: Trial) -> None:
    """If several calls write to the same memories, the values are those of the last call."""
    if trial.case.attr.reads_dst:
        return
    given = [trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS]
    shared = {name: box.memory for name, box in given[0].outputs.items()}
    calls = [trial.primitive.bind(**{**one.memories, **shared}) for one in given]
    for stream in streams_of(trial.case.engine):
        for turns in ((0, 1), (1, 0)):
            Sequence([calls[turn] for turn in turns])(stream).wait()
            what = f"the last of two calls in a sequence, order {stream.order!r}"
            trial.verify(USUAL_FILLS[turns[-1]], trial.finish(given[0]), what)


def _feed(trial: Trial) -> None:
    """A call reads the result of the previous call, if an input has the layout of the result.

    The results are compared bit by bit with those of two separate executions.
    """
    result = trial.pd.op.result_name
    inputs = (a.name for a, desc in trial.pd.arguments
              if a.direction == "in" and desc == trial.pd.descs[result])  # fmt: skip
    name = next(inputs, None)
    if name is None or trial.case.attr.reads_dst or not trial.pd.deterministic:
        return
    given = trial.case.round("random").inputs
    once = trial.outputs("random")
    twice = trial.execute({**given, name: once[result]})
    if not equal(once, trial.execute(given)):
        return  # the check `repeatable` reports this
    for stream in streams_of(trial.case.engine):
        for as_sequence in (True, False):
            outputs = _fed(trial, given, name, stream, as_sequence)
            if not equal(twice, outputs):
                way = "in a sequence" if as_sequence else "of bound calls"
                raise CheckFailed(
                    f"a call that reads the result of the call before it, {way}, order"
                    f" {stream.order!r}: {unequal(twice, outputs)}"
                )


def _fed(
    trial: Trial, given: Arrays, name: str, stream: Stream, as_sequence: bool
) -> dict[str, Any]:
    """Return the outputs of a second call whose input `name` is the result of a first call."""
    first, second = trial.arguments(given), trial.arguments(given)
    middle = first.boxes[trial.pd.op.result_name].memory
    calls = [
        trial.primitive.bind(**first.memories),
        trial.primitive.bind(**{**second.memories, name: middle}),
    ]
    if as_sequence:
        Sequence(calls)(stream).wait()
    else:
        event = calls[0](stream)
        calls[1](stream, () if stream.order == "in" else (event,)).wait()
    return trial.finish(second)


def streams_of(engine: Engine) -> Iterator[Stream]:
    """Open a new stream of each order that the engine supports."""
    yield engine.stream()
    with suppress(DnnError):
        yield engine.stream("out")


def _call_bound(trial: Trial, *, as_sequence: bool) -> None:
    given = {fill: trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS}
    calls = [trial.primitive.bind(**arguments.memories) for arguments in given.values()]
    stream = trial.case.engine.stream()
    for (
        call
    ) in calls:  # resolves the calls; other values reveal data that is wrongly shared or kept
        call(stream).wait()
    first, second = given.values()
    first.exchange(second)
    for arguments in given.values():
        arguments.restore()
    if as_sequence:
        Sequence(calls)(stream).wait()
    else:
        for event in [call(stream) for call in calls]:
            event.wait()
    for fill, arguments in zip(USUAL_FILLS, (second, first), strict=True):
        what = "in a sequence" if as_sequence else "bound"
        trial.verify(fill, trial.finish(arguments), what)


def in_place(trial: Trial) -> None:
    """The output may be the memory of an input with the same format, if the operation permits."""
    descs = trial.pd.descs
    for source, target in trial.pd.op.IN_PLACE:
        if descs.get(source) is None or descs[source] != descs.get(target):
            continue
        for fill in USUAL_FILLS:
            # With a sum in the chain, the old value of dst is that of the input.
            alias = (source, target) if trial.case.attr.reads_dst else None
            given = trial.case.round(fill, alias=alias)
            apart = trial.execute(given.inputs) if alias else trial.outputs(fill)
            outputs = trial.execute(given.inputs, in_place=(source, target))
            trial.agree(given, outputs, apart, f"{target} in place of {source}, {fill}")


def shared(trial: Trial) -> None:
    """Two inputs with the same descriptor may be one memory."""
    inputs = [(a.name, desc) for a, desc in trial.pd.arguments if a.direction == "in"]
    pairs = ((a, b) for (a, one), (b, other) in combinations(inputs, 2) if one == other)
    pair = next(pairs, None)
    if pair is None:
        return
    given = trial.case.round("random", alias=pair)
    apart = trial.execute(given.inputs)
    outputs = trial.execute(given.inputs, in_place=pair)
    trial.agree(given, outputs, apart, f"{pair[0]} and {pair[1]} in one memory")


def scratchpad(trial: Trial) -> None:
    """The results with a user's scratchpad, filled with garbage, are the same."""
    attr = trial.case.attr
    other: ScratchpadMode = "library" if attr.scratchpad == "user" else "user"
    pd = trial.case.sibling(trial, replace(attr, scratchpad=other))
    if pd is not None:
        outputs = trial.execute(trial.case.round("random").inputs, pd=pd)
        trial.verify("random", outputs, f"scratchpad={other}")


def shifted(trial: Trial) -> None:
    """The results are the same for tensors at other addresses.

    On a host a tensor may begin at any byte. In a buffer of a device it may begin at any element.
    """
    inputs = trial.case.round("random").inputs
    if trial.case.engine.is_host:
        for shifts in SHIFTS:
            outputs = trial.execute(inputs, shifts=shifts)
            what = " and ".join(f"{shift}" for shift in shifts)
            trial.verify("random", outputs, f"addresses shifted by {what} bytes")
        return
    offset = OFFSETS[trial.case.seed % len(OFFSETS)]
    pd = _with_offsets(trial, offset)
    if pd is not None:
        outputs = trial.execute(inputs, pd=pd)
        trial.verify("random", outputs, f"tensors at byte {offset} of their buffers")


def _with_offsets(trial: Trial, nbytes: int) -> PrimitiveDesc | None:
    """Return the trial's implementation with all tensors at an offset; None if it refuses them."""

    def moved(desc: MemoryDesc) -> MemoryDesc:
        if desc.format_kind != "blocked":
            return desc
        return desc.with_offset0(desc.offset0 + max(1, nbytes // desc.itemsize))

    problem = replace(trial.case.problem, op=trial.case.op.with_each(moved))
    return Case(problem, trial.case.engine).sibling(trial, trial.case.attr)
