"""Programs: the executables of this backend. A program is a list of tasks in a block of int64.

Binding copies the program's template and writes the arguments' addresses to it. The block begins
with the driver's table of rows. The steps' parameters follow. The block contains no address of
itself. A chain of bound programs is therefore a new table that refers to the old blocks.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dnncore.backend import COMPLETED, Event, Executable, Stream, TimedEvent
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen.call_schema import Arg, Param, Scratch, Table
from dnncore_cpu_numba.runtime.block import DISTANCE, PARTS, ROWS, SCRATCHPAD, Block, table
from dnncore_cpu_numba.runtime.driver import ROW
from dnncore_cpu_numba.runtime.pool import pool
from dnncore_cpu_numba.runtime.steps import Part, Repetition, Step, repeated

__all__ = ["Arg", "Param", "Part", "Program", "Repetition", "Scratch", "Step", "Table", "repeated"]


class Program(Executable):
    """Steps that the driver runs in order. Threads may share a program and its bound calls.

    make_steps: returns the steps. Steps without items are dropped. The functions that it requests
        stay loaded as long as the program exists. num_threads: of the engine.
    """

    def __init__(self, make_steps: Callable[[], Iterable[Part]], num_threads: int) -> None:
        with native.keeping() as self._code:
            block = Block([*make_steps()], num_threads)
        self._tables = block.tables
        self._template = table(block.count) + block.rows + block.params
        self.rows = block.count
        self._arguments = [place for place in block.places if place[1] != SCRATCHPAD]
        self._scratch = [(slot, at) for slot, index, at in block.places if index == SCRATCHPAD]
        self._repeated = [own for own in block.more if own.index != SCRATCHPAD]
        self._repeated_scratch = [own for own in block.more if own.index == SCRATCHPAD]
        self._helpers = min(max(block.rows[PARTS :: ROW.size], default=1), num_threads) - 1
        pool().need(self._helpers)

    def bind(self, memories: Sequence[Any], scratchpad: Any) -> BoundProgram:
        """Return a copy of the program with the addresses of its arguments."""
        block = self._template[:]
        for slot, index, offset in self._arguments:
            block[slot] = memories[index].address + offset
        for own in self._repeated:
            own.write(block, memories[own.index].address)
        if self._scratch and scratchpad is not None:  # None: an empty scratchpad
            # `scratchpad.ctypes` takes four times as long.
            address = ctypes.addressof(ctypes.c_char.from_buffer(scratchpad))
            for slot, offset in self._scratch:
                block[slot] = address + offset
            for own in self._repeated_scratch:
                own.write(block, address)
        return BoundProgram(block, self.rows, self._helpers, (self, memories, scratchpad))

    @staticmethod
    def chain(runs: Sequence[BoundProgram]) -> BoundProgram:  # type: ignore[override]  # a field
        """Merge bound programs into one. Its table contains all their rows in order."""
        rows = sum(run.rows for run in runs)
        merged = table(rows)
        for run in runs:
            merged.extend(run.block[ROWS : ROWS + ROW.size * run.rows])
        place = ROWS
        for run in runs:
            # the parameters remain in the old blocks, so distances change
            moved = run.address + 8 * ROWS - (merged.buffer_info()[0] + 8 * place)
            for row in range(place, place + ROW.size * run.rows, ROW.size):
                merged[row + DISTANCE] += moved
            place += ROW.size * run.rows
        return BoundProgram(merged, rows, max(run.helpers for run in runs), tuple(runs))


class BoundProgram:
    """A program with its arguments. `run(stream, wait_for)` executes it in the calling thread.

    native(address): launches the program. helpers: the threads of the pool that it can use.
    """

    __slots__ = ("_keeps_alive", "_pool", "address", "block", "helpers", "native", "rows")

    def __init__(self, block: array[int], rows: int, helpers: int, keeps_alive: object) -> None:
        self.block = block
        self.address = block.buffer_info()[0]
        self.rows = rows
        self.helpers = helpers
        self._keeps_alive = keeps_alive
        self._pool = pool()
        self.native = self._pool.run

    def __call__(self, stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        """Run to the end. Returns a completed event."""
        for event in wait_for:
            event.wait()
        if self.helpers and self._pool.asleep:
            self._pool.wake(self.helpers)
        if not stream.profiling:
            row = self.native(self.address)
            if row:
                self._go_on(stream, row)
            return COMPLETED
        start = time.perf_counter()
        row = self.native(self.address)
        if row:
            self._go_on(stream, row)
        return TimedEvent(start, time.perf_counter())

    def _go_on(self, stream: Stream, row: int) -> None:
        """Run from a row to the end. Signal handlers run at intervals and may raise errors."""
        with stream.own_scratchpad():
            while row:
                self._pool.wake(self.helpers)
                row = self._pool.go_on(self.address, row)
