"""Indices of several digits, as kernels take them: int4 vectors of sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

INT2 = np.dtype([(digit, np.int32) for digit in "xy"])
INT4, UINT4, LONG4 = (
    np.dtype([(digit, number) for digit in "xyzw"]) for number in (np.int32, np.uint32, np.int64)
)


def extended(values: Sequence[int], length: int, fill: int = 0) -> tuple[int, ...]:
    """Extend to `length` digits, new ones slowest."""
    return (*(fill,) * (length - len(values)), *values)


def int4(values: Sequence[int], fill: int = 0) -> Any:
    """An OpenCL int4 of at most four digits, extended by `fill`."""
    return np.array(extended(values, 4, fill), INT4)[()]


def int2(values: Sequence[int]) -> Any:
    """An OpenCL int2."""
    return np.array(tuple(values), INT2)[()]


def long4(values: Sequence[int]) -> Any:
    """An OpenCL long4 of at most four digits, extended by 0."""
    return np.array(extended(values, 4), LONG4)[()]


def inverses(sizes: Sequence[int]) -> Any:
    """An OpenCL uint4 of 2^32 over each size, rounded up; 0 stands for that of 1."""
    return np.array(
        tuple(-(-(1 << 32) // n) if n > 1 else 0 for n in extended(sizes, 4, 1)), UINT4
    )[()]
