"""All figures of docs/benchmarks.md, which a ledger stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.documents import report
from benchmarks.documents.operations import Operations
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import ChangedRow, Ledger
from benchmarks.problems.lines import LINES, SAMPLE, Line, line_of, record_of
from benchmarks.problems.samples import Record, with_samples

__all__ = ["Figures"]

SELECTION = "selection"  # the title of comparisons of dnncore's implementations
PROGRAMS = {"alexnet", "digits", "overheads", "roofline"}


@dataclass(frozen=True)
class Figures:
    """All measured figures.

    lines: the outcomes of each line, by its title.
    selection: comparisons of the selected implementation with dnncore's fastest implementation.
    programs: results of the other benchmarks, by name.
    full: whether this was the full run.
    machine: the circumstances of the measurement.
    records: the random samples; see `benchmarks.problems.samples`.
    goals: the lines with their goals, and the line of samples.
    operations: the newest run of `benchmarks.operations`.
    """

    lines: dict[str, list[Outcome]]
    selection: list[Outcome]
    programs: dict[str, Any]
    threads: int
    full: bool
    machine: dict[str, Any] = field(default_factory=lambda: circumstances("cpu"))
    records: list[Record] = field(default_factory=list)
    goals: Sequence[Line] = field(default=(SAMPLE, *LINES), compare=False)
    operations: Operations | None = None

    @classmethod
    def load(cls, path: Path) -> Figures:
        """The figures of a ledger that `save` wrote. Raises `ChangedRow` for a changed row."""
        run, outcomes = _newest_run(path)
        if not run or PROGRAMS - run["programs"].keys():
            raise ChangedRow(
                f"{path}: expected the record of the run with {', '.join(sorted(PROGRAMS))}; got"
                f" {sorted(run['programs']) if run else 'none'}. Measure again"
            )
        rows: dict[str, list[Outcome]] = {title: [] for title in run["lines"]}
        for title, outcome in outcomes:
            if any(outcome["problem"] == known["problem"] for known in rows.setdefault(title, [])):
                raise ChangedRow(f"{path}: {title} has {outcome['problem']} twice in one run")
            rows[title].append(outcome)
        selection = rows.pop(SELECTION, [])
        named = {name: run[name] for name in ("programs", "threads", "full", "machine", "records")}
        return cls(rows, selection, **named, goals=tuple(map(line_of, run["goals"])),
                   operations=Operations.load(path))  # fmt: skip

    def save(self, path: Path) -> None:
        """Add all figures to a ledger: the run, then a row for each outcome."""
        ledger = Ledger(path)
        number = sum("programs" in value for value in ledger.values())
        lines = {**self.lines, SELECTION: self.selection}
        goals = [record_of(line, full=self.full) for line in self.goals]
        run = {"lines": list(self.lines), "goals": goals, "programs": self.programs,
               "threads": self.threads, "full": self.full, "records": self.records,
               "machine": self.machine}  # fmt: skip
        ledger.put(f"run {number}", run)
        for title, outcomes in lines.items():
            for outcome in outcomes:
                key = f"{number}: {title}: {outcome['problem']}"
                ledger.put(key, {"line": title, "outcome": outcome})

    @property
    def samples(self) -> tuple[Line, ...]:
        """The lines of the samples."""
        return with_samples([line for line in self.goals if line.draw], self.records)

    @property
    def lists(self) -> tuple[Line, ...]:
        """The lines of named lists."""
        return tuple(line for line in self.goals if not line.draw)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all lines."""
        return [outcome for outcomes in self.lines.values() for outcome in outcomes]

    @property
    def wrong(self) -> list[Outcome]:
        """The outcomes with a wrong result."""
        programs = [self.programs["digits"]]
        return report.figures([*self.outcomes, *self.selection, *programs])["wrong"]


def _newest_run(path: Path) -> tuple[dict[str, Any], list[tuple[str, Outcome]]]:
    """The record of the last run in a ledger, and its rows (title of the line, outcome).

    The runs of `benchmarks.operations`, which have no programs, do not count.
    """
    run: dict[str, Any] = {}
    rows: list[tuple[str, Outcome]] = []
    is_whole = True
    for value in Ledger(path).values():
        if "goals" in value:
            is_whole = "programs" in value
            run, rows = (value, []) if is_whole else (run, rows)
        elif is_whole:
            rows.append((value["line"], value["outcome"]))
    return run, rows
