"""Problems on the command line: words that `dnncore.problem` reads, not click."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from dnncore.cli.lines import STYLES, counted, line, wrapped
from dnncore.cli.rows import Row
from dnncore.errors import DnnError
from dnncore.problem import DRIVERS, Invalid, Problem, Unreadable, Unsupported, scan
from dnncore.selection.device_names import DeviceStatus

__all__ = ["SETTINGS", "Reading", "chosen_devices", "engine_option", "problem_words",
           "tell_reading", "tell_skipped"]  # fmt: skip

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}

WORDS = f"""Drivers: {", ".join(f"--{name}" for name in DRIVERS)}; a wrong option is answered with
    those that there are. --impl=PATTERN and --skip-impl=PATTERN choose implementations;
    --batch=FILE reads words, --from-verbose=FILE dnncore's or oneDNN's verbose lines, and
    --match=REGEX keeps some. A problem of a file that needs a feature that dnncore does not have is
    left out by the feature's name, one that breaks a rule of its operation as invalid; neither is a
    failure. A line of a file that cannot be read is an error; all others are read."""


def problem_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the words that are not the command's own options over as `words`; tell of them."""
    function.__doc__ = (function.__doc__ or "").replace("{WORDS}", WORDS)
    metavar = "PROBLEM..."
    argument = click.argument("words", metavar=metavar, nargs=-1, type=click.UNPROCESSED)
    return argument(function)


def engine_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that names engines, which both commands spell alike."""
    text = (
        "Names of engines with commas between them, as in opencl:1, gpu or opencl:nvidia; each"
        f" means all of its devices; default: {default or 'all'}."
    )
    return click.option("--engines", "--engine", "engines", default=default, help=text)


class Reading:
    """The problems of words, read one after the other; what is none goes to `skip` as a row.

    count: problems so far. skipped: rows of those left out and of lines that cannot be read, with
    the status "unsupported", "invalid" or "unreadable", each line once.
    """

    def __init__(self, words: Sequence[str], skip: Callable[[Row], object]) -> None:
        self.count = 0
        self.skipped: list[Row] = []
        self._words = words
        self._skip = skip
        self._unreadable: set[str] = set()

    def __iter__(self) -> Iterator[Problem]:
        """Raise click's error for wrong words that no file holds, and where there are none."""
        try:
            for problem in scan(self._words, report=self._report):
                self.count += 1
                yield problem
        except (DnnError, OSError) as error:
            raise click.UsageError(str(error)) from error
        if not self.count and not self.skipped:
            raise click.UsageError("name a problem, as in: --conv mb2ic3oc8_ih5kh3ph1")

    @property
    def status(self) -> int:
        """What the command should exit with: 2 after lines that cannot be read."""
        return 2 if self._unreadable else 0

    def _report(self, error: Unreadable | Unsupported) -> None:
        if not error.file and isinstance(error, Unreadable):
            raise click.UsageError(str(error)) from error
        row: Row = {"status": "unreadable", "reason": str(error)}
        if isinstance(error, Unsupported):
            row = {"problem": error.text, "status": "unsupported", "features": [*error.features]}
        elif isinstance(error, Invalid):
            row = {"problem": error.text, "status": "invalid", "reason": str(error)}
        elif error.line in self._unreadable:
            return
        else:
            self._unreadable.add(error.line)
        self.skipped.append(row)
        self._skip(row)


def tell_skipped(row: Row) -> None:
    """Print what was left out and why, or which line cannot be read."""
    if row["status"] == "unreadable":
        click.echo(f"error: {row['reason']}", err=True)
        return
    line((row["problem"], "bold"))
    if row["status"] == "invalid":
        line("  ", ("left out: invalid", STYLES["refused"]))
        wrapped(row["reason"], 6)
    else:
        line("  ", (f"left out: no {', '.join(row['features'])}", STYLES["refused"]))


def tell_reading(reading: Reading) -> None:
    """Print the number of problems read and, if there are any, of those left out and why.

    A problem that lacks several features counts for each.
    """
    if not reading.skipped:
        return
    counts = Counter(row["status"] for row in reading.skipped)
    features = Counter(name for row in reading.skipped for name in row.get("features", ()))
    told = [f"{counted(reading.count, 'problem')} read"]
    if counts["unsupported"]:
        listed = ", ".join(f"{count} {name}" for name, count in features.most_common())
        told.append(f"{counts['unsupported']} left out: {listed}")
    if counts["invalid"]:
        told.append(f"{counts['invalid']} invalid")
    if counts["unreadable"]:
        told.append(f"{counted(counts['unreadable'], 'line')} unreadable")
    line("; ".join(told))


def chosen_devices(wanted: str) -> list[DeviceStatus]:
    """The devices that these names mean, by default all."""
    from dnncore.testing.running.device_choice import choose

    try:
        return choose(wanted)
    except DnnError as error:
        raise click.UsageError(str(error)) from error
