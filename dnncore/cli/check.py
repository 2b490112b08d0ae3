"""`dnncore check` compares all implementations of a problem with the reference."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dnncore.cli.check_lines import BAD, print_rows, print_summary
from dnncore.cli.problems import (
    SETTINGS,
    Reading,
    chosen_devices,
    engine_option,
    print_reading,
    print_skipped,
    problem_words,
)
from dnncore.cli.rows import Row, as_json_option, show_json
from dnncore.errors import describe
from dnncore.problem import Problem
from dnncore.selection.plugins import engine

if TYPE_CHECKING:
    from dnncore.comparison.compare import Comparison
    from dnncore.testing.checks.case import FillName, Trial

__all__ = ["check"]

NUMBERS = ("got", "expected", "bound", "ulp", "wrong", "share", "place")


@click.command(context_settings=SETTINGS)
@engine_option("")
@as_json_option
@problem_words
def check(engines: str, words: tuple[str, ...], *, as_json: bool) -> None:
    """Compare implementations with the reference.

    PROBLEM is a text, such as: dnncore check --conv --dir=FWD_B,BWD_D mb2ic3oc8_ih5kh3ph1

    {WORDS}

    Each implementation that accepts the problem runs with integers and with random numbers. With
    integers, the result must be exact if the implementation claims exactness. With random numbers,
    the error must be within the bound of rounding errors.

    The exit status is 1 if a result is wrong or a run fails. Otherwise it is 2 if a line of a file
    could not be read. Otherwise it is 1 if nothing was compared, and 0 if something was.
    """
    names = [row.name for row in chosen_devices(engines)]
    rows: list[Row] = []
    reading = Reading(words, rows.append if as_json else print_skipped)
    for problem in reading:
        for name in names:
            found = list(_rows(problem, name))
            rows += found
            if not as_json:
                print_rows(found)
    if as_json:
        show_json(rows)
    else:
        print_summary(rows)
        print_reading(reading)
    statuses = {row["status"] for row in rows}
    if code := 1 if statuses & BAD else reading.status or int("ok" not in statuses):
        raise SystemExit(code)


# -- rows ------------------------------------------------------------------------------------------


def _rows(problem: Problem, engine_name: str) -> Iterator[Row]:
    """One row per implementation, fill and output. A single row if no implementation accepts."""
    from dnncore.testing.checks.case import FILLS, Case

    case = Case(problem, engine(engine_name))
    for trial in case.trials:
        base = _base(problem, engine_name, trial.pd.impl_name)
        for fill in FILLS:
            for found in _outcomes(trial, fill):
                yield {**base, "fill": fill, **found}
        if trial.findings:
            reason = "; ".join(map(str, trial.findings))
            yield {**base, "status": "failed", "reason": reason}
    if not case.trials:
        refusals = list(case.refusals) or [_no_candidate(problem)]
        outcome = {"status": "refused", "reason": "; ".join(refusals), "refusals": refusals}
        yield {**_base(problem, engine_name, ""), **outcome}


def _no_candidate(problem: Problem) -> str:
    variables = ("DNNCORE_IMPL", "DNNCORE_SKIP_IMPL")
    filters = {"--impl": problem.impl, "--skip-impl": problem.skip_impl}
    filters |= {name: os.environ.get(name, "") for name in variables}
    given = " ".join(f"{option}={text}" for option, text in filters.items() if text)
    return f"there is no implementation{f' that matches {given}' if given else ''}"


def _base(problem: Problem, engine_name: str, impl_name: str) -> Row:
    alone = replace(problem, impl=impl_name or problem.impl)
    command = shlex.join(["dnncore", "check", f"--engines={engine_name}", *str(alone).split()])
    return {
        "problem": str(problem),
        "implementation": impl_name,
        "engine": engine_name,
        "command": command,
    }


def _outcomes(trial: Trial, fill: FillName) -> Iterator[Row]:
    if trial.case.problem.inplace and trial.in_place is None:
        yield {"status": "unchecked", "reason": "in place: the formats of input and output differ"}
        return
    try:
        given = trial.case.round(fill)
        expected = trial.expected(given)
    except Exception as error:
        reason = f"the expected result could not be computed: {describe(error)}"
        yield {"status": "failed", "reason": reason}
        return
    if not expected:
        reason = "it defines correct results; it is checked where torch is installed"
        yield {"status": "unchecked", "reason": reason}
        return
    try:
        outputs = trial.outputs(fill)
    except Exception as error:
        yield {"status": "failed", "reason": describe(error)}
        return
    claims: dict[str, Any] = {
        "exact": given.exact and trial.pd.exact,
        "error_factor": trial.pd.error_factor,
    }
    for output, right in expected.items():
        yield {"output": output, **_numbers(right.check(outputs[output], **claims))}


def _numbers(found: Comparison) -> Row:
    row: Row = {"status": "ok" if found.ok else "wrong", "error": found.error}
    if found.index is None:
        return row
    return row | {"worst": list(found.index)} | {name: getattr(found, name) for name in NUMBERS}
