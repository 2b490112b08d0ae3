"""Parameters of tests that are combined with one another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every_second(first: tuple[str, Iterable[Any]], second: tuple[str, Iterable[Any]]) -> Any:
    """Parametrize a test by every second pair of two lists, as the fields of one colour on a board.

    Each value meets every second value of the other list. Neighbours meet different ones.
    """
    (name, values), (other, others) = first, second
    pairs = [
        pytest.param(x, y, id=f"{_text(x)}-{_text(y)}")
        for i, x in enumerate(values)
        for j, y in enumerate(others)
        if (i + j) % 2 == 0
    ]
    return pytest.mark.parametrize((name, other), pairs)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value))
