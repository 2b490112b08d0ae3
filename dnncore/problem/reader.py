"""Reads problem texts: words that are drivers, options or shapes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from dnncore.errors import DataTypeError, DescriptorError
from dnncore.problem import attributes
from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.drivers.driver import Driver
from dnncore.problem.files import found_file, text_of
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
    listed = [str(word) for word in words]
    problems = reader.words(listed, "problem text")
    return problems if reader.refuse_end(listed) else reader.whole(problems)


def read_files(*paths: str | Path, report: Report | None = None) -> list[Problem]:
    """Return the problems of files; see `read`. Words are on any lines; # begins a comment."""
    return [problem for path in paths for problem in _Reader(report).file(Path(path))]


_SHAPE = re.compile(r'(?P<shape>[^n]*?)_?(?:n(?P<name>"[^"]*"|[^"]*))?', re.DOTALL)
WITHOUT_DRIVER = ("batch", "from-verbose", "match")
WHOLE = ("impl", "skip-impl")  # options whose commas do not separate alternatives
GENERAL = ("impl", "skip-impl", "knobs")  # options that may precede the operation
NO_FILTER = {name: DEFAULTS[name] for name in GENERAL}
VERBOSITY = re.compile("-v[0-9]*")


OPTIONS = {
    option.replace("_", "-")
    for option in ("match", *DEFAULTS, *(name for row in DRIVERS.values() for name in row.defaults))
}
NONE_FOLLOWS = "options apply to the shapes and files after them, and none follows"


def _no_filter() -> dict[str, list[str]]:
    return {name: [text] for name, text in NO_FILTER.items()}


class _UnknownOption(DescriptorError):
    """A word that the driver does not know."""


@dataclass
class _Reader:
    """The state between words.

    report: as in `read`.
    absent: an unknown driver, whose options and shapes are not read; "" if the driver is known.
    general: the options before the first operation, which apply to all.
    said: option -> the place and the word that set the option, for messages.
    files: the open files; each includes the next.
    idle: the same for options that no shape has followed.
    """

    report: Report | None = None
    driver: Driver | None = None
    absent: str = ""
    options: dict[str, list[str]] = field(default_factory=_no_filter)
    general: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    match: re.Pattern[str] = field(default=re.compile(""))
    files: tuple[Path, ...] = ()
    idle: dict[str, str] = field(default_factory=dict)

    def whole(self, problems: Iterator[Problem]) -> Iterator[Problem]:
        """Report an option after the last shape. It has no effect."""
        count = 0
        for problem in problems:
            count += 1
            yield problem
        if count and self.idle:
            self._fail(DescriptorError(NONE_FOLLOWS), [*self.idle.values()][-1])

    def refuse_end(self, words: Sequence[str]) -> bool:
        """Report an option at the end before any problem is read. Returns whether there is one."""
        *_, option, value = "", "", *words
        if value.startswith("--"):
            option, _, value = value.partition("=")
        name = option.removeprefix("--").replace("_", "-")
        if len(words) < 2 or not value or not option.startswith("--") or name not in OPTIONS:
            return False
        self._fail(DescriptorError(NONE_FOLLOWS), f"problem text, at the end: {words[-1]}")
        return True

    # -- places --------------------------------------------------------------------------------

    def file(self, path: Path) -> Iterator[Problem]:
        """Read the problems of a file."""
        text, place = text_of(path, "problem texts"), path.resolve()
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
                self.idle = {}
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
            yield from self.file(found_file(value, "problem texts", self.files))
        elif name == "from-verbose":
            yield from self._logged(found_file(value, "verbose lines", self.files))
        elif name == "match":
            self.match = pattern(value)
        elif name not in HARNESS and not self.absent:
            option = self._option(name, value)
            self.said[option] = self.idle[option] = here

    def _logged(self, path: Path) -> Iterator[Problem]:
        """Return the problems of verbose lines, restricted by the present options."""
        for name in GENERAL:
            self.idle.pop(name, None)
        if self.idle:
            given_in_vain = ", ".join(f"--{name}" for name in self.idle)
            self.idle = {}
            raise DescriptorError(
                f"{given_in_vain} applies to shapes, not to problems of verbose lines; only"
                f" {', '.join(f'--{name}' for name in GENERAL)} and --match do; leave it out"
            )
        log = text_of(path, "verbose lines").splitlines()
        report = partial(self._report_line, path) if self.report else None
        given = [self.options[name] for name in GENERAL]
        for problem in filter(self._is_wanted, executions(log, report)):
            for impl, skip_impl, knobs in itertools.product(*given):
                yield replace(problem, impl=impl, skip_impl=skip_impl, knobs=knobs)

    def _reset(self) -> None:
        self.options = {name: [text] for name, text in self._defaults().items()} | self.general
        self.said = {}

    def _defaults(self) -> Settings:
        return {**self.driver.defaults, **DEFAULTS} if self.driver else NO_FILTER

    def _option(self, word: str, value: str) -> str:
        """Set an option and return its name. - and _ are equal in names. "" sets the default."""
        names = {name.replace("_", "-"): name for name in self.options}
        name = names.get(word.replace("_", "-"), "")
        if not name:
            driver = self._the_driver()
            known = ", ".join(f"--{option}" for option in self.options)
            raise _UnknownOption(f"--{driver.name} has no such option; expected one of {known}")
        value = value or self._defaults()[name]
        self.options[name] = [value] if name in WHOLE else value.split(",")
        if self.driver is None:
            self.general[name] = self.options[name]
        return name

    def _the_driver(self) -> Driver:
        if self.driver is None:
            known = ", ".join(f"--{name}" for name in DRIVERS)
            raise DescriptorError(
                f"expected an operation first, one of {known}; its options follow it; only"
                f" {', '.join(f'--{name}' for name in GENERAL)} may precede it"
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
