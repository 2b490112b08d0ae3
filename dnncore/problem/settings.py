"""What stands between a problem's words and its operation: named settings, and how to read them."""

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
"""Option name, or "shape", -> its text."""

Dims: TypeAlias = tuple[int, ...]


class Unreadable(DescriptorError):
    """A word that is no driver, option or shape; the message says where and what was expected.

    file: of the word; None of words that no file holds. line: where the line is that is to blame.
    """

    file: Path | None = None
    line = ""


class Invalid(Unreadable):
    """A problem that breaks a rule of its operation: words that do not go together.

    text: the problem as one line.
    """

    text = ""


class Unsupported(DescriptorError):
    """A problem that can be read but asks for what dnncore does not have.

    features: names of what is missing, such as "scales" or "data type s8"; a mapping gives each the
    rule that asks for it, or "". text: the problem as one line. file: as in `Unreadable`.
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
    """A setting's text cannot be read; `setting` is its name."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting


def misread(settings: Settings, setting: str, expected: str) -> NoReturn:
    """Raise `Misread` with what was expected and what is there."""
    raise Misread(setting, f"expected {expected}; got {settings[setting]!r}")


def read_choice(settings: Settings, setting: str, choices: Mapping[str, Any]) -> Any:
    """What a word stands for."""
    word = settings[setting]
    if word not in choices:
        misread(settings, setting, f"one of {', '.join(choices)}")
    return choices[word]


def read_algorithm(settings: Settings, words: Mapping[str, str], prefix: str) -> str:
    """The algorithm that `alg` names: one of `words`, what it stands for, or that with a prefix.

    words: benchdnn's word -> the library's. prefix: of oneDNN's names, as in `eltwise_relu`.
    """
    word = settings["alg"].lower().removeprefix(prefix)
    known = {name.lower(): name for name in words.values()}
    known |= {short.lower(): name for short, name in words.items()}
    if word not in known:
        misread(settings, "alg", f"one of {', '.join(words)}")
    return known[word]


def algorithm_text(algorithm: str, words: Mapping[str, str]) -> str:
    """The word that stands for an algorithm."""
    return next(word for word, name in words.items() if name == algorithm)


def read_list(settings: Settings, setting: str, count: int) -> list[str]:
    """`count` parts between colons; a single one stands for all."""
    parts = settings[setting].split(":")
    if len(parts) not in (1, count):
        several = f", or {count} with colons between them" if count > 1 else ""
        misread(settings, setting, f"one value{several}")
    return parts * (count // len(parts))


def read_integer(settings: Settings, setting: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?[0-9]{1,18}", settings[setting]):
        misread(settings, setting, "a whole number")
    return int(settings[setting])


def read_number(settings: Settings, setting: str, text: str | None = None) -> float:
    """A float: the setting, or `text`, a part of it."""
    try:
        return float(settings[setting] if text is None else text)
    except ValueError:
        misread(settings, setting, "a number")


def number_text(value: float) -> str:
    """The shortest text that reads as the same number: 2, 0.5, 1e-05. No + is in it."""
    return repr(float(value)).removesuffix(".0").replace("e+", "e")


def six_digits(value: float) -> str:
    """A number with six digits, as oneDNN writes it, or as many as it needs."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))
