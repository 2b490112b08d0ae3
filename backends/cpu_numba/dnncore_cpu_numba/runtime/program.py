"""Programs: the executables of this backend, lists of tasks over one block of int64.

Binding copies the program's template and writes the arguments' addresses into it. The block begins
with the driver's table of rows, then come the steps' parameters. Nothing in it refers to its own
place, so that a chain of bound programs is a new table over the old blocks.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import COMPLETED, Event, Executable, Stream, TimedEvent
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.runtime.driver import HEADER, MAX_PARTS, ROW
from dnncore_cpu_numba.runtime.pool import pool

__all__ = ["F32", "Arg", "Program", "Scratch", "Step", "Table"]


@dataclass(frozen=True)
class Arg:
    """The address of the index-th memory, in binding order, plus an offset in bytes."""

    index: int
    byte_offset: int = 0


@dataclass(frozen=True)
class Scratch:
    """An address inside the scratchpad."""

    byte_offset: int = 0


@dataclass(frozen=True, eq=False)
class Table:
    """The address of a constant array, which the program keeps alive and nobody may change."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class F32:
    """A float32 constant: its bits in the slot's low half."""

    value: float


Param = int | Arg | Scratch | Table | F32


@dataclass(frozen=True)
class Step:
    """One task over `items` work items, after all steps before it have ended.

    task: a `Task`, or the address of a native function of the same kind.
    params: what the task finds in its block, one slot each.
    max_parts: the most pieces that the items are cut into; by default the number of threads.
    grain: the least items of a piece.
    """

    task: Task | int
    params: Sequence[Param]
    items: int
    max_parts: int | None = None
    grain: int = 1

    def row(self, distance: int, threads: int) -> tuple[int, ...]:
        """What the driver's table holds for the step; see `runtime/driver.py`."""
        task = self.task.address if isinstance(self.task, Task) else self.task
        most = threads if self.max_parts is None else self.max_parts
        return task, distance, self.items, max(1, min(most, self.items // self.grain, MAX_PARTS))


class Program(Executable):
    """Steps run in order by the driver. Threads may share a program and each bound call of it.

    steps: those without items are dropped. num_threads: of the engine.
    """

    def __init__(self, steps: Sequence[Step], num_threads: int) -> None:
        steps = [step for step in steps if step.items > 0]
        self.rows = len(steps)
        self._tables: list[np.ndarray[Any, Any]] = []
        self._arguments: list[tuple[int, int, int]] = []  # slot, memory's index, offset
        self._scratch: list[tuple[int, int]] = []  # slot, offset
        self._template = self._block(steps, num_threads)
        most_parts = max(self._template[HEADER + 3 : HEADER + ROW * self.rows : ROW], default=1)
        self._helpers = min(most_parts, num_threads) - 1
        pool().need(self._helpers)

    def _block(self, steps: Sequence[Step], threads: int) -> array[int]:
        block = array("q", (len(steps), pool().state, *[0] * (ROW * len(steps))))
        for place in range(HEADER, len(block), ROW):
            step = steps[(place - HEADER) // ROW]
            row = step.row(8 * (len(block) - place), threads)
            block[place : place + ROW] = array("q", row)
            for param in step.params:
                block.append(self._value(param, len(block)))
        return block

    def _value(self, param: Param, slot: int) -> int:
        """What the template holds for a parameter; addresses that binding knows are noted."""
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
            case F32(value):
                return int.from_bytes(struct.pack("<f", value), "little")
            case _:
                return int(param)

    def bind(self, memories: Sequence[Any], scratchpad: Any) -> BoundProgram:
        """Fix the arguments."""
        block = self._template[:]
        for slot, index, offset in self._arguments:
            block[slot] = memories[index].address + offset
        if self._scratch and scratchpad is not None:  # None: it would be empty
            address = scratchpad.ctypes.data
            for slot, offset in self._scratch:
                block[slot] = address + offset
        return BoundProgram(block, self.rows, self._helpers, (self, memories, scratchpad))

    @staticmethod
    def chain(runs: Sequence[BoundProgram]) -> BoundProgram:
        """Merge bound programs into one: their tables one after the other."""
        rows = sum(run.rows for run in runs)
        table = array("q", (rows, pool().state))
        for run in runs:
            table.extend(run.block[HEADER : HEADER + ROW * run.rows])
        place = HEADER
        for run in runs:
            # the parameters stay where they are
            moved = run.address + 8 * HEADER - (table.buffer_info()[0] + 8 * place)
            for row in range(place, place + ROW * run.rows, ROW):
                table[row + 1] += moved
            place += ROW * run.rows
        return BoundProgram(table, rows, max(run.helpers for run in runs), tuple(runs))


class BoundProgram:
    """A program with its arguments: `run(stream, wait_for)` executes it in the calling thread.

    native(address): the launch itself. helpers: how many threads of the pool it can use.
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
        """Run to the end; returns an event that has completed."""
        for event in wait_for:
            event.wait()
        if self.helpers and self._pool.asleep:
            self._pool.wake(self.helpers)
        if stream.profiling:
            return self._timed()
        self.native(self.address)
        return COMPLETED

    def _timed(self) -> Event:
        start = time.perf_counter()
        self.native(self.address)
        return TimedEvent(start, time.perf_counter())
