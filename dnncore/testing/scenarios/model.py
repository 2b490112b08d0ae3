"""The model of a scenario: the expected value of each byte of each buffer.

It calculates places of elements itself, from the strides and blocks of a descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Arena", "Tensor", "bytes_of", "places"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Arena:
    """A buffer, which contains one or more tensors, and its expected bytes.

    owner: the object that keeps the buffer alive.
    used: the number of bytes up to the end of the last tensor.
    descs: the descriptors of all tensors that were ever in this buffer.
    writes, reads: the commands that may still be running.
    """

    engine: Engine
    buffer: Buffer
    right: Array
    owner: Memory
    used: int
    descs: set[MemoryDesc] = field(default_factory=set)
    writes: list[tuple[Stream, Event]] = field(default_factory=list)
    reads: list[tuple[Stream, Event]] = field(default_factory=list)

    def commands(self, *, written: bool) -> list[tuple[Stream, Event]]:
        """Return the commands for which a command that reads or writes this buffer must wait."""
        return self.writes + self.reads if written else self.writes

    def settle(self) -> None:
        """Wait for all commands."""
        for _, event in self.writes + self.reads:
            event.wait()
        self.writes, self.reads = [], []

    def wrong(self) -> Array:
        """Return a flag for each byte of the buffer: whether it is wrong after all commands.

        0.0 and -0.0 are equal, because the sign of a zero depends on the order of a sum.
        """
        self.settle()
        got = np.empty_like(self.right)
        self.engine.copy_out(self.engine.stream(), self.buffer, got).wait()
        for desc in self.descs:
            owned = bytes_of(desc, desc.dims)
            values, right = (b[owned].reshape(-1).view(desc.dtype) for b in (got, self.right))
            equal = (values == right).reshape(desc.dims)
            got[owned[equal]] = self.right[owned[equal]]
        flags: Array = got != self.right
        return flags


@dataclass(eq=False)
class Tensor:
    """A memory in an arena."""

    memory: Memory
    arena: Arena
    name: str = ""

    @property
    def desc(self) -> MemoryDesc:
        """The memory's descriptor."""
        return self.memory.desc

    def values(self) -> Array:
        """Return the expected values."""
        content = self.arena.right[bytes_of(self.desc, self.desc.dims)].reshape(-1)
        return content.view(self.desc.dtype).reshape(self.desc.dims)

    def store(self, values: Array) -> None:
        """Set the expected values. The padding is 0."""
        self.arena.right[bytes_of(self.desc, self.desc.padded_dims)] = 0
        content = np.ascontiguousarray(values, self.desc.dtype).reshape(-1).view(np.uint8)
        owned = bytes_of(self.desc, self.desc.dims)
        self.arena.right[owned] = content.reshape(owned.shape)

    def owned(self) -> Array:
        """Return a flag for each byte of the arena: whether it is part of an element or padding."""
        flags = np.zeros(self.arena.right.size, bool)
        flags[bytes_of(self.desc, self.desc.padded_dims)] = True
        return flags

    def is_apart_from(self, others: Iterable[Tensor]) -> bool:
        """Whether no byte also belongs to another tensor."""
        near = [other for other in others if other.arena is self.arena]
        return not near or not any((self.owned() & other.owned()).any() for other in near)


def bytes_of(desc: MemoryDesc, dims: tuple[int, ...]) -> Array:
    """Return the places of all bytes of each element. The shape is `dims` and the element size."""
    first = places(desc, dims) * desc.itemsize
    return first[..., np.newaxis] + np.arange(desc.itemsize)


def places(desc: MemoryDesc, dims: tuple[int, ...]) -> Array:
    """Return the place of each element, counted in elements from the buffer's start; shape `dims`.

    dims: the descriptor's dims, or its padded dims.
    """
    total = np.full(dims, desc.offset0)
    rest = list(np.indices(dims, sparse=True))
    step = 1
    for dim, size in reversed(desc.inner_blocks):
        total = total + rest[dim] % size * step
        rest[dim] = rest[dim] // size
        step *= size
    for index, stride in zip(rest, desc.strides, strict=True):
        total = total + index * stride
    return total
