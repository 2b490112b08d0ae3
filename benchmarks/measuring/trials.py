"""Implementations with a replaced tuning table, for the search for parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnncore_opencl.runtime.engine import OpenCLEngine

import dnncore as dnn
from dnncore.backend import Accepted, Executable, Refused
from dnncore.problem import Problem

__all__ = ["OneChoice", "Parameters", "Tabled", "Trial", "trial_of"]

Parameters = Mapping[str, Any]


class OneChoice(Mapping[str, Parameters]):
    """A table with the same parameters for every product. It records the requested keys."""

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


class Tabled(OpenCLEngine):
    """An OpenCL engine with another tuning table. `engine` provides everything else."""

    def __init__(self, engine: OpenCLEngine, table: OneChoice) -> None:
        vars(self).update(vars(engine))
        self._table = table

    def tuning_table(self, name: str, package: str = "") -> OneChoice:
        """The replaced table."""
        return self._table


@dataclass(frozen=True)
class Trial:
    """An accepted problem, with the interface of a primitive descriptor and of a primitive."""

    engine: dnn.Engine
    accepted: Accepted
    impl_name: str

    @property
    def op(self) -> Any:
        """The operation with all formats resolved."""
        return self.accepted.op

    @property
    def descs(self) -> dict[str, dnn.MemoryDesc]:
        """Descriptors by argument."""
        return {row.name: desc for row, desc in self.op.tensors()}

    @property
    def scratchpad_bytes(self) -> int:
        """Bytes of scratchpad for an execution."""
        return self.accepted.scratchpad_bytes

    @property
    def error_factor(self) -> float:
        """The claim of the implementation."""
        return self.accepted.error_factor

    @cached_property
    def executable(self) -> Executable:
        """The executable, built on first use."""
        return self.accepted.build()

    def primitive(self) -> Trial:
        """The trial itself."""
        return self

    def bind(self, **memories: dnn.Memory) -> Any:
        """Bind to memories of all arguments, with a new scratchpad."""
        scratchpad = self.engine.allocate(self.scratchpad_bytes) if self.scratchpad_bytes else None
        return self.executable.bind([memories[name] for name in self.descs], scratchpad)


def trial_of(
    problem: Problem, implementation: Any, engine: OpenCLEngine, table: OneChoice
) -> Trial | None:
    """The trial of an implementation with a table. None if the implementation refuses."""
    found = implementation.accept(problem.op, problem.attr, Tabled(engine, table), None)
    if isinstance(found, Refused):
        return None
    return Trial(engine, found, implementation.name)
