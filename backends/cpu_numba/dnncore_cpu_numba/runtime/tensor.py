"""Tensors of a program: an address that binding determines, and a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import Attributes, MemoryDesc, Operation, Refused
from dnncore_cpu_numba.codegen.nest import Nest
from dnncore_cpu_numba.runtime.program import Arg, Param, Scratch, Table

MOST_PLACES = 1 << 24  # most places of a dim; tables have a few words per place

STREAM_RESULT_BYTES = 8 << 20
"""Least bytes of results of element-wise chains, pooling and LRN with non-temporal stores.

`python -m benchmarks.streaming` measures the effect. With a last-level cache of 32 MB, shared with
other work, the speedups of single calls by non-temporal stores were: relu 0.6 at 4 MB, 1.0 at 8 MB
and 1.6 at 12 MB; addition 0.9, 1.6 and 1.5; max pooling 1.1 at 4 MB and 1.4 at 8 MB. Speedups of
relu between calls that write its input and read its result were 0.8, 1.0 and 1.1. The speedup of
AlexNet's training step was 1.0 at 4 MB and 1.1 from 6 MB."""


@dataclass(frozen=True)
class Tensor:
    """An argument or a part of the scratchpad: the address of its first element, and its layout.

    The constructor adds `offset0` of a layout to the address; `desc.offset0` becomes 0. The address
    alone therefore has the offset, in all views and copies of the tensor. Only layouts of 4-bit
    elements may have offset0 1, because they can start in the middle of a byte.
    """

    address: Param
    desc: MemoryDesc

    def __post_init__(self) -> None:
        if self.desc.is_packed:
            offset, rest = divmod(self.desc.offset0, 2)
            if offset:
                object.__setattr__(self, "address", moved(self.address, offset))
                object.__setattr__(self, "desc", self.desc.with_offset0(rest))
        elif offset := self.desc.offset0:
            object.__setattr__(self, "address", moved(self.address, offset * self.desc.itemsize))
            object.__setattr__(self, "desc", self.desc.with_offset0(0))

    def seen_as(self, desc: MemoryDesc) -> Tensor:
        """Return a view of the same elements with another layout and the same first element."""
        return Tensor(self.address, desc)

    def images(self, first: int, count: int) -> Tensor:
        """Return the images [first, first + count), or this tensor if broadcast along images."""
        if self.desc.dims[0] == 1:
            return self
        start = (first, *[0] * (self.desc.ndims - 1))
        return Tensor(self.address, self.desc.submemory((count, *self.desc.dims[1:]), start))


def arguments(
    op: Operation, workspace: MemoryDesc | None = None, attr: Attributes | None = None
) -> dict[str, Tensor]:
    """Return the tensors of an operation and of its attributes by name, in binding order."""
    named = [(argument.name, desc) for argument, desc in op.tensors(workspace)]
    named += [(argument.name, desc) for argument, desc in attr.arguments(op)] if attr else []
    return {name: Tensor(Arg(place), desc) for place, (name, desc) in enumerate(named)}


def moved(address: Any, nbytes: int) -> Any:
    """Return an address plus an offset in bytes."""
    if isinstance(address, int):
        return address + nbytes
    if not nbytes:
        return address
    if isinstance(address, Table):
        return Table(address.array.reshape(-1).view(np.uint8)[nbytes:])
    return replace(address, byte_offset=address.byte_offset + nbytes)


def walked(nest: Nest, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the parameters `nest` and `starts` of a task that iterates over a nest of tensors."""
    sizes = [tensor.desc.itemsize for tensor in tensors.values()]
    parts = zip(tensors.items(), sizes, nest.offsets, strict=True)
    starts = {name: moved(tensor.address, size * offset) for (name, tensor), size, offset in parts}
    return {"nest": nest.table(sizes), "starts": starts}


def refuse_long(*sizes: int) -> Refused | None:
    """Refuse dims with more than `MOST_PLACES` places, because tables would be too large."""
    longest = max(sizes, default=0)
    if longest <= MOST_PLACES:
        return None
    return Refused("shape", f"has tables of up to {MOST_PLACES} places along a dim; got {longest}")


def is_streamed(result: Tensor) -> bool:
    """Whether the result of a chain, of pooling or of LRN uses non-temporal stores.

    Gaps do not count as bytes. Results in the scratchpad use ordinary stores, because the next step
    reads them.
    """
    nbytes = result.desc.itemsize * math.prod(result.desc.padded_dims)
    return nbytes >= STREAM_RESULT_BYTES and not isinstance(result.address, Scratch)
