"""Measures all figures of docs/benchmarks_gpu.md on an OpenCL device and writes the page.

    python -m benchmarks.gpu --shard=1/3 --resume    # a third of the problems, no other benchmarks
    python -m benchmarks.gpu --resume --seconds=500  # stop after 500 seconds
    python -m benchmarks.gpu --draw=40 --seed=7      # a random sample; nothing is stored

Lines and figures are appended to a ledger. The key of a row consists of the problem, the text of
the kernels, the device, its driver, the versions of packages and the settings of the measurement.
With --resume, only problems with a changed key are measured. The page contains the newest figures
of each problem. dnncore need not be installed if PYTHONPATH contains its source. If the device runs
on the cores of a CPU, as PoCL does, other lines are measured, and the peer is the CPU engine.
--lines=. selects all lines. The samples of the page have new seeds unless the run resumes another
run. Rows of the samples below the least ratio are measured again in three processes.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.contestants.contestant import Terms
from benchmarks.documents import gpu_document, report
from benchmarks.documents.sampled import source
from benchmarks.measuring.checkout import runs_on_cores
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import ChangedRow, Ledger
from benchmarks.measuring.processes import TO_BE_CONTINUED, OutOfTime, Settings, measured
from benchmarks.measuring.sampling import SAMPLES
from benchmarks.problems.gpu_lines import GPU_LINES, GPU_SAMPLE, PORTABLE_LINES
from benchmarks.problems.lines import Line, problems_of, record_of, sample_of
from benchmarks.problems.samples import (
    AGAIN,
    Record,
    command,
    drawn,
    fresh,
    measured_again,
    recorded,
    summary,
)
from dnncore.errors import DescriptorError
from dnncore.problem import Problem
from dnncore.testing.running.shard import Shard

ROOT = Path(__file__).parents[1]
PROBLEM_SECONDS = 60.0  # time limit of a problem's process
PROGRAMS = ("gpu_smoke", "gpu_costs", "gpu_step")


class Run:
    """One run: its engine, its ledger, its settings and its time limit."""

    def __init__(
        self, engine: str, ledger: Ledger, *, peers: tuple[str, ...], samples: int, seconds: float
    ) -> None:
        self.engine, self.ledger, self.peers, self.samples = engine, ledger, peers, samples
        self.end = time.monotonic() + seconds
        self.terms = Terms(engine)
        self.wrong: list[str] = []  # descriptions of wrong outcomes

    def program(self, name: str) -> None:
        """Run another benchmark. Stores its figures as an outcome with its name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            words = [f"benchmarks.{name}", f"--engine={self.engine}", f"--json={path}"]
            ended = subprocess.run([sys.executable, "-m", *words], check=False)
            figures = json.loads(path.read_text()) if path.exists() else None
        found = {"problem": name, "figures": figures, **circumstances(self.engine)}
        if ended.returncode:
            found["wrong"] = f"ended with {ended.returncode}"
            self.wrong.append(f"{name} {found['wrong']}")
        self.ledger.put(Ledger.key(name, {"device": found["device"]}), found)
        self._check_time()

    def problems(self, found: list[tuple[Line, Problem]]) -> None:
        """Measure problems. All problems with the same peers run in one process."""
        groups: dict[tuple[str, ...], list[Problem]] = {}
        for line, problem in found:
            groups.setdefault(self.peers or line.peers, []).append(problem)
        for peers, problems in groups.items():
            self._measured(problems, peers)

    def sample(self, line: Line, *, full: bool) -> list[Outcome]:
        """The outcomes of a sample in the ledger. Rows with a low ratio are measured again."""
        texts = set(map(str, problems_of(line, full=full)))
        device = circumstances(self.engine)["device"]
        here = [v for v in self.ledger.values() if v.get("device") == device]
        outcomes = list({v["problem"]: v for v in here if v["problem"] in texts}.values())
        peers = self.peers or line.peers
        again = functools.partial(self._measured, peers=peers, processes=AGAIN, first=1)
        found = measured_again(line, outcomes, again)
        for old, new in zip(outcomes, found, strict=True):
            if new is not old:
                self.ledger.replace(old, new)
        return found

    def record_lines(self, *, full: bool) -> None:
        """Add the lines of the source to the ledger unless it contains equal ones."""
        where = circumstances(self.engine)
        lines = gpu_document.lines_for(cores=where["cores"])
        records = json.loads(json.dumps([record_of(line, full=full) for line in lines]))
        key = Ledger.key("lines", {"device": where["device"]}, "")
        if (self.ledger.get(key) or {}).get("lines") != records:
            self.ledger.put(key, {"problem": "lines", "lines": records, **where})

    def new_samples(self, *, full: bool) -> list[Record]:
        """The samples of the page: the resumed run's samples, or new ones."""
        where = circumstances(self.engine)
        key = Ledger.key("samples", {"device": where["device"]}, "")
        if self.ledger.get(key) is None:
            records = fresh(GPU_SAMPLE, full=full)
            self.ledger.put(key, {"problem": "samples", "records": records, **where})
        return list(self.ledger.get(key)["records"])

    def _measured(
        self, problems: list[Problem], peers: tuple[str, ...], processes: int = 1, first: int = 0
    ) -> list[Outcome]:
        settings = Settings(
            peers, self.terms, self.samples, threads=os.cpu_count() or 1, seconds=PROBLEM_SECONDS
        )
        return measured(problems, settings, processes, first=first, ledger=self.ledger,
                        on_outcome=self._print)  # fmt: skip

    def _print(self, outcome: Outcome) -> None:
        click.echo(report.one_line(outcome))
        if "wrong" in outcome:
            self.wrong.append(report.one_line(outcome))
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self.end:
            raise OutOfTime


