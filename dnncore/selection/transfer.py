"""Crossings: reorders whose src and dst are on different engines.

The engines' copy commands transfer the bytes. One of the engines converts them, with its reorder
implementation. If both engines have such an implementation, the estimates decide. Between two
devices, the bytes pass through host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dnncore.attributes import Attributes
from dnncore.backend import Accepted, Executable, Implementation, Refused, Run
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.ops import Reorder
from dnncore.selection import answers

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["PREFIX", "Crossing"]

PREFIX = "transfer:"


class Crossing(Implementation[Reorder]):
    """A reorder implementation of the engine `side`, plus the transfer."""

    def __init__(
        self, implementation: Implementation[Any], src_engine: Engine, side: Engine
    ) -> None:
        self.name = f"{PREFIX}{side.name}:{implementation.name}"
        self.data_types = implementation.data_types
        self.takes_repeats = implementation.takes_repeats
        self.attributes = implementation.attributes
        self._implementation = implementation
        self._src_engine = src_engine
        self._side = side

    def accept(
        self, op: Reorder, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Accept the problems that `side` accepts. The estimate includes the transfer at the lower
        bandwidth.

        Post-ops are restricted: their operands have no engine here, and the staging memory on src's
        side does not contain the old values of dst.
        """
        if rows := attr.arguments(op):
            return Refused("attribute", f"takes no operand between engines; got {rows[0][0].name}")
        if self._side is not engine and any(step.kind == "sum" for step in attr.post_ops):
            return Refused("attribute", "cannot add to dst on another engine; got post-op sum")
        if self._side is not engine and op.dst.has_neighbours:
            return Refused("format", f"would overwrite bytes between dst's elements; got {op.dst}")
        answer = answers.answer(self._implementation, op, attr, self._side, hint)
        if isinstance(answer, Refused):
            return answer
        src_engine, side = self._src_engine, self._side
        seconds, _ = answers.estimate(answer, side)
        travelling = op.src if side is engine else op.dst
        either_is_host = src_engine.is_host or engine.is_host
        rate = min(answers.peaks(src_engine).bandwidth, answers.peaks(engine).bandwidth)
        return replace(
            answer,
            seconds=seconds + travelling.nbytes / rate,
            efficiency=None,
            scratchpad_bytes=0,
            notes=answer.notes if either_is_host else {*answer.notes, "host"},
            knobs=(),
            tune=None,
            build=lambda: _CrossingExecutable(op, attr, answer, src_engine, engine, side),
        )


class _CrossingExecutable(Executable):
    """Copy and convert; between equal descriptors without post-ops only copy."""

    def __init__(
        self, op: Reorder, attr: Attributes, accepted: Accepted, src_engine: Engine, engine: Engine,
        side: Engine,
    ) -> None:  # fmt: skip
        self._op = op
        self._src_engine = src_engine
        self._engine = engine
        self._side = side
        self._scratchpad_bytes = accepted.scratchpad_bytes
        copies = op.src == op.dst and not op.dst.has_neighbours and not attr.post_ops
        self._inner = None if copies else answers.executable(accepted)

    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> Run:
        """Allocate the staging memory once."""
        src, dst = memories
        if self._inner is None:
            return _copy(src, dst)
        side = self._side
        own = side.stream()
        scratch = own.reserve(self._scratchpad_bytes)
        if side is dst.engine:
            staged = Memory(self._op.src, side)
            first, last = _copy(src, staged), _on(own, self._inner.bind((staged, dst), scratch))
        else:
            staged = Memory(self._op.dst, side)
            first, last = _on(own, self._inner.bind((src, staged), scratch)), _copy(staged, dst)

        def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            return last(stream, (first(stream, wait_for),))

        return run


def _on(own: Stream, run: Run) -> Run:
    """Run on the caller's stream if it belongs to the engine of `own`, else on `own`, and wait.

    Without the wait, later commands of the caller's stream could overtake the run. The scratchpad
    of the run may be that of `own`.
    """

    def run_there(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        if stream.engine is own.engine:
            return run(stream, wait_for)
        event = run(own, wait_for)
        event.wait()
        return event

    return run_there


def _copy(src: Memory, dst: Memory) -> Run:
    """Copy src's bytes to dst's buffer, through host memory if neither engine is a host.

    The run keeps the memories, not only their buffers, which are freed with the memories.
    """
    nbytes = src.desc.nbytes
    if src.engine.is_host:

        def write(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            return dst.engine.copy_in(stream, src.buffer[:nbytes], dst.buffer, wait_for)

        return _on(dst.engine.stream(), write)
    if dst.engine.is_host:

        def read(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            return src.engine.copy_out(stream, src.buffer, dst.buffer[:nbytes], wait_for)

        return _on(src.engine.stream(), read)
    staging = Memory(src.desc, host_engine())
    first, last = _copy(src, staging), _copy(staging, dst)

    def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        event = first(stream, wait_for)
        event.wait()  # the second copy must not read the staging bytes before they are written
        return last(stream, ())

    return run


def host_engine() -> Engine:
    """Return the engine of host memory."""
    from dnncore.selection.plugins import engine

    return engine("cpu")
