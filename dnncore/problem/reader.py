"""Reads problem texts: words that are drivers, options or shapes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.problem import attributes
from dnncore.problem.drivers import DRIVERS
from dnncore.problem.problem import Problem
from dnncore.problem.settings import Driver, Misread

__all__ = ["read", "read_files"]


def read(text: str | Iterable[str]) -> list[Problem]:
    """The problems of a text, or of words that a shell has already split.

    Raises `DescriptorError`, which names the word and what was expected there.
    """
    words = shlex.split(text, comments=True, posix=False) if isinstance(text, str) else list(text)
    return list(_Reader("problem text").read(words))


def read_files(*paths: str | Path) -> list[Problem]:
    """The problems of files: words over any number of lines, comments behind #."""
    return [problem for path in paths for problem in _read_file(Path(path))]


def _read_file(path: Path) -> Iterator[Problem]:
    reader = _Reader(str(path))
    for number, line in enumerate(path.read_text().splitlines(), 1):
        reader.where = f"{path}, line {number}"
        yield from reader.read(shlex.split(line, comments=True, posix=False))


COMMON = {**attributes.DEFAULTS, "impl": "", "skip-impl": ""}


@dataclass
class _Reader:
    """The state between words. `words` tells which word set an option, for messages."""

    where: str
    driver: Driver | None = None
    options: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def read(self, words: Iterable[str]) -> Iterator[Problem]:
        """Carry out one word after the other."""
        for place, word in enumerate(words, 1):
            self.place = f"{self.where}, word {place}"
            try:
                yield from self._word(word)
            except Misread as error:
                said = self.words.get(error.setting, word) if error.setting != "shape" else word
                raise DescriptorError(f"{self.place}: {said}: {error}") from None
            except DescriptorError as error:
                raise DescriptorError(f"{self.place}: {word}: {error}") from None

    def _word(self, word: str) -> Iterator[Problem]:
        if not word.startswith("--"):
            yield from self._problems(word)
            return
        name, _, value = word[2:].partition("=")
        if name in DRIVERS:
            self.driver = DRIVERS[name]
            self._reset()
        elif name == "reset":
            self._reset()
        else:
            self._option(word, name, value)

    def _reset(self) -> None:
        assert self.driver is not None
        self.options = {name: [text] for name, text in {**COMMON, **self.driver.defaults}.items()}
        self.words = {}

    def _option(self, word: str, name: str, value: str) -> None:
        driver = self._the_driver()
        if name not in self.options:
            known = ", ".join(f"--{option}" for option in self.options)
            raise DescriptorError(f"--{driver.name} has no such option; expected one of {known}")
        self.options[name] = [value] if name in ("impl", "skip-impl") else value.split(",")
        self.words[name] = word

    def _the_driver(self) -> Driver:
        if self.driver is None:
            known = ", ".join(f"--{name}" for name in DRIVERS)
            raise DescriptorError(f"expected a driver first, one of {known}")
        return self.driver

    def _problems(self, word: str) -> Iterator[Problem]:
        driver = self._the_driver()
        match = re.fullmatch(r'(.*?)_?(?:n"([^"]*)")?', word)
        assert match is not None
        for texts in itertools.product(*self.options.values()):
            settings = {**dict(zip(self.options, texts, strict=True)), "shape": match[1]}
            op = driver.read(settings)
            attr = attributes.read(settings, op.result.dims)
            yield Problem(op, attr, settings["impl"], settings["skip-impl"], match[2] or "")
