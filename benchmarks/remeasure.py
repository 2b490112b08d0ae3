"""Measures random rows of the published pages again.

    python -m benchmarks.remeasure --rows=20 --seed=1
    python -m benchmarks.remeasure --rows=0 --match=^--ip      # all rows that match

The rows are published in docs/benchmarks.md and docs/benchmarks_gpu.md. Only rows that were
measured on a device of this machine are drawn. Each row is measured in three new processes, with
the settings of its line. A row is refuted if its published ratio is more than 1.25 times the
highest of the three ratios, or if a result is wrong. The output lists the published ratio, the
three ratios and the problem. The peers of a row must be installed; the extra `peers` contains them.
The exit status is 1 if a row was refuted, and 2 if no row could be measured.

A refuted row is not always forged: ratios differ between processors of the same name, and while
other programs run. Repeat the command on an idle machine. Nothing is stored.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

import dnncore as dnn
from benchmarks.contestants.contestant import Terms
from benchmarks.documents import gpu_document, report
from benchmarks.documents.figures import Figures
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import ChangedRow, Ledger
from benchmarks.measuring.processes import Settings, measured
from benchmarks.problems.lines import Line
from dnncore.engines.measured import is_busy
from dnncore.problem import read

__all__ = ["Row", "published", "verdict"]

HELP = __doc__.replace("\n\n    ", "\n\n\b\n    ")  # \b keeps the lines of a block
LEDGERS = Path(__file__).parent / "ledgers"
PROCESSES = 3
TOLERANCE = 1.25  # largest factor between the ratios of two measurements on one machine


@dataclass(frozen=True)
class Row:
    """A published outcome, and how it was measured."""

    outcome: Outcome
    settings: Settings

    def again(self) -> Outcome:
        """The outcome of a new measurement."""
        return measured(read(self.outcome["problem"]), self.settings, PROCESSES)[0]


def published(ledgers: Path) -> Iterator[Row]:
    """Yield the rows that have a ratio and were measured on this machine's devices.

    Raises `ChangedRow` if a ledger was changed by hand.
    """
    if (ledgers / "cpu.jsonl").exists():
        figures = Figures.load(ledgers / "cpu.jsonl")
        if figures.machine["device"] == circumstances("cpu")["device"]:
            for line in (*figures.samples, *figures.lists):
                outcomes = figures.lines.get(line.title, [])
                yield from _rows(line, outcomes, Terms(reorders=line.reorders), figures.threads)
    if (ledgers / "gpu.jsonl").exists():
        devices = gpu_document.devices(Ledger(ledgers / "gpu.jsonl").values())
        for engine in (row.name for row in dnn.devices() if row.name.startswith("opencl")):
            name = circumstances(engine)["device"]
            for line in devices[name].lines if name in devices else ():
                outcomes = devices[name].of(line)
                yield from _rows(line, outcomes, Terms(engine), os.cpu_count() or 1)


def _rows(line: Line, outcomes: list[Outcome], terms: Terms, threads: int) -> Iterator[Row]:
    settings = Settings(line.peers, terms, threads=threads)
    return (Row(outcome, settings) for outcome in outcomes if "ratio" in outcome)


def verdict(outcome: Outcome, again: Outcome) -> str:
    """State whether a new measurement confirms the published ratio: "holds", "REFUTED", ..."""
    if "left_out" in again:
        return "not measured"
    if "wrong" in again or outcome["ratio"] > TOLERANCE * max(again["ratios"]):
        return "REFUTED"
    return "holds"


def line_of_text(outcome: Outcome, again: Outcome) -> str:
    """A line of text: the verdict, the published ratio, the new ratios and the problem."""
    start = f"{verdict(outcome, again)}  {outcome['ratio']:.2f}"
    if "ratio" not in again:
        return f"{start}  {report.one_line(again)}"
    ratios = " ".join(f"{ratio:.2f}" for ratio in sorted(again["ratios"]))
    return f"{start}  {ratios}  {report.short(outcome['problem'])}"


@click.command(help=HELP)
@click.option("--rows", default=20, show_default=True, type=click.IntRange(0),
              help="How many rows; 0 means all.")  # fmt: skip
@click.option("--seed", type=int, help="The seed of the draw; by default a new one.")
@click.option("--match", default="", help="Only problems whose texts match.")
@click.option("--ledgers", default=LEDGERS, type=Path, help="The folder of the ledgers.")
def main(rows: int, seed: int | None, match: str, ledgers: Path) -> None:
    """Draw, measure and print."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    try:
        known = [row for row in published(ledgers) if re.search(match, row.outcome["problem"])]
    except ChangedRow as error:
        raise click.ClickException(str(error)) from None
    if not known:
        console.print("no page has such a row of the devices of this machine")
        sys.exit(2)
    seed = random.randrange(10**6) if seed is None else seed
    count = min(rows or len(known), len(known))
    console.print(f"{count} of {len(known)} rows; seed {seed}")
    if is_busy():
        console.print("the machine is busy; rows may be refuted wrongly")
    console.print("verdict, published ratio, new ratios, problem")
    found: Counter[str] = Counter()
    for row in random.Random(seed).sample(known, count):
        again = row.again()
        found[verdict(row.outcome, again)] += 1
        console.print(line_of_text(row.outcome, again))
    console.print(
        ", ".join(f"{found[word]} {word}" for word in ("holds", "REFUTED", "not measured"))
    )
    if found["not measured"] == count:
        sys.exit(2)
    sys.exit(1 if found["REFUTED"] else 0)


if __name__ == "__main__":
    main()
