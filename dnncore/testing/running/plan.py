"""The plan of a run: its cases, its engines, and the cases that are left out or must fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.problem import Problem
from dnncore.selection.plugins import registry
from dnncore.testing.claims import Claim, is_reached, read_claims
from dnncore.testing.problems.cases import cases
from dnncore.testing.running.device_choice import claimed_devices, devices_of, names_for_claims
from dnncore.testing.running.shard import Shard

__all__ = [
    "CLAIMED",
    "FLOORS",
    "Absent",
    "Job",
    "Plan",
    "compiled",
    "read_patterns",
]

# The least number of cases that must run, unless fewer were selected. Every operation has at least
# as many f32 cases in all its directions, so a backend with one operation in f32 reaches the floor.
# For random cases the floor is 1, because their number in f32 depends on the seed. All problems of
# the size "claims" must run.
FLOORS = {"tiny": 2, "smoke": 27, "full": 140, "types": 1, "networks": 8, "random": 1, "claims": 1}
CLAIMED = "claims"  # the size with exactly the problems of a file of claims


@dataclass(frozen=True)
class Job:
    """A problem for the implementations of one backend on one engine. Its text is a test's id.

    unsupported: the reason why it is left out permanently; "" if it is not left out.
    xfail: the reason why it must fail; "" if it must pass.
    seed: the seed with which the problem was drawn; None unless the size is random.
    size: the size of the plan.
    planned: the number of cases of the plan on this engine, in all shards and without `match`.
    floor: the least number of cases that must run by default. With `match` it is 1, because a
        backend may support few of the cases that match.
    required: whether the job runs even if the time budget is used up.
    claim: the claim that the job must keep.
    claim_engine: the name of the engine in claims that the run proposes; "" if it has none.
    lacks_operation: whether the backend has no table of the operation, and no claim demands one.
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
    claim: Claim | None = None
    claim_engine: str = ""
    lacks_operation: bool = False

    @property
    def target(self) -> str:
        """The backend and engine that are checked: `opencl@opencl:0`."""
        return f"{self.backend}@{self.engine}"

    @property
    def may_fail(self) -> bool:
        """Whether checks may fail, because a run of claims demands less than `right`."""
        return self.size == CLAIMED and self.claim is not None and self.claim.level != "right"

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
class Absent:
    """Cases that are not judged: claims for an engine that this machine lacks, or problems of
    operations that the backend does not implement.
    """

    text: str

    def __str__(self) -> str:
        return self.text


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
    claims: a file of claims. Its problems are added to those of the size. The size "claims" has
        only them.
    """

    backend: str
    size: str = "smoke"
    engine: str = ""
    match: str = ""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    xfail: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    shard: str = "1/1"
    claims: str | Path = ""

    def __post_init__(self) -> None:
        if self.size not in FLOORS:
            raise DescriptorError(f"size: expected one of {', '.join(FLOORS)}; got {self.size!r}")
        if self.size == CLAIMED and not self.claims:
            raise DescriptorError(
                "size 'claims' runs the problems of a file of claims; name it with claims=FILE or"
                " --dnncore-claims=FILE"
            )
        compiled("match", self.match)
        Shard.read(self.shard)

    def jobs(self) -> list[Job]:
        """Return all jobs to run. Raises `DescriptorError` if a pattern matches no job."""
        left_out, failing = _Patterns(self.unsupported), _Patterns(self.xfail)
        listed = [
            replace(job, unsupported=left_out.reason(job), xfail=failing.reason(job))
            for job in self._unlisted
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
        matching = [job for job in matching if not job.lacks_operation] or matching
        for job in matching:
            if job.claim and job.unsupported:
                raise DescriptorError(
                    f"{job.claim.place}: a claimed case must not be listed as unsupported"
                    f" ({job.unsupported}); remove it from one of the lists"
                )
        return Shard.read(self.shard).of(matching, lambda job: job.text)

    @cached_property
    def _unlisted(self) -> list[Job]:
        """Return all jobs on all engines, without the reasons of lists."""
        rows = devices_of(self.backend, self.engine)
        names = names_for_claims(rows, self.engine)
        claimed = self._claimed(list(names))
        problems = [] if self.size == CLAIMED else cases(self.size, seed=self.seed)
        plan: dict[str, Any] = {"seed": self.seed if self.size == "random" else None,
                                "size": self.size,
                                "floor": 1 if self.match else FLOORS[self.size]}  # fmt: skip
        jobs = []
        kinds = {row.name: row.kind for row in rows}
        tables = registry.loaded[self.backend].backend.implementations
        for engine in dict.fromkeys([*names, *claimed]):
            own = claimed.get(engine, {})
            listed = problems if engine in names else []
            planned = list(dict.fromkeys([*listed, *own]))
            lacking = {p for p in planned if p not in own
                       and (kinds.get(engine), type(p.op)) not in tables}  # fmt: skip
            plan |= {"planned": len(planned) - len(lacking),
                     "claim_engine": names.get(engine, "")}  # fmt: skip
            jobs += [
                Job(self.backend, engine, p, claim=own.get(p), required=p in own,
                    lacks_operation=p in lacking, **plan)
                for p in planned
            ]  # fmt: skip
        return jobs

    def _claimed(self, chosen: Sequence[str]) -> dict[str, dict[Problem, Claim]]:
        """Return the claim of each claimed problem, by engine: the highest claim if names share a
        device.

        chosen: the engines of the run. If the plan does not name engines, engines for which the
            backend no longer has implementations are judged, too.
        """
        found: dict[str, dict[Problem, Claim]] = {}
        for claim in read_claims(self.claims) if self.claims else ():
            for engine in claimed_devices(self.backend, claim.engine):
                own = found.setdefault(engine, {})
                other = own.get(claim.problem)
                if other is None or is_reached(other.level, claim.level):
                    own[claim.problem] = claim
        found = {name: own for name, own in found.items() if not self.engine or name in chosen}
        if self.claims and not found:
            raise DescriptorError(
                f"{self.claims}: no claim is for an engine of this run: {', '.join(chosen)}"
            )
        return found

    def absent(self) -> list[Absent]:
        """Return the cases that are not judged, one row per engine."""
        return [*self._without_engine(), *self._without_table()]

    def _without_engine(self) -> Iterator[Absent]:
        """Yield engines of claims that this machine lacks, unless the plan names its engines."""
        if not self.claims or self.engine:
            return
        counts = Counter(claim.engine for claim in read_claims(self.claims))
        for name, count in counts.items():
            if not claimed_devices(self.backend, name):
                yield Absent(
                    f"{self.backend}: no such engine here: {name}: {count} claims are not judged"
                )

    def _without_table(self) -> Iterator[Absent]:
        """Yield the operations that the backend does not implement, for each engine."""
        found: dict[str, Counter[str]] = {}
        for job in self._unlisted:
            if job.lacks_operation and re.search(self.match, str(job)):
                name = job.problem.op.KIND.removesuffix(" backward")
                found.setdefault(job.target, Counter())[name] += 1
        for target, counts in found.items():
            names = ", ".join(sorted(counts))
            yield Absent(f"{target}: {counts.total()} cases of operations without tables: {names}")


class _Patterns:
    """Patterns with reasons. `idle` contains the patterns that have not matched yet."""

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
