"""Strays: bytes that a launch must not change. They are inputs, or outside an output's elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Stray", "beside_output", "in_input", "is_guarded", "pack"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stray:
    """Bytes of an argument that have changed.

    expected, got: values with logical dims. They are equal if the changed bytes belong to no
        element.
    beside: the number of changed bytes that belong to no element.
    """

    argument: str
    expected: Array = field(repr=False)
    got: Array = field(repr=False)
    beside: int = 0


def is_guarded(desc: MemoryDesc) -> bool:
    """Whether the buffer contains bytes of no element: padding, gaps, or other tensors."""
    return desc.format_kind == "blocked" and (desc.has_padding or desc.has_neighbours)


def in_input(argument: str, desc: MemoryDesc, before: Array, after: Array) -> Iterator[Stray]:
    """Yield the change of an input's elements. before, after: the bytes of the tensor."""
    if desc.format_kind != "blocked":
        if (before != after).any():
            yield Stray(argument, before, after)
        return
    old, new = desc.unpack(before), desc.unpack(after)
    if old.tobytes() != new.tobytes():
        yield Stray(argument, old, new)


def beside_output(argument: str, desc: MemoryDesc, before: Array, after: Array) -> Iterator[Stray]:
    """Yield a change outside an output's elements. Padding must be zero after the launch."""
    values = desc.unpack(after)
    expected = before.copy()
    desc.pack(np.array(values), expected)
    changed = int(np.count_nonzero(expected != after))
    if changed:
        yield Stray(argument, values, values, changed)


def pack(desc: MemoryDesc, values: Array, buffer: Array) -> None:
    """Write values as `MemoryDesc.pack` does. Elements at the same place must be equal."""
    if desc.has_repeats:
        shared = [stride == 0 for stride in desc.strides]
        values = values[tuple(slice(1) if one else slice(None) for one in shared)]
        desc = MemoryDesc(values.shape, desc.data_type, strides=desc.strides, offset0=desc.offset0)
    desc.pack(values, buffer[: desc.nbytes])
