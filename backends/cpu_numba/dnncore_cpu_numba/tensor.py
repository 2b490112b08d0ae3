"""Tensors of a program: an address, known when it is bound, and a layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.program import Arg, Scratch, Table

__all__ = ["Tensor", "moved"]


@dataclass(frozen=True)
class Tensor:
    """An argument or a part of the scratchpad: the address of its first element, and its layout.

    desc: its offset0 is part of the address already.
    """

    address: Arg | Scratch | Table
    desc: MemoryDesc

    def seen_as(self, desc: MemoryDesc) -> Tensor:
        """The same elements under other dims."""
        return Tensor(self.address, desc)

    def images(self, first: int, count: int) -> Tensor:
        """Some of its images; all of a tensor that is broadcast along them."""
        if self.desc.dims[0] == 1:
            return self
        dims = (count, *self.desc.dims[1:])
        part = self.desc.submemory(dims, (first, *[0] * (self.desc.ndims - 1)))
        nbytes = part.itemsize * (part.offset0 - self.desc.offset0)
        return Tensor(moved(self.address, nbytes), part.with_offset0(0))


def moved(address: Any, nbytes: int) -> Any:
    """An address further on."""
    return replace(address, byte_offset=address.byte_offset + nbytes)
