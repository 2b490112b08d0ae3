"""The results of a run of the kit, as a table and as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from dnncore.selection.plugins import registry
from dnncore.testing.checks.results import CaseResult
from dnncore.testing.checks.table import CHECKS
from dnncore.testing.claims import CLAIM
from dnncore.testing.running.device_choice import devices_of
from dnncore.testing.running.plan import Job
from dnncore.testing.running.sample import row_of
from dnncore.testing.running.worker import Worker

__all__ = [
    "Entry",
    "cell",
    "command",
    "coverage",
    "describe_backend",
    "describe_run",
    "division_of_time",
    "entry",
    "left_out",
    "remarks",
    "repetition",
    "save",
    "settings",
    "table",
]

Entry: TypeAlias = dict[str, Any]
"""One job and its result, as plain data; see `entry`."""

STATUSES = ("passed", "failed", "xfailed", "unsupported")
WORDS = {"passed": "", "xfailed": "known to fail"}  # the words for counts of these statuses
ACTIVITIES = ("reference", "building", "running")
SHOWN = 10  # reasons for refusals that no list contains


def entry(job: Job, result: CaseResult | None, seconds: float) -> Entry:
    """Return a row of the report. Without a result, the job was left out.

    seconds: the duration of the job, with the start of the process if this job started it.
    """
    operation, data_type, direction = row_of(job.problem.op)
    given = result or CaseResult(job.text, job.engine, "unsupported", (), (), (), 0, {})
    is_known = bool(job.xfail) or job.may_fail
    is_lost = any(failure.check == CLAIM for failure in given.failures)
    fails_as_known = is_known and not is_lost and given.status == "failed"
    return {
        "id": str(job),
        "target": job.target,
        "problem": job.text,
        "size": job.size,
        "planned": job.planned,
        "floor": job.floor,
        "operation": operation,
        "type": data_type,
        "direction": direction,
        "status": "xfailed" if fails_as_known else given.status,
        "level": given.level,
        "claimed": job.claim.level if job.claim else "",
        "claim_is_lost": is_lost,
        "claim_engine": job.claim_engine,
        "listed": job.unsupported or job.xfail,
        "impl_names": list(given.impl_names),
        "failures": [str(failure) for failure in given.failures],
        "refusals": list(given.refusals),
        "executed": given.executed,
        "remarks": list(given.remarks),
        "seconds": {**given.seconds, "total": seconds},
    }


# -- tables ---------------------------------------------------------------------------------------


def coverage(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the counts of each status by operation, type, direction and target."""
    keys = ("operation", "type", "direction", "target")
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for row in entries:
        counts.setdefault(tuple(row[key] for key in keys), Counter())[row["status"]] += 1
    return [
        {**dict(zip(keys, place, strict=True)), **{status: count[status] for status in STATUSES}}
        for place, count in sorted(counts.items())
    ]


