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
    buffers,
    calls,
    concurrency,
    contract,
    failures,
    fences,
    forks,
    golden,
    gradients,
    in_flight,
    knobs,
    lifetime,
    state,
    surroundings,
    timing,
    values,
    writes,
)
from dnncore.testing.checks.attributes import LARGE_BYTES
from dnncore.testing.checks.case import Case, Trial
from dnncore.testing.checks.results import CaseResult, CheckFailed, Failure, Level, OnTrial, Status

__all__ = ["CHECKS", "Check", "run_case"]

Scope: TypeAlias = Literal["case", "candidate", "trial"]

VALUES = {"integers", "random"}  # without these checks, no result is known to be correct
OF_LARGE = 16  # one in this many large cases is examined by a check
OF_VARIANTS = 8  # one in this many of a check's cases is examined for variants


@dataclass(frozen=True)
class Check:
    """A property, checked by a plain function that raises `CheckFailed`.

    scope: the arguments of the function. "case": a `Case`. "candidate": a `Case` and an
        `Implementation`, which may refuse it. "trial": a `Trial` of an implementation that accepts.
    every: for slow checks, the number of cases of which one is checked. In each process, the check
        also runs until it has passed once for an operation, an implementation and an engine.
        Variants count as one implementation. The texts of problems decide which cases are checked.
    asks_others: whether the check also queries and executes other implementations.
    every_large: as `every`, for cases with more than LARGE_BYTES. 0 means `every`, but at least
        OF_LARGE.
    least_bytes: the least number of bytes of tensors. Smaller cases are omitted unless the check is
        named.
    of_values: whether the check examines results for other values. Then it runs on variants of an
        implementation as often as on the best implementation. Other checks run less often on
        variants. The names of variants have three or more parts and differ in the last part, such
        as an instruction set.
    """

    name: str
    function: Callable[..., None]
    scope: Scope = "trial"
    every: int = 1
    every_large: int = 0
    asks_others: bool = False
    least_bytes: int = 0
    of_values: bool = False


# In the order of execution. The last checks examine the executions of all other checks.
CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("accept", contract.accept, "candidate"),
        Check("refusals", contract.refusals, "candidate"),
        Check("descriptors", contract.descriptors, "case"),
        Check("device", contract.device, "case", every=16),
        Check("integers", values.integers, every_large=1, of_values=True),
        Check("random", values.random, every_large=1, of_values=True),
        Check("ties", values.ties, of_values=True),
        Check("cancellation", values.cancellation, of_values=True),
        Check("wide", values.wide, of_values=True),
        Check("large", values.large, of_values=True),
        Check("tiny", values.tiny, of_values=True),
        Check("special", values.special, of_values=True),
        Check("special_operands", values.special_operands, of_values=True),
        Check("slabs", values.slabs, of_values=True),
        Check("golden", golden.golden, every=16),
        Check("adjoint", gradients.adjoint, every=4, asks_others=True),
        Check("linear", gradients.linear, every=4),
        Check("slope", gradients.slope, every=4, asks_others=True),
        Check("repeatable", values.repeatable),
        Check("repeatable_under_load", values.repeatable_under_load, every=32),
        Check("bound", calls.bound),
        Check("sequence", calls.sequence, every=4),
        Check("long_sequence", calls.long_sequence, every=128, least_bytes=2**16),
        Check("streams", state.streams, every=2),
        Check("one_element", state.one_element, every=4),
        Check("many", state.many, every=32),
        Check("independent", state.independent, every=16),
        Check("in_place", calls.in_place, every=2),
        Check("shared", calls.shared, every=4),
        Check("shifted", calls.shifted, every=2),
        Check("scratchpad", calls.scratchpad, every=4),
        Check("events", concurrency.events, every=8),
        Check("in_flight", in_flight.in_flight, every=16),
        Check("several_events", timing.several_events, every=16),
        Check("failures", failures.failures, every=16),
        Check("allocations", failures.allocations, every=16),
        Check("buffers", buffers.buffers, every=16),
        Check("time_limits", timing.time_limits, every=16),
        Check("late_accesses", timing.late_accesses, every=16),
        Check("profiling", timing.profiling, every=8),
        Check("threads", concurrency.threads, every=8),
        Check("steady_inputs", concurrency.steady_inputs, every=16),
        Check("engine_threads", concurrency.engine_threads, every=4),
        Check("forks", forks.forks, every=64),
        Check("attributes", attributes.attributes, every=8, every_large=1),
        Check("knobs", knobs.knobs, every=8, every_large=1),
        Check("workspaces", gradients.workspaces, asks_others=True),
        Check("memory", lifetime.memory, every=16),
        Check("surroundings", surroundings.surroundings, every=4),
        Check("guards", writes.guards, every_large=1, of_values=True),
        Check("inputs", writes.inputs, every_large=1, of_values=True),
        Check("padding", writes.padding, every_large=1, of_values=True),
        Check("fences", fences.fences, every=4, of_values=True),
    )
}

