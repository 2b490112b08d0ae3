"""Executables: oneDNN's primitives, and their calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from dnncore.backend import (
    COMPLETED,
    Buffer,
    Event,
    Executable,
    ExecutionError,
    Memory,
    MemoryDesc,
    Operation,
    RNNBackward,
    RNNForward,
    Stream,
    TimedEvent,
)
from dnncore_onednn.call import Call, Row, new_stream
from dnncore_onednn.cells import hidden
from dnncore_onednn.description import Description
from dnncore_onednn.library import Library, OneDnnError, Owned
from dnncore_onednn.padding import padding_of
from dnncore_onednn.threads import Threads
from dnncore_onednn.workspaces import states_of

__all__ = ["OneDnnPrimitive", "Streams"]

Copy: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class Streams(threading.local):
    """oneDNN's stream of the calling thread: `own`."""

    def __init__(self, library: Library) -> None:
        self._owner = new_stream(library)
        self.own = self._owner.handle


def _built(description: Description, threads: Threads, count: int) -> Owned:
    """Build a primitive in a new thread. Raises `OneDnnError`.

    After a failure, oneDNN's assembler reports the same error for all later code of that thread.
    """
    found: list[Owned | OneDnnError] = []

    def build() -> None:
        try:
            found.append(threads.call_with(count, description.built))
        except OneDnnError as error:
            found.append(error)

    thread = threading.Thread(target=build, name="onednn build")
    thread.start()
    thread.join()
    if isinstance(found[0], OneDnnError):
        raise found[0]
    return found[0]


class OneDnnPrimitive(Executable):
    """A primitive of oneDNN. Python threads may share it: each call has its own scratchpad.

    op: the operation, with all formats chosen. workspace: dnncore's descriptor of it.
    count: the number of threads for which oneDNN described it.
    """

    def __init__(
        self,
        description: Description,
        op: Operation,
        workspace: MemoryDesc | None,
        threads: Threads,
        streams: Streams,
        count: int,
    ) -> None:
        self.description, self.op, self.workspace = description, op, workspace
        self.threads, self.streams, self.count = threads, streams, count
        self.library = description.layouts.library
        self.primitive = _built(description, threads, count)
        named = [(row.name, desc) for row, desc in op.tensors(workspace)]
        named += [(row.name, desc) for row, desc in description.attr.arguments(op)]
        self._rows = [self._row(*pair) for pair in named]
        self._place = {name: i for i, (name, _) in enumerate(named)}
        self._hidden = [(n, self._row(n, desc), desc.nbytes) for n, desc in hidden(op).items()]
        is_kept = isinstance(op, RNNForward | RNNBackward) and workspace is not None
        self._states = states_of(description.hint or description)[0] if is_kept else {}
        self._scratchpad = description.argument("scratchpad")
        self._padded = [
            i
            for i, (row, desc) in enumerate(op.tensors(workspace))
            if row.direction == "out" and desc.has_padding
        ]
        self._for_one_thread: OneDnnPrimitive | None = None

    def _row(self, name: str, desc: MemoryDesc) -> Row | None:
        """The argument at address 0. None if oneDNN has no such argument."""
        number, md = self.description.argument(name)
        elements = 2 if desc.is_packed else 1  # elements per `itemsize` bytes
        start = desc.offset0 * desc.itemsize // elements if desc.format_kind == "blocked" else 0
        return None if md is None else (number, md, start)

    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> BoundCall:
        """Make oneDNN's memory objects for these arguments."""
        rows = [
            (row[0], row[1], memory.address + row[2])
            for row, memory in zip(self._rows, memories, strict=True)
            if row is not None
        ]
        owned = [np.zeros(nbytes, np.uint8) for _, _, nbytes in self._hidden]
        rows += [
            (row[0], row[1], self._address(name, array, memories))
            for (name, row, _), array in zip(self._hidden, owned, strict=True)
            if row is not None
        ]
        number, md = self._scratchpad
        if scratchpad is not None and md is not None:
            rows.append((number, md, scratchpad.ctypes.data))
        return BoundCall(self, rows, memories, scratchpad, owned)

    def _address(self, name: str, array: np.ndarray[Any, Any], memories: Sequence[Memory]) -> int:
        """The address of a hidden argument: in the workspace, or that of an array of zeros."""
        if name in self._states:
            return memories[self._place["workspace"]].address + self._states[name][0]
        return int(array.ctypes.data)

    def copies(self, memories: Sequence[Memory]) -> list[Copy]:
        """Results that must be copied to the workspace of cells: each target and its source."""
        if self.op.forward_op is not None:
            return []
        found = []
        for name, (start, desc) in self._states.items():
            source = memories[self._place[name]]
            tail = memories[self._place["workspace"]].buffer[start : start + desc.nbytes]
            found.append((desc.view(tail), source.desc.view(source.buffer)))
        return found

    def padding(self, memories: Sequence[Memory]) -> list[np.ndarray[Any, Any]]:
        """Views of the padding that must be set to zero after an execution."""
        return [view for i in self._padded for view in padding_of(memories[i])]

    def for_one_thread(self) -> OneDnnPrimitive:
        """Make the same primitive for one thread. A forked process can execute it.

        Raises `ExecutionError` if oneDNN needs other descriptors for one thread, or cannot compute
        in a forked process.
        """
        if self._for_one_thread is None:
            reason = self.threads.refusal(self.count)
            if reason is not None:
                raise ExecutionError(f"{self.op.KIND}: oneDNN {self.library.version}: {reason}")
            new = self.threads.call_with(1, self.description.again, self.op)
            if new.descs != self.description.descs:
                raise ExecutionError(
                    f"{self.op.KIND}: oneDNN must compute with one thread in a forked process, but"
                    f" this primitive is for {self.count}; call dnncore.set_num_threads(1) and make"
                    " its primitive descriptor again"
                )
            self._for_one_thread = OneDnnPrimitive(
                new, self.op, self.workspace, self.threads, self.streams, 1
            )
        return self._for_one_thread


