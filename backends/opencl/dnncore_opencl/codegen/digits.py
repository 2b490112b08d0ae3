"""Multi-digit indices in the form of kernel arguments: int4 vectors of sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore_opencl.runtime.schema import INT, LONG, UINT, Value


def _vector(element: Value, digits: str) -> Value:
    dtype = np.dtype([(digit, element.dtype) for digit in digits])
    return Value(f"{element.text}{len(digits)}", dtype)


INT2 = _vector(INT, "xy")
INT4, UINT4, LONG4 = (_vector(element, "xyzw") for element in (INT, UINT, LONG))


def extended(values: Sequence[int], length: int, fill: int = 0) -> tuple[int, ...]:
    """Extend to `length` digits. New digits are added as the slowest."""
    return (*(fill,) * (length - len(values)), *values)


def int4(values: Sequence[int], fill: int = 0) -> Any:
    """Return an OpenCL int4 of at most four digits, extended by `fill`."""
    return np.array(extended(values, 4, fill), INT4.dtype)[()]


def int2(values: Sequence[int]) -> Any:
    """Return an OpenCL int2."""
    return np.array(tuple(values), INT2.dtype)[()]


def long4(values: Sequence[int]) -> Any:
    """Return an OpenCL long4 of at most four digits, extended by 0."""
    return np.array(extended(values, 4), LONG4.dtype)[()]


def inverses(sizes: Sequence[int]) -> Any:
    """Return an OpenCL uint4: per size, 2^32 / size rounded up; 0 for size 1."""
    return np.array(
        tuple(-(-(1 << 32) // n) if n > 1 else 0 for n in extended(sizes, 4, 1)), UINT4.dtype
    )[()]