_made: set[tuple[str, type, str, str]] = set()  # slow checks that have passed in this process


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
    announce: a function that is called with each check before it begins.

    Slow checks are omitted in most cases, unless they are named.
    """
    run = _Run(Case(problem, engine, impl), checks, skip, announce)
    run.all()
    case, failures = run.case, tuple(run.failures)
    status: Status = "failed" if failures else "passed" if case.trials else "unsupported"
    is_right = status == "passed" and case.level == "run" and not VALUES & set(skip)
    level: Level = "right" if is_right else case.level
    return CaseResult(
        problem=str(problem),
        engine=engine.name,
        status=status,
        failures=failures,
        impl_names=tuple(trial.pd.impl_name for trial in case.trials),
        refusals=case.refusals,
        executed=run.executed,
        seconds=case.clock.stop(),
        remarks=tuple(in_flight.remarks(engine)),
        level=level,
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
        """Run all checks. The checks of candidates run first, because others query and build.

        A backend without implementations of the operation has nothing to check.
        """
        if not (self.case.implementations or self.case.trials):
            return
        for implementation in self.case.implementations:
            for check in self._wanted("candidate"):
                self._make(check, implementation.name, self.case, implementation)
        for check in self._wanted("case"):
            self._make(check, "", self.case)
        families = set()
        for trial in self.case.trials:
            family = _family(trial.pd.impl_name)
            with surroundings.drawn_apart(self.case.seed):
                self._examine(trial, is_variant=family in families)
            families.add(family)

    def _examine(self, trial: Trial, *, is_variant: bool) -> None:
        trial.expected(self.case.round("integers"))  # imports the oracles
        trial.world = surroundings.world(self.case.engine)
        for check in self._wanted("trial"):
            if trial.is_broken:
                continue
            if check.asks_others:
                surroundings.note_changes(trial)
            self._make(check, trial.pd.impl_name, trial, is_variant=is_variant)
            if check.asks_others:
                trial.world = surroundings.world(self.case.engine)

    def _wanted(self, scope: Scope) -> Iterator[Check]:
        for check in CHECKS.values():
            wanted = check.name in self._named if self._named else check.name not in self._skipped
            if check.scope == scope and wanted:
                yield check

    def _make(
        self, check: Check, impl_name: str, *arguments: Any, is_variant: bool = False
    ) -> None:
        kept_name = impl_name if check.of_values else _family(impl_name)
        key = (check.name, type(self.case.op), kept_name, self.case.engine.name)
        fewer = OF_VARIANTS if is_variant and not check.of_values else 1
        is_wanted = key not in _made or self._is_chosen(check, fewer)
        if not self._named and (self.case.op.bytes < check.least_bytes or not is_wanted):
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

    def _is_chosen(self, check: Check, fewer: int) -> bool:
        is_large = self.case.op.bytes > LARGE_BYTES
        large = check.every_large or max(check.every, OF_LARGE)
        every = fewer * (large if is_large else check.every)
        return zlib.crc32(f"{check.name} {self.case.text}".encode()) % every == 0


def _family(impl_name: str) -> str:
    """Return the common name of an implementation's variants."""
    front, _, _ = impl_name.rpartition(":")
    return front if ":" in front else impl_name
