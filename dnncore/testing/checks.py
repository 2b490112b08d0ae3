"""The table of checks, and what runs them on one case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from dnncore.engine import Engine
from dnncore.plugins import describe
from dnncore.problem import Problem
from dnncore.testing import layout, values
from dnncore.testing.case import Case, Trial
from dnncore.testing.results import CaseResult, CheckFailed, Failure, Status

__all__ = ["CHECKS", "Check", "run_case"]


@dataclass(frozen=True)
class Check:
    """A property: `function` takes a `Trial`, of one implementation, and raises `CheckFailed`."""

    name: str
    function: Callable[[Any], None]


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("integers", values.integers),
        Check("random", values.random),
        Check("repeatable", values.repeatable),
        Check("guards", layout.guards),
        Check("inputs", layout.inputs),
        Check("padding", layout.padding),
    )
}


def run_case(
    problem: Problem, engine: Engine, *, impl: str = "", checks: Collection[str] = ()
) -> CaseResult:
    """Run the checks of these names, by default all, on every implementation that accepts.

    impl: name patterns of the implementations to be tested; "" is all.
    """
    case = Case(problem, engine, impl)
    wanted = [check for name, check in CHECKS.items() if not checks or name in checks]
    failures: list[Failure] = []
    executed = 0
    for trial in case.trials:
        failures += _failures(trial, wanted)
        executed += len(wanted)
    refusals = case.refusals
    status: Status = "failed" if failures else "passed" if case.trials else "unsupported"
    return CaseResult(
        problem=case.text,
        engine=engine.name,
        status=status,
        failures=tuple(failures),
        impl_names=tuple(trial.pd.impl_name for trial in case.trials),
        refusals=refusals,
        executed=executed,
        seconds=case.clock.stop(),
    )


def _failures(trial: Trial, checks: list[Check]) -> Iterator[Failure]:
    """An execution that raises fails the first check that asks for it."""
    told: list[BaseException] = []
    for check in checks:
        try:
            check.function(trial)
        except CheckFailed as failed:
            yield Failure(check.name, trial.pd.impl_name, str(failed))
        except Exception as error:
            if not any(error is other for other in told):
                yield Failure(check.name, trial.pd.impl_name, f"raised {describe(error)}")
            told.append(error)
