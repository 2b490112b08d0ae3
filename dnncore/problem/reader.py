"""Reads problem texts: words that are drivers, options or shapes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from dnncore.errors import DataTypeError, DescriptorError
from dnncore.problem import attributes
from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.drivers.driver import Driver
from dnncore.problem.from_verbose import executions
from dnncore.problem.matching import pattern, printed
from dnncore.problem.options import HARNESS, MISSING_DRIVERS, missing_features
from dnncore.problem.problem import DEFAULTS, Problem
from dnncore.problem.settings import (
    Invalid,
    Misread,
    Settings,
    Unreadable,
    Unsupported,
    read_choice,
)
from dnncore.problem.words import lines, split

__all__ = ["Report", "read", "read_files", "scan"]

Report: TypeAlias = Callable[[Unreadable | Unsupported], object]


def read(text: str | Iterable[str], *, report: Report | None = None) -> list[Problem]:
    """Return the problems of a text, or of words that a shell has already split.

    report: a function that is called with each error in order; reading then continues. Without it,
        the first error is raised.

    `Unreadable` states a word and the expected text. `Invalid` states the rule that a problem
    breaks. `Unsupported` lists features that dnncore lacks. All are `DescriptorError`.
    """
    return list(scan(text, report=report))


def scan(text: str | Iterable[str], *, report: Report | None = None) -> Iterator[Problem]:
    """Do the same as `read`, but return an iterator that reads one problem at a time."""
    if report is not None and not callable(report):
        raise DescriptorError(f"report must be a function of an error, or None; got {report!r}")
    reader = _Reader(report)
    if isinstance(text, str):
        return reader.whole(reader.text(text, "problem text"))
    try:
        words: list[object] = list(text)
    except Exception:  # a third-party iterable may raise any exception
        words = [None]
    if not all(isinstance(word, str) for word in words):
        raise DescriptorError(f"problem text: expected a string or words; got {text!r}")
    return reader.whole(reader.words(map(str, words), "problem text"))


def read_files(*paths: str | Path, report: Report | None = None) -> list[Problem]:
    """Return the problems of files; see `read`. Words are on any lines; # begins a comment."""
    return [problem for path in paths for problem in _Reader(report).file(Path(path))]


_SHAPE = re.compile(r'(?P<shape>[^n]*?)_?(?:n(?P<name>"[^"]*"|[^"]*))?', re.DOTALL)
WITHOUT_DRIVER = ("batch", "from-verbose", "match")
WHOLE = ("impl", "skip-impl")  # options whose commas do not separate alternatives
VERBOSITY = re.compile("-v[0-9]*")


class _UnknownOption(DescriptorError):
    """A word that the driver does not know."""


