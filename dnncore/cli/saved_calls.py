"""`dnncore check --inputs`: repeats calls that a cross-check has saved, and minimizes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dnncore.cli.check_lines import comparison_row
from dnncore.cli.problems import Reading, print_skipped
from dnncore.cli.rows import Row
from dnncore.cli.watch import Watch
from dnncore.errors import DnnError, describe

if TYPE_CHECKING:
    from dnncore.crosschecking.saved import SavedCall
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["minimize_saved", "saved_calls", "saved_rows"]


def saved_calls(inputs: str, words: Sequence[str], engines: str) -> list[tuple[Path, SavedCall]]:
    """Return the calls of a file or a folder on these engines, by default on their own engines.

    words: a problem that replaces the one of the file; empty to keep it.
    """
    from dnncore.crosschecking.repeat import with_problem
    from dnncore.crosschecking.saved import load, saved_files

    path = Path(inputs)
    try:
        found = [(file, load(file)) for file in (saved_files(path) if path.is_dir() else [path])]
        if words:
            problems = list(Reading(words, print_skipped))
            found = [
                (file, with_problem(call, problem)) for file, call in found for problem in problems
            ]
    except DnnError as error:
        raise click.UsageError(f"--inputs={inputs}: {error}") from error
    names = [name.strip() for name in engines.split(",") if name.strip()]
    moved = [(file, call.on(name)) for file, call in found for name in names]
    return moved if names else found


def saved_rows(path: Path, saved: SavedCall, watch: Watch) -> Iterator[Row]:
    """One row per implementation and output."""
    base = _base(path, saved)
    watch(f"{saved.implementation} of {saved.problem}, inputs of {path}")
    try:
        for pd in saved.descriptors():
            yield from _rows(saved, pd, {**base, "implementation": pd.impl_name})
    except DnnError as error:
        yield {**base, "status": "refused", "reason": str(error), "refusals": [str(error)]}


def _rows(saved: SavedCall, pd: PrimitiveDesc, base: Row) -> Iterator[Row]:
    from dnncore.crosschecking.repeat import differences

    try:
        found = differences(saved, pd)
    except Exception as error:
        yield {**base, "status": "failed", "reason": describe(error)}
        return
    if not found:
        yield {**base, "status": "ok"}
    for difference in found:
        yield {**base, "output": difference.argument, **comparison_row(difference.comparison)}


def _base(path: Path, saved: SavedCall) -> Row:
    from dnncore.crosschecking.report import command

    return {
        "problem": saved.problem,
        "implementation": saved.implementation,
        "engine": saved.engine,
        "fill": "saved",
        "command": command(path),
    }


def minimize_saved(path: Path, saved: SavedCall, watch: Watch) -> str:
    """Write the simplest wrong call beside the file. Return a line about it."""
    from dnncore.crosschecking.minimizing import is_wrong, minimized

    if not is_wrong(saved):
        return f"not minimized: the result of {saved.problem} is right"
    target = path.with_name(f"{path.stem}-minimized.npz")

    def keep(simpler: SavedCall) -> None:
        watch(f"{simpler.problem}, a simpler problem of {path}")
        simpler.save(target)

    smallest = minimized(saved, progress=keep)
    if smallest is saved:
        return f"not minimized: no simpler problem than {saved.problem} is wrong"
    smallest.save(target)
    alone = replace(smallest, implementation=saved.implementation)
    return f"minimized: {alone.problem}\n  again: {_base(target, alone)['command']}"
