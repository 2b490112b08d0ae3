"""Simpler problems: a failing problem is reduced while it still fails."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias, TypeVar

from dnncore.errors import DescriptorError
from dnncore.problem.drivers import driver_of
from dnncore.problem.problem import DEFAULTS, Problem
from dnncore.problem.reader import read

__all__ = ["simpler_problems", "simplest"]

T = TypeVar("T")

KEPT = {"impl", "skip-impl", "knobs", "dir", "inplace"}
"""Options that select the failing implementation and operation. They do not change."""

LEAST = {"s": 1, "d": 0, "p": 0}
"""The simplest value of strides, dilations and paddings, by their first letter."""

NUMBER = re.compile(r"([^0-9]*)(\d+(?![\d.e])|\d[\d.]*(?:e[-+]?\d+)?)")
"""Letters and a number. Numbers with a point or an exponent are not changed."""

Tokens: TypeAlias = list[tuple[str, str]]


def simplest(
    start: T, simpler: Callable[[Callable[[], T]], Iterator[T]], fails: Callable[[T], bool],
    tries: int,
) -> T:  # fmt: skip
    """Return the simplest failing value.

    start: a value that fails.
    simpler: simpler(current) yields values that are simpler than `current()`, the simplest failing
        value so far. `current()` may change during the iteration.
    tries: the largest number of values to try.
    """
    failing = [start]
    tried = itertools.islice(simpler(lambda: failing[-1]), tries)
    failing.extend(value for value in tried if fails(value))
    return failing[-1]


def simpler_problems(problem: Problem) -> Iterator[Problem]:
    """Yield valid problems with one option at its default, or with one smaller size or number.

    A size may occur several times in a shape. Then all occurrences, or two of them, change
    together.
    """
    settings = problem.settings()
    defaults = {**driver_of(type(problem.op)).defaults, **DEFAULTS}
    for name in settings:
        if name not in KEPT and name in defaults and settings[name] != defaults[name]:
            yield from _read(problem, {**settings, name: defaults[name]})
    seen = {settings["shape"]}
    for shape in _smaller(settings["shape"]):
        if shape not in seen:
            seen.add(shape)
            yield from _read(problem, {**settings, "shape": shape})


def _read(problem: Problem, settings: dict[str, str]) -> Iterator[Problem]:
    """Yield the problem of these settings, unless it breaks a rule or is unchanged."""
    driver = driver_of(type(problem.op)).name
    options = [f"--{name}={text}" for name, text in settings.items() if name != "shape"]
    try:
        found = list(read(" ".join([f"--{driver}", *options, settings["shape"]])))
    except DescriptorError:
        return
    yield from (replace(other, name="") for other in found if other != problem)


# -- shapes ----------------------------------------------------------------------------------------


def _smaller(shape: str) -> Iterator[str]:
    """Yield shapes with smaller numbers. Output sizes of windows are omitted and so derived."""
    free = [token for token in NUMBER.findall(shape) if not _is_output(token[0])]
    yield from _one_cell(free)
    for places in _alike(free):
        letters, value = free[places[0]][0].strip("_:x"), int(free[places[0]][1])
        least = LEAST.get(letters[:1], 1) if letters[1:] in AXES or not letters else 1
        for smaller in sorted({least, value // 2, value - 1}):
            if least <= smaller < value:
                yield _text(free, places, smaller)


def _one_cell(tokens: Tokens) -> Iterator[str]:
    """Yield shapes whose windows have one cell along an axis.

    A smaller padding alone may be invalid.
    """
    for axis in "dhw":
        simplest = {f"k{axis}": "1", f"s{axis}": "1", f"d{axis}": "0", f"p{axis}": "0"}
        changed = [(letters, simplest.get(letters.strip("_"), own)) for letters, own in tokens]
        yield "".join(
            letters + number for letters, number in changed if letters.strip("_") != f"pr{axis}"
        )


AXES = ("d", "h", "w", "rd", "rh", "rw")


def _is_output(letters: str) -> bool:
    return letters.strip("_") in ("od", "oh", "ow")


def _alike(tokens: Tokens) -> Iterator[tuple[int, ...]]:
    """Yield the places of numbers that may change together: each, all equal ones, and pairs of
    them.
    """
    places: dict[str, list[int]] = {}
    for place, (_, number) in enumerate(tokens):
        if number.isdecimal():
            places.setdefault(number, []).append(place)
    for same in places.values():
        if len(same) > 1:
            yield tuple(same)
    yield from ((place,) for same in places.values() for place in same)
    for same in places.values():
        if len(same) > 2:
            yield from itertools.combinations(same, 2)


def _text(tokens: Tokens, places: tuple[int, ...], value: int) -> str:
    return "".join(
        f"{letters}{value if place in places else own}"
        for place, (letters, own) in enumerate(tokens)
    )
