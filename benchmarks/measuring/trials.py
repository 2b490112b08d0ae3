"""Implementations whose tuning table is another: what a search of parameters tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnncore_opencl.runtime.engine import OpenCLEngine

import dnncore as dnn
from dnncore.backend import Accepted, Executable, Refused
from dnncore.problem import Problem

__all__ = ["OneChoice", "Parameters", "Trial", "trial_of"]

Parameters = Mapping[str, Any]


class OneChoice(Mapping[str, Parameters]):
    """A table that has the same parameters for every product, and remembers what was asked for."""

    def __init__(self, found: Parameters | None = None) -> None:
        self.found = found
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Parameters:
        self.asked.add(key)
        if self.found is None:
            raise KeyError(key)
        return self.found

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)


class _Tabled(OpenCLEngine):
    """An OpenCL engine with another tuning table; it shares all else with `engine`."""

    def __init__(self, engine: OpenCLEngine, table: OneChoice) -> None:
        vars(self).update(vars(engine))
        self._table = table

    def tuning_table(self, name: str, package: str = "") -> OneChoice:
        """The other one."""
        return self._table


@dataclass(frozen=True)
class Trial:
    """What an implementation made of a problem, used as a primitive descriptor and a primitive."""

    engine: dnn.Engine
    accepted: Accepted
    impl_name: str

    @property
    def op(self) -> Any:
        """With every format chosen."""
        return self.accepted.op

    @property
    def descs(self) -> dict[str, dnn.MemoryDesc]:
        """By argument."""
        return {row.name: desc for row, desc in self.op.tensors()}

    @property
    def scratchpad_bytes(self) -> int:
        """Of an execution."""
        return self.accepted.scratchpad_bytes

    @property
    def error_factor(self) -> float:
        """As the implementation claims."""
        return self.accepted.error_factor

    @cached_property
    def executable(self) -> Executable:
        """Built when it is first asked for."""
        return self.accepted.build()

    def primitive(self) -> Trial:
        """Itself."""
        return self

    def bind(self, **memories: dnn.Memory) -> Any:
        """Bind to memories of all arguments, and a scratchpad of its own."""
        scratchpad = self.engine.allocate(self.scratchpad_bytes) if self.scratchpad_bytes else None
        return self.executable.bind([memories[name] for name in self.descs], scratchpad)


def trial_of(
    problem: Problem, implementation: Any, engine: OpenCLEngine, table: OneChoice
) -> Trial | None:
    """A problem by an implementation with another table; None where it is refused."""
    found = implementation.accept(problem.op, problem.attr, _Tabled(engine, table), None)
    if isinstance(found, Refused):
        return None
    return Trial(engine, found, implementation.name)
