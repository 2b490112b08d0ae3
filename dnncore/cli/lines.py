"""Lines of text output: in colour on a terminal, plain in a pipe, readable at 80 columns."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

from dnncore.errors import printable

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
"""The style of each status, in the language of rich."""


def line(*parts: str | tuple[str, str]) -> None:
    """Print one line. A part is a text, or a text with its style.

    The line is never wrapped, so its text can be copied and searched for. Characters that control a
    terminal, which names of devices may contain, are escaped.
    """
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    text = Text.assemble(*((printable(words), style) for words, style in pieces))
    text.rstrip()
    Console().print(text, soft_wrap=True)


def wrapped(text: str, indent: int) -> None:
    """Print a text, wrapped. Lines after the first have a larger indent."""
    lines = textwrap.wrap(
        text,
        max(Console().width, indent + 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for wrapped_line in lines:
        line(wrapped_line)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 problem`, `2 problems`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
