"""Settings: the named texts between the words of a problem and its operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dnncore.errors import DescriptorError

__all__ = [
    "Dims",
    "Invalid",
    "Misread",
    "Settings",
    "Unreadable",
    "Unsupported",
    "algorithm_text",
    "misread",
    "number_text",
    "read_algorithm",
    "read_choice",
    "read_integer",
    "read_list",
    "read_number",
    "six_digits",
]

Settings: TypeAlias = Mapping[str, str]
"""Name of an option, or "shape" -> its text."""

Dims: TypeAlias = tuple[int, ...]


class Unreadable(DescriptorError):
    """A word is not a driver, option or shape. The message states its place and the expected text.

    file: the file of the word, or None.
    line: the place of the line with the error.
    """

    file: Path | None = None
    line = ""


class Invalid(Unreadable):
    """A problem breaks a rule of its operation: its words do not fit together.

    text: the problem as one line.
    """

    text = ""


class Unsupported(DescriptorError):
    """A problem needs features that dnncore does not have.

    features: names of missing features, such as "scales" or "data type s8". A mapping adds to each
        the rule that needs it, or "".
    text: the problem as one line.
    file: as in `Unreadable`.
    """

    file: Path | None = None

    def __init__(self, features: Iterable[str], text: str = "", place: str = "") -> None:
        self.rules = (
            dict(features) if isinstance(features, Mapping) else dict.fromkeys(features, "")
        )
        self.features = tuple(self.rules)
        self.text = text
        start = f"{place}: " if place else ""
        named = (f"{name} ({rule})" if rule else name for name, rule in self.rules.items())
        super().__init__(f"{start}dnncore does not have: {', '.join(named)}")


class Misread(DescriptorError):
    """The text of a setting cannot be read. `setting` is its name."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting


def misread(settings: Settings, setting: str, expected: str) -> NoReturn:
    """Raise `Misread` with the expected and the actual text."""
    raise Misread(setting, f"expected {expected}; got {settings[setting]!r}")


def read_choice(settings: Settings, setting: str, choices: Mapping[str, Any]) -> Any:
    """Return the value of a word in `choices`."""
    word = settings[setting]
    if word not in choices:
        misread(settings, setting, f"one of {', '.join(choices)}")
    return choices[word]


def read_algorithm(settings: Settings, words: Mapping[str, str], prefix: str) -> str:
    """Return the algorithm named by the setting `alg`.

    words: benchdnn's word -> dnncore's name. Both are valid, with or without the prefix.
    prefix: the prefix in oneDNN's names, such as `eltwise_`.
    """
    word = settings["alg"].lower().removeprefix(prefix)
    known = {name.lower(): name for name in words.values()}
    known |= {short.lower(): name for short, name in words.items()}
    if word not in known:
        misread(settings, "alg", f"one of {', '.join(words)}")
    return known[word]


def algorithm_text(algorithm: str, words: Mapping[str, str]) -> str:
    """Return the word for an algorithm."""
    return next(word for word, name in words.items() if name == algorithm)


def read_list(settings: Settings, setting: str, count: int) -> list[str]:
    """Return `count` parts, separated by colons. A single part is repeated."""
    parts = settings[setting].split(":")
    if len(parts) not in (1, count):
        several = f", or {count} with colons between them" if count > 1 else ""
        misread(settings, setting, f"one value{several}")
    return parts * (count // len(parts))


def read_integer(settings: Settings, setting: str) -> int:
    """Return the setting as an integer."""
    if not re.fullmatch(r"-?[0-9]{1,18}", settings[setting]):
        misread(settings, setting, "a whole number")
    return int(settings[setting])


def read_number(settings: Settings, setting: str, text: str | None = None) -> float:
    """Return the setting, or `text`, a part of it, as a float."""
    try:
        return float(settings[setting] if text is None else text)
    except ValueError:
        misread(settings, setting, "a number")


def number_text(value: float) -> str:
    """Return the shortest text of a number: 2, 0.5, 1e-05. It contains no +."""
    return repr(float(value)).removesuffix(".0").replace("e+", "e")


def six_digits(value: float) -> str:
    """Return a number with six digits, as oneDNN prints it, or with more digits if necessary."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))
