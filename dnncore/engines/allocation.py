"""Buffers with an owner: each one is given to its engine's `free` exactly once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine

__all__ = ["Allocation"]


class Allocation:
    """A new buffer of at least `nbytes` bytes, which is freed with this object.

    A user of `buffer` must keep this object. Raises `ExecutionError` if out of memory.
    """

    __slots__ = ("__weakref__", "buffer")

    def __init__(self, engine: Engine, nbytes: int) -> None:
        self.buffer: Any = engine.allocate(nbytes)
        weakref.finalize(self, engine.free, self.buffer).atexit = False