class BoundCall(Call):
    """A primitive with its arguments. A call executes it and returns after its end."""

    __slots__ = (
        "_arguments", "_copies", "_own_arrays", "_padding", "_present", "_primitive", "_streams",
        "_thread_count", "_threads",
    )  # fmt: skip

    def __init__(
        self,
        primitive: OneDnnPrimitive,
        rows: Sequence[Row],
        memories: Sequence[Memory],
        scratchpad: Buffer | None,
        owned: Sequence[np.ndarray[Any, Any]] = (),
    ) -> None:
        super().__init__(primitive.library, primitive.primitive, rows)
        self._primitive, self._arguments = primitive, (memories, scratchpad)
        self._own_arrays, self._copies = owned, primitive.copies(memories)
        self._padding = primitive.padding(memories)
        self._threads, self._thread_count = primitive.threads, primitive.count
        self._present, self._streams = primitive.threads.present, primitive.streams

    def __call__(self, stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        """Execute. Returns a completed event."""
        for event in wait_for:
            event.wait()
        if self._threads.is_forked and self._thread_count > 1:
            primitive = self._primitive.for_one_thread()
            scratchpad = np.empty(primitive.description.scratchpad_bytes, np.uint8)
            return primitive.bind(self._arguments[0], scratchpad)(stream)
        start = time.perf_counter() if stream.profiling else 0.0
        if self._present() == self._thread_count:
            status = self.execute(self._streams.own)
        else:
            status = self._threads.call_with(self._thread_count, self.execute, self._streams.own)
        if status:
            name = self._primitive.library.status(status)
            raise ExecutionError(f"{self._primitive.op.KIND}: oneDNN failed: {name}")
        for view in self._padding:
            view[...] = 0
        for target, source in self._copies:
            target[...] = source
        return TimedEvent(start, time.perf_counter()) if stream.profiling else COMPLETED
