"""The padding of blocked results.

dnncore requires zeros in the padding. oneDNN also multiplies the padding of the factors. So NaN or
infinity in one factor causes NaN in the padding of the result. Some of oneDNN's plain loops write
other numbers to the padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Memory, MemoryDesc

__all__ = ["padding_of"]

Index = tuple[int | slice, ...]


def padding_of(memory: Memory) -> list[np.ndarray[Any, Any]]:
    """Views of the bytes of a blocked tensor's padding."""
    desc = memory.desc
    if not desc.has_padding:
        return []
    physical = desc.view(memory.buffer)
    return [physical[place] for dim in range(desc.ndims) for place in _places(desc, dim)]


def _places(desc: MemoryDesc, dim: int) -> list[Index]:
    """The parts of the array of `desc.physical_shape` in which a dim's index exceeds its size.

    An index consists of digits: its block and its position in each inner block. It is larger than
    the last index if, in the first digit that differs from the last index's digit, it is larger.
    """
    if desc.dims[dim] == desc.padded_dims[dim]:
        return []
    axes = [desc.ndims + i for i, (own, _) in enumerate(desc.inner_blocks) if own == dim]
    sizes = [size for own, size in desc.inner_blocks if own == dim]
    digits: list[int] = []
    rest = desc.dims[dim] - 1
    for size in reversed(sizes):
        rest, digit = divmod(rest, size)
        digits.insert(0, digit)
    place: list[int | slice] = [slice(None)] * len(desc.physical_shape)
    place[dim] = -1
    places = []
    for axis, digit in zip(axes, digits, strict=True):
        places.append((*place[:axis], slice(digit + 1, None), *place[axis + 1 :]))
        place[axis] = digit
    return places
