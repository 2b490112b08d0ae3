"""The ledger: the result of every case that has ended, by commit, as JSON lines.

A run with a ledger appends to its own file, FOLDER/COMMIT/BACKEND-DIGITS.jsonl. It leaves out the
cases that any file in FOLDER/COMMIT contains. So the same command continues an interrupted run, and
the results of several machines are merged by copying their files into one folder.

python -m dnncore.testing.ledger FOLDER --require='cpu_numba*full'
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.testing.report import Entry, describe_backend, settings
from dnncore.testing.running.device_choice import devices_of
from dnncore.testing.running.plan import Job
from dnncore.testing.running.source_state import source_state

__all__ = ["Ledger", "Run", "report", "runs"]

WRITE_SECONDS = 5.0  # seconds between two writes; a killed process loses the cases of this time

# Settings that do not change results.
IRRELEVANT = (
    "DNNCORE_CACHE_DIR", "DNNCORE_CACHE_MAX_BYTES", "DNNCORE_DISK_CACHE", "DNNCORE_CROSSCHECK",
    "DNNCORE_CROSSCHECK_FOLDER", "DNNCORE_CROSSCHECK_MODE", "DNNCORE_CROSSCHECK_SLOWDOWN",
)  # fmt: skip

# The fields that identify the place of a case. The same problem at another place is another case.
PLACE = ("backend", "device", "settings", "size")


class Ledger:
    """The cases of one commit: cases that are already recorded, and cases that this run adds.

    folder: contains a folder per commit.
    commit: by default, the state of the checkout that contains the working directory. This state is
        determined again before each write.
    options: the kit's options that change the meaning of "passed".

    Raises `DescriptorError` if the commit is unknown or a file is not a ledger.
    """

    def __init__(self, folder: str | Path, commit: str = "", options: str = "") -> None:
        self.commit = commit or source_state()
        self._is_given = bool(commit)
        self._folder = Path(folder) / self.commit
        self._options = options
        self._path: Path | None = None
        self._lines: list[Entry] = []
        self._written = time.monotonic()
        self._place = cache(self._determine_place)
        self._passed = {
            _key(line): line for line in _latest(self._folder) if line["status"] != "failed"
        }

    def find(self, job: Job) -> Entry | None:
        """Return the entry of a case that has not failed; None if the case must run."""
        place = self._place(job.backend, job.engine)
        found = self._passed.get((*place, job.size, job.text))
        listed, claimed = job.unsupported or job.xfail, job.claim.level if job.claim else ""
        same = found and (found["listed"], found.get("claimed", "")) == (listed, claimed)
        return found if same else None

    def add(self, job_entry: Entry) -> None:
        """Record the entry of a case. It is written later, by this method or by `write`."""
        backend, engine = job_entry["target"].split("@", 1)
        place = dict(zip(PLACE, self._place(backend, engine), strict=False))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._lines.append({"commit": self.commit, "time": stamp, **place, **job_entry})
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the added entries. Raises `DescriptorError` if the source has changed."""
        if not self._lines:
            return
        state = self.commit if self._is_given else source_state()
        if state != self.commit:
            raise DescriptorError(
                f"ledger: the source must stay the same during a run; it was {self.commit}, and"
                f" now it is {state}; the last {len(self._lines)} cases are not recorded"
            )
        if self._path is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = self._lines[0]["target"].partition("@")[0]
            self._path = self._folder / f"{name}-{uuid.uuid4().hex[:8]}.jsonl"
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in self._lines))
        self._lines, self._written = [], time.monotonic()

    def _determine_place(self, backend: str, engine: str) -> tuple[str, str, str]:
        (device,) = (row for row in devices_of(backend) if row.name == engine)
        values = " ".join(filter(None, (settings(IRRELEVANT), self._options)))
        return describe_backend(backend), device.description, values


def _key(line: Entry) -> tuple[str, ...]:
    return (*(line[name] for name in PLACE), line["problem"])


