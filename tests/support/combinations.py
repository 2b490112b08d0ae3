"""Parameters of tests that are combined with one another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def every_second(first: tuple[str, Iterable[Any]], second: tuple[str, Iterable[Any]]) -> Any:
    """Parametrize a test by every second pair of two lists, as the fields of one colour on a board.

    Each value meets every second value of the other list. Neighbours meet different ones.
    """
    return every(2, first, second)


def every(count: int, *lists: tuple[str, Iterable[Any]]) -> Any:
    """Parametrize a test by those combinations whose places have a sum divisible by `count`.

    So each combination of all lists but one meets each `count`-th value of that one.
    """
    names = tuple(name for name, _ in lists)
    combinations = [
        pytest.param(*(value for _, value in chosen), id="-".join(_text(v) for _, v in chosen))
        for chosen in itertools.product(*(list(enumerate(values)) for _, values in lists))
        if sum(place for place, _ in chosen) % count == 0
    ]
    return pytest.mark.parametrize(names, combinations)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value))
