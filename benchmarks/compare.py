"""dnncore beside its peers, problem by problem.

    python -m benchmarks.compare --peer=onednn --set=resnet_50 --dir=FWD_I --mb=4 --json=rows.json
    python -m benchmarks.compare --peer=onednn,torch --eltwise --alg=relu --tag=axb 16x64x112x112

Both sides compute the same problem on the same values, in one process and on as many threads; each
chooses the formats that the problem leaves open, and packs weights beforehand. They are sampled in
turn, a pause apart, since OpenMP's threads spin for a while after their work. Where a side has
several contestants, the strongest is found on one pass and reported from another. ratio: the
peer's time over ours, above 1 where ours is quicker.

Problems are sets, or words as `dnncore check` takes them. Exit code 1: a result was wrong.
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
    """The problems of the sets, then those of the words, with these options, each once.

    match: a regular expression to be found in the text.
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


def _tell(console: Console, count: int) -> Any:
    """A function that prints how each problem went, as it arrives."""
    done = 0

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        console.print(f"{done}/{count} {report.one_line(outcome)}", markup=False, soft_wrap=True)

    return tell


def _draw(rows: list[Outcome], folder: Path, threads: int) -> None:
    from benchmarks.documents.plots import draw  # what is not asked for need not be installed
    from benchmarks.roofline import roofline

    for picture in draw(rows, folder, roofline(threads)):
        click.echo(f"drawn: {picture}", err=True)


# What click does not know are words of problems: `--conv`, `--alg=relu`, shapes.
@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.option("--peer", "peers", default="onednn", show_default=True, callback=_peers,
              help=f"Some of {', '.join(PEERS)}, with commas; the strongest counts.")  # fmt: skip
@click.option("--set", "sets", multiple=True, help="A set's name; may be repeated.")
@click.option("--dir", "dir", help="Another direction for all problems of the same pass.")
@click.option("--dt", help="Another type of all tensors.")
@click.option("--mb", help="Another batch.")
@click.option("--tag", help="Another format of activations.")
@click.option("--stag", help="Another format of src.")
@click.option("--wtag", help="Another format of weights.")
@click.option("--dtag", help="Another format of dst.")
@click.option("--alg", help="Another algorithm.")
@click.option("--match", default="", help="Only problems in whose text this expression is found.")
@click.option("--impl", default="", help="Patterns of our implementations to choose from.")
@click.option("--reorders", is_flag=True,
              help="A contestant may choose its formats, between reorders that count.")  # fmt: skip
@click.option("--engine", default="cpu", show_default=True, help="Of dnncore's side.")
@click.option("--exact", is_flag=True, help="Compare results with float64, by torch.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1),
              help="The median over so many fresh processes.")  # fmt: skip
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--json", "path", is_flag=False, flag_value="-",
              help="Write the figures to this file, or alone to stdout.")  # fmt: skip
@click.option("--plot", "folder", type=Path, help="Draw speed-ups and a roofline into this folder.")
@click.option("--ledger", type=Path, help="Keep what is measured here, and go on from there.")
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
    tell = _tell(Console(stderr=True), processes * len(problems))
    terms = Terms(engine, reorders, exact)
    settings = Settings(peers, terms, samples, threads)
    outcomes = measured(problems, settings, processes, ledger=Ledger(ledger), tell=tell)
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
