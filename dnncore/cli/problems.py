"""Problems on the command line. `dnncore.problem` parses their words, not click."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from dnncore.cli.lines import STYLES, counted, line, wrapped
from dnncore.cli.rows import Row
from dnncore.errors import DnnError
from dnncore.problem import (
    DRIVERS,
    Invalid,
    Problem,
    Unreadable,
    Unsupported,
    quantization,
    scan,
)
from dnncore.selection.device_names import DeviceStatus

__all__ = ["SETTINGS", "Reading", "chosen_devices", "engine_option", "print_reading",
           "print_skipped", "problem_words"]  # fmt: skip

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}

WORDS = f"""It begins with an operation: {", ".join(f"--{name}" for name in DRIVERS)}. Options of
    the operation and shapes follow. The error for an unknown option lists the options of the
    operation. --impl=PATTERN and --skip-impl=PATTERN restrict the implementations of the shapes and
    files after them; they may precede the operation. --batch=FILE reads problems from a file.
    --from-verbose=FILE reads them from verbose lines of dnncore or oneDNN. --match=REGEX keeps only
    matching problems. `dnncore docs problem_text` prints the whole language.

    A problem of a file is left out if it needs a feature that dnncore lacks, or if it breaks a rule
    of its operation. This is not a failure. A line that cannot be read is an error, but the other
    lines are read."""


IGNORED = (
    "note: scales, zero points, probabilities and seeds in the problem have no effect; they are"
    " arguments, whose values the checks draw"
)


def problem_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the words that are not options of the command as `words`, and complete the help text."""
    function.__doc__ = (function.__doc__ or "").replace("{WORDS}", WORDS)
    metavar = "PROBLEM..."
    argument = click.argument("words", metavar=metavar, nargs=-1, type=click.UNPROCESSED)
    return argument(function)


def engine_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option for names of engines, the same for all commands."""
    text = (
        "Names of engines, separated by commas, such as opencl:1, gpu or opencl:nvidia. A name"
        f" selects all devices that it means. Default: {default or 'all'}."
    )
    return click.option("--engines", "--engine", "engines", default=default, help=text)


class Reading:
    """Iterates over the problems in words. Calls `skip` with a row for each skipped text.

    count: the number of problems so far.
    skipped: rows with the status "unsupported", "invalid" or "unreadable". An unreadable line has
        one row.
    """

    def __init__(self, words: Sequence[str], skip: Callable[[Row], object]) -> None:
        self.count = 0
        self.skipped: list[Row] = []
        self._words = words
        self._skip = skip
        self._unreadable: set[str] = set()
        given = re.findall(r"--(attr-[a-z-]+)[= ](\S+)", " ".join(words))
        if any(quantization.has_values(*option) for option in given):
            click.echo(IGNORED, err=True)

    def __iter__(self) -> Iterator[Problem]:
        """Raise click's error for wrong words on the command line, or if there is no problem."""
        try:
            for problem in scan(self._words, report=self._report):
                self.count += 1
                yield problem
        except (DnnError, OSError) as error:
            raise click.UsageError(str(error)) from error
        if not self.count and not self.skipped:
            given = f"there is no problem in {shlex.join(self._words)}; " if self._words else ""
            raise click.UsageError(f"{given}name a problem, such as: --conv mb2ic3oc8_ih5kh3ph1")

    @property
    def status(self) -> int:
        """The exit status of the command: 2 after unreadable lines, else 0."""
        return 2 if self._unreadable else 0

    def _report(self, error: Unreadable | Unsupported) -> None:
        if not error.file:
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


def print_skipped(row: Row) -> None:
    """Print a problem that was left out and the reason, or a line that cannot be read."""
    if row["status"] == "unreadable":
        click.echo(f"error: {row['reason']}", err=True)
        return
    line((row["problem"], "bold"))
    if row["status"] == "invalid":
        line("  ", ("left out: invalid", STYLES["refused"]))
        wrapped(row["reason"], 6)
    else:
        line("  ", (f"left out: no {', '.join(row['features'])}", STYLES["refused"]))


def print_reading(reading: Reading) -> None:
    """Print the numbers of problems read and left out, if any was left out, by reason.

    A problem that needs several missing features counts for each.
    """
    if not reading.skipped:
        return
    counts = Counter(row["status"] for row in reading.skipped)
    features = Counter(name for row in reading.skipped for name in row.get("features", ()))
    parts = [f"{counted(reading.count, 'problem')} read"]
    if counts["unsupported"]:
        listed = ", ".join(f"{count} {name}" for name, count in features.most_common())
        parts.append(f"{counts['unsupported']} left out: {listed}")
    if counts["invalid"]:
        parts.append(f"{counts['invalid']} invalid")
    if counts["unreadable"]:
        parts.append(f"{counted(counts['unreadable'], 'line')} unreadable")
    line("; ".join(parts))


def chosen_devices(wanted: str) -> list[DeviceStatus]:
    """Return the devices that have these names, by default all."""
    from dnncore.testing.running.device_choice import choose

    try:
        return choose(wanted)
    except DnnError as error:
        raise click.UsageError(str(error)) from error
