"""Composition: the base of implementations that compute an operation by other operations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dnncore.attributes import WORDS, Attributes
from dnncore.backend import Accepted, Executable, Implementation, Refused, Run
from dnncore.composition.steps import (
    ALIGNMENT,
    CannotCompose,
    Step,
    Steps,
    executable_of,
    refusing,
)
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream, TimedEvent
from dnncore.ops import Operation
from dnncore.tensors.datatypes import DATA_TYPES

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Composition"]

OpT = TypeVar("OpT", bound=Operation)
MOST_ROUNDS = 4


class Composition(Implementation[OpT]):
    """An implementation whose executable runs primitives of other operations, one after the other.

    `compose` records the steps. They are selected like the user's primitives, from the backend's
    implementations other than the composition itself, and share the primitive cache with them. The
    estimate is the sum of the steps' estimates, so a composition competes with other
    implementations of the operation. If the runs of all steps have the same `chain` function, they
    become one launch.

    backend: the name of the backend that offers the composition.
    STEM: the rest of the implementation's name.
    """

    STEM: ClassVar[str]
    data_types = tuple(DATA_TYPES)
    attributes = WORDS
    takes_repeats = True

    def __init__(self, backend: str) -> None:
        self.name = f"{backend}:{self.STEM}"
        self._steps_by = f"{backend}:*"

    @abstractmethod
    def compose(self, op: OpT, attr: Attributes, steps: Steps) -> OpT:
        """Record the steps by `steps.add`, and return the operation with all formats resolved.

        Raises `CannotCompose`. A `DescriptorError` of an operation, an attribute or a descriptor
        also means that the composition cannot compute the problem.
        """

    def accept(
        self, op: OpT, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Record the steps, and accept if each has an implementation."""
        try:
            steps, resolved = self._recorded(op, attr, engine)
        except CannotCompose as error:
            return error.refused
        pds = [step.pd for step in steps.steps]
        end = steps.room_end
        names = [a.name for a, _ in (*resolved.tensors(), *attr.arguments(resolved))]
        recorded = tuple(steps.steps)
        base = end if engine.is_host else 0  # where the steps' own scratchpads begin
        return Accepted(
            resolved,
            build=lambda: _Composed(recorded, names, base),
            seconds=sum(pd.seconds for pd in pds),
            scratchpad_bytes=max(end, base + steps.step_bytes),
            deterministic=all(pd.deterministic for pd in pds),
            exact=all(pd.exact for pd in pds),
            error_factor=max(pd.error_factor for pd in pds),
            notes={note for pd in pds for note in pd.notes},
            detail=_detail(pds),
        )

    def _recorded(self, op: OpT, attr: Attributes, engine: Engine) -> tuple[Steps, OpT]:
        """Record the steps. On a device, repeat this until the rooms begin after the scratchpads of
        the steps.
        """
        base = 0
        for _ in range(MOST_ROUNDS):
            steps = Steps(engine, self._steps_by, self.name, base)
            with refusing():
                resolved = self.compose(op, attr, steps)
            if engine.is_host or steps.room_end == base or steps.step_bytes <= base:
                return steps, resolved
            base = -(-steps.step_bytes // ALIGNMENT) * ALIGNMENT
        text = f"its steps need ever larger scratchpads; got {base} bytes"
        raise CannotCompose(Refused("resources", text))


def _detail(pds: Sequence[PrimitiveDesc]) -> str:
    """Name the implementations of the steps, each once, without the backend's name."""
    names = dict.fromkeys(pd.impl_name.partition(":")[2] for pd in pds)
    return "+".join(names)[:100]


class _Composed(Executable):
    """The executables of the steps.

    names: the arguments in binding order. base: the byte of a host scratchpad where those of the
    steps begin.
    """

    def __init__(self, steps: Sequence[Step], names: Sequence[str], base: int) -> None:
        self._steps = [(step, executable_of(step)) for step in steps]
        self._names = tuple(names)
        self._base = base
        kinds = [type(executable) for _, executable in self._steps]
        chains = {kind.chain for kind in kinds}
        self._chain = chains.pop() if len(chains) == 1 else None
        self._binds_slowly = any(kind.execute is not Executable.execute for kind in kinds)

    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> Run:
        """Bind each step to views of the memories and to rooms of the scratchpad."""
        arguments = dict(zip(self._names, memories, strict=True))
        part = self._part(scratchpad)
        runs: list[Run] = [
            executable.bind(step.memories(arguments, scratchpad), part)
            for step, executable in self._steps
        ]
        if len(runs) == 1:
            return runs[0]
        return self._chain(runs) if self._chain else _in_order(runs)

    def execute(
        self,
        stream: Stream,
        memories: Sequence[Memory],
        scratchpad: Buffer | None,
        wait_for: Sequence[Event],
    ) -> Event:
        """Execute each step, without binding it if this is expensive."""
        if not self._binds_slowly:
            return super().execute(stream, memories, scratchpad, wait_for)
        arguments = dict(zip(self._names, memories, strict=True))
        part = self._part(scratchpad)

        def launched(step: Step, executable: Executable) -> Run:
            views = step.memories(arguments, scratchpad)

            def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
                return executable.execute(stream, views, part, wait_for)

            return run

        return _in_order([launched(*step) for step in self._steps])(stream, wait_for)

    def _part(self, scratchpad: Any) -> Buffer | None:
        """Return the part of the scratchpad that the steps may use; None if it is empty."""
        if scratchpad is None or not self._base:
            return scratchpad
        return scratchpad[self._base :] if len(scratchpad) > self._base else None


def _in_order(runs: Sequence[Run]) -> Run:
    """Return a run that launches each run after the one before it.

    If a run waits for events, which may fail, each run waits for the one before it.
    """

    def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        events = []
        is_linked = bool(wait_for) or stream.order != "in"
        for one in runs:
            events.append(one(stream, wait_for))
            wait_for = events[-1:] if is_linked else ()
        first, last = events[0], events[-1]
        if isinstance(last, TimedEvent) and first.start is not None and last.end is not None:
            return TimedEvent(first.start, last.end)
        return last

    return run