def _grid(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return rows of cells: the headings, then a row per problem kind, with a column per target."""
    cells = {
        (row["operation"], row["type"], row["direction"], row["target"]): cell(row) for row in rows
    }
    targets = sorted({key[3] for key in cells})
    kinds = sorted({key[:3] for key in cells})
    body = [[*kind, *(cells.get((*kind, target), "-") for target in targets)] for kind in kinds]
    return [["operation", "type", "direction", *targets], *body]


def cell(row: Mapping[str, Any]) -> str:
    """Return the counts of each status in words."""
    counts = [f"{row[s]} {WORDS.get(s, s)}".strip() for s in STATUSES if row[s]]
    return ", ".join(counts if row["passed"] else ["0", *counts])


def table(entries: Iterable[Entry]) -> str:
    """Return the coverage as aligned text. A number without a word counts passed cases."""
    grid = _grid(coverage(entries))
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in grid]
    return "\n".join(lines)


def left_out(entries: Iterable[Entry]) -> list[str]:
    """Return lines about unlisted cases that all implementations refuse. Each line has a reason and
    one of its cases.
    """
    groups: dict[str, list[str]] = {}
    for row in entries:
        if row["status"] == "unsupported" and not row["listed"]:
            why = "\n".join(row["refusals"]) or f"no implementation of {row['operation']}"
            groups.setdefault(why, []).append(row["id"])
    if not groups:
        return []
    lines = [f"{sum(map(len, groups.values()))} unsupported cases that are not listed:"]
    for why, ids in sorted(groups.items(), key=lambda group: -len(group[1]))[:SHOWN]:
        lines += [f"  {len(ids)}, such as {ids[0]}", *(f"    {line}" for line in why.splitlines())]
    more = len(groups) - SHOWN
    return [*lines, f"  and for {more} more reasons"] if more > 0 else lines


def remarks(entries: Iterable[Entry]) -> list[str]:
    """Return sentences about properties that could not be checked, each sentence once."""
    return list(dict.fromkeys(text for row in entries for text in row.get("remarks", ())))


def division_of_time(entries: Iterable[Entry]) -> str:
    """State how the jobs' seconds divide between the reference, building, running and the rest."""
    sums = _seconds(entries)
    total = sums["total"] or 1.0
    parts = {**{name: sums[name] for name in ACTIVITIES}, "the rest": sums["rest"]}
    shares = [f"{name} {seconds:.1f} s ({seconds / total:.0%})" for name, seconds in parts.items()]
    return f"time: {', '.join(shares)}"


def _seconds(entries: Iterable[Entry]) -> dict[str, float]:
    rows = list(entries)
    sums = {name: sum(row["seconds"].get(name, 0.0) for row in rows) for name in ACTIVITIES}
    total = sum(row["seconds"]["total"] for row in rows)
    return {**sums, "rest": total - sum(sums.values()), "total": total}


# -- repetition -----------------------------------------------------------------------------------

PRIVATE = ("DNNCORE_CACHE_DIR",)  # variables that a command does not set
MOST_REPETITIONS = 20  # processes; each needs a second or two
PASSES_ALONE = "It passes alone: the failure depends on earlier executions in its process."


def repetition(
    job: Job, failures: Iterable[str], plugins: Iterable[str], fresh: Worker
) -> tuple[str, bool]:
    """Return the command that repeats a failure, and whether it does so in a fresh process.

    failures: texts of `Failure`. plugins: modules of backends that are not installed.
    fresh: the process that is restarted. It runs the failed checks, then all checks. If it has been
        started `MOST_REPETITIONS` times, or the failure is a crash or a hang, nothing is run.
    """
    names = list(dict.fromkeys(failure.partition(":")[0] for failure in failures))
    wider = [name for name in CHECKS if name not in fresh.skipped]
    if not set(names) <= set(CHECKS):  # a crash may be in any check
        return command(job, wider, plugins), True
    for checks in (names, wider):
        if fresh.started >= MOST_REPETITIONS:
            return command(job, names, plugins), True
        fresh.close()
        if fresh.run(job.text, job.engine, job.impl, checks).status == "failed":
            return command(job, checks, plugins), True
    return f"{command(job, wider, plugins)}\n{PASSES_ALONE}", False


def command(job: Job, checks: Collection[str], plugins: Iterable[str] = ()) -> str:
    """Return a shell command that runs checks with the same values and settings."""
    text = "all" if len(checks) == len(CHECKS) else ",".join(checks)
    problem = replace(job.problem, impl=job.problem.impl or job.impl)
    options = [f"--plugin={name}" for name in plugins]
    options += [f"--engines={job.engine}", f"--checks={text}", *str(problem).split()]
    variables = [f"{name}={shlex.quote(value)}" for name, value in _settings(PRIVATE)]
    return " ".join([*variables, "dnncore", "check", shlex.join(options)])


# -- the place of the run -------------------------------------------------------------------------


def describe_run(backend: str, engine: str = "") -> list[str]:
    """Return lines that state the backend, the device, its driver and the settings."""
    rows = devices_of(backend, engine)
    lines = [f"backend {describe_backend(backend)}"]
    lines += [f"engine {row.name}: {row.description}" for row in rows]
    values = settings()
    return [*lines, f"settings: {values}"] if values else lines


def describe_backend(backend: str) -> str:
    """Return its name and version, and the versions of Python and of the libraries it needs."""
    status = registry.loaded[backend].status
    name = f"{backend} {status.version}".strip()
    return f"{name}: {_versions(status.distribution, backend)}"


def settings(leave_out: Collection[str] = ()) -> str:
    """Return the environment variables that dnncore reads, with their values."""
    return " ".join(f"{name}={value}" for name, value in _settings(leave_out))


def _settings(leave_out: Collection[str]) -> list[tuple[str, str]]:
    found = sorted(item for item in os.environ.items() if item[0].startswith("DNNCORE_"))
    return [(name, value) for name, value in found if name not in leave_out]


def _versions(distribution: str, backend: str) -> str:
    """Return the versions of Python and of each library that the backend requires."""
    names = ["dnncore", distribution, *_requirements(distribution, backend)]
    found = {"python": platform.python_version()}
    for name in filter(None, names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _requirements(distribution: str, backend: str) -> list[str]:
    """Return the requirements of the distribution, and of its extra with the backend's name."""
    try:
        texts = importlib.metadata.requires(distribution) if distribution else []
    except importlib.metadata.PackageNotFoundError:
        return []
    named = [re.match(r"([\w.-]+)(?:.*extra == ['\"](\w+)['\"])?", text) for text in texts or ()]
    return [m[1] for m in named if m and m[2] in (None, backend)]


# -- files ----------------------------------------------------------------------------------------


def save(path: str | Path, entries: Sequence[Entry], size: str) -> None:
    """Write all results as JSON: run, size, coverage, seconds and the cases."""
    targets = sorted({tuple(row["target"].split("@")) for row in entries})
    content = {
        "run": [line for backend, engine in targets for line in describe_run(backend, engine)],
        "size": size,
        "coverage": coverage(entries),
        "seconds": _seconds(entries),
        "cases": sorted(entries, key=lambda row: row["id"]),
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")
