"""Contestants of libraries that are used in dnncore's words: its own and oneDNN.

A library chooses a primitive descriptor for an operation; the primitive is bound to memories in the
formats that were chosen, which are filled before anything is timed: weights are packed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import dnncore as dnn
from benchmarks.contestants import Array, Contestant, activations, values_of

__all__ = ["Library", "between_reorders", "contestant"]

Memories = dict[str, dnn.Memory]
Values = Callable[[str, tuple[int, ...]], Array]  # of an argument's name and dims


class Library(Protocol):
    """What a library must do. Its primitive descriptors are used as dnncore's."""

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> Any:
        """The primitive descriptor that is ranked first."""

    def fill(self, memory: dnn.Memory, values: Array) -> None:
        """Write values of logical dims in the memory's format, an opaque one too."""

    def values(self, memory: dnn.Memory) -> Array:
        """The values in logical dims."""

    def forward(self, pd: Any) -> Any:
        """The primitive descriptor of the forward operation that a gradient belongs to."""

    def scratchpad(self, pd: Any) -> int:
        """Bytes of scratchpad of an execution."""

    def call(self, calls: list[Any]) -> Callable[[], object]:
        """A function that runs bound primitives one after the other and waits for them."""


def contestant(library: Library, pd: Any, name: str = "", values: Values = values_of) -> Contestant:
    """A primitive by itself, on memories in its own formats."""
    memories = _memories(library, pd, values)
    run = library.call([pd.primitive().bind(**memories)])
    return _made(library, pd, name or pd.impl_name, run, memories)


def between_reorders(
    library: Library, op: dnn.Operation, attr: dnn.Attributes
) -> Contestant | None:
    """A primitive in formats of its own choice, between reorders from and to the operation's.

    None where it chooses those of the operation, or where the operation must be told the formats.
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
    run = library.call([*before, pd.primitive().bind(**memories), *after])
    return _made(library, pd, f"{pd.impl_name} between reorders", run, memories | outside)


def _made(
    library: Library,
    pd: Any,
    name: str,
    run: Callable[[], object],
    memories: Mapping[str, dnn.Memory],
) -> Contestant:
    outputs = [row.name for row, _ in pd.op.tensors() if row.direction == "out"]
    return Contestant(
        name,
        run,
        lambda: {n: library.values(memories[n]) for n in outputs},
        library.scratchpad(pd),
        getattr(pd, "error_factor", 1.0),
    )


def _memories(library: Library, pd: Any, values: Values = values_of) -> Memories:
    """A filled memory for each argument; outputs too, since untouched pages are read too quickly.

    A gradient's workspace is what its forward operation leaves there.
    """
    memories: Memories = {}
    if pd.op.forward_op is not None and "workspace" in pd.descs:
        forward = library.forward(pd)
        made = _memories(library, forward)
        library.call([forward.primitive().bind(**made)])()
        memories["workspace"] = made["workspace"]
    missing = {name: desc for name, desc in pd.descs.items() if name not in memories}
    return memories | {n: _memory(library, n, desc, values) for n, desc in missing.items()}


def _memory(
    library: Library, name: str, desc: dnn.MemoryDesc, values: Values = values_of
) -> dnn.Memory:
    memory = dnn.Memory(desc, dnn.engine("cpu"))
    if desc.data_type == "f32":
        library.fill(memory, values(name, desc.dims))
    else:
        memory.buffer[:] = 1
    return memory


def _reorder(library: Library, src: dnn.Memory, dst: dnn.Memory) -> Any:
    pd = library.choose(dnn.Reorder(src=src.desc, dst=dst.desc), dnn.Attributes())
    rest = {n: _memory(library, n, desc) for n, desc in pd.descs.items() if n not in ("src", "dst")}
    return pd.primitive().bind(src=src, dst=dst, **rest)
