"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["limits", "markdown"]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    ruler = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def limits(rows: Iterable[Sequence[Any]]) -> str:
    """A table of figures: each row has a name, a value, the limit or None, and a unit."""
    cells = []
    for what, value, limit, unit in rows:
        most = "" if limit is None else f"{limit:g} {unit}"
        mark = "" if limit is None else "holds" if value <= limit else "**over**"
        cells.append((what, f"{value:.3g} {unit}", most, mark))
    return markdown(("figure", "measured", "at most", "result"), cells)
