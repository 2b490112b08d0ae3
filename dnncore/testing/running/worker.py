"""Runs cases in a separate process. A crash or a hang ends a case, and the run continues.

    with Worker(timeout=60) as worker:
        result = worker.run("--conv mb1ic1oc1ih3kh3", "cpu", "mine:*")

`run` takes a problem text, the name of an engine and a name pattern of implementations.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import NamedTuple

from dnncore.engines.engine import Engine
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem import read
from dnncore.selection.plugins import engine, register, registry
from dnncore.testing.checks.results import CaseResult, Failure
from dnncore.testing.checks.table import CHECKS, run_case
from dnncore.testing.running.plan import compiled
from dnncore.testing.running.process import Died, Hung, Process, last_lines, serve

__all__ = ["Worker"]

MOST_HANGS = 3
"""The number of successive cases that may hang. If a device does not reply, a run would take days.
"""

MOST_BYTES = 3 << 30
"""The physical memory beyond which a process is replaced.

With Intel's OpenCL runtime, each program takes 3 MB that are freed but not returned to the system.
"""


class _Request(NamedTuple):
    problem: str
    engine: str
    impl: str
    checks: tuple[str, ...]
    skip: tuple[str, ...]


class Worker:
    """Runs cases in order in a spawned process, which is replaced if it dies or grows too large.

    timeout: the time limit of each check of a case, in seconds.
    plugins: modules that the process registers as `dnncore.register` does, for backends that are
        not installed.
    forbidden: a regular expression, such as for reports of a sanitizer or a simulator. A case that
        prints a match fails.
    skip_checks: names of checks that are left out, for runtimes that cannot support them.
    environment: variables for the process in addition to those of this process.

    Use it in one thread, and close it, or enter it as a context.
    """

    def __init__(
        self,
        *,
        timeout: float = 60.0,
        plugins: Sequence[str] = (),
        forbidden: str = "",
        skip_checks: Collection[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        unknown = sorted(set(skip_checks) - set(CHECKS))
        if unknown:
            raise DescriptorError(
                f"skip_checks: expected names among {', '.join(CHECKS)}; got {', '.join(unknown)}"
            )
        if not 0 < timeout < math.inf:
            raise DescriptorError(f"timeout: expected seconds above 0; got {timeout!r}")
        self.timeout = timeout
        self.skipped = tuple(skip_checks)
        self._forbidden = compiled("forbidden", forbidden) if forbidden else None
        self._process = Process(__name__, plugins, environment)
        self._hangs = 0  # of the preceding cases, in a row

    @property
    def started(self) -> int:
        """The number of processes started so far."""
        return self._process.started

    def run(
        self, problem: str, engine: str, impl: str = "", checks: Collection[str] = ()
    ) -> CaseResult:
        """Run the checks of a problem's text on an engine; `impl` selects implementations.

        checks: as for `run_case`.

        If a case crashes, hangs or raises, the check "worker" fails. It also fails if the process
        has died since the previous case, and if all implementations refuse because the backend's
        table of the operation is wrong. If a case prints forbidden text, the check "output" fails.
        After three cases in a row that hung, no further case runs, and "worker" fails. Raises
        `ExecutionError` if no process starts.
        """
        if self._hangs >= MOST_HANGS:
            text = f"not run, because the {MOST_HANGS} cases before hung; mend these first"
            failure = Failure("worker", impl, text)
            return CaseResult(problem, engine, "failed", (failure,), (), (), 1, {})
        started = time.perf_counter()
        request = _Request(problem, engine, impl, tuple(checks), self.skipped)
        try:
            result: CaseResult = self._process.ask(request, self.timeout)
        except Died as death:
            self._hangs = self._hangs + 1 if isinstance(death, Hung) else 0
            spent = {"reference": 0.0, "building": 0.0, "running": time.perf_counter() - started}
            check, name = self._process.note or ("", "")
            where = f"in the check {check}: " if check else ""
            failure = Failure("worker", name or impl, f"{where}{death}")
            return CaseResult(problem, engine, "failed", (failure,), (), (), 1, spent)
        self._hangs = 0
        judged = self._judge(result, self._process.printed(), impl)
        if self._process.resident_bytes > MOST_BYTES:
            self._process.close()
        return judged

    def _judge(self, result: CaseResult, printed: str, impl: str) -> CaseResult:
        if self._forbidden is None or not self._forbidden.search(printed):
            return result
        failures = (*result.failures, Failure("output", impl, last_lines(printed).strip()))
        return replace(result, status="failed", failures=failures)

    def close(self) -> None:
        """End the process; the next case starts another."""
        self._process.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- in the process -------------------------------------------------------------------------------


def _start(announce: Callable[[object], None]) -> Callable[[_Request], CaseResult]:
    for name in sys.argv[1:]:
        register(import_module(name))

    def answer(request: _Request) -> CaseResult:
        problem, engine_name, impl, checks, skip = request
        try:
            (case,) = read(problem)
            where = engine(engine_name)
            result = run_case(case, where, impl=impl, checks=checks, skip=skip, announce=announce)
            fault = "" if result.status != "unsupported" else _fault(impl, where, type(case.op))
            if fault:
                result = replace(
                    result, status="failed", failures=(Failure("worker", impl, fault),)
                )
            return result
        except Exception:
            failure = Failure("worker", impl, traceback.format_exc(limit=-8))
            return CaseResult(problem, engine_name, "failed", (failure,), (), (), 1, {})

    return answer


def _fault(impl: str, where: Engine, operation: type[Operation]) -> str:
    """Describe a fault in the tested backend's table of the operation; "" if it is valid."""
    rows = registry.failures_of({where.kind}, operation)
    tested = [r for r in rows if r.status == "failed" and fnmatchcase(f"{r.name}:", impl)]
    return "; ".join(f"backend {row.name}: {row.reason}" for row in tested)


if __name__ == "__main__":
    serve(_start)
