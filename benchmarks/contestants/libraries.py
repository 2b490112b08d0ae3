"""Contestants of dnncore and oneDNN, through a common interface.

A library selects a primitive descriptor for an operation. The primitive is bound to memories in the
selected formats. The memories are filled before the measurement, so weights are packed once. Before
the last sample, the memories get new values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import dnncore as dnn
from benchmarks.contestants.contestant import Array, Contestant, activations, period_of, typed
from benchmarks.measuring.sampling import Repeat

__all__ = ["NOT_A_NUMBER", "Library", "between_reorders", "contestant"]

PLACES = ("workspace", "src2")  # arguments that contain indices or conditions, filled with 1
KEPT = frozenset(("workspace", "mean"))  # a gradient with one of these needs its forward primitive
NOT_A_NUMBER = 0xFF  # a NaN of any floating-point type consists of these bytes
Periods = Callable[[str, tuple[int, ...], int], Array]  # (argument, dims, draw) -> values


class Library(Protocol):
    """The interface of a library. Its primitive descriptors have dnncore's interface."""

    engine: dnn.Engine  # the engine of all memories

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> Any:
        """The primitive descriptor with the best rank."""

    def fill(self, memory: dnn.Memory, period: Array) -> None:
        """Fill a memory of any format. In row-major order, its values repeat `period`."""

    def spoil(self, memory: dnn.Memory) -> None:
        """Fill an output memory with NaN."""

    def finish(self) -> None:
        """Wait until all memories are filled."""

    def values(self, memory: dnn.Memory) -> Array:
        """The values of a memory, in logical dims."""

    def forward(self, pd: Any) -> Any:
        """The primitive descriptor of the forward operation that belongs to a gradient."""

    def scratchpad(self, pd: Any) -> int:
        """Bytes of scratchpad for an execution."""

    def repeat(self, calls: list[Any]) -> Repeat:
        """Return a function that runs bound primitives in order, n times, and then waits."""


def contestant(
    library: Library, pd: Any, name: str = "", periods: Periods = period_of
) -> Contestant:
    """A primitive alone, on memories in the formats of its descriptor.

    Weights are packed once. The exception is a gradient of data with opaque weights: they are
    packed in each run, because a training changes the weights in each step.
    """
    memories = _Memories(library, periods)
    arguments = memories.of(pd)
    calls = [pd.primitive().bind(**arguments)]
    for own, memory in arguments.items() if pd.op.forward_op is not None else ():
        if own.startswith("weights") and memory.desc.format_kind == "opaque":
            plain = memories.input(own, memory.desc.with_format(None))
            calls.insert(0, _reorder(memories, plain, memory))
    return _made(memories, pd, name or pd.impl_name, calls, arguments)


def between_reorders(
    library: Library, op: dnn.Operation, attr: dnn.Attributes
) -> Contestant | None:
    """A primitive in formats that it selects, with reorders from and to the operation's formats.

    None if it selects the operation's formats, or if the operation does not permit `any`.
    """
    given = {name: getattr(op, name) for name in activations(op) if not getattr(op, name).is_any}
    try:
        free = replace(op, **{name: desc.with_format("any") for name, desc in given.items()})
    except dnn.DescriptorError:
        return None
    pd = library.choose(free, attr)
    moved = [name for name, desc in given.items() if pd.descs[name] != desc]
    if not moved:
        return None
    written = {row.name for row, _ in op.tensors() if row.direction == "out"}
    memories = _Memories(library)
    inside = {name: memories.output(pd.descs[name]) for name in moved if name not in written}
    arguments = memories.of(pd, inside)
    outside = {name: memories.any(name, given[name], is_read=name not in written) for name in moved}
    before = [_reorder(memories, outside[n], arguments[n]) for n in moved if n not in written]
    after = [_reorder(memories, arguments[n], outside[n]) for n in moved if n in written]
    calls = [*before, pd.primitive().bind(**arguments), *after]
    return _made(memories, pd, f"{pd.impl_name} between reorders", calls, arguments | outside)


def _made(
    memories: _Memories, pd: Any, name: str, calls: list[Any], arguments: Mapping[str, dnn.Memory]
) -> Contestant:
    library = memories.library
    memories.refill(0)
    outputs = [row.name for row, _ in pd.op.tensors() if row.direction == "out"]
    return Contestant(
        name,
        library.repeat(calls),
        lambda: {n: library.values(arguments[n]) for n in outputs},
        memories.refill,
        library.scratchpad(pd),
        getattr(pd, "error_factor", 1.0),
        sum(memory.nbytes for memory in arguments.values()),
    )


class _Memories:
    """New memories of a library, and for each a function that fills it."""

    def __init__(self, library: Library, periods: Periods = period_of) -> None:
        self.library, self.periods = library, periods
        self._fills: list[Callable[[int], object]] = []  # draw -> values

    def refill(self, draw: int) -> None:
        """Fill all inputs with the values of a draw and all outputs with NaN."""
        for fill in self._fills:
            fill(draw)
        self.library.finish()

    def of(self, pd: Any, given: Mapping[str, dnn.Memory] | None = None) -> dict[str, dnn.Memory]:
        """Make a memory for each argument that is not given.

        `refill` runs the forward primitive to compute what a gradient reads of it: workspace,
        statistics, the results of attention and of cells.
        """
        memories = dict(given or {})
        if pd.op.forward_op is not None and not KEPT.isdisjoint(pd.descs):
            forward = self.library.forward(pd)
            made = self.of(forward)
            run = self.library.repeat([forward.primitive().bind(**made)])
            self._fills.append(lambda _draw: run(1))
            own = {row.name for row in pd.op.ARGUMENTS} - {*pd.op.saved}
            memories |= {n: made[n] for n in pd.descs if n in made and n not in own}
        written = ["workspace", "scratchpad"]
        written += [row.name for row, _ in pd.op.tensors() if row.direction == "out"]
        for name, desc in pd.descs.items():
            if name not in memories:
                memories[name] = self.any(name, desc, is_read=name not in written)
        return memories

    def any(self, name: str, desc: dnn.MemoryDesc, *, is_read: bool) -> dnn.Memory:
        """Make the memory of an input or of an output."""
        return self.input(name, desc) if is_read else self.output(desc)

    def output(self, desc: dnn.MemoryDesc) -> dnn.Memory:
        """Make a memory that `refill` fills with NaN."""
        memory = dnn.Memory(desc, self.library.engine)
        self._fills.append(lambda _draw: self.library.spoil(memory))
        return memory

    def input(self, name: str, desc: dnn.MemoryDesc) -> dnn.Memory:
        """Make a memory that `refill` fills with a draw's values, or with 1 for `PLACES`."""
        memory = dnn.Memory(desc, self.library.engine)

        def fill(draw: int) -> None:
            period = typed(name, self.periods(name, desc.dims, draw), desc.data_type)
            self.library.fill(memory, period.astype(desc.dtype, copy=False))

        self._fills.append(fill if name not in PLACES else lambda _draw: _fill_ones(memory))
        return memory


def _fill_ones(memory: dnn.Memory) -> None:
    with memory.map(mode="w") as buffer:
        buffer[:] = 1


def _reorder(memories: _Memories, src: dnn.Memory, dst: dnn.Memory) -> Any:
    pd = memories.library.choose(dnn.Reorder(src=src.desc, dst=dst.desc), dnn.Attributes())
    return pd.primitive().bind(**memories.of(pd, {"src": src, "dst": dst}))
