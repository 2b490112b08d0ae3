"""The kit's pytest plugin: options, the worker, the header and the closing table.

It does nothing in runs without tests of the kit.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dnncore.testing.options import OPTIONS

if TYPE_CHECKING:  # other test runs on a machine with dnncore must not import all this
    from dnncore.problem import Problem
    from dnncore.testing.checks.results import CaseResult
    from dnncore.testing.findings import Findings
    from dnncore.testing.ledger import Ledger
    from dnncore.testing.report import Entry
    from dnncore.testing.running.plan import Absent, Job, Plan
    from dnncore.testing.running.sample import Surplus
    from dnncore.testing.running.worker import Worker

_entry = pytest.StashKey["tuple[Entry, bool]"]()  # an entry, and whether it is from a ledger
_ledger = pytest.StashKey["Ledger | None"]()
_started = pytest.StashKey[float]()
_registered = pytest.StashKey[list[Any]]()  # the plugins that the command line names

TEST_ARGUMENT = "dnncore_job"  # the fixture argument of the kit's tests
SAVED_ARGUMENT = "dnncore_saved"  # the fixture argument of tests of saved calls


class KnownFailure(Exception):
    """The failure of a case that is known to fail. A lost claim is not a known failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options, all of which begin with --dnncore-."""
    group = parser.getgroup("dnncore", "conformance of dnncore's backends")
    for name, settings in OPTIONS:
        group.addoption(f"--dnncore-{name}", dest=f"dnncore_{name.replace('-', '_')}", **settings)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the findings; register backends that are not installed."""
    config.stash[_started] = time.monotonic()
    if not hasattr(config, "workerinput"):  # under xdist, only in the process that reports
        config.pluginmanager.register(_Reporter(config))
    for name in config.option.dnncore_plugin or ():
        import dnncore

        try:
            module = import_module(name)
            dnncore.register(module)
        except (ImportError, dnncore.DnnError) as error:
            raise pytest.UsageError(f"--dnncore-plugin={name}: {error}") from error
        config.stash.setdefault(_registered, []).append(module)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Unregister the plugins that `pytest_configure` registered."""
    for module in config.stash.get(_registered, ()):
        import dnncore

        dnncore.unregister(module)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report which backends are checked on which devices."""
    if not config.option.dnncore_backend:
        return []
    from dnncore.errors import DnnError
    from dnncore.testing.report import describe_run

    lines = []
    try:
        for plan in _plans(config):
            lines += describe_run(plan.backend, plan.engine)
    except (DnnError, OSError):  # collection raises the same error and reports it
        return lines
    return lines


# -- collecting -----------------------------------------------------------------------------------


def _plans(config: pytest.Config) -> list[Plan]:
    """Return one plan per backend on the command line."""
    option = config.option
    names = [name.strip() for text in option.dnncore_backend or () for name in text.split(",")]
    if not names:
        return []
    from dnncore.errors import DescriptorError
    from dnncore.testing.running.plan import Plan, read_patterns

    if option.dnncore_claims and len(names) > 1:
        raise DescriptorError(
            f"--dnncore-claims: a file has the claims of one backend; got {', '.join(names)};"
            " run each backend with its own file"
        )

    unsupported, xfail = (
        {pattern: why for path in paths or () for pattern, why in read_patterns(path).items()}
        for paths in (option.dnncore_unsupported, option.dnncore_xfail)
    )
    wishes: dict[str, Any] = {"engine": option.dnncore_engine, "match": option.dnncore_match}
    wishes |= {"size": option.dnncore_size, "seed": option.dnncore_seed}
    wishes |= {"shard": option.dnncore_shard, "claims": option.dnncore_claims}
    return [Plan(n, unsupported=unsupported, xfail=xfail, **wishes) for n in names]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test per job, from the plan of a conformance class or of the command line."""
    if SAVED_ARGUMENT in metafunc.fixturenames:
        _generate_saved_tests(metafunc)
    if TEST_ARGUMENT not in metafunc.fixturenames:
        return
    from dnncore.errors import DnnError

    try:
        plans = getattr(metafunc.cls, "plans", None) or _plans(metafunc.config)
        jobs = [job for plan in plans for job in plan.jobs()]
        others: list[Any] = [row for plan in plans for row in plan.absent()]
        _check_options(metafunc.config, jobs)
        jobs, surplus = _sample(metafunc.config.option, jobs)
    except (DnnError, OSError) as error:
        raise pytest.Collector.CollectError(str(error)) from error
    if not plans and not metafunc.config.option.dnncore_saved:
        raise pytest.Collector.CollectError("name a backend with --dnncore-backend=NAME")
    rows = [*map(_parameter, jobs), *(pytest.param(row, id=str(row)) for row in others + surplus)]
    metafunc.parametrize(TEST_ARGUMENT, rows if plans else [None])


def _sample(option: Any, jobs: list[Job]) -> tuple[list[Job], list[Surplus]]:
    """Return the jobs of a run with a budget, in their order, and the number of the others.

    A run with a ledger has them all, because recorded jobs take no time.
    """
    from dnncore.testing.running.sample import in_reach, in_sample_order

    if option.dnncore_budget is None:
        return jobs, []
    jobs = in_sample_order(jobs, option.dnncore_seed)
    if option.dnncore_ledger:
        return jobs, []
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    jobs, surplus = in_reach(jobs, option.dnncore_budget, processes)
    return jobs, [surplus] if surplus.count else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove the tests of jobs or of saved calls if the command line names none."""
    items[:] = [item for item in items if not _is_empty(item)]


