"""Results of a case's checks: plain data that is sent between processes and written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["LEVELS", "CaseResult", "CheckFailed", "Failure", "Level", "OnTrial", "Status"]

Status: TypeAlias = Literal["passed", "failed", "unsupported"]
Level: TypeAlias = Literal["unknown", "refused", "accept", "build", "run", "right"]

LEVELS: tuple[Level, ...] = ("unknown", "refused", "accept", "build", "run", "right")
"""The level that the implementations of a problem reach. Each level from `accept` on includes the
levels before it. "unknown": there is no result, for instance because of a crash. "refused": no
implementation accepts. "right": all checks pass.
"""


class CheckFailed(AssertionError):
    """A property does not hold. The text states the place, the expected and the actual value."""


class OnTrial(NamedTuple):
    """A check that begins, and its implementation; "" for the case itself."""

    check: str
    impl_name: str


@dataclass(frozen=True)
class Failure:
    """A check that fails for an implementation, or for the case itself (impl_name "")."""

    check: str
    impl_name: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.impl_name or 'case'}: {self.message}"


@dataclass(frozen=True)
class CaseResult:
    """The result of one problem on one engine.

    problem: the problem text.
    engine: the name of the engine.
    status: "unsupported" if every implementation refused, with valid refusals.
    impl_names: the implementations that accepted, best first.
    refusals: the reasons of the other implementations, as text.
    executed: the number of checks that ran, over all implementations.
    seconds: "reference" (expected values), "building" (selecting and building primitives) and
        "running" (executing and comparing); the sum is the time of the case.
    remarks: sentences about properties that cannot be checked on the engine.
    level: the level that all implementations that accept have reached.
    """

    problem: str
    engine: str
    status: Status
    failures: tuple[Failure, ...]
    impl_names: tuple[str, ...]
    refusals: tuple[str, ...]
    executed: int
    seconds: dict[str, float]
    remarks: tuple[str, ...] = ()
    level: Level = "unknown"

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.problem} on {self.engine}"]
        lines += [f"  {failure}" for failure in self.failures]
        if self.status == "unsupported":
            lines += [f"  {refusal}" for refusal in self.refusals]
        return "\n".join(lines)
