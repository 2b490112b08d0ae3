"""Problems on the command line: words that `dnncore.problem` reads, not click."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import click

from dnncore.device_names import DeviceStatus
from dnncore.errors import DnnError
from dnncore.problem import DRIVERS, Problem, read

__all__ = ["SETTINGS", "chosen_devices", "engine_option", "problem_words", "problems_of"]

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}

WORDS = f"""Drivers: {", ".join(f"--{name}" for name in DRIVERS)}; a wrong option is answered with
    those that there are. --impl=PATTERN and --skip-impl=PATTERN choose implementations;
    --batch=FILE reads words, --from-verbose=FILE dnncore's or oneDNN's verbose lines, and
    --match=REGEX keeps some."""


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


def problems_of(words: Sequence[str]) -> list[Problem]:
    """The problems of these words; what is wrong with them becomes click's error.

    What was left out of verbose lines is told on stderr.
    """
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as left_out:
        try:
            problems = read(words)
        except (DnnError, OSError) as error:
            raise click.UsageError(str(error)) from error
    for warning in left_out:
        click.echo(f"warning: {warning.message}", err=True)
    if not problems:
        raise click.UsageError("name a problem, as in: --conv mb2ic3oc8_ih5kh3ph1")
    return problems


def chosen_devices(wanted: str) -> list[DeviceStatus]:
    """The devices that these names mean, by default all."""
    from dnncore.testing.device_choice import choose

    try:
        return choose(wanted)
    except DnnError as error:
        raise click.UsageError(str(error)) from error
