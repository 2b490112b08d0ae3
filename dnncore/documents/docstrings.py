"""Docstrings as Markdown: paragraphs, lists of `name: text`, indented code, signatures."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

__all__ = ["entry", "first_sentence", "markdown", "must_be_defined", "signature"]

WIDTH = 100
ITEM = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): |(\d+\.\d+)  ")
BUILT_IN = re.compile(r"<(?:built-in )?(?:function|class) '?(\w+)[^>]*>")
LEAST_DASHES = 3  # of a line that underlines a title


def markdown(text: str | None, indent: str = "") -> Iterator[str]:
    """Yield the lines of a docstring in Markdown. indent: of all lines, for text in a list."""
    for number, block in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text or ""))):
        if number:
            yield ""
        yield from (f"{indent}{line}".rstrip() for line in _block(block, WIDTH - len(indent)))


def entry(label: str, text: str | None) -> Iterator[str]:
    """Yield the lines of a list's entry: a label and a docstring."""
    lines = markdown(f"{label}: {inspect.cleandoc(text or '')}", "  ")
    yield f"- {next(lines)[2:]}"
    yield from lines


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring on one line."""
    paragraph = inspect.cleandoc(text or "").partition("\n\n")[0]
    return re.split(r"(?<=[.;])\s", " ".join(paragraph.split()), maxsplit=1)[0].rstrip(".;") + "."


def signature(name: str, function: Any) -> str:
    """Return the call of a function or a class, with the names and defaults of its parameters."""
    given = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in given if p.name not in ("self", "cls")]
    return BUILT_IN.sub(r"\1", f"{name}{inspect.Signature(bare)}").replace("<factory>", "...")


def must_be_defined(member: Any) -> bool:
    """Whether a method is abstract, or raises `NotImplementedError`."""
    function = member.fget if isinstance(member, property) else member
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    return getattr(function, "__isabstractmethod__", False) or (
        code is not None and "NotImplementedError" in code.co_names
    )


def _block(block: str, width: int) -> Iterator[str]:
    lines = block.splitlines()
    if lines[0].startswith("    "):
        yield from lines
    elif len(lines) > 1 and set(lines[1]) == {"-"} and len(lines[1]) >= LEAST_DASHES:
        yield from (f"## {lines[0]}", "", *_wrapped(" ".join(lines[2:]), width))
    elif ITEM.match(lines[0]) or lines[0].startswith("- "):
        for item in _items(lines):
            yield from _wrapped(item, width, "  ")
    else:
        yield from _wrapped(" ".join(lines), width)


def _items(lines: list[str]) -> Iterator[str]:
    """Yield the items of a list, each on one line."""
    item = ""
    for line in lines:
        found = ITEM.match(line)
        if item and (found or line.startswith("- ")):
            yield item
            item = ""
        names = (found[1] or found[2]).split(", ") if found else []
        text = line[found.end() :] if found else line.strip()
        start = f"- {', '.join(f'`{name}`' for name in names)}: " if names else ""
        item = f"{item} {text}" if item else f"{start}{text}"
    yield item


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
