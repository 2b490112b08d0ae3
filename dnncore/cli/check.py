"""`dnncore check` compares all implementations of a problem with the reference."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dnncore.cli.check_lines import BAD, comparison_row, print_rows, print_summary
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
from dnncore.cli.saved_calls import minimize_saved, saved_calls, saved_rows
from dnncore.cli.watch import Watch
from dnncore.errors import describe
from dnncore.problem import Problem
from dnncore.selection.plugins import engine, register

if TYPE_CHECKING:
    from dnncore.comparison.fills import FillName
    from dnncore.testing.checks.case import Trial
    from dnncore.testing.checks.results import OnTrial

__all__ = ["check"]


@click.command(context_settings=SETTINGS)
@engine_option("")
@click.option(
    "--checks", default="", help="Run these checks of the conformance kit, or all. They print less."
)
@click.option(
    "--inputs",
    default="",
    metavar="PATH",
    help="Repeat the call of a file that a cross-check has saved, or all of a folder.",
)
@click.option(
    "--minimize",
    is_flag=True,
    help="Reduce each wrong call of --inputs to the smallest problem that is wrong.",
)
@click.option("--plugin", multiple=True, help="A module to register, for a backend not installed.")
@click.option(
    "--timeout",
    type=click.IntRange(1, 10**6),
    default=600,
    help="End the command if an implementation takes longer for one check. Default: 600 seconds.",
)
@as_json_option
@problem_words
def check(
    engines: str,
    checks: str,
    inputs: str,
    plugin: tuple[str, ...],
    timeout: int,
    words: tuple[str, ...],
    *,
    minimize: bool,
    as_json: bool,
) -> None:
    """Compare implementations with the reference.

    PROBLEM is a text, such as: dnncore check --conv --dir=FWD_B,BWD_D mb2ic3oc8_ih5kh3ph1

    {WORDS}

    Each implementation that accepts the problem runs with integers and with random numbers. With
    integers, the result must be exact if the algorithm is. With random numbers, errors must be
    within the bounds of rounding errors, and all errors together must not show lost precision.

    If an implementation crashes, or takes longer than --timeout, the command ends. Its last line
    names the implementation and the check.

    A failure of the conformance kit ends with a command that has the option --checks. It repeats
    the failed checks with the same values.

    With --inputs, the values are those of a program's call, and PROBLEM may be left out. The
    implementation is that of the call, or those that PROBLEM names. --minimize writes the smallest
    wrong problem beside the file. docs/crosscheck.md explains both.

    The norm-wise error of a row is ||got - expected|| / ||expected||. "0.2 of the bound" is the
    largest error of an element divided by its bound. docs/conformance.md explains the bounds, and
    the keys of --json.

    The exit status is 1 if a result is wrong or a run fails. Otherwise it is 2 if a line of a file
    could not be read. Otherwise it is 1 if nothing was compared, and 0 if something was.
    """
    _register(plugin)
    if inputs:
        _check_saved(inputs, words, engines, timeout, minimize=minimize, as_json=as_json)
        return
    if minimize:
        raise click.UsageError("--minimize needs --inputs=PATH, a call that a cross-check saved")
    names = [row.name for row in chosen_devices(engines)]
    wanted = _check_names(checks)
    rows: list[Row] = []
    reading = Reading(words, rows.append if as_json else print_skipped)
    with Watch(timeout) as watch:
        for problem in reading:
            for name in names:
                watch(f"{problem} on {name}")
                task = _Task(problem, name, plugin, watch)
                found = list(_kit_rows(task, wanted) if wanted else _rows(task))
                rows += found
                if not as_json:
                    print_rows(found)
                    sys.stdout.flush()  # a crash loses buffered text
    if as_json:
        show_json(rows)
    else:
        print_summary(rows)
        print_reading(reading)
    statuses = {row["status"] for row in rows}
    if code := 1 if statuses & BAD else reading.status or int("ok" not in statuses):
        raise SystemExit(code)


def _check_saved(
    inputs: str, words: Sequence[str], engines: str, timeout: int, *, minimize: bool, as_json: bool
) -> None:
    """Check saved calls; end with the status 1 unless all are right."""
    rows: list[Row] = []
    with Watch(timeout) as watch:
        for path, saved in saved_calls(inputs, words, engines):
            found = list(saved_rows(path, saved, watch))
            rows += found
            if not as_json:
                print_rows(found)
            if minimize:
                click.echo(minimize_saved(path, saved, watch), err=as_json)
    if as_json:
        show_json(rows)
    else:
        print_summary(rows)
    if not rows or any(row["status"] != "ok" for row in rows):
        raise SystemExit(1)


def _register(modules: Sequence[str]) -> None:
    if modules:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        try:
            register(import_module(name))
        except ImportError as error:
            raise click.UsageError(f"--plugin={name}: {error}") from error


def _check_names(text: str) -> list[str]:
    """Return the names of the checks; no name means the comparison with the reference."""
    from dnncore.testing.checks.table import CHECKS

    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise click.UsageError(
            f"--checks: expected all or names among {', '.join(CHECKS)}; got {', '.join(unknown)}"
        )
    return names


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """A problem on an engine. `plugins` are the modules that the command has registered."""

    problem: Problem
    engine_name: str
    plugins: Sequence[str]
    watch: Watch

    def base(self, impl_name: str, checks: str = "") -> Row:
        """The first keys of a row, with the command that repeats it."""
        alone = replace(self.problem, impl=impl_name or self.problem.impl)
        options = [*(f"--plugin={name}" for name in self.plugins), f"--engines={self.engine_name}"]
        options += [f"--checks={checks}"] if checks else []
        return {
            "problem": str(self.problem),
            "implementation": impl_name,
            "engine": self.engine_name,
            "command": shlex.join(["dnncore", "check", *options, *str(alone).split()]),
        }

    def begin(self, check: str, impl_name: str) -> None:
        """Announce a check to the watch."""
        who = impl_name or "the problem"
        self.watch(f"{who}, check {check}, of {self.problem} on {self.engine_name}")


def _rows(task: _Task) -> Iterator[Row]:
    """Yield one row per implementation, fill and output, or a single row if none accepts."""
    from dnncore.testing.checks.case import USUAL_FILLS, Case

    case = Case(task.problem, engine(task.engine_name))
    for trial in case.trials:
        base = task.base(trial.pd.impl_name)
        for fill in USUAL_FILLS:
            task.begin(fill, trial.pd.impl_name)
            for found in _outcomes(trial, fill):
                yield {**base, "fill": fill, **found}
        if trial.findings:
            reason = "; ".join(map(str, trial.findings))
            yield {**base, "status": "failed", "reason": reason}
    if not case.trials:
        yield _refused(task, case.refusals)


def _kit_rows(task: _Task, checks: Sequence[str]) -> Iterator[Row]:
    """Yield one row per failed check, and one row per implementation without failed checks."""
    from dnncore.testing.checks.table import run_case

    def announce(trial: OnTrial) -> None:
        task.begin(trial.check, trial.impl_name)

    result = run_case(task.problem, engine(task.engine_name), checks=checks, announce=announce)
    failed = {failure.impl_name for failure in result.failures}
    for failure in result.failures:
        base = task.base(failure.impl_name, checks=failure.check)
        yield {**base, "fill": failure.check, "status": "failed", "reason": failure.message}
    for name in result.impl_names:
        if name not in failed:
            yield {**task.base(name), "status": "ok"}
    if result.status == "unsupported":
        yield _refused(task, result.refusals)


def _refused(task: _Task, refusals: Sequence[str]) -> Row:
    refusals = list(refusals) or [_no_candidate(task.problem)]
    outcome = {"status": "refused", "reason": "; ".join(refusals), "refusals": refusals}
    return {**task.base(""), **outcome}


def _no_candidate(problem: Problem) -> str:
    variables = ("DNNCORE_IMPL", "DNNCORE_SKIP_IMPL")
    filters = {"--impl": problem.impl, "--skip-impl": problem.skip_impl, "--knobs": problem.knobs}
    filters |= {name: os.environ.get(name, "") for name in variables}
    given = " ".join(f"{option}={text}" for option, text in filters.items() if text)
    return f"there is no implementation{f' that matches {given}' if given else ''}"


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
        from dnncore.testing.checks.torch_oracle import lacking_oracle

        reason = f"it defines correct results; {lacking_oracle(trial.case.attr)}"
        yield {"status": "unchecked", "reason": reason}
        return
    try:
        outputs = trial.outputs(fill)
    except Exception as error:
        yield {"status": "failed", "reason": describe(error)}
        return
    claims = trial.claims(exact=given.exact)
    for output, right in expected.items():
        yield {"output": output, **comparison_row(right.check(outputs[output], **claims))}
    if fill == "random":
        yield from _imprecise(trial)


def _imprecise(trial: Trial) -> Iterator[Row]:
    """Yield rows about a false claim, and about lost precision of outputs with few elements."""
    from dnncore.testing.checks.precision import false_claim, lost_precision

    if claim := false_claim(trial):
        yield {"status": "wrong", "reason": claim}
    for output, lost in lost_precision(trial).items():
        yield {"output": output, "status": "wrong", "reason": f"lost precision: {lost}"}
