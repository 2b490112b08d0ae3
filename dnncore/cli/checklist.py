"""`dnncore checklist` lists what operations, algorithms, post-ops and data types still lack."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import groupby

import click

from dnncore.cli.lines import counted, line, wrapped
from dnncore.cli.problems import chosen_devices, engine_option
from dnncore.cli.rows import Row, as_json_option, show_json
from dnncore.selection.plugins import engine

__all__ = ["checklist"]


@click.command()
@engine_option("")
@as_json_option
@click.argument("words", nargs=-1, metavar="[WORD]...")
def checklist(engines: str, words: tuple[str, ...], *, as_json: bool) -> None:
    """List missing parts of operations and backends.

    The subjects are operations, algorithms, post-ops and data types. A part is a file of the core,
    or an implementation of a backend on an engine. Nothing is compiled. With WORDs, only subjects
    that contain one of them are listed, as in: dnncore checklist Pooling "data type f16". Capital
    letters and _ make no difference: batch_normalization is BatchNormalization.
    """
    from dnncore.testing.checklist import gaps, subjects

    for word in words:
        if not any(_plain(word) in _plain(subject) for subject in subjects()):
            raise click.UsageError(
                f"no operation, algorithm, post-op or data type is called {word!r};"
                f"{_near(word, subjects())} docs/how_to_add.md lists the files of a new one"
            )

    def is_wanted(subject: str) -> bool:
        return not words or any(_plain(word) in _plain(subject) for word in words)

    found = list(gaps([engine(row.name) for row in chosen_devices(engines)], is_wanted))
    if as_json:
        rows: list[Row] = [vars(gap) for gap in found]
        show_json(rows)
        return
    for subject, group in groupby(found, lambda gap: gap.subject):
        line((subject, "bold"))
        for gap in group:
            wrapped(f"{gap.place}: {gap.reason}", 4)
    line(counted(len(found), "gap"))


def _plain(text: str) -> str:
    """Return a name or a word of one in small letters without _."""
    return text.casefold().replace("_", "")


def _near(word: str, subjects: list[str]) -> str:
    """Return a part of a sentence with the names that are spelled like a word."""
    names = {_plain(name): name for name in (subject.rpartition(" ")[2] for subject in subjects)}
    near = get_close_matches(_plain(word), names)
    return f" near names: {', '.join(names[own] for own in near)};" if near else ""
