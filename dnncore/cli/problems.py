"""Problems on the command line: words that `dnncore.problem` reads, not click."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import click

from dnncore.errors import DnnError
from dnncore.plugins import DeviceStatus
from dnncore.problem import Problem, read

__all__ = ["chosen_devices", "problem_words", "problems_of"]

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}


def problem_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the words that are not the command's own options over as `words`."""
    return click.argument("words", nargs=-1, required=False, type=click.UNPROCESSED)(function)


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
    """The devices of these engines, by default all."""
    from dnncore.testing.plan import choose, working_devices

    try:
        return choose(working_devices(), wanted)
    except DnnError as error:
        raise click.UsageError(str(error)) from error
