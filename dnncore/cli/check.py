"""`dnncore check`: which implementations of a problem are right?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dnncore.cli.problems import SETTINGS, chosen_devices, problem_words, problems_of
from dnncore.cli.tables import Row, as_json_option, show
from dnncore.plugins import describe, engine
from dnncore.problem import Problem

if TYPE_CHECKING:
    from dnncore.compare import Comparison
    from dnncore.testing.case import FillName, Trial

__all__ = ["check"]

COLUMNS = ("implementation", "engine", "fill", "output", "status", "error", "worst", "got",
           "expected", "bound", "ulp", "wrong", "reason")  # fmt: skip
NUMBERS = {"error": ".2g", "got": ".9g", "expected": ".9g", "bound": ".2g", "ulp": ".3g"}


@click.command(context_settings=SETTINGS)
@click.option("--engines", default="", help="Engines or kinds of engines; default: all.")
@as_json_option
@problem_words
def check(engines: str, words: tuple[str, ...], *, as_json: bool) -> None:
    """Compare every implementation that accepts a problem with what is right.

    WORDS are a problem text, as in: dnncore check --conv --dir=FWD_B,BWD_D mb2ic3oc8_ih5kh3ph1

    Each is run on whole numbers, where the result must be exact if the implementation claims that,
    and on random ones within the bound of rounding. Exits with 1 where one is wrong.
    """
    problems = problems_of(words)
    names = [row.name for row in chosen_devices(engines)]
    rows: list[Row] = []
    for problem in problems:
        found = [row for name in names for row in _rows(problem, name)]
        rows += found
        if not as_json:
            show([*map(_for_people, found)], COLUMNS, title=str(problem))
            for command in dict.fromkeys(row["command"] for row in found if _is_wrong(row)):
                click.echo(f"again: {command}")
    if as_json:
        show(rows, COLUMNS, as_json=True)
    if any(map(_is_wrong, rows)):
        raise SystemExit(1)


def _is_wrong(row: Row) -> bool:
    return row["status"] in ("wrong", "failed")


def _rows(problem: Problem, engine_name: str) -> Iterator[Row]:
    """One row per implementation, fill and output; one alone where none accepts."""
    from dnncore.testing.case import FILLS, Case

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
        reason = "; ".join(case.refusals) or "there is no implementation"
        yield {**_base(problem, engine_name, ""), "status": "refused", "reason": reason}


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
    given = trial.case.round(fill)
    expected = trial.expected(given)
    if not expected:
        yield {"status": "unchecked", "reason": "it defines what is right, and torch cannot tell"}
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
    row |= {name: getattr(found, name) for name in NUMBERS if name != "error"}
    row |= {"worst": list(found.index), "wrong": found.wrong, "share": found.share}
    return row | {"place": found.place}


def _for_people(row: Row) -> Row:
    """Short numbers, and what is wrong in words."""
    told = {name: format(row[name], text) for name, text in NUMBERS.items() if name in row}
    if row["status"] == "wrong":
        told["wrong"] = f"{row['wrong']} ({row['share']:.1%}), {row['place']}"
    return {**row, "wrong": "", **told}
