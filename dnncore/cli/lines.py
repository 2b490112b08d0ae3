"""Lines for people: in colour on a terminal, plain when piped, readable at 80 columns."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

__all__ = ["STYLES", "counted", "line", "wrapped"]

STYLES = {
    "ok": "green",
    "accepted": "green",
    "unavailable": "yellow",
    "refused": "yellow",
    "unchecked": "yellow",
    "failed": "bold red",
    "wrong": "bold red",
    "blocked": "dim",
}
"""How the word for a status looks."""


def line(*parts: str | tuple[str, str]) -> None:
    """Print one line of texts, some with their style.

    It is never broken, so that what is copied or searched for stays whole.
    """
    text = Text.assemble(*parts)
    text.rstrip()
    Console().print(text, soft_wrap=True)


def wrapped(text: str, indent: int) -> None:
    """Print a text over as many lines as it needs, those after the first further in."""
    lines = textwrap.wrap(
        text,
        max(Console().width, indent + 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for one in lines:
        line(one)


def counted(count: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
