"""Measures all figures of docs/benchmarks.md and writes the page.

    python -m benchmarks.suite             # batch 4, one process
    python -m benchmarks.suite --full      # all batches, the median of three processes: hours

A file in the cache folder stores the figures of an incomplete run. A complete run is added to
benchmarks/ledgers/cpu.jsonl. The same command continues a stopped run, unless the sources changed.
With --seconds, the run stops after this time with exit status 75 and can be continued.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.contestants.contestant import Terms
from benchmarks.documents import document, report
from benchmarks.documents.figures import Figures
from benchmarks.documents.sampled import source
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.cores import thread_settings
from benchmarks.measuring.ledger import ChangedRow, Ledger, default_path
from benchmarks.measuring.processes import (
    TO_BE_CONTINUED,
    OutOfTime,
    Settings,
    measured,
)
from benchmarks.problems.lines import LINES, SAMPLE, SELECTION, Line, problems_of
from benchmarks.problems.samples import AGAIN, Record, fresh, measured_again, recorded
from dnncore.problem import Problem

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "benchmarks" / "ledgers" / "cpu.jsonl"
PROGRAMS = {
    "roofline": "benchmarks.roofline",
    "alexnet": "benchmarks.alexnet --engine cpu",
    "digits": "benchmarks.digits",
    "overheads": "benchmarks.overheads --engine cpu",
}


class Run:
    """One run of the suite: its ledger, its settings and its time limit."""

    def __init__(self, ledger: Ledger, *, full: bool, threads: int, seconds: float) -> None:
        self.ledger, self.full, self.threads = ledger, full, threads
        self.end = time.monotonic() + seconds
        self.console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)

    def rows(self, line: Line) -> list[Outcome]:
        """The outcomes of the problems of a line."""
        self.console.print(line.title, style="bold")
        settings = Settings(line.peers, Terms(reorders=line.reorders), threads=self.threads)
        processes = 3 if self.full else 1

        def measure(problems: list[Problem], processes: int, first: int = 0) -> list[Outcome]:
            return measured(problems, settings, processes, first=first, ledger=self.ledger,
                            on_outcome=self._print)  # fmt: skip

        outcomes = measure(problems_of(line, full=self.full), processes)
        again = functools.partial(measure, processes=AGAIN, first=processes)
        return measured_again(line, outcomes, again)

    def samples(self) -> list[Record]:
        """The samples of the run. A new run draws them; a continued run keeps them."""
        key = self.ledger.key("samples", {"full": self.full})
        found = self.ledger.get(key)
        if found is None:
            found = {"records": fresh(SAMPLE, full=self.full)}
            self.ledger.put(key, found)
        return list(found["records"])

    def program(self, name: str) -> Any:
        """The figures of another benchmark. A continued run does not measure them again."""
        self.console.print(PROGRAMS[name], style="bold")
        key = self.ledger.key(PROGRAMS[name], {"threads": self.threads})
        found = self.ledger.get(key)
        if found is None:
            found = self._figures(PROGRAMS[name].split())
            self.ledger.put(key, found)
            self._check_time()
        return found

    def _figures(self, command: list[str]) -> Any:
        """Run a benchmark. Returns the JSON that it writes; its other output goes to stderr."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            subprocess.run(
                [sys.executable, "-m", *command, "--json", str(path)],
                env=os.environ | thread_settings(self.threads), check=True, stdout=sys.stderr,
            )  # fmt: skip
            return json.loads(path.read_text())

    def _print(self, outcome: Outcome) -> None:
        self.console.print(report.one_line(outcome))
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self.end:
            raise OutOfTime


def measure(run: Run) -> Figures:
    """Measure all figures."""
    records = run.samples()
    lines = {line.title: run.rows(line) for line in (*recorded(SAMPLE, records), *LINES)}
    selection = run.rows(SELECTION)
    programs = {name: run.program(name) for name in PROGRAMS}
    return Figures(lines, selection, programs, run.threads, full=run.full, records=records)


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help="All batch sizes, three processes.")
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=float("inf"), help="Stop after this time; can be continued.")
@click.option("--folder", default=ROOT / "docs", type=Path, help="The folder of benchmarks.md.")
def main(full: bool, threads: int, seconds: float, folder: Path) -> None:
    """Measure and write."""
    try:
        ledger = Ledger(default_path())
    except ChangedRow as error:
        raise click.ClickException(str(error)) from None
    run = Run(ledger, full=full, threads=threads, seconds=seconds)
    try:
        figures = measure(run)
    except OutOfTime:
        run.console.print("out of time; the same command continues the run")
        sys.exit(TO_BE_CONTINUED)
    figures.save(LEDGER)
    written = document.write(Figures.load(LEDGER), folder, source(Ledger(LEDGER)))
    run.console.print(f"written: {LEDGER} and {written}")
    if figures.wrong:
        run.console.print("the same command measures the wrong problems again")
        sys.exit(1)
    ledger.finish()


if __name__ == "__main__":
    main()
