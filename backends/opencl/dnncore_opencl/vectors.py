"""Vectors of a kernel: how wide they can be, and how OpenCL C reads and writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["TYPES", "load", "most_lanes", "store", "vector"]

TYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "ushort",
    "bf16": "ushort",
    "s32": "int",
    "s8": "char",
    "u8": "uchar",
}
"""As they lie in memory; f16 and bf16 are bits."""

CPU_LANES = 16  # floats: a register of AVX-512, two of AVX2
GPU_LANES = 4  # floats: 16 bytes, a work-item's widest access; two or more were 1 to 6 % slower


def most_lanes(engine: Any, counts: Iterable[int], steps: Iterable[int]) -> int:
    """Return the widest vector that divides all `counts`.

    steps: what the vectors' offsets are sums of. On a GPU a wide access must begin at a multiple
    of its size, on a CPU anywhere.
    """
    divided = [*counts, *(() if engine.is_cpu else steps)]
    lanes = CPU_LANES if engine.is_cpu else GPU_LANES
    while any(n % lanes for n in divided):
        lanes //= 2
    return lanes


def vector(kind: str, lanes: int) -> str:
    """Return the type of `lanes` values of type `kind`."""
    return kind if lanes == 1 else f"{kind}{lanes}"


def load(engine: Any, kind: str, lanes: int, pointer: str) -> str:
    """Return the expression that reads consecutive values."""
    if lanes == 1:
        return f"(*({pointer}))"
    if engine.is_cpu:
        return f"vload{lanes}(0, {pointer})"
    return f"(*(__global const {kind}{lanes} *)({pointer}))"


def store(engine: Any, kind: str, lanes: int, pointer: str, value: str) -> str:
    """Return the statement that writes consecutive values."""
    if lanes == 1:
        return f"*({pointer}) = {value}"
    if engine.is_cpu:
        return f"vstore{lanes}({value}, 0, {pointer})"
    return f"*(__global {kind}{lanes} *)({pointer}) = {value}"