def _latest(folder: Path) -> list[Entry]:
    """Return the latest line of each case in all files."""
    return list({_key(line): line for line in _lines(folder)}.values())


def _lines(folder: Path) -> list[Entry]:
    """Return all lines of all files, ordered by time."""
    found = [line for path in folder.glob("*.jsonl") for line in _read(path)]
    return sorted(found, key=lambda line: str(line["time"]))


def _read(path: Path) -> Iterator[Entry]:
    """Yield the lines of a file. Ignore an incomplete last line of a run that was killed."""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            return
        try:
            line = json.loads(text)
            {line[name] for name in (*PLACE, "problem", "status", "listed", "planned", "time")}
        except (ValueError, KeyError, TypeError) as error:
            raise DescriptorError(
                f"{path}, line {number}: expected a case of a ledger; got {error!r};"
                " remove the line"
            ) from error
        yield line


# -- the report -----------------------------------------------------------------------------------


@dataclass
class Run:
    """The cases of one size at one place; a place is a backend, a device and settings.

    failed: the ids of cases whose latest line is a failure.
    repaired: the ids of cases that passed after a failure.
    """

    name: str
    planned: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether each planned case has a line, and none failed."""
        return self.statuses.total() == self.planned and not self.failed

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self.statuses.items()))
        word = "complete" if self.is_complete else "INCOMPLETE"
        return f"{word}: {self.statuses.total()} of {self.planned} cases ({counts}): {self.name}"


def runs(folder: str | Path) -> list[Run]:
    """Return the runs in the folder of a commit, by name. Raises the errors of `Ledger`."""
    found: dict[str, Run] = {}
    lines = _lines(Path(folder))
    failures = {_key(line) for line in lines if line["status"] == "failed"}
    for line in {_key(line): line for line in lines}.values():
        name = " | ".join(str(line[part]) for part in PLACE)
        run = found.setdefault(name, Run(name))
        run.planned = line["planned"]
        run.statuses[line["status"]] += 1
        if line["status"] == "failed":
            run.failed.append(line["id"])
        elif _key(line) in failures:
            run.repaired.append(line["id"])
    return sorted(found.values(), key=lambda run: run.name)


def report(found: Sequence[Run], commit: str, required: Sequence[str] = ()) -> tuple[bool, str]:
    """Return whether the ledger is complete, and a text about all runs.

    required: for each run that must be complete, a pattern of its name in the syntax of `fnmatch`;
    by default all runs that exist must be complete. No case of any run may have failed.
    """
    missing = [p for p in required if not any(_matches(run, p) for run in found if run.is_complete)]
    unfinished = [run.name for run in found if not run.is_complete]
    failed = [case for run in found for case in run.failed]
    is_complete = bool(found) and not missing and not failed and (required or not unfinished)
    lines = [str(run) for run in found]
    lines += [f"  failed: {case}" for case in failed]
    lines += [f"  passed after a failure: {case}" for run in found for case in run.repaired]
    lines += [f"  no complete run matches {pattern!r}" for pattern in missing]
    count = sum(run.statuses.total() for run in found)
    word = "complete" if is_complete else "NOT complete"
    return bool(is_complete), "\n".join(
        [*lines, f"{word} for {commit}: {count} cases, {len(failed)} failed"]
    )


def _matches(run: Run, pattern: str) -> bool:
    return fnmatchcase(run.name, pattern)


def main() -> int:
    """Print the runs of a commit; return 0 if the ledger is complete, else 1."""
    parser = argparse.ArgumentParser(prog="python -m dnncore.testing.ledger", description=__doc__)
    parser.add_argument("folder", help="the folder of all commits")
    parser.add_argument("--commit", default="", help="default: the state of the present checkout")
    parser.add_argument("--require", action="append", default=[], metavar="PATTERN")
    options = parser.parse_args()
    try:
        commit = options.commit or source_state()
        is_complete, text = report(runs(Path(options.folder) / commit), commit, options.require)
    except DescriptorError as error:
        parser.error(str(error))
    sys.stdout.write(f"{text}\n")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
