"""Records of conditions in OpenCL C, on devices that share the address space of the process.

The condition of each `if` and `while` of a program is recorded, and so are its operands of `&&` and
`||`. A condition is identified by its text before macros and constants are expanded. Conditions of
programs that are never built are unknown.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from conditions.source import Condition

__all__ = ["PLACE", "attach", "has", "outcomes", "with_records"]

ROOT = Path(__file__).parents[1]
PLACE = "backends/opencl/dnncore_opencl/*.cl"  # the path of these conditions
COUNT = 1 << 20  # number of possible indices, so large that two texts rarely share one
NAME = "opencl_c.outcomes"
TEXTS = "opencl_c.texts"
SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
TESTED = re.compile(r"\b(?:if|while)\s*\(")
RECORD = """
static inline int dnncore_decided(const ulong number, const int outcome)
{{
    *(volatile __global uchar *)({address:#x}UL + 2 * number + outcome) = 1;
    return outcome;
}}
"""


def with_records(source: str, address: int) -> tuple[str, list[str]]:
    """The source with a recording call around each condition, and the texts of the conditions."""
    plain = SKIPPED.sub(lambda found: " " * len(found[0]), source)
    edits: list[tuple[int, str]] = []
    texts = []
    for found in TESTED.finditer(plain):
        end = _closed(plain, found.end())
        for begin, stop in _operands(plain, found.end(), end):
            text = _on_one_line(source[begin:stop])
            texts.append(text)
            edits.append((begin, f"dnncore_decided({_number(text)}UL, ("))
            edits.append((stop, ") != 0)"))
    parts, last = [], 0
    for place, text in sorted(edits, key=lambda edit: edit[0]):
        parts += [source[last:place], text]
        last = place
    return RECORD.format(address=address) + "".join([*parts, source[last:]]), texts


def _closed(text: str, start: int) -> int:
    """The index at which the parenthesis before `start` is closed."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError("a parenthesis is not closed")


def _operands(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The begin and end of each operand of `&&` and `||` outside of parentheses."""
    depth, start = 0, begin
    for place in range(begin, end):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(text[place], 0)
        if not depth and text[place : place + 2] in ("&&", "||"):
            yield start, place
            start = place + 2
    yield start, end


def _number(text: str) -> int:
    return zlib.crc32(text.encode()) % COUNT


def attach(module: Any, address: int, folder: Path) -> None:
    """Change the builder in `dnncore_opencl.runtime.build`: add records to programs for CPUs."""
    build: Callable[..., Any] = module.Builder._compile

    def recorded(self: Any, source: str, options: Any, target: str) -> Any:
        if module.device_type(self._native.device) != "cpu":
            return build(self, source, options, target)
        changed, texts = with_records(source, address)
        with (folder / TEXTS).open("a", encoding="utf-8") as file:
            file.write("".join(f"{text}\n" for text in texts))
        return build(self, changed, options, target)

    module.Builder._compile = recorded


def has(text: str) -> bool:
    """Whether a template or a generator has this text, on one line or on several."""
    return any(text in source for source in _sources())


@cache
def _sources() -> list[str]:
    """Return each template and generator on one line."""
    files = (path for path in (ROOT / PLACE).parent.rglob("*.*") if path.suffix in (".cl", ".py"))
    return [_on_one_line(file.read_text(encoding="utf-8")) for file in files]


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split())


def outcomes(folder: Path) -> Iterator[tuple[Condition, tuple[bool, bool]]]:
    """The conditions of all built programs, each with (was false, was true)."""
    if (folder / TEXTS).exists():
        seen = (folder / NAME).read_bytes()
        for text in sorted(set((folder / TEXTS).read_text(encoding="utf-8").splitlines())):
            at = 2 * _number(text)
            yield Condition(PLACE, 0, text), (bool(seen[at]), bool(seen[at + 1]))
