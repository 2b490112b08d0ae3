"""The block of a program: a table of rows, one per step, and then the parameters of the steps.

Steps that are repeated are packed twice. The other times are computed from the difference.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Arg, Param, Scratch, Table
from dnncore_cpu_numba.runtime.driver import PROGRAM, ROW
from dnncore_cpu_numba.runtime.pool import pool
from dnncore_cpu_numba.runtime.steps import Part, Repetition, Step

ROWS = PROGRAM.field("rows").slot
DISTANCE, PARTS = (ROW.field(name).slot for name in ("distance", "parts"))
Integers = np.ndarray[Any, np.dtype[np.int64]]
SCRATCHPAD = -1


def table(count: int) -> array[int]:
    """Return the beginning of a block of `count` rows."""
    slots: list[Any] = PROGRAM.pack({"count": count, "pool": pool().state, "rows": []})
    return array("q", slots)


@dataclass(frozen=True)
class Addresses:
    """Slots that receive an address plus offsets. index: of a memory, or `SCRATCHPAD`."""

    index: int
    slots: Integers
    offsets: Integers

    def write(self, block: array[int], address: int) -> None:
        """Write the addresses."""
        np.frombuffer(block, np.int64)[self.slots] = address + self.offsets


class Block:
    """The rows and the parameters of steps, without the addresses that binding writes.

    places: slot, index of a memory or `SCRATCHPAD`, offset. more: those of repetitions.
    """

    def __init__(self, parts: Sequence[Part], threads: int) -> None:
        self.threads = threads
        self.rows, self.params = array("q"), array("q")
        self.tables: list[np.ndarray[Any, Any]] = []
        self.places: list[tuple[int, int, int]] = []
        self.more: list[Addresses] = []
        self.count = sum(_rows_of(part) for part in parts)
        for part in parts:
            if isinstance(part, Step):
                self._append(part)
            else:
                self._repeat(part)

    def _append(self, step: Step) -> None:
        if step.items <= 0:
            return
        first = ROWS + ROW.size * self.count
        distance = first + len(self.params) - (ROWS + len(self.rows))
        row = step.row(8 * distance, self.threads)
        self.rows.extend([row[name] for name in ROW.fields])
        for param in step.params:
            self.params.append(self._value(param, first + len(self.params)))

    def _value(self, param: Param, slot: int) -> int:
        """Return the number of a parameter. Records addresses that binding writes."""
        match param:
            case Arg(index, offset):
                self.places.append((slot, index, offset))
                return 0
            case Scratch(offset):
                self.places.append((slot, SCRATCHPAD, offset))
                return 0
            case Table(values):
                self.tables.append(values)
                return int(values.ctypes.data)
            case _:
                return param

    def _repeat(self, part: Repetition) -> None:
        begin = len(self.rows), len(self.params), len(self.places)
        for step in (*part.first, *part.second):
            self._append(step)
        for numbers, first in zip((self.rows, self.params), begin, strict=False):
            numbers.frombytes(_continued(numbers[first:], part.times, 1).tobytes())
        places = _continued(self.places[begin[2] :], part.times, 3)
        for index in np.unique(places[:, 1]):
            slots, _, offsets = places[places[:, 1] == index].T
            self.more.append(Addresses(int(index), slots, offsets))


def _continued(twice: Sequence[Any], times: int, width: int) -> Integers:
    """Return what follows the numbers of the first two times. width: of a row."""
    first, second = np.array(twice, np.int64).reshape(2, -1)
    later = np.arange(1, times - 1)[:, None]
    return (second + later * (second - first)).reshape(-1, width)


def _rows_of(part: Part) -> int:
    """Return the number of rows of a part."""
    if isinstance(part, Step):
        return int(part.items > 0)
    return part.times * sum(step.items > 0 for step in part.first)
