"""Host fallback: a CPU implementation computes for another engine, on copied memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dnncore.attributes import Attributes
from dnncore.backend import Accepted, Executable, Implementation, Refused, Run
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream, wait_all
from dnncore.ops import Operation
from dnncore.selection import answers
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["ADVICE", "PREFIX", "HostFallback"]

PREFIX = "host:"
ADVICE = "set DNNCORE_HOST_FALLBACK=1, or pass host_fallback=True to PrimitiveDesc"


class HostFallback(Implementation[Operation]):
    """A CPU implementation for an engine that lacks the operation, if the user allows it."""

    def __init__(self, implementation: Implementation[Any], cpu: Engine, allowed: bool) -> None:
        self.name = PREFIX + implementation.name
        self.data_types = implementation.data_types
        self.takes_repeats = implementation.takes_repeats
        self.attributes = implementation.attributes
        self._implementation = implementation
        self._cpu = cpu
        self._allowed = allowed

    def accept(
        self, op: Operation, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Accept the problems that the CPU's implementation accepts with plain formats.

        The estimate includes the transfers. Its knobs have their defaults.
        """
        if not self._allowed:
            return Refused("filter", ADVICE)
        answer = self._ask(op, attr, hint)
        if isinstance(answer, Refused):
            return answer
        resolved = answer.op
        seconds, _ = answers.estimate(answer, self._cpu)
        workspace = answer.workspace or resolved.workspace_desc(hint)
        peaks = answers.peaks(engine)
        transfers = resolved.bytes / min(peaks.bandwidth, self._cpu.peaks.bandwidth)
        launches = peaks.launch * len(resolved.tensors())
        return replace(
            answer,
            seconds=seconds + transfers + launches,
            efficiency=None,
            scratchpad_bytes=0,
            notes={*answer.notes, "host"},
            knobs=(),
            tune=None,
            build=lambda: _HostExecutable(answer, workspace, attr, self._cpu, engine),
        )

    def _ask(
        self, op: Operation, attr: Attributes, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Return the answer of the CPU's implementation. If it chooses a format that is not plain,
        repeat the request with a plain format.

        The device's own implementations support plain formats, but seldom the CPU's formats.
        """
        answer = answers.answer(self._implementation, op, attr, self._cpu, hint)
        if isinstance(answer, Refused):
            return answer
        chosen = {argument.name: desc for argument, desc in answer.op.tensors()}
        row_major = {
            argument.name: desc.with_format(None)
            for argument, desc in op.tensors()
            if desc.is_any and not chosen[argument.name].is_plain
        }
        if not row_major:
            return answer
        op = op.with_descs(**row_major)
        return answers.answer(self._implementation, op, attr, self._cpu, hint)


class _HostExecutable(Executable):
    """Copies the inputs to the host, runs there, and copies the outputs back."""

    def __init__(
        self,
        accepted: Accepted,
        workspace: MemoryDesc | None,
        attr: Attributes,
        cpu: Engine,
        engine: Engine,
    ) -> None:
        self._inner = answers.executable(accepted)
        self._scratchpad_bytes = accepted.scratchpad_bytes
        self._cpu = cpu
        self._engine = engine
        op = accepted.op
        arguments = [a for a, _ in op.tensors(workspace)] + [a for a, _ in attr.arguments(op)]
        self._outputs = {a.name for a in arguments if a.direction == "out"}
        self._names = [a.name for a in arguments]
        self._keeps_dst = attr.reads_dst

    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> Run:
        """Allocate a host memory per memory. The buffers of a host engine are used directly."""
        cpu, engine = self._cpu, self._engine
        shared = engine.is_host
        staged = [Memory(m.desc, cpu, m.buffer if shared else None) for m in memories]
        host_stream = cpu.stream()
        inner = self._inner.bind(staged, host_stream.reserve(self._scratchpad_bytes))
        pairs = list(zip(self._names, memories, staged, strict=True))
        back = [(m, s) for name, m, s in pairs if name in self._outputs]
        into = [(m, s) for name, m, s in pairs if name not in self._outputs]
        into += [(m, s) for m, s in back if self._keeps_dst or m.desc.has_neighbours]

        def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            wait_all(wait_for)
            if shared:
                return inner(host_stream, ())
            for memory, host in into:
                engine.copy_out(stream, memory.buffer, host.buffer[: host.nbytes]).wait()
            event = inner(host_stream, ())
            for memory, host in back:
                event = engine.copy_in(stream, host.buffer[: host.nbytes], memory.buffer)
                if stream.order != "in":
                    event.wait()
            return event

        return run
