"""Knobs: parameters of an implementation that change its speed but not its results' meaning.

An implementation declares knobs in its acceptance. A program chooses values with
`PrimitiveDesc(..., knobs={"group": 128})`, a problem's text with `--knobs=group:128+unroll:4`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dnncore.errors import DescriptorError, shown

__all__ = ["Knob", "KnobValue", "checked_knobs", "read_knobs", "write_knobs"]

KnobValue: TypeAlias = int | str
"""An integer, or a word that does not look like an integer."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
NUMBER = re.compile(r"-?[0-9]{1,18}")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
MOST_VALUES = 4096  # so that all values can be listed and searched


@dataclass(frozen=True)
class Knob:
    """A parameter with a finite number of values.

    name: small letters, digits and `_`.
    default: the value that the implementation uses for the problem without a request.
    values: all values, whole numbers or words: a tuple, or a `range` of numbers. A combination of
        values of several knobs may still be refused.
    description: the meaning of the parameter and its unit, in one line.

    Raises `DescriptorError`.
    """

    name: str
    default: KnobValue
    values: Sequence[KnobValue]
    description: str

    def __post_init__(self) -> None:
        if not _is_text(self.name) or not NAME.fullmatch(self.name):
            raise DescriptorError(
                "knob: a name must begin with a small letter and have small letters, digits and"
                f" '_'; got {shown(self.name)}"
            )
        what, values = f"knob {self.name!r}", self.values
        if _is_text(values) or not isinstance(values, Sequence):
            raise DescriptorError(f"{what}: values must be a sequence; got {shown(values)}")
        if not values or _is_long(values):
            raise DescriptorError(f"{what}: it must have 1 to {MOST_VALUES} values")
        if not isinstance(values, range):
            object.__setattr__(self, "values", tuple(_checked(what, value) for value in values))
        if len({type(value) for value in self.values}) > 1 or len(set(self.values)) < len(values):
            raise DescriptorError(
                f"{what}: values must be of one type, and none twice; got {shown(values)}"
            )
        if not self.takes(self.default):
            raise DescriptorError(f"{what}: the default {shown(self.default)} is not in its values")
        if not _is_text(self.description) or not self.description.isprintable():
            raise DescriptorError(
                f"{what}: description must be a line of text; got {shown(self.description)}"
            )

    def takes(self, value: object) -> bool:
        """Whether the value is one of the knob's values. True is not 1."""
        return type(value) in (int, str) and value in self.values


def _is_long(values: Sequence[KnobValue]) -> bool:
    try:
        return len(values) > MOST_VALUES
    except OverflowError:  # a range of more values than fit into memory
        return True


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _checked(what: str, value: object) -> KnobValue:
    """Return a value that can be read back from its text: a number, or a word that looks unlike
    one.
    """
    if type(value) is int and NUMBER.fullmatch(str(value)):
        return value
    if type(value) is str and WORD.fullmatch(value):
        return value
    raise DescriptorError(
        f"{what}: a value must be a whole number of at most 18 digits, or a word that begins with a"
        f" letter; got {shown(value)}"
    )


def checked_knobs(knobs: object) -> tuple[tuple[str, KnobValue], ...]:
    """Return the requested values, sorted by name. Raises `DescriptorError`."""
    if knobs is None:
        return ()
    if not isinstance(knobs, Mapping):
        raise DescriptorError(
            "primitive descriptor: knobs must be a mapping of names to values, such as"
            f' {{"group": 128}}; got {type(knobs).__name__}'
        )
    for name in knobs:
        if not isinstance(name, str):
            raise DescriptorError(
                f"primitive descriptor: the name of a knob must be a string; got {shown(name)}"
            )
    return tuple((name, _checked(f"knob {name!r}", knobs[name])) for name in sorted(knobs))


def read_knobs(text: str) -> dict[str, KnobValue]:
    """Return the values of a text such as `group:128+unroll:4`. Raises `DescriptorError`."""
    values: dict[str, KnobValue] = {}
    for part in text.split("+") if text else ():
        name, _, value = part.partition(":")
        is_number = bool(NUMBER.fullmatch(value))
        if not NAME.fullmatch(name) or not (is_number or WORD.fullmatch(value)) or name in values:
            raise DescriptorError(
                f"knobs: expected NAME:VALUE+NAME:VALUE, each name once; got {text!r} at {part!r}"
            )
        values[name] = int(value) if is_number else value
    return values


def write_knobs(values: Mapping[str, KnobValue]) -> str:
    """Return the text of values, sorted by name: the inverse of `read_knobs`."""
    return "+".join(f"{name}:{values[name]}" for name in sorted(values))
