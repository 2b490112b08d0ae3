"""The steps of a program, and steps that it repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, cast

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import (
    Arg,
    CallMismatch,
    Param,
    Record,
    Scratch,
    Table,
)
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.runtime.driver import MAX_PARTS


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


@dataclass(eq=False)
class Repetition:
    """Steps that run several times. Each time, an address or another number grows by the same.

    first, second: the steps of the first two times.
    """

    first: Sequence[Step]
    second: Sequence[Step]
    times: int


Part = Step | Repetition


def repeated(times: Sequence[int], steps: Callable[[int], Sequence[Step]]) -> list[Part]:
    """Return the steps of all times. If there are many, only the steps of three times are made.

    times: numbers at equal distances. A number in the steps must be a multiple of the time, plus a
    constant. Raises `CallMismatch` if the steps of the last time are not as expected.
    """
    if len(times) < 4:
        return [step for time in times for step in steps(time)]
    first, second, last = (steps(time) for time in (times[0], times[1], times[-1]))
    for a, b, c in zip(first, second, last, strict=True):
        if {(s.task, s.items, len(s.params)) for s in (b, c)} != {(a.task, a.items, len(a.params))}:
            raise CallMismatch("a repeated step has another task or other items")
        b.params = [
            _second(*params, len(times) - 1)
            for params in zip(a.params, b.params, c.params, strict=True)
        ]
    return [Repetition(first, second, len(times))]


def _second(first: Param, second: Param, last: Param, times: int) -> Param:
    """Return the second of a repeated parameter; the first if these are equal tables."""
    match first, second, last:
        case Table(a), Table(b), Table(c) if np.array_equal(a, b) and np.array_equal(a, c):
            return first
        case int(a), int(b), int(c) if c - a == times * (b - a):
            return second
        case Scratch(a), Scratch(b), Scratch(c) if c - a == times * (b - a):
            return second
        case Arg(i, a), Arg(j, b), Arg(k, c) if i == j == k and c - a == times * (b - a):
            return second
    raise CallMismatch(f"a repeated parameter is {first!r}, then {second!r}, and at last {last!r}")
