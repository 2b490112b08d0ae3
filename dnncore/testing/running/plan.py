"""The plan of a run: its cases, its engines, and the cases that are left out or must fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.problem import Problem
from dnncore.testing.problems.cases import SIZES, cases
from dnncore.testing.running.device_choice import devices_of
from dnncore.testing.running.shard import Shard

__all__ = [
    "FLOORS",
    "Job",
    "Plan",
    "compiled",
    "read_patterns",
]

# The least number of cases that must run, unless fewer were selected. Every operation has at least
# as many f32 cases in all its directions, so a backend with one operation in f32 reaches the floor.
# For random cases the floor is 1, because their number in f32 depends on the seed.
FLOORS = {"tiny": 2, "smoke": 27, "full": 140, "networks": 8, "random": 1}


@dataclass(frozen=True)
class Job:
    """A problem for the implementations of one backend on one engine. Its text is a test's id.

    unsupported: the reason why it is left out permanently; "" if it is not left out.
    xfail: the reason why it must fail; "" if it must pass.
    seed: the seed with which the problem was drawn; None unless the size is random.
    size: the size of the plan.
    planned: the number of cases of the plan on this engine, in all shards and without `match`.
    floor: the least number of cases that must run by default. A backend may support few of the
        cases that match, so it is 1 with `match`.
    required: whether it runs even if the time budget is used up.
    """

    backend: str
    engine: str
    problem: Problem
    unsupported: str = ""
    xfail: str = ""
    seed: int | None = None
    size: str = ""
    planned: int = 0
    floor: int = 1
    required: bool = False

    @property
    def target(self) -> str:
        """The backend and engine that are checked: `opencl@opencl:0`."""
        return f"{self.backend}@{self.engine}"

    @property
    def impl(self) -> str:
        """The pattern of the backend's implementations."""
        return f"{self.backend}:*"

    @cached_property
    def text(self) -> str:
        """The problem's text."""
        return str(self.problem)

    def __str__(self) -> str:
        return f"{self.target} {self.text}"


@dataclass(frozen=True)
class Plan:
    """One backend, one size.

    engine: selects from the engines for which the backend has implementations; see `devices_of`.
    match: a regular expression that a job's text must contain.
    unsupported: pattern -> reason, for jobs that are left out permanently.
    xfail: pattern -> reason, for jobs that must fail. A pattern has the syntax of
        `fnmatch`, or is `re:` and a regular expression. It applies to the text of a job or of its
        problem.
    seed: the seed of problems of size random.
    shard: i/n, the i-th of n shards of the problems.
    """

    backend: str
    size: str = "smoke"
    engine: str = ""
    match: str = ""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    xfail: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    shard: str = "1/1"

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise DescriptorError(f"size: expected one of {', '.join(SIZES)}; got {self.size!r}")
        compiled("match", self.match)
        Shard.read(self.shard)

    def jobs(self) -> list[Job]:
        """Return all jobs to run. Raises `DescriptorError` if a pattern matches no job."""
        engines = [row.name for row in devices_of(self.backend, self.engine)]
        seed = self.seed if self.size == "random" else None
        problems = cases(self.size, seed=self.seed)
        plan: dict[str, Any] = {"seed": seed, "size": self.size, "planned": len(problems),
                                "floor": 1 if self.match else FLOORS[self.size]}  # fmt: skip
        jobs = [Job(self.backend, name, p, **plan) for name in engines for p in problems]
        left_out, failing = _Patterns(self.unsupported), _Patterns(self.xfail)
        listed = [
            replace(job, unsupported=left_out.reason(job), xfail=failing.reason(job))
            for job in jobs
        ]
        idle = [*left_out.idle, *failing.idle]
        if idle:
            raise DescriptorError(
                f"a pattern must match a case of size {self.size!r}; none matches"
                f" {', '.join(map(repr, idle))}; correct or remove it"
            )
        matching = [job for job in listed if re.search(self.match, str(job))]
        if not matching:
            raise DescriptorError(f"no case of size {self.size!r} matches {self.match!r}")
        return Shard.read(self.shard).of(matching, lambda job: job.text)


class _Patterns:
    """Patterns with reasons; `idle` are those that have not matched yet."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.rows = [(pattern, _expression(pattern), reason) for pattern, reason in reasons.items()]
        self.idle = dict.fromkeys(reasons)

    def reason(self, job: Job) -> str:
        """Return the first matching pattern's reason, or ""."""
        if not self.rows:
            return ""
        texts = (str(job), job.text)
        found = [row for row in self.rows if any(row[1].search(text) for text in texts)]
        for pattern, _, _ in found:
            self.idle.pop(pattern, None)
        return found[0][2] if found else ""


def _expression(pattern: str) -> re.Pattern[str]:
    if pattern.startswith("re:"):
        return compiled("pattern", pattern.removeprefix("re:"))
    return re.compile(r"\A" + translate(pattern))


def compiled(what: str, expression: str) -> re.Pattern[str]:
    """Compile a user's regular expression; raises `DescriptorError` if it is invalid."""
    try:
        return re.compile(expression)
    except re.error as error:
        raise DescriptorError(
            f"{what}: expected a regular expression; got {expression!r}: {error}"
        ) from error


def read_patterns(path: str | Path) -> dict[str, str]:
    """Read a file of lines `PATTERN  # reason`; empty lines and comments are skipped."""
    found = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DescriptorError(f"{path}: expected lines of text in UTF-8; got {error}") from error
    for number, line in enumerate(lines, 1):
        pattern, _, reason = map(str.strip, line.partition("#"))
        if pattern and not reason:
            raise DescriptorError(
                f"{path}, line {number}: expected PATTERN  # reason; got {line!r}"
            )
        if pattern:
            found[pattern] = reason
    return found
