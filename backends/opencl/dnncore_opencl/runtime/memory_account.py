"""The memory of an engine: bytes in use, and the objects that hold it, for out-of-memory errors."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, NamedTuple

from dnncore.backend import INNERMOST, Memory, Scratchpad, Stream, hold_at_fork, holding

LARGEST = 3  # memories listed by name


_lock = threading.RLock()  # of all accounts; finalizers acquire it at any time
hold_at_fork(_lock, INNERMOST)


class MemoryInfo(NamedTuple):
    """Bytes and number of an engine's live buffers, including scratchpads."""

    allocated: int
    buffers: int


class Account:
    """The live buffers of an engine with `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._bytes = 0
        self._buffers = 0

    @property
    def info(self) -> MemoryInfo:
        """The totals."""
        return MemoryInfo(self._bytes, self._buffers)

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more fit, if no other process uses the device's memory."""
        return self._bytes + nbytes <= self.capacity

    def add(self, buffer: Any, nbytes: int) -> None:
        """Count a buffer until it is released."""
        self._count(nbytes, 1)
        self._living.add(buffer)
        weakref.finalize(buffer, self._count, -nbytes, -1).atexit = False

    def text(self) -> str:
        """Return the bytes held by each kind of object. Examines all objects of the process."""
        buffers = list(self._living)
        holders = gc.get_referrers(*buffers) if buffers else []
        memories = {id(m.buffer): m for m in holders if isinstance(m, Memory)}
        pads = {id(s.scratchpad) for s in holders if isinstance(s, Stream)}
        # `holders` contain the objects that own the buffer.
        pads |= {id(p.buffer) for p in gc.get_referrers(*holders) if isinstance(p, Scratchpad)}
        pads -= memories.keys()
        sizes = {id(buffer): buffer.size for buffer in buffers}
        total = sum(sizes.values())
        of_memories = sum(sizes.get(i, 0) for i in memories)
        of_pads = sum(sizes.get(i, 0) for i in pads)
        parts = [
            f"{len(memories)} memories {_bytes(of_memories)}{_largest(memories.values())}",
            f"{len(pads)} scratchpads of streams {_bytes(of_pads)}",
            f"others {_bytes(total - of_memories - of_pads)}",
        ]
        return (
            f"this process holds {_bytes(total)} of the device's {_bytes(self.capacity)}:"
            f" {', '.join(parts)}; other processes may hold more"
        )

    @holding(_lock)
    def _count(self, nbytes: int, buffers: int) -> None:
        self._bytes += nbytes
        self._buffers += buffers


def _largest(memories: Any) -> str:
    largest = sorted(memories, key=lambda memory: memory.nbytes, reverse=True)[:LARGEST]
    names = ", ".join(f"{memory.desc} {_bytes(memory.nbytes)}" for memory in largest)
    return f" (the largest: {names})" if names else ""


def _bytes(count: int) -> str:
    """Format with a unit, as 1.5 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
