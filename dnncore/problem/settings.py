"""What stands between a problem's words and its operation: named settings, and how to read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from dnncore.errors import DescriptorError
from dnncore.memory_desc import MemoryDesc
from dnncore.ops import Operation

__all__ = [
    "Driver",
    "Misread",
    "Settings",
    "format_text",
    "misread",
    "number_text",
    "read_choice",
    "read_desc",
    "read_dims",
    "read_letters",
    "read_number",
]

Settings: TypeAlias = Mapping[str, str]
"""Option name, or "shape", -> its text. All that a driver knows are present."""


@dataclass(frozen=True)
class Driver:
    """How the operations of one kind are written.

    name: of the option that names it.
    operations: all that it writes.
    defaults: its options, with what they are where the text is silent.
    read: makes the operation; raises `Misread`, or `DescriptorError` where the shapes are at odds.
    write: the inverse, with every option and the shape.
    """

    name: str
    operations: tuple[type[Operation], ...]
    defaults: Settings
    read: Callable[[Settings], Operation]
    write: Callable[[Any], Settings]


class Misread(DescriptorError):
    """A setting's text cannot be read; `setting` is its name."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting


def misread(settings: Settings, setting: str, expected: str) -> NoReturn:
    """Raise `Misread` with what was expected and what is there."""
    raise Misread(setting, f"expected {expected}; got {settings[setting]!r}")


# -- words ----------------------------------------------------------------------------------------


def read_choice(settings: Settings, setting: str, choices: Mapping[str, Any]) -> Any:
    """What a word stands for."""
    word = settings[setting]
    if word not in choices:
        misread(settings, setting, f"one of {', '.join(choices)}")
    return choices[word]


def read_number(settings: Settings, setting: str) -> float:
    """A float."""
    try:
        return float(settings[setting])
    except ValueError:
        misread(settings, setting, "a number")


def number_text(value: float) -> str:
    """The shortest text that reads as the same number: 2, 0.5, 1e-05."""
    return repr(float(value)).removesuffix(".0")


# -- shapes ---------------------------------------------------------------------------------------

_LETTERS = re.compile(r"([a-z]+)(-?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)_?")


def read_letters(settings: Settings, known: str) -> dict[str, float]:
    """A shape such as `mb2ic3_ih5`: letters -> number. `known`: the letters, between spaces."""
    text, found = settings["shape"], {}
    place = 0
    while place < len(text):
        match = _LETTERS.match(text, place)
        if match is None or match[1] not in known.split():
            raise Misread(
                "shape",
                f"at {text[place:]!r}: expected one of {known}, followed by a number",
            )
        if match[1] in found:
            raise Misread("shape", f"at {text[place:]!r}: {match[1]} is given twice")
        number = float(match[2])
        found[match[1]] = int(number) if number.is_integer() and "." not in match[2] else number
        place = match.end()
    return found


def read_dims(settings: Settings, count: int | None = None) -> list[tuple[int, ...]]:
    """A shape such as `2x3:2x1`: the dims of each tensor; `count` of them, if given."""
    parts = settings["shape"].split(":")
    if count is not None and len(parts) != count:
        misread(settings, "shape", f"{count} tensor(s), as in {':'.join(['2x3'] * count)}")
    if not all(re.fullmatch(r"[0-9]+(x[0-9]+)*", part) for part in parts):
        misread(settings, "shape", "dims such as 2x3, with : between tensors")
    return [tuple(map(int, part.split("x"))) for part in parts]


# -- formats --------------------------------------------------------------------------------------


def format_text(desc: MemoryDesc) -> str:
    """TAG[@STRIDES[@OFFSET]]: `acdb`, `any`; `ab@8x1` with gaps; `ab@8x1@3` starts at element 3."""
    if not desc.offset0 and desc.tag is not None:
        return desc.tag
    strides = "x".join(map(str, desc.strides))
    return f"{desc.order_tag}@{strides}" + (f"@{desc.offset0}" if desc.offset0 else "")


def read_desc(
    settings: Settings, setting: str, dims: tuple[int, ...], data_type: str, text: str | None = None
) -> MemoryDesc:
    """A tensor in the format that `setting`, or a part of it, `text`, says."""
    text = settings[setting] if text is None else text
    tag, *rest = text.split("@")
    if len(rest) > 2 or not all(re.fullmatch(r"[0-9]+(x[0-9]+)*", part) for part in rest):
        misread(settings, setting, "a format, TAG[@STRIDES[@OFFSET]], as in ab@8x1@3")
    strides = tuple(map(int, rest[0].split("x"))) if rest else None
    offset0 = int(rest[1]) if len(rest) > 1 else 0
    try:
        return MemoryDesc(dims, data_type, tag, strides=strides, offset0=offset0)
    except DescriptorError as error:
        raise Misread(setting, str(error)) from None
