"""The kit in a notebook, without pytest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dnncore.selection.plugins import register, registry, unregister
from dnncore.testing.checks.results import CaseResult
from dnncore.testing.report import (
    Entry,
    division_of_time,
    entry,
    left_out,
    remarks,
    repetition,
    table,
)
from dnncore.testing.running.plan import Plan
from dnncore.testing.running.worker import Worker

__all__ = ["check_backend"]


def check_backend(
    backend: str,
    size: str = "smoke",
    *,
    engine: str = "",
    match: str = "",
    timeout: float = 60.0,
    plugins: str | Sequence[str] = (),
    claims: str | Path = "",
) -> list[CaseResult]:
    """Run the cases of one size, print the failures and the coverage, and return the results.

    engine, match, claims: as for `Plan`. A lost claim is a failure of its case.
    timeout: the time limit of each check of a case, in seconds.
    plugins: the name of a module with the hook, or several names, for a backend that is not
        installed. The process that runs the cases registers them. This process also registers them
        while it plans, unless the backend is registered already.
    """
    plugins = [plugins] if isinstance(plugins, str) else plugins
    results: list[CaseResult] = []
    entries: list[Entry] = []
    with _registered(backend, plugins):
        plan = Plan(backend, size, engine, match, claims=claims)
        jobs, absent = plan.jobs(), plan.absent()
    settings: dict[str, Any] = {"timeout": timeout, "plugins": plugins}
    with Worker(**settings) as worker, Worker(**settings) as fresh:
        for job in jobs:
            start = time.perf_counter()
            result = worker.run(job.text, job.engine, job.impl)
            result = job.claim.judge(result) if job.claim else result
            results.append(result)
            entries.append(entry(job, result, time.perf_counter() - start))
            if result.failures:
                _say(result, repetition(job, map(str, result.failures), plugins, fresh)[0])
    _say(table(entries), *left_out(entries), *remarks(entries), division_of_time(entries), *absent)
    return results


@contextmanager
def _registered(backend: str, plugins: Sequence[str]) -> Iterator[None]:
    """Register plugins for the duration of a block, unless the backend is registered already."""
    registry.discover()
    modules = [] if backend in registry.loaded else [import_module(name) for name in plugins]
    for module in modules:
        register(module)
    try:
        yield
    finally:
        for module in modules:
            unregister(module)


def _say(*lines: object) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
