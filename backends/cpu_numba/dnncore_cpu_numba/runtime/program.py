"""Programs: the executables of this backend. A program is a list of tasks in a block of int64.

Binding copies the program's template and writes the arguments' addresses to it. The block begins
with the driver's table of rows. The steps' parameters follow. The block contains no address of
itself. A chain of bound programs is therefore a new table that refers to the old blocks.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, cast

import numpy as np

from dnncore.backend import COMPLETED, Event, Executable, Stream, TimedEvent
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen.call_schema import Arg, Param, Record, Scratch, Table
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.runtime.driver import MAX_PARTS, PROGRAM, ROW
from dnncore_cpu_numba.runtime.pool import pool

__all__ = ["Arg", "Param", "Program", "Scratch", "Step", "Table"]

ROWS = PROGRAM.field("rows").slot
DISTANCE, PARTS = (ROW.field(name).slot for name in ("distance", "parts"))


@dataclass(eq=False)
class Step:
    """One task over `items` work items. It starts after all earlier steps have ended.

    values: the values of the task's parameters by name. They may be missing if there are no items.
    max_parts: the most parts of the items; by default the number of threads.
    grain: the least items of a part.
    params: the slots of the task's parameters.

    Raises `CallMismatch` if the names of the values are not the parameters of the task.
    """

    task: Task
    values: InitVar[Mapping[str, Any]]
    items: int
    max_parts: int | None = None
    grain: int = 1
    params: Sequence[Param] = field(init=False, default=())

    def __post_init__(self, values: Mapping[str, Any]) -> None:
        if self.items > 0:
            self.params = cast(Record, self.task.params).pack(values)  # a step's task has them

    def row(self, distance: int, threads: int) -> dict[str, int]:
        """Return the values of the step's `ROW` in the driver's table."""
        most = threads if self.max_parts is None else self.max_parts
        parts = max(1, min(most, self.items // self.grain, MAX_PARTS))
        task = self.task.address
        return {"task": task, "distance": distance, "items": self.items, "parts": parts}


class Program(Executable):
    """Steps that the driver runs in order. Threads may share a program and its bound calls.

    make_steps: returns the steps. Steps without items are dropped. The functions that it requests
        stay loaded as long as the program exists. num_threads: of the engine.
    """

    def __init__(self, make_steps: Callable[[], Iterable[Step]], num_threads: int) -> None:
        self._tables: list[np.ndarray[Any, Any]] = []
        self._arguments: list[tuple[int, int, int]] = []  # slot, memory's index, offset
        self._scratch: list[tuple[int, int]] = []  # slot, offset
        with native.keeping() as self._code:
            steps = [step for step in make_steps() if step.items > 0]
            self._template = self._block(steps, num_threads)
        self.rows = len(steps)
        parts = self._template[ROWS + PARTS : ROWS + ROW.size * self.rows : ROW.size]
        self._helpers = min(max(parts, default=1), num_threads) - 1
        pool().need(self._helpers)

    def _block(self, steps: Sequence[Step], threads: int) -> array[int]:
        end = ROWS + ROW.size * len(steps)
        rows: list[dict[str, int]] = []
        params = array("q")
        for step in steps:
            place = ROWS + ROW.size * len(rows)
            rows.append(step.row(8 * (end + len(params) - place), threads))
            for param in step.params:
                params.append(self._value(param, end + len(params)))
        return _table(rows) + params

    def _value(self, param: Param, slot: int) -> int:
        """Return the template's number for a parameter. Records addresses that binding sets."""
        match param:
            case Arg(index, offset):
                self._arguments.append((slot, index, offset))
                return 0
            case Scratch(offset):
                self._scratch.append((slot, offset))
                return 0
            case Table(values):
                self._tables.append(values)
                return int(values.ctypes.data)
            case _:
                return param

    def bind(self, memories: Sequence[Any], scratchpad: Any) -> BoundProgram:
        """Return a copy of the program with the addresses of its arguments."""
        block = self._template[:]
        for slot, index, offset in self._arguments:
            block[slot] = memories[index].address + offset
        if self._scratch and scratchpad is not None:  # None: an empty scratchpad
            # `scratchpad.ctypes` takes four times as long.
            address = ctypes.addressof(ctypes.c_char.from_buffer(scratchpad))
            for slot, offset in self._scratch:
                block[slot] = address + offset
        return BoundProgram(block, self.rows, self._helpers, (self, memories, scratchpad))

    @staticmethod
    def chain(runs: Sequence[BoundProgram]) -> BoundProgram:  # type: ignore[override]  # a field
        """Merge bound programs into one. Its table contains all their rows in order."""
        rows = sum(run.rows for run in runs)
        table = _table([])
        table[PROGRAM.field("count").slot] = rows
        for run in runs:
            table.extend(run.block[ROWS : ROWS + ROW.size * run.rows])
        place = ROWS
        for run in runs:
            # the parameters remain in the old blocks, so distances change
            moved = run.address + 8 * ROWS - (table.buffer_info()[0] + 8 * place)
            for row in range(place, place + ROW.size * run.rows, ROW.size):
                table[row + DISTANCE] += moved
            place += ROW.size * run.rows
        return BoundProgram(table, rows, max(run.helpers for run in runs), tuple(runs))


def _table(rows: Sequence[Mapping[str, int]]) -> array[int]:
    """Return the beginning of a program's block."""
    slots: list[Any] = PROGRAM.pack({"count": len(rows), "pool": pool().state, "rows": rows})
    return array("q", slots)


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
                row = self._pool.go_on(self.address, row)
