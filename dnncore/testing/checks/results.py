"""What a case's checks have found: plain data that goes from process to process and into JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["CaseResult", "CheckFailed", "Failure", "OnTrial", "Status"]

Status: TypeAlias = Literal["passed", "failed", "unsupported"]


class CheckFailed(AssertionError):
    """A property does not hold; the text tells where, what was expected and what is there."""


class OnTrial(NamedTuple):
    """A check that begins, and the implementation that it is about; "" for the case itself."""

    check: str
    impl_name: str


@dataclass(frozen=True)
class Failure:
    """One check that one implementation, or the case itself (impl_name ""), does not pass."""

    check: str
    impl_name: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.impl_name or 'case'}: {self.message}"


@dataclass(frozen=True)
class CaseResult:
    """What became of one problem on one engine.

    problem: its text. engine: its name.
    status: "unsupported" where every implementation refused, and did so well.
    impl_names: the implementations that accepted, best first.
    refusals: why the others did not, as text.
    executed: how many checks ran, over all implementations.
    seconds: "reference" (expected values), "building" (selecting and building primitives) and
        "running" (executing and comparing); together the time that the case took.
    """

    problem: str
    engine: str
    status: Status
    failures: tuple[Failure, ...]
    impl_names: tuple[str, ...]
    refusals: tuple[str, ...]
    executed: int
    seconds: dict[str, float]

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.problem} on {self.engine}"]
        lines += [f"  {failure}" for failure in self.failures]
        if self.status == "unsupported":
            lines += [f"  {refusal}" for refusal in self.refusals]
        return "\n".join(lines)
