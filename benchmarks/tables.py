"""Tables of the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["markdown"]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    ruler = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))
