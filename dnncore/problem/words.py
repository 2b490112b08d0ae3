"""Splits a problem text into lines and words. A comment begins with #."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

__all__ = ["lines", "split"]

_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')  # quoted blanks belong to a word


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments. A backslash at the end joins a line with the next.

    After a comma, =, : or +, the next line continues the word.
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
    """Return the words of a line, up to a word that begins with #."""
    words = _WORD.findall(line)
    return list(itertools.takewhile(lambda word: not word.startswith("#"), words))