def _is_empty(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return any(parameters.get(name, "") is None for name in (TEST_ARGUMENT, SAVED_ARGUMENT))


def _generate_saved_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test per saved call."""
    from dnncore.crosschecking.saved import saved_files
    from dnncore.errors import DnnError

    folder = metafunc.config.option.dnncore_saved
    try:
        files = list(saved_files(Path(folder))) if folder else []
    except DnnError as error:
        raise pytest.Collector.CollectError(f"--dnncore-saved: {error}") from error
    metafunc.parametrize(SAVED_ARGUMENT, files or [None], ids=[f.stem for f in files] or [""])


def _check_options(config: pytest.Config, jobs: Sequence[Job]) -> None:
    """Raise `DescriptorError` for invalid options, before the first test runs."""
    from dnncore.errors import DescriptorError
    from dnncore.testing.findings import check_proposal
    from dnncore.testing.floors import Floors

    _new_worker(config)
    _open_ledger(config)
    Floors.read(config.option.dnncore_floor)
    if config.option.dnncore_propose_claims:
        check_proposal(config.option.dnncore_propose_claims, jobs)
    budget = config.option.dnncore_budget
    if budget is not None and not 0 <= budget < math.inf:
        raise DescriptorError(f"--dnncore-budget: expected seconds of at least 0; got {budget!r}")
    path = config.option.dnncore_json
    if path and not Path(path).resolve().parent.is_dir():
        raise DescriptorError(f"--dnncore-json={path}: there is no such folder; make it first")


def _parameter(job: Job) -> Any:
    known = pytest.mark.xfail(reason=job.xfail, strict=True, raises=KnownFailure)
    return pytest.param(job, id=str(job), marks=[known] if job.xfail else [])


# -- running --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def dnncore_worker(pytestconfig: pytest.Config) -> Iterator[Worker]:
    """The process that runs the cases."""
    with _new_worker(pytestconfig) as worker:
        yield worker


@pytest.fixture(scope="session")
def dnncore_fresh_worker(pytestconfig: pytest.Config) -> Iterator[Worker]:
    """A second process, which repeats failures. Each of them restarts it."""
    with _new_worker(pytestconfig) as worker:
        yield worker


def _new_worker(config: pytest.Config) -> Worker:
    """Return a worker with the options of the command line. Its first case starts the process."""
    from dnncore.testing.running.worker import Worker

    option = config.option
    return Worker(
        timeout=option.dnncore_timeout,
        plugins=option.dnncore_plugin or (),
        forbidden=option.dnncore_forbid,
        skip_checks=[name for name in option.dnncore_skip_checks.split(",") if name],
    )


@pytest.fixture
def dnncore_check(
    dnncore_worker: Worker, dnncore_fresh_worker: Worker, request: pytest.FixtureRequest
) -> Callable[[Job | Absent | Surplus], None]:
    """Run a job; fail if an implementation is wrong or a claim is lost; skip if all refuse, if no
    time is left, or if the claims are for an engine that this machine lacks.
    """
    from dnncore.testing.findings import ABSENT, LATE
    from dnncore.testing.running.plan import Absent
    from dnncore.testing.running.sample import Surplus

    config = request.config

    def check(job: Job | Absent | Surplus) -> None:
        if isinstance(job, Surplus):
            request.node.stash[_entry] = ({"status": LATE, "count": job.count}, False)
            pytest.skip(str(job))
        if isinstance(job, Absent):
            request.node.stash[_entry] = ({"status": ABSENT, "text": str(job)}, False)
            pytest.skip(str(job))
        ledger = _open_ledger(config)
        recorded = ledger.find(job) if ledger else None
        if recorded is None and not job.required and _is_late(config):
            request.node.stash[_entry] = ({"status": LATE, "count": 1}, False)
            pytest.skip("no time is left of the budget")
        found, result = (recorded, None) if recorded else _run(job, dnncore_worker)
        request.node.stash[_entry] = (found, recorded is not None)
        failures = found["failures"]
        if found["status"] == "xfailed" and job.may_fail:
            pytest.xfail("; ".join(failures))
        if failures:
            jobs = [job]
            if job.seed is not None and result and not _is_fatal(result):
                jobs.insert(0, _shortest(job, dnncore_worker))
                failures = _run(jobs[0], dnncore_worker)[0]["failures"] or failures
            again = _again(config, jobs, failures, dnncore_fresh_worker)
            text = "\n".join([*failures, again])
            if found["status"] == "xfailed":
                raise KnownFailure(text)
            pytest.fail(text, pytrace=False)
        if found["status"] == "unsupported":
            pytest.skip(job.unsupported or "; ".join(found["refusals"]) or "no implementation")

    return check


@pytest.fixture
def dnncore_check_saved(pytestconfig: pytest.Config) -> Callable[[Path], None]:
    """Repeat a saved call in a process; fail if it is wrong, skip if all implementations refuse."""
    from dnncore.testing.saved_calls import outcome_of

    option = pytestconfig.option

    def check(path: Path) -> None:
        status, text = outcome_of(path, option.dnncore_plugin or (), option.dnncore_timeout)
        if status == "refused":
            pytest.skip(text)
        if status == "failed":
            pytest.fail(text, pytrace=False)

    return check


def _again(
    config: pytest.Config, jobs: Sequence[Job], failures: Sequence[str], fresh: Worker
) -> str:
    """Return the command for the first job that repeats the failure afresh, or a remark."""
    from dnncore.testing.checks.table import CHECKS
    from dnncore.testing.report import command, repetition

    plugins = config.option.dnncore_plugin or ()
    if jobs[0].xfail:
        return command(jobs[0], CHECKS, plugins)
    for job in jobs:
        text, repeats = repetition(job, failures, plugins, fresh)
        if repeats:
            break
    return text


def _is_late(config: pytest.Config) -> bool:
    """Whether the budget is used up."""
    budget = config.option.dnncore_budget
    return budget is not None and time.monotonic() - config.stash[_started] > budget


def _run(job: Job, worker: Worker) -> tuple[Entry, CaseResult | None]:
    """Return a job's entry and result. The result is None if the job is left out."""
    from dnncore.testing.report import entry

    start = time.perf_counter()
    result = None if job.unsupported else worker.run(job.text, job.engine, job.impl)
    if result and job.claim:
        result = job.claim.judge(result)
    return entry(job, result, time.perf_counter() - start), result


def _open_ledger(config: pytest.Config) -> Ledger | None:
    """Return the ledger of the command line, read once in each process."""
    option = config.option
    if _ledger not in config.stash:
        config.stash[_ledger] = None
        if option.dnncore_ledger:
            from dnncore.testing.ledger import Ledger

            skipped = option.dnncore_skip_checks
            options = f"--dnncore-skip-checks={skipped}" if skipped else ""
            config.stash[_ledger] = Ledger(option.dnncore_ledger, option.dnncore_commit, options)
    return config.stash[_ledger]


def _is_fatal(result: CaseResult) -> bool:
    """Whether the case ended the process. Repeating such a case takes too long."""
    return any(failure.check == "worker" for failure in result.failures)


def _shortest(job: Job, worker: Worker) -> Job:
    """Return a job with a simpler failing problem of the operation."""
    from dnncore.problem import driver_of
    from dnncore.testing.problems.random_problems import shortest_failure

    def fails(problem: Problem) -> bool:
        return worker.run(str(problem), job.engine, job.impl).status == "failed"

    driver = driver_of(type(job.problem.op)).name
    found = shortest_failure(fails, driver=driver, seed=job.seed or 0, known=job.problem)
    return replace(job, problem=found or job.problem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Attach the finding to the report, which xdist sends to the main process."""
    report: Any = yield
    if report.when == "call" and _entry in item.stash:
        report.dnncore, report.dnncore_is_recorded = item.stash[_entry]
    return report


# -- reporting ------------------------------------------------------------------------------------


class _Reporter:
    """Collects the findings of all processes and reports them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.findings: Findings | None = None  # None before the first job's report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the findings in a job's report."""
        if hasattr(report, "dnncore"):
            findings = self._findings()
            with _ending_the_run():
                findings.add(report.dnncore, report.dnncore_is_recorded)

    def _findings(self) -> Findings:
        if self.findings is None:
            from dnncore.testing.findings import Findings

            self.findings = Findings(self.config.option, _open_ledger(self.config))
        return self.findings

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail below the floor; write the files."""
        option, ended_well = self.config.option, session.exitstatus == pytest.ExitCode.OK
        if self.findings is None and not (option.dnncore_backend and ended_well):
            return
        findings = self._findings()
        if ended_well and findings.missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if option.dnncore_json and findings.entries:
            from dnncore.testing.report import save

            save(option.dnncore_json, findings.entries, option.dnncore_size)
        with _ending_the_run():
            findings.propose()
        ledger = _open_ledger(self.config)
        with _ending_the_run():
            if ledger:
                ledger.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the coverage, unsupported cases, the division of time and the number that ran."""
        if self.findings is None or not self.findings.entries:
            return
        terminalreporter.section("dnncore: coverage")
        for line in self.findings.lines():
            terminalreporter.write_line(line)
        if self.findings.missing():
            terminalreporter.write_line(self.findings.missing(), red=True)


@contextmanager
def _ending_the_run() -> Iterator[None]:
    """End the run if the ledger or the claims cannot be written."""
    from dnncore.errors import DescriptorError

    try:
        yield
    except (DescriptorError, OSError) as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)
