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


def merged(size: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Join neighbouring digits that step through memory as one."""
    sizes, steps = [size[0]], [strides[0]]
    for count, step in zip(size[1:], strides[1:], strict=True):
        if sizes[-1] == 1 or steps[-1] == step * count:
            sizes[-1] *= count
            steps[-1] = step
        elif count != 1:
            sizes.append(count)
            steps.append(step)
    return sizes, steps
