"""Compares dnncore with other libraries, problem by problem.

    python -m benchmarks.compare --set=resnet_50 --dir=FWD_I --mb=4 --json=rows.json
    python -m benchmarks.compare --peer=torch --eltwise --alg=relu --tag=axb 16x64x112x112

Both sides compute the same problem on the same values, with the same number of threads on the same
cores. On the CPU each peer has a process of its own. Each side chooses the formats that the problem
leaves open and packs weights before the measurement. The sides are sampled in turn, with a pause
between samples, because OpenMP's threads stay active for a while after their work. If a side has
several contestants, one pass finds the fastest and another pass measures it. Every result is
compared with float64. A ratio is the peer's time divided by dnncore's time.

Problems are sets, or words as for `dnncore check`. The exit status is 1 if a result was wrong, and
2 if nothing was measured.

    python -m benchmarks.compare --draw=40 --dir=FWD_I,BWD_W --mb=1,32 --match=^--conv

With --draw, the problems are a random sample of the layers of networks in `benchmarks/corpus`. Rows
below the least ratio of the page's goal are measured again in three processes. The output contains
the command that repeats the sample. With --draw, separate several values of --dir, --mb and --dt by
commas.

Columns of the table:

    ours, peer    the names of the implementations
    ms            the median time of one computation
    scratchpad    the bytes of memory for intermediate results; - means none, ? unknown
    ratio         the peer's time divided by dnncore's time
    error         the norm of dnncore's difference from float64, divided by the norm of the result
    peer's error  the same for the peer

After each measurement, a line on stderr reports the number of the measurement, the total number,
the ratio, the times and rates of dnncore and of the peer, the largest error of all contestants,
dnncore's implementation and the problem. After a sample, a summary reports the mean and the least
ratio, the number of rows below the goal's least ratio, the number of such rows that the goal
permits, the geometric means of the errors, and the number of rows where dnncore's error is larger
than the peer's.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

import dnncore as dnn
from benchmarks.contestants.contestant import CPU_PEERS, PEERS, Terms
from benchmarks.documents import report
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.processes import Settings, measured
from benchmarks.measuring.sampling import SAMPLES
from benchmarks.problems.gpu_lines import GPU_SAMPLE
from benchmarks.problems.lines import SAMPLE, Line, problems_of, sample_of
from benchmarks.problems.problem_sets import changed, distinct, read_set
from benchmarks.problems.samples import AGAIN, command, drawn, measured_again, summary
from dnncore.errors import DescriptorError
from dnncore.problem import Problem, read

OPTIONS = ("dir", "dt", "mb", "tag", "stag", "wtag", "dtag", "alg")  # of problems
HELP = __doc__.replace("\n\n    ", "\n\n\b\n    ")  # \b keeps the lines of a block
SETTINGS = ("processes", "samples", "threads", "impl", "reorders")  # of measurements


def chosen_problems(
    sets: tuple[str, ...], words: tuple[str, ...], options: dict[str, str], match: str
) -> list[Problem]:
    """The distinct problems of the sets, then the problems that the words name.

    match: a regular expression; the text of a problem must contain a match.
    """
    found = [problem for name in sets for problem in read_set(name, options)]
    found += [changed(problem, options) for problem in read(words)]
    return distinct(problem for problem in found if re.search(match, str(problem)))


def _peers(_context: Any, _parameter: Any, text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PEERS:
            raise click.BadParameter(f"expected some of {', '.join(PEERS)}; got {name!r}")
    return names


def _engine(_context: Any, _parameter: Any, name: str) -> str:
    try:
        dnn.engine(name)
    except dnn.DnnError as error:
        raise click.BadParameter(str(error)) from None
    return name


def _expression(_context: Any, _parameter: Any, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"expected a regular expression; got {text!r}: {error}") from None
    return text


def _given_settings(context: click.Context) -> list[str]:
    """The settings of the command line, as words."""
    given = [n for n in SETTINGS if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    values = ((name, context.params[name]) for name in given)
    return [
        f"--{n}" if value is True else f"--{n}={shlex.quote(str(value))}" for n, value in values
    ]


def _printer(console: Console, count: int) -> Any:
    """Return a function that prints each outcome and the number of outcomes so far."""
    done = 0

    def print_outcome(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        console.print(f"{done}/{count} {report.one_line(outcome)}", markup=False, soft_wrap=True)

    return print_outcome


def _draw(rows: list[Outcome], folder: Path, threads: int) -> None:
    from benchmarks.documents.plots import draw  # matplotlib need not be installed without --plot
    from benchmarks.roofline import roofline

    for picture in draw(rows, folder, roofline(threads)):
        click.echo(f"drawn: {picture}", err=True)


# Options that click does not know are parts of problem texts: `--conv`, `--alg=relu`, shapes.
@click.command(context_settings={"ignore_unknown_options": True}, help=HELP)
@click.option("--peer", "peers", default=",".join(CPU_PEERS), show_default=True, callback=_peers,
              help=f"Some of {', '.join(PEERS)}, with commas; the fastest counts. others are"
              " dnncore's other implementations, cpu its CPU engine; onednn-3.13 is the library in"
              " PyPI's onednn 2026.1.0.")  # fmt: skip
@click.option("--set", "sets", multiple=True, help="Name of a set; may be repeated.")
@click.option("--draw", type=click.IntRange(1), help="The size of a random sample.")
@click.option("--seed", type=int, help="The seed of the sample; by default a new one.")
@click.option("--dir", "dir", help="Another direction for all problems of the same pass.")
@click.option("--dt", help="Another type of all tensors.")
@click.option("--mb", help="Another batch size.")
@click.option("--tag", help="Another format of activations.")
@click.option("--stag", help="Another format of src.")
@click.option("--wtag", help="Another format of weights.")
@click.option("--dtag", help="Another format of dst.")
@click.option("--alg", help="Another algorithm.")
@click.option("--match", default="", callback=_expression,
              help="Only problems whose text matches this regular expression.")  # fmt: skip
@click.option("--impl", default="", help="Name patterns of dnncore's implementations.")
@click.option("--reorders", is_flag=True,
              help="Also measure each side in its own formats, with reorders.")  # fmt: skip
@click.option("--engine", default="cpu", show_default=True, callback=_engine,
              help="The engine of dnncore.")  # fmt: skip
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1),
              help="Take the median of this many new processes.")  # fmt: skip
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1),
              help="Samples of each time.")  # fmt: skip
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1),
              help="Threads of each side on the CPU.")  # fmt: skip
@click.option("--json", "path", is_flag=False, flag_value="-",
              help="Write the figures to this file; without one, print them alone.")  # fmt: skip
@click.option("--plot", "folder", type=Path, help="Draw speed-ups and a roofline into this folder.")
@click.option("--ledger", type=Path, help="Store figures here; reuse those it has.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def main(
    context: click.Context, peers: tuple[str, ...], sets: tuple[str, ...],
    draw: int | None, seed: int | None, match: str, impl: str, reorders: bool, engine: str,
    processes: int, samples: int, threads: int, path: str | None,
    folder: Path | None, ledger: Path | None, words: tuple[str, ...], **options: str | None,
) -> None:  # fmt: skip
    """Measure and print."""
    given = {name: text for name, text in options.items() if text is not None}
    line: Line | None = None
    try:
        if draw and (sets or words):
            raise DescriptorError("--draw: expected no sets and no words with it")
        if seed is not None and not draw:
            raise DescriptorError("--seed: expected --draw with it, which has a seed")
        if draw:
            base = SAMPLE if engine == "cpu" else GPU_SAMPLE
            line = drawn(base, draw, seed, given, match)
            problems = problems_of(line, full=False)
        else:
            problems = chosen_problems(sets, words, given, match)
    except DescriptorError as error:
        raise click.UsageError(str(error)) from None
    if not problems:
        raise click.UsageError(
            f"--match: the text of no problem matches {match!r}" if sets or words else
            "there is no problem; give --set or words, see --help"
        )  # fmt: skip
    problems = [replace(problem, impl=impl or problem.impl) for problem in problems]
    console, stored = Console(stderr=True), Ledger(ledger)
    terms = Terms(engine, reorders)
    settings = Settings(peers, terms, samples, threads)

    def measure(problems: list[Problem], processes: int, first: int = 0) -> list[Outcome]:
        printer = _printer(console, processes * len(problems))
        return measured(problems, settings, processes, first=first, ledger=stored,
                        on_outcome=printer)  # fmt: skip

    outcomes = measure(problems, processes)
    if line:
        again = functools.partial(measure, processes=AGAIN, first=processes)
        outcomes = measured_again(line, outcomes, again)
    figures = report.figures(outcomes)
    if line:
        skipped = sample_of(line, full=False).skipped
        repeat = " ".join([command(line, engine, peers, full=False), *_given_settings(context)])
        figures["sample"] = {"skipped": skipped, "command": repeat}
        click.echo(f"{summary(line, outcomes, skipped)}\n{repeat}", err=True)
    if path == "-":
        click.echo(report.json_text(figures))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(report.table(figures))
    if path not in (None, "-"):
        Path(path).write_text(report.json_text(figures))
    if folder and figures["rows"]:
        _draw(figures["rows"], folder, threads)
    if not figures["rows"] and not figures["wrong"]:
        click.echo("nothing was measured", err=True)
        sys.exit(2)
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
