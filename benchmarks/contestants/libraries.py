"""Contestants of dnncore and oneDNN, through a common interface.

A library selects a primitive descriptor for an operation. The primitive is bound to memories in the
selected formats. The memories are filled before the measurement, so weights are packed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import dnncore as dnn
from benchmarks.contestants.contestant import Array, Contestant, activations, period_of
from benchmarks.measuring.sampling import Repeat

__all__ = ["NOT_A_NUMBER", "Library", "between_reorders", "contestant"]

FLOATS = ("f32", "f16", "bf16")
NOT_A_NUMBER = 0xFF  # a NaN of any floating-point type consists of these bytes
Memories = dict[str, dnn.Memory]
Periods = Callable[[str, tuple[int, ...]], Array]  # (name of an argument, dims) -> values


class Library(Protocol):
    """The interface of a library. Its primitive descriptors have dnncore's interface."""

    engine: dnn.Engine  # the engine of all memories

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> Any:
        """The primitive descriptor with the best rank."""

    def fill(self, memory: dnn.Memory, period: Array) -> None:
        """Fill a memory of any format with values that repeat a period in row-major order."""

    def spoil(self, memory: dnn.Memory) -> None:
        """Fill an output memory with NaN."""

    def values(self, memory: dnn.Memory) -> Array:
        """The values in logical dims."""

    def forward(self, pd: Any) -> Any:
        """The primitive descriptor of the forward operation of a gradient."""

    def scratchpad(self, pd: Any) -> int:
        """Bytes of scratchpad for an execution."""

    def repeat(self, calls: list[Any]) -> Repeat:
        """A function that runs bound primitives in order n times and then waits."""


def contestant(
    library: Library, pd: Any, name: str = "", periods: Periods = period_of
) -> Contestant:
    """A primitive alone, on memories in its own formats.

    Weights are packed once. An exception are opaque weights of a gradient of data, which are packed
    in each run, because weights change in each step of a training.
    """
    memories = _memories(library, pd, periods)
    calls = [pd.primitive().bind(**memories)]
    is_packed = "weights" in memories and memories["weights"].desc.format_kind == "opaque"
    if pd.op.forward_op is not None and is_packed:
        weights = memories["weights"]
        plain = _memory(library, "weights", weights.desc.with_format(None), periods)
        calls.insert(0, _reorder(library, plain, weights))
    return _made(library, pd, name or pd.impl_name, library.repeat(calls), memories)


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
    memories = _memories(library, pd)
    outside = {name: _memory(library, name, given[name]) for name in moved}
    written = {row.name for row, _ in op.tensors() if row.direction == "out"}
    before = [_reorder(library, outside[n], memories[n]) for n in moved if n not in written]
    after = [_reorder(library, memories[n], outside[n]) for n in moved if n in written]
    repeat = library.repeat([*before, pd.primitive().bind(**memories), *after])
    return _made(library, pd, f"{pd.impl_name} between reorders", repeat, memories | outside)


def _made(
    library: Library,
    pd: Any,
    name: str,
    repeat: Repeat,
    memories: Mapping[str, dnn.Memory],
) -> Contestant:
    outputs = [row.name for row, _ in pd.op.tensors() if row.direction == "out"]
    return Contestant(
        name,
        repeat,
        lambda: {n: library.values(memories[n]) for n in outputs},
        library.scratchpad(pd),
        getattr(pd, "error_factor", 1.0),
        sum(memory.nbytes for memory in memories.values()),
    )


def _memories(library: Library, pd: Any, periods: Periods = period_of) -> Memories:
    """A filled memory for each argument. Forward fills the workspace of a gradient."""
    memories: Memories = {}
    if pd.op.forward_op is not None and "workspace" in pd.descs:
        forward = library.forward(pd)
        made = _memories(library, forward)
        library.repeat([forward.primitive().bind(**made)])(1)
        memories["workspace"] = made["workspace"]
    written = ["workspace", "scratchpad"]
    written += [row.name for row, _ in pd.op.tensors() if row.direction == "out"]
    for name, desc in pd.descs.items():
        if name in memories:
            continue
        if name in written:
            memories[name] = dnn.Memory(desc, library.engine)
            library.spoil(memories[name])
        else:
            memories[name] = _memory(library, name, desc, periods)
    return memories


def _memory(
    library: Library, name: str, desc: dnn.MemoryDesc, periods: Periods = period_of
) -> dnn.Memory:
    memory = dnn.Memory(desc, library.engine)
    if desc.data_type in FLOATS:
        library.fill(memory, periods(name, desc.dims).astype(desc.dtype, copy=False))
    else:
        with memory.map(mode="w") as buffer:
            buffer[:] = 1
    return memory


def _reorder(library: Library, src: dnn.Memory, dst: dnn.Memory) -> Any:
    pd = library.choose(dnn.Reorder(src=src.desc, dst=dst.desc), dnn.Attributes())
    rest = {n: _memory(library, n, desc) for n, desc in pd.descs.items() if n not in ("src", "dst")}
    return pd.primitive().bind(src=src, dst=dst, **rest)
