"""Checks of algorithm names and of numbers that are parameters."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Real

import numpy as np

from dnncore.errors import DescriptorError

__all__ = ["check_algorithm", "check_finite", "check_word"]

_LARGEST = float(np.finfo(np.float32).max)


def check_algorithm(what: str, algorithm: object, known: Collection[str]) -> None:
    """Raise `DescriptorError` unless `algorithm` is one of `known`."""
    if not isinstance(algorithm, str) or algorithm not in known:
        raise DescriptorError(
            f"{what}: unknown algorithm {algorithm!r}; choose one of {', '.join(known)}"
        )


def check_word(what: str, known: Collection[str], **values: object) -> None:
    """Raise `DescriptorError` unless each named value is one of the words `known`."""
    for name, value in values.items():
        if not isinstance(value, str) or value not in known:
            raise DescriptorError(
                f"{what}: {name} must be one of {', '.join(known)}; got {value!r}"
            )


def check_finite(what: str, **values: object) -> None:
    """Raise `DescriptorError` unless each named value is finite in float32."""
    for name, value in values.items():
        if not isinstance(value, Real) or not _is_finite(value):
            raise DescriptorError(
                f"{what}: {name} must be a finite number of float32; got {value!r}"
            )


def _is_finite(value: Real) -> bool:
    try:
        return abs(float(value)) <= _LARGEST
    except OverflowError:  # an integer beyond every float
        return False
