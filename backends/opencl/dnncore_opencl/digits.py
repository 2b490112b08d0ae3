"""Indices of several digits, as kernels take them: int4 vectors of sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

INT4 = np.dtype([(digit, np.int32) for digit in "xyzw"])


def extended(values: Sequence[int], length: int, fill: int = 0) -> tuple[int, ...]:
    """Extend to `length` digits, new ones slowest."""
    return (*(fill,) * (length - len(values)), *values)


def int4(values: Sequence[int], fill: int = 0) -> Any:
    """An OpenCL int4 of at most four digits, extended by `fill`."""
    return np.array(extended(values, 4, fill), INT4)[()]
