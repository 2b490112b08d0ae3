"""The table of checks, and their execution on one case."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dnncore.engines.engine import Engine
from dnncore.errors import describe
from dnncore.problem import Problem
from dnncore.testing.checks import (
    attributes,
    calls,
    concurrency,
    contract,
    golden,
    gradients,
    lifetime,
    values,
    writes,
)
from dnncore.testing.checks.case import Case
from dnncore.testing.checks.results import CaseResult, CheckFailed, Failure, OnTrial, Status

__all__ = ["CHECKS", "Check", "run_case"]

Scope: TypeAlias = Literal["case", "candidate", "trial"]


@dataclass(frozen=True)
class Check:
    """A property, checked by a plain function that raises `CheckFailed`.

    scope: the arguments of the function. "case": a `Case`. "candidate": a `Case` and an
        `Implementation`, which may refuse it. "trial": a `Trial` of one that accepts.
    every: for slow checks, the number of cases of which one is checked. In each process, the check
        also runs until it has passed once for an operation, an implementation and an engine. The
        texts of problems decide which cases are checked.
    """

    name: str
    function: Callable[..., None]
    scope: Scope = "trial"
    every: int = 1


# In the order of execution. The last checks examine the executions of all others.
CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("accept", contract.accept, "candidate"),
        Check("refusals", contract.refusals, "candidate"),
        Check("descriptors", contract.descriptors, "case"),
        Check("integers", values.integers),
        Check("random", values.random),
        Check("golden", golden.golden, every=16),
        Check("adjoint", gradients.adjoint),
        Check("linear", gradients.linear),
        Check("slope", gradients.slope),
        Check("repeatable", values.repeatable),
        Check("bound", calls.bound),
        Check("sequence", calls.sequence),
        Check("in_place", calls.in_place),
        Check("scratchpad", calls.scratchpad),
        Check("events", concurrency.events),
        Check("threads", concurrency.threads),
        Check("engine_threads", concurrency.engine_threads),
        Check("attributes", attributes.attributes, every=16),
        Check("workspaces", gradients.workspaces),
        Check("memory", lifetime.memory, every=4),
        Check("guards", writes.guards),
        Check("inputs", writes.inputs),
        Check("padding", writes.padding),
    )
}

_made: set[tuple[str, type, str, str]] = set()  # slow checks that passed in this process


def run_case(
    problem: Problem,
    engine: Engine,
    *,
    impl: str = "",
    checks: Collection[str] = (),
    skip: Collection[str] = (),
    announce: Callable[[OnTrial], None] | None = None,
) -> CaseResult:
    """Run the checks of these names, by default all, on every implementation that accepts.

    impl: name patterns of the implementations to be tested; "" is all.
    skip: names of checks that are left out.
    announce: is called with each check before it begins.

    Slow checks are left out on most cases, unless they are named.
    """
    run = _Run(Case(problem, engine, impl), checks, skip, announce)
    run.all()
    case, failures = run.case, tuple(run.failures)
    status: Status = "failed" if failures else "passed" if case.trials else "unsupported"
    return CaseResult(
        problem=case.text,
        engine=engine.name,
        status=status,
        failures=failures,
        impl_names=tuple(trial.pd.impl_name for trial in case.trials),
        refusals=case.refusals,
        executed=run.executed,
        seconds=case.clock.stop(),
    )


class _Run:
    """The checks of one case, and their findings."""

    def __init__(
        self,
        case: Case,
        checks: Collection[str],
        skip: Collection[str],
        announce: Callable[[OnTrial], None] | None,
    ) -> None:
        self.case = case
        self.announce = announce
        self.failures: list[Failure] = []
        self.executed = 0
        self._named = set(checks)
        self._skipped = set(skip)

    def all(self) -> None:
        """Run all checks. The checks of candidates are first, because others query and build."""
        for implementation in self.case.implementations:
            for check in self._wanted("candidate"):
                self._make(check, implementation.name, self.case, implementation)
        for check in self._wanted("case"):
            self._make(check, "", self.case)
        for trial in self.case.trials:
            for check in self._wanted("trial"):
                if not trial.is_broken:
                    self._make(check, trial.pd.impl_name, trial)

    def _wanted(self, scope: Scope) -> Iterator[Check]:
        for check in CHECKS.values():
            wanted = check.name in self._named if self._named else check.name not in self._skipped
            if check.scope == scope and wanted:
                yield check

    def _make(self, check: Check, impl_name: str, *arguments: Any) -> None:
        key = (check.name, type(self.case.op), impl_name, self.case.engine.name)
        if key in _made and not self._named and not self._is_chosen(check):
            return
        self.executed += 1
        if self.announce is not None:
            self.announce(OnTrial(check.name, impl_name))
        try:
            check.function(*arguments)
        except CheckFailed as failed:
            self.failures.append(Failure(check.name, impl_name, str(failed)))
        except Exception as error:
            self.failures.append(Failure(check.name, impl_name, f"raised {describe(error)}"))
        else:
            _made.add(key)

    def _is_chosen(self, check: Check) -> bool:
        return zlib.crc32(f"{check.name} {self.case.text}".encode()) % check.every == 0
