"""`dnncore impls` ranks the implementations of a problem and lists the refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from dnncore.backend import Knob, KnobValue, Refusal
from dnncore.cli.lines import STYLES, line, wrapped
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
from dnncore.errors import NoImplementation
from dnncore.problem import Problem
from dnncore.selection.plugins import engine, registry
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs

__all__ = ["impls"]


@click.command(context_settings=SETTINGS)
@engine_option("cpu")
@click.option(
    "-v",
    "verbose",
    is_flag=True,
    help="Also list notes, knobs, refusals of host fallbacks, and those by filters such as --impl.",
)
@as_json_option
@problem_words
def impls(engines: str, words: tuple[str, ...], *, verbose: bool, as_json: bool) -> None:
    """List the implementations of a problem.

    Those that accept come first, ranked by estimated seconds. Then come those that refuse, with
    their reasons. Backends that are not available come last.

    PROBLEM is a text, such as: dnncore impls --conv mb2ic3oc8_ih5kh3ph1

    {WORDS}

    The exit status is 2 if a line of a file could not be read, else 0.
    """
    names = [row.name for row in chosen_devices(engines)]
    rows: list[Row] = []
    reading = Reading(words, rows.append if as_json else print_skipped)
    for problem in reading:
        for name in names:
            found = list(_rows(problem, name, verbose=verbose))
            rows += found
            if not as_json:
                _print(f"{problem} on {name}", found, verbose=verbose)
    missing = [
        {"backend": status.name, "status": status.status, "reason": status.reason}
        for status in registry.failures.values()
    ]
    if as_json:
        show_json([*rows, *missing])
    else:
        for row in missing:
            wrapped(f"{row['status']}: backend {row['backend']}: {row['reason']}", 0)
        print_reading(reading)
    if reading.status:
        raise SystemExit(reading.status)


def _rows(problem: Problem, engine_name: str, *, verbose: bool) -> Iterator[Row]:
    base = {"problem": str(problem), "engine": engine_name}
    found, refusals = _selected(problem, engine_name)
    for rank, pd in enumerate(found, 1):
        yield {
            **base,
            "rank": rank,
            "implementation": pd.impl_name,
            "status": "accepted",
            "seconds": float(f"{pd.seconds:.3g}"),
            "source": pd.rank_source,
            "scratchpad_bytes": pd.scratchpad_bytes,
            "detail": pd.detail,
            "notes": list(pd.notes),
            "knobs": [_knob_row(knob, pd.knob_values[knob.name]) for knob in pd.knobs],
        }
    own = [r for r in refusals if r.kind != "filter" and not r.impl_name.startswith("host:")]
    for refusal in refusals if verbose or not (found or own) else own:
        yield {
            **base,
            "implementation": refusal.impl_name,
            "status": "refused",
            "kind": refusal.kind,
            "reason": refusal.reason,
        }


def _knob_row(knob: Knob, value: KnobValue) -> Row:
    return {
        "name": knob.name,
        "value": value,
        "default": knob.default,
        "values": list(knob.values),
        "description": knob.description,
    }


def _selected(
    problem: Problem, engine_name: str
) -> tuple[list[PrimitiveDesc], tuple[Refusal, ...]]:
    """Return all primitive descriptors, best first, and the refusals."""
    found = list(primitive_descs(problem.op, engine(engine_name), problem.attr, **problem.wishes))
    if found:
        return found, found[0].refusals
    try:
        PrimitiveDesc(problem.op, engine(engine_name), problem.attr, **problem.wishes)
    except NoImplementation as error:
        return [], error.refusals
    raise AssertionError("an operation without implementations has been accepted")


# -- text output ----------------------------------------------------------------------------------


def _print(title: str, rows: Sequence[Row], *, verbose: bool) -> None:
    """Print the implementations that accept, best first, then those that refuse."""
    line((title, "bold"))
    accepted = [row for row in rows if row["status"] == "accepted"]
    width = max((len(row["implementation"]) for row in accepted), default=0)
    for row in accepted:
        name, time = row["implementation"].ljust(width), _microseconds(row["seconds"])
        line(f"  {row['rank']:>2}  ", (name, STYLES["accepted"]), f"  {time:>11}  {row['source']}")
        for text in _manner(row) if verbose else ():
            wrapped(text, 6)
    if not accepted:
        line("  ", ("no implementation accepts", STYLES["refused"]))
    refused = [row for row in rows if row["status"] == "refused"]
    if refused:
        line("  ", ("refused", STYLES["refused"]))
    for row in refused:
        wrapped(f"{row['implementation']}: {row['kind']}: {row['reason']}", 6)


def _manner(row: Row) -> Iterator[str]:
    """Yield the detail and the notes, then each knob."""
    words = ", ".join(filter(None, (row["detail"], *row["notes"])))
    if words:
        yield f"notes: {words}"
    for knob in row["knobs"]:
        values = ", ".join(map(str, knob["values"]))
        yield f"knob {knob['name']}:{knob['value']}  {knob['description']}; values {values}"


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.3g} us" if value < 1000 else f"{value:.0f} us"
