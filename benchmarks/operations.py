"""Measures the lines of normalizations, copies, cells and attention, and adds them to the ledger.

    python -m benchmarks.operations --threads=16 --seconds=450
    python -m benchmarks.operations --resume           # what a stopped run did not measure
    python -m benchmarks.operations --again --match=rnn    # these problems of the newest run
    python -m benchmarks.operations --page             # only writes the page from the ledger

Each run draws new shapes. The first problem of each line is measured first, then the second of
each, and so on. So each line has figures if the run stops early. Each row is stored as soon as it
is measured. docs/benchmarks.md shows the newest run.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.contestants.contestant import CPU_PEERS, Terms
from benchmarks.documents import document, report
from benchmarks.documents.figures import Figures
from benchmarks.documents.operations import Operations
from benchmarks.documents.sampled import source
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.processes import TO_BE_CONTINUED, OutOfTime, Settings, measured
from benchmarks.measuring.sampling import SAMPLES
from benchmarks.problems.lines import Line, problems_of, record_of
from benchmarks.problems.operations import cpu_lines
from benchmarks.problems.samples import SEEDS
from dnncore.problem import Problem

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "benchmarks" / "ledgers" / "cpu.jsonl"
PROBLEM_SECONDS = 120.0  # time limit of a problem's process


def begun(ledger: Ledger, lines: Sequence[Line], threads: int) -> Operations:
    """A new run in the ledger."""
    number = sum("goals" in value and "programs" not in value for value in ledger.values())
    records = json.loads(json.dumps([record_of(line, full=True) for line in lines]))
    run = {"goals": records, "threads": threads, "machine": circumstances("cpu")}
    ledger.put(f"operations {number}", run)
    return Operations(number, run, [])


def in_rounds(lines: Sequence[Line], match: str) -> list[tuple[str, Problem]]:
    """The first problem of each line with its title, then the second of each, and so on."""
    every = [[(line.title, p) for p in problems_of(line, full=True)] for line in lines]
    found = (pair for row in itertools.zip_longest(*every) for pair in row if pair)
    return [(title, p) for title, p in found if re.search(match, f"{title} {p}")]


@click.command(help=__doc__)
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=float("inf"), help="Stop after this time; can be continued.")
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1))
@click.option("--peer", "peers", default=",".join(CPU_PEERS), show_default=True)
@click.option("--match", default="", help="Only problems whose titles and texts match.")
@click.option("--seed", type=int, help="The seed of the shapes; by default a new one.")
@click.option("--resume", is_flag=True, help="Continue the newest run.")
@click.option("--again", is_flag=True, help="Replace measured rows of the newest run.")
@click.option("--page", "only_page", is_flag=True, help="Measure nothing.")
@click.option("--ledger", "path", default=LEDGER, type=Path, show_default=True)
@click.option("--folder", default=ROOT / "docs", type=Path, help="The folder of benchmarks.md.")
def main(
    threads: int, seconds: float, samples: int, peers: str, match: str, seed: int | None,
    resume: bool, again: bool, only_page: bool, path: Path, folder: Path,
) -> None:  # fmt: skip
    """Measure, store and write."""
    end, code = time.monotonic() + seconds, 0
    ledger = Ledger(path)
    if not only_page:
        run = Operations.load(path) if resume or again else None
        new_seed = secrets.randbelow(SEEDS) if seed is None else seed
        run = run or begun(ledger, cpu_lines(new_seed), threads)
        wanted = in_rounds(run.lines, match)
        if not again:
            known = {(title, outcome["problem"]) for title, outcome in run.rows}
            wanted = [(title, p) for title, p in wanted if (title, str(p)) not in known]
        code = _measure(run, ledger, wanted, peers, samples, end)
    text = document.page(Figures.load(path), source(Ledger(path)))
    (folder / document.NAME).write_text(text, encoding="utf-8")
    click.echo(f"written: {folder / document.NAME}")
    sys.exit(code)


def _measure(
    run: Operations, ledger: Ledger, wanted: Sequence[tuple[str, Problem]], peers: str,
    samples: int, end: float,
) -> int:  # fmt: skip
    """Measure problems, and store their rows. Returns the exit status."""
    missing = {str(p): (title, p) for title, p in wanted}
    wrong: list[str] = []

    def store(outcome: Outcome) -> None:
        title, problem = missing.pop(outcome["problem"])
        key = f"operations {run.number}: {title}: {problem}: {outcome.get('sources', '')}"
        ledger.put(key, {"line": title, "outcome": outcome})
        click.echo(report.one_line(outcome))
        wrong.extend([outcome["problem"]] if "wrong" in outcome else [])
        if time.monotonic() > end:
            raise OutOfTime

    threads = run.run["threads"]
    settings = Settings(tuple(peers.split(",")), Terms(), samples, threads, PROBLEM_SECONDS)
    try:
        measured([p for _, p in missing.values()], settings, on_outcome=store)
    except OutOfTime:
        click.echo(f"out of time: {len(missing)} problems are left; continue with --resume")
        return TO_BE_CONTINUED
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