@dataclass
class _Reader:
    """The state between words.

    report: as in `read`.
    absent: an unknown driver, whose options and shapes are not read; "" if the driver is known.
    said: option -> the place and the word that set the option, for messages.
    files: the open files; each includes the next.
    idle: the place and the word of an option that no shape has followed; "" if there is none.
    """

    report: Report | None = None
    driver: Driver | None = None
    absent: str = ""
    options: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    match: re.Pattern[str] = field(default=re.compile(""))
    files: tuple[Path, ...] = ()
    idle: str = ""

    def whole(self, problems: Iterator[Problem]) -> Iterator[Problem]:
        """Report an option after the last shape. It has no effect."""
        count = 0
        for problem in problems:
            count += 1
            yield problem
        if count and self.idle:
            error = DescriptorError("options apply to the shapes after them, and none follows")
            self._fail(error, self.idle)

    # -- places --------------------------------------------------------------------------------

    def file(self, path: Path) -> Iterator[Problem]:
        """Read the problems of a file."""
        text, place = _text(path, "problem texts"), path.resolve()
        if place in self.files:
            raise DescriptorError(f"{path} includes itself")
        outer, self.files = self.files, (*self.files, place)
        try:
            yield from self.text(text, str(path))
        finally:
            self.files = outer

    def text(self, text: str, place: str) -> Iterator[Problem]:
        """Read one line after the other."""
        for number, line in lines(text):
            yield from self.words(split(line), f"{place}, line {number}")

    def words(self, words: Iterable[str], place: str) -> Iterator[Problem]:
        """Read one word after the other. Leaves out shapes after an unknown option."""
        is_lost = False
        numbered = enumerate(words, 1)
        for number, first in numbered:
            word = f"{first}={next(numbered, (0, ''))[1]}" if self._lacks_value(first) else first
            here = f"{place}, word {number}: {word}"
            if word.startswith("--"):
                is_lost = is_lost and word.removeprefix("--") not in DRIVERS
                try:
                    yield from self._carry_out(word, here)
                except _UnknownOption as error:
                    is_lost = True
                    self.absent = "" if "=" in word else word
                    self._fail(error, here)
                except DescriptorError as error:
                    self._fail(error, here)
            elif not is_lost and not VERBOSITY.fullmatch(word):
                self.idle = ""
                yield from self._problems(word, here)

    def _fail(self, error: DescriptorError, here: str, text: str = "") -> None:
        """Report an error together with its place, or raise it.

        text: the problem with the error, if the whole problem could be read.
        """
        said = self.said.get(error.setting) if isinstance(error, Misread) else ""
        located: Unreadable | Unsupported
        if isinstance(error, Unsupported):
            located = Unsupported(error.rules, text, here)
        elif text:
            located = Invalid(f"{here}: {error}")
            located.text = text
        else:
            located = Unreadable(
                f"{said} (read for {here}): {error}" if said else f"{here}: {error}"
            )
            located.line = (said or here).partition(", word ")[0]
        located.file = self.files[-1] if self.files else None
        if self.report is None:
            raise located from None
        self.report(located)

    def _report_line(self, path: Path, error: Unreadable | Unsupported) -> None:
        """Report a verbose line without a valid problem."""
        error.file = path
        if self.report is not None:
            self.report(error)

    # -- options -------------------------------------------------------------------------------

    def _lacks_value(self, word: str) -> bool:
        """Whether the word is an option without a value, so that the next word is the value."""
        name = word.removeprefix("--")
        known = (*self.options, *WITHOUT_DRIVER, *HARNESS)
        return word != name and name not in DRIVERS and name in known

    def _carry_out(self, word: str, here: str) -> Iterator[Problem]:
        name, has_value, value = word.removeprefix("--").partition("=")
        if name in DRIVERS and not has_value:
            self.driver, self.absent = DRIVERS[name], ""
            self._reset()
        elif name in MISSING_DRIVERS and not has_value:
            self.absent = name
        elif word == "--reset":
            self._reset()
            self.match = re.compile("")
        elif name == "batch":
            yield from self.file(self._found(value, "problem texts"))
        elif name == "from-verbose":
            path = self._found(value, "verbose lines")
            log = _text(path, "verbose lines").splitlines()
            report = partial(self._report_line, path) if self.report else None
            yield from filter(self._is_wanted, executions(log, report))
        elif name == "match":
            self.match = pattern(value)
        elif name not in HARNESS and not self.absent:
            self.said[self._option(name, value)] = self.idle = here

    def _reset(self) -> None:
        self.options = {name: [text] for name, text in self._defaults().items()}
        self.said = {}

    def _defaults(self) -> Settings:
        return {**self.driver.defaults, **DEFAULTS} if self.driver else {}

    def _found(self, name: str, what: str) -> Path:
        """A file in the folder of the present file, else in the working directory."""
        if not name:
            raise DescriptorError(f"expected a file of {what}; got no name")
        folders = [*(file.parent for file in self.files[-1:]), Path()]
        paths = [folder / name for folder in folders]
        return next(filter(_is_file, paths), Path(name))

    def _option(self, word: str, value: str) -> str:
        """Set an option and return its name. - and _ are equal in names. "" sets the default."""
        driver = self._the_driver()
        names = {name.replace("_", "-"): name for name in self.options}
        name = names.get(word.replace("_", "-"), "")
        if not name:
            known = ", ".join(f"--{option}" for option in self.options)
            raise _UnknownOption(f"--{driver.name} has no such option; expected one of {known}")
        value = value or self._defaults()[name]
        self.options[name] = [value] if name in WHOLE else value.split(",")
        return name

    def _the_driver(self) -> Driver:
        if self.driver is None:
            known = ", ".join(f"--{name}" for name in DRIVERS)
            raise DescriptorError(
                f"expected an operation first, one of {known}; its options follow it"
            )
        return self.driver

    # -- problems ------------------------------------------------------------------------------

    def _problems(self, word: str, here: str) -> Iterator[Problem]:
        """The problem of each combination of values. Reports combinations without a problem."""
        if self.absent:
            self._leave_out(word, here)
            return
        match = _SHAPE.fullmatch(word)
        shape, name = (match["shape"], (match["name"] or "").strip('"')) if match else (word, "")
        try:
            driver = self._the_driver()
        except DescriptorError as error:
            self._fail(error, here)
            return
        for texts in itertools.product(*self.options.values()):
            settings = {**dict(zip(self.options, texts, strict=True)), "shape": shape}
            try:
                if not self._is_found(driver, settings, name):
                    continue
                problem = self._problem(driver, settings, name)
            except Misread as error:
                self._fail(error, here)
            except DescriptorError as error:
                self._fail(error, here, printed(driver, settings, self._defaults(), name))
            else:
                yield problem

    def _leave_out(self, word: str, here: str) -> None:
        """Report a problem of a driver that only benchdnn has."""
        text = f"--{self.absent} {word}"
        if self.absent in MISSING_DRIVERS and self.match.search(text):
            features = [f"primitive {MISSING_DRIVERS[self.absent]}"]
            self._fail(Unsupported(features), here, text)

    def _problem(self, driver: Driver, settings: Settings, name: str) -> Problem:
        """The problem of these settings. Raises `Unsupported`."""
        missing = dict.fromkeys(missing_features(settings), "")
        with _missing(missing):
            op = driver.read(settings)
            with _missing(missing):
                attr = attributes.read(settings, op)
                impl, skip_impl = settings["impl"], settings["skip-impl"]
                problem = Problem(op, attr, impl, skip_impl, name, knobs=settings["knobs"])
                problem = _in_place(problem, settings)
        if missing:
            raise Unsupported(missing)
        return problem

    def _is_wanted(self, problem: Problem) -> bool:
        driver = driver_of(type(problem.op))
        settings = {**driver.defaults, **DEFAULTS, **problem.settings()}
        return self._is_found(driver, settings, problem.name)

    def _is_found(self, driver: Driver, settings: Settings, name: str) -> bool:
        if not self.match.pattern:
            return True
        defaults = {**driver.defaults, **DEFAULTS}
        return self.match.search(printed(driver, settings, defaults, name)) is not None


def _in_place(problem: Problem, settings: Settings) -> Problem:
    """The problem, in place if the settings require it."""
    if not read_choice({"inplace": "false", **settings}, "inplace", attributes.FLAGS):
        return problem
    if problem.alike is None:
        raise Unsupported(["in place where tensors differ"])
    return replace(problem, inplace=True)


@contextmanager
def _missing(features: dict[str, str]) -> Iterator[None]:
    """Collect missing features, with the rules that need them, instead of raising."""
    try:
        yield
    except Unsupported as error:
        features.update(error.rules)
    except DataTypeError as error:
        features[error.feature] = str(error)


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DescriptorError(f"expected a file of {what}; got {error}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # the name is too long or not valid on the system
        return False
