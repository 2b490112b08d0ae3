"""The words of a problem text: over any number of lines, with comments behind #."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

__all__ = ["lines", "split"]

_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')  # blanks between quotes do not end it


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, one that ends with a backslash together with the next; no comments.

    Behind a comma and other marks between values the next line continues the word.
    """
    start, joined = 1, ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = " ".join(split(whole))
        if not joined:
            start = number
        joined += line if joined.endswith((",", "=", ":", "+")) else f" {line}"
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\").rstrip()
        else:
            yield start, joined
            joined = ""
    yield start, joined


def split(line: str) -> list[str]:
    """The words of a line; one that begins with # is a comment, with all behind it."""
    words = _WORD.findall(line)
    return list(itertools.takewhile(lambda word: not word.startswith("#"), words))
