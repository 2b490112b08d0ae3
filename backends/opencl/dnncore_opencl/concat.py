"""Concat: each source is copied to its place in dst. On GPUs one launch copies rows of all sources.

If a source begins or ends inside a block of dst, or if there are post-ops, the sources are copied
to a plain tensor in the scratchpad first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Event, Memory, Refused, Run
from dnncore_opencl.copies.apart import apart_desc, copied, finished, has_steps, scaled
from dnncore_opencl.copies.joined import joined
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import Passes, refuse_common
from dnncore_opencl.elementwise.random import RANDOM
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import BoundCall, LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch


class Concat(Passes[core.Concat]):
    """One launch, or one per source. A source that lies in dst is not copied."""

    name = "opencl:copies"
    attributes = (*POST_OP_WORDS, "scales", *RANDOM)

    def accept(
        self, op: core.Concat, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks."""
        op = op.resolve_any(dst=op.src0)
        if refused := refuse_common(op, attr, engine):
            return refused
        return Accepted(
            op,
            lambda: self._program(op, attr, engine),
            efficiency=self.efficiency(engine, [desc for _, desc in op.tensors()]),
            scratchpad_bytes=apart_desc(op, attr).nbytes if _is_apart(op, attr) else 0,
            notes=("compiles",),
        )

    def _program(self, op: core.Concat, attr: Attributes, engine: Any) -> LaunchProgram:
        within = any(op.place_of(name) for name in op.source_names)
        if not within and not _is_apart(op, attr) and not attr.scales:
            launch = joined(engine, op.srcs, op.dst, op.axis)
            if launch:
                return LaunchProgram(engine, [launch])
        parts = [self._source(op, attr, engine, i) for i in range(len(op.srcs))]
        launches = [launch for part in parts for launch in part]
        if _is_apart(op, attr):
            launches += finished(engine, op, attr, apart_desc(op, attr))
            return LaunchProgram(engine, launches)
        if not within:
            return LaunchProgram(engine, launches)
        sources = [i for i, part in enumerate(parts) for _ in part]
        return _InPlace(engine, launches, dict(enumerate(sources)), len(op.srcs))

    def launches(self, op: core.Concat, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Return the launches of all sources."""
        return [x for i in range(len(op.srcs)) for x in self._source(op, attr, engine, i)]

    def _source(self, op: core.Concat, attr: Attributes, engine: Any, i: int) -> Sequence[Launch]:
        """Return the launches that copy one source."""
        name, src, last = f"src{i}", op.srcs[i], len(op.srcs)
        target: Arg | Scratch = Arg(last)
        if _is_apart(op, attr):
            op, target = op.with_descs(dst=apart_desc(op, attr)), Scratch()
        place = op.places[i]
        assert place is not None, "only plain and aligned places are written"
        if name not in attr.scales:
            return copied(engine, src, place, Arg(i), target)
        own = Attributes(scales={"src": attr.scales[name]})
        names = [argument.name for argument, _ in attr.arguments(op)]
        scale = Arg(last + 1 + names.index(f"{name}_scales"))
        return scaled(engine, own, src, place, (Arg(i), target, scale))


def _is_apart(op: core.Concat, attr: Attributes) -> bool:
    return has_steps(attr) or None in op.places


class _InPlace(LaunchProgram):
    """A program that omits the copies of sources in dst's buffer. Their place is known to be right.

    sources: the source that each launch copies. dst: the place of dst in bind order.
    """

    def __init__(
        self, engine: Any, launches: Sequence[Launch], sources: Mapping[int, int], dst: int
    ) -> None:
        super().__init__(engine, launches)
        self._sources, self._dst = sources, dst

    def bind(self, memories: Sequence[Memory], scratchpad: Any) -> Run:
        """Keep the launches whose source is in another buffer."""
        call: Any = super().bind(memories, scratchpad)
        target = memories[self._dst].buffer
        ready = [
            one
            for place, one in enumerate(call.ready)
            if memories[self._sources[place]].buffer is not target
        ]
        return BoundCall(ready, call.owned)

    def execute(
        self, stream: Any, memories: Sequence[Memory], scratchpad: Any, wait_for: Sequence[Event]
    ) -> Event:
        """Launch what `bind` keeps."""
        if all(memories[i].buffer is not memories[self._dst].buffer for i in range(self._dst)):
            return super().execute(stream, memories, scratchpad, wait_for)
        return self.bind(memories, scratchpad)(stream, wait_for)


TABLE = (Concat(),)