def chosen_lines(engine: str, expression: str) -> list[Line]:
    """The lines whose titles match the expression, or without one the lines for the device."""
    if expression:
        every = GPU_LINES + PORTABLE_LINES
        return [line for line in every if re.search(expression, line.title)]
    return list(PORTABLE_LINES if runs_on_cores(engine) else GPU_LINES)


def in_rounds(lines: list[Line], *, full: bool, match: str) -> list[tuple[Line, Problem]]:
    """The first problem of each line, then the second of each, and so on.

    So each line has some figures if a run stops early.
    """
    every = [
        [(line, p) for p in problems_of(line, full=full) if re.search(match, str(p))]
        for line in lines
    ]
    return [pair for found in itertools.zip_longest(*every) for pair in found if pair]


def _shard(_context: object, _parameter: object, text: str) -> Shard:
    try:
        return Shard.read(text)
    except DescriptorError as error:
        raise click.BadParameter(str(error)) from error


def _measure_sample(run: Run, line: Line) -> int:
    """Measure and print one sample. Returns the exit status."""
    run.problems([(line, problem) for problem in problems_of(line, full=False)])
    outcomes = run.sample(line, full=False)
    click.echo(summary(line, outcomes, sample_of(line, full=False).skipped))
    click.echo(command(line, run.engine, run.peers or line.peers, full=False))
    return 1 if run.wrong else 0


@click.command(help=__doc__)
@click.option("--engine", default="opencl:0", show_default=True)
@click.option("--shard", default="1/1", callback=_shard, show_default=True,
              help="The part of the problems: i/n.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Measure only what the ledger lacks.")
@click.option("--draw", type=click.IntRange(1), help="Only a random sample of this size.")
@click.option("--seed", type=int, help="The seed of the sample; by default a new one.")
@click.option("--quick", is_flag=True, help="One batch size, not all.")
@click.option("--lines", "expression", default="", help="Only lines whose titles match.")
@click.option("--match", default="", help="Only problems whose texts match.")
@click.option("--peer", "peers", default="", help="Replace the peers; commas separate names.")
@click.option("--programs", default=",".join(PROGRAMS), show_default=True,
              help="Other benchmarks, run first.")  # fmt: skip
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=float("inf"), help="Stop after this time; can be continued.")
@click.option("--ledger", "path", default=ROOT / "benchmarks" / "ledgers" / "gpu.jsonl", type=Path)
@click.option("--document", default=ROOT / "docs" / gpu_document.NAME, type=Path)
def main(
    engine: str, shard: Shard, resume: bool, draw: int | None, seed: int | None, quick: bool,
    expression: str, match: str, peers: str,
    programs: str, samples: int, seconds: float, path: Path, document: Path,
) -> None:  # fmt: skip
    """Measure and write."""
    try:
        ledger = Ledger(None if draw else path, known=resume)
    except ChangedRow as error:
        raise click.ClickException(str(error)) from None
    ledger.keep_newest("device", "problem")  # so rows of former kernels are measured again
    named = tuple(filter(None, peers.split(",")))
    run = Run(engine, ledger, peers=named, samples=samples, seconds=seconds)
    if draw:
        sys.exit(_measure_sample(run, drawn(GPU_SAMPLE, draw, seed, {}, match)))
    lines = chosen_lines(engine, expression)
    run.record_lines(full=True)
    if not expression and not runs_on_cores(engine):
        lines = [*recorded(GPU_SAMPLE, run.new_samples(full=not quick)), *lines]
    found = in_rounds(lines, full=not quick, match=match)
    code = 0
    try:
        for name in filter(None, programs.split(",")) if shard.index == 1 else ():
            run.program(name)
        run.problems(shard.of(found, lambda pair: str(pair[1])))
        for line in lines:
            if line.draw:
                run.sample(line, full=not quick)
    except OutOfTime:
        click.echo("out of time; the same command with --resume continues the run")
        code = TO_BE_CONTINUED
    known = Ledger(path)
    devices = gpu_document.devices(known.values())
    name = circumstances(engine)["device"]
    here = gpu_document.Figures(lines, devices[name].found if name in devices else {})
    click.echo(here.summary())
    click.echo(f"written: {gpu_document.write(list(devices.values()), document, source(known))}")
    for text in run.wrong:
        click.echo(text)
    sys.exit(1 if run.wrong or here.wrong else code)


if __name__ == "__main__":
    main()
