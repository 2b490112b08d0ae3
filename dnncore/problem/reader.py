"""Reads problem texts: words that are drivers, options or shapes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.problem import attributes
from dnncore.problem.drivers import DRIVERS
from dnncore.problem.from_verbose import from_verbose
from dnncore.problem.problem import DEFAULTS, Problem
from dnncore.problem.settings import Driver, Misread

__all__ = ["read", "read_files"]


def read(text: str | Iterable[str]) -> list[Problem]:
    """The problems of a text, or of words that a shell has already split.

    Raises `DescriptorError`, which names the word and what was expected there.
    """
    if isinstance(text, str):
        return list(_Reader().text(text, "problem text"))
    try:
        words: list[object] = list(text)
    except Exception:  # whatever a stranger raises when it is iterated over
        words = [None]
    if not all(isinstance(word, str) for word in words):
        raise DescriptorError(f"problem text: expected a string or words; got {text!r}")
    return list(_Reader().words(map(str, words), "problem text"))


def read_files(*paths: str | Path) -> list[Problem]:
    """The problems of files: words over any number of lines, comments behind #."""
    return [problem for path in paths for problem in _Reader().file(Path(path))]


_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')  # blanks between quotes do not end it
_SHAPE = re.compile(r'(?P<shape>.*?)_?(?:n"(?P<name>[^"]*)")?', re.DOTALL)
_NAMED = re.compile(r"[0-9_]n[A-Za-z]")
UNQUOTED = """; a name has quotes, n"NAME", which a shell takes away: put '' around the word"""
WITHOUT_DRIVER = ("batch", "from-verbose", "match")
WHOLE = ("impl", "skip-impl")  # options without alternatives between commas


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, one that ends with a backslash together with the next.

    Behind a comma the next line continues the word.
    """
    start, joined = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not joined:
            start = number
        joined += line.strip() if joined.endswith(",") else f" {line.strip()}"
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\").rstrip()
        else:
            yield start, joined
            joined = ""
    yield start, joined


def _split(line: str) -> list[str]:
    """The words of a line; one that begins with # is a comment, with all behind it."""
    words = _WORD.findall(line)
    return list(itertools.takewhile(lambda word: not word.startswith("#"), words))


@dataclass
class _Reader:
    """The state between words.

    said: option -> where it was set and by which word, for messages.
    files: those being read, each including the next.
    """

    driver: Driver | None = None
    options: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    match: re.Pattern[str] = field(default=re.compile(""))
    files: tuple[Path, ...] = ()

    # -- places --------------------------------------------------------------------------------

    def file(self, path: Path) -> Iterator[Problem]:
        """Carry out a file."""
        text, place = _text(path, "problem texts"), path.resolve()
        if place in self.files:
            raise DescriptorError(f"{path} includes itself")
        outer, self.files = self.files, (*self.files, place)
        yield from self.text(text, str(path))
        self.files = outer

    def text(self, text: str, place: str) -> Iterator[Problem]:
        """Carry out one line after the other."""
        for number, line in _lines(text):
            yield from self.words(_split(line), f"{place}, line {number}")

    def words(self, words: Iterable[str], place: str) -> Iterator[Problem]:
        """Carry out one word after the other."""
        numbered = enumerate(words, 1)
        for number, first in numbered:
            word = f"{first}={next(numbered, (0, ''))[1]}" if self._lacks_value(first) else first
            here = f"{place}, word {number}: {word}"
            try:
                yield from self._word(word, here)
            except Misread as error:
                said = self.said.get(error.setting)
                blamed = f"{said} (read for {here})" if said else here
                hint = UNQUOTED if error.setting == "shape" and _NAMED.search(word) else ""
                raise DescriptorError(f"{blamed}: {error}{hint}") from None
            except DescriptorError as error:
                raise DescriptorError(f"{here}: {error}") from None

    # -- words ---------------------------------------------------------------------------------

    def _lacks_value(self, word: str) -> bool:
        """Whether the word is an option's name alone, so that the next one is its value."""
        name = word.removeprefix("--")
        return word != name and name not in DRIVERS and name in (*self.options, *WITHOUT_DRIVER)

    def _word(self, word: str, here: str) -> Iterator[Problem]:
        name, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            yield from self._problems(word)
        elif name in DRIVERS and not has_value:
            self.driver = DRIVERS[name]
            self._reset()
        elif word == "--reset":
            self._reset()
        elif name == "batch":
            yield from self.file(self._found(value))
        elif name == "from-verbose":
            lines = _text(self._found(value), "verbose lines").splitlines()
            yield from filter(self._is_wanted, from_verbose(lines))
        elif name == "match":
            self.match = _pattern(value)
        else:
            self.said[self._option(name, value)] = here

    def _reset(self) -> None:
        defaults = {**self.driver.defaults, **DEFAULTS} if self.driver else {}
        self.options = {name: [text] for name, text in defaults.items()}
        self.said = {}

    def _found(self, name: str) -> Path:
        """A file beside the one being read or, if there is none, in the working directory."""
        folders = [*(file.parent for file in self.files[-1:]), Path()]
        paths = [folder / name for folder in folders]
        return next(filter(_is_file, paths), Path(name))

    def _is_wanted(self, problem: Problem) -> bool:
        return not self.match.pattern or bool(self.match.search(str(problem)))

    def _option(self, word: str, value: str) -> str:
        """Set an option and return its name, in which - and _ are alike."""
        driver = self._the_driver()
        names = {name.replace("_", "-"): name for name in self.options}
        name = names.get(word.replace("_", "-"), "")
        if not name:
            known = ", ".join(f"--{option}" for option in self.options)
            raise DescriptorError(f"--{driver.name} has no such option; expected one of {known}")
        self.options[name] = [value] if name in WHOLE else value.split(",")
        return name

    def _the_driver(self) -> Driver:
        if self.driver is None:
            known = ", ".join(f"--{name}" for name in DRIVERS)
            raise DescriptorError(f"expected a driver first, one of {known}")
        return self.driver

    def _problems(self, word: str) -> Iterator[Problem]:
        driver = self._the_driver()
        match = _SHAPE.fullmatch(word)
        assert match is not None
        for texts in itertools.product(*self.options.values()):
            settings = {**dict(zip(self.options, texts, strict=True)), "shape": match["shape"]}
            op = driver.read(settings)
            attr = attributes.read(settings, op.result.dims)
            name = match["name"] or ""
            problem = Problem(op, attr, settings["impl"], settings["skip-impl"], name)
            if self._is_wanted(problem):
                yield problem


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise DescriptorError(f"expected a regular expression; {error}") from None


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DescriptorError(f"expected a file of {what}; got {error}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or none that a system could have
        return False
