"""Combinations of parameters for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def every_second(first: tuple[str, Iterable[Any]], second: tuple[str, Iterable[Any]]) -> Any:
    """Parametrize a test by every second pair of two lists: pairs whose indices have an even sum.

    Each value is combined with every second value of the other list.
    """
    return every(2, first, second)


def every(count: int, *lists: tuple[str, Iterable[Any]]) -> Any:
    """Parametrize a test by combinations whose indices have a sum divisible by `count`.

    So each combination of all lists but one occurs with every `count`-th value of that list.
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
