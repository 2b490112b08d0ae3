"""Compares dnncore with other libraries, problem by problem.

    python -m benchmarks.compare --peer=onednn --set=resnet_50 --dir=FWD_I --mb=4 --json=rows.json
    python -m benchmarks.compare --peer=onednn,torch --eltwise --alg=relu --tag=axb 16x64x112x112

Both sides compute the same problem on the same values, in one process and with the same number of
threads. Each side chooses the formats that the problem leaves open and packs weights before the
measurement. The sides are sampled in turn, with a pause between samples, because OpenMP's threads
stay active for a while after their work. If a side has several contestants, one pass finds the
fastest and another pass measures it. A ratio is the peer's time divided by dnncore's time.

Problems are sets, or words as for `dnncore check`. The exit status is 1 if a result was wrong.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.contestants.contestant import PEERS, Terms
from benchmarks.documents import report
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.processes import Settings, measured
from benchmarks.measuring.sampling import SAMPLES
from benchmarks.problems.problem_sets import changed, distinct, read_set
from dnncore.errors import DescriptorError
from dnncore.problem import Problem, read

OPTIONS = ("dir", "dt", "mb", "tag", "stag", "wtag", "dtag", "alg")


def chosen_problems(
    sets: tuple[str, ...], words: tuple[str, ...], options: dict[str, str], match: str
) -> list[Problem]:
    """The distinct problems of the sets, then those of the words, with these options.

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


def _printer(console: Console, count: int) -> Any:
    """A function that prints each outcome and the number of outcomes so far."""
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


# Options that click does not know are words of problems: `--conv`, `--alg=relu`, shapes.
@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.option("--peer", "peers", default="onednn", show_default=True, callback=_peers,
              help=f"Some of {', '.join(PEERS)}, with commas; the fastest counts.")  # fmt: skip
@click.option("--set", "sets", multiple=True, help="Name of a set; may be repeated.")
@click.option("--dir", "dir", help="Another direction for all problems of the same pass.")
@click.option("--dt", help="Another type of all tensors.")
@click.option("--mb", help="Another batch size.")
@click.option("--tag", help="Another format of activations.")
@click.option("--stag", help="Another format of src.")
@click.option("--wtag", help="Another format of weights.")
@click.option("--dtag", help="Another format of dst.")
@click.option("--alg", help="Another algorithm.")
@click.option("--match", default="", help="Only problems whose text matches this expression.")
@click.option("--impl", default="", help="Name patterns of dnncore's implementations.")
@click.option("--reorders", is_flag=True,
              help="Also measure each side in its own formats, with reorders.")  # fmt: skip
@click.option("--engine", default="cpu", show_default=True, help="The engine of dnncore.")
@click.option("--exact", is_flag=True, help="Compare results with float64 results of torch.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1),
              help="Take the median of this many new processes.")  # fmt: skip
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--json", "path", is_flag=False, flag_value="-",
              help="Write the figures to this file, or to stdout.")  # fmt: skip
@click.option("--plot", "folder", type=Path, help="Draw speed-ups and a roofline into this folder.")
@click.option("--ledger", type=Path, help="Store figures here; reuse those it has.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def main(
    peers: tuple[str, ...], sets: tuple[str, ...], match: str, impl: str, reorders: bool,
    engine: str, exact: bool, processes: int, samples: int, threads: int, path: str | None,
    folder: Path | None, ledger: Path | None, words: tuple[str, ...], **options: str | None,
) -> None:  # fmt: skip
    """Measure and print."""
    given = {name: text for name, text in options.items() if text is not None}
    try:
        problems = chosen_problems(sets, words, given, match)
    except DescriptorError as error:
        raise click.UsageError(str(error)) from None
    if not problems:
        raise click.UsageError("there is no problem; give --set or words, see --help")
    problems = [replace(problem, impl=impl or problem.impl) for problem in problems]
    on_outcome = _printer(Console(stderr=True), processes * len(problems))
    terms = Terms(engine, reorders, exact)
    settings = Settings(peers, terms, samples, threads)
    outcomes = measured(problems, settings, processes, ledger=Ledger(ledger), on_outcome=on_outcome)
    figures = report.figures(outcomes)
    if path == "-":
        click.echo(report.json_text(figures))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(report.table(figures))
    if path not in (None, "-"):
        Path(path).write_text(report.json_text(figures))
    if folder and figures["rows"]:
        _draw(figures["rows"], folder, threads)
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
