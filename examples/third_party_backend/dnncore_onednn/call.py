"""Calls of primitives: streams, and the arguments of dnnl_primitive_execute."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeAlias

from dnncore_onednn.library import Handle, Library, Owned

__all__ = ["Call", "Row", "new_stream"]

Row: TypeAlias = tuple[int, "Owned | Handle", int]
"""An argument: its enumerator, memory descriptor and address."""

IN_ORDER = 1


class _ExecArg(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", Handle))


def new_stream(library: Library) -> Owned:
    """A new stream of oneDNN's CPU engine."""
    return library.made("stream_create", "stream_destroy", library.engine, IN_ORDER)


class Call:
    """A primitive with its arguments. arguments: oneDNN's array of arguments."""

    __slots__ = ("_count", "_execute", "_handle", "_owned", "_wait", "arguments")

    def __init__(self, library: Library, primitive: Owned, rows: Sequence[Row]) -> None:
        self._execute = library.functions.dnnl_primitive_execute
        self._wait = library.functions.dnnl_stream_wait
        self._handle, self._count = primitive.handle, len(rows)
        self.arguments = (_ExecArg * len(rows))()
        memories = [
            library.made("memory_create", "memory_destroy", md, library.engine, Handle(address))
            for _, md, address in rows
        ]
        for pair, row, memory in zip(self.arguments, rows, memories, strict=True):
            pair.number, pair.memory = row[0], memory.handle
        self._owned = [primitive, *memories]

    def execute(self, stream: Handle) -> int:
        """Execute on a stream of oneDNN and wait. Returns the status, which is 0 for success."""
        status: int = self._execute(self._handle, stream, self._count, self.arguments)
        return status or self._wait(stream)
