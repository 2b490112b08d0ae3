"""Concat: dst is the sources side by side along one axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.errors import DescriptorError
from dnncore.ops.sources import Sources
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Concat"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Concat(Sources):
    """dst[..., starts[i] + j, ...] = src{i}[..., j, ...] along `axis`.

    srcs: one or more descriptors. Their dims are equal except along the axis, where a size may be
        0. At execution, they are the arguments `src0`, `src1`, ...
    dst: of the same dims; along the axis, of the sum of the sizes of srcs.
    axis: the dim along which the sources lie side by side, counted from 0.

    A source may be its own place in dst, `places[i]`. It is then not copied, so programs can write
    results directly to dst. Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "concat"
    TYPES: ClassVar[Rows] = mixed_rows(("src0", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES))

    axis: int

    def __post_init__(self) -> None:
        self._set(srcs=self._items("srcs"))
        if not self.srcs:
            self._fail("there must be at least one src; got none")
        self._check_srcs()
        self._check_descs(concrete=self.source_names)
        self._check_types()
        self._check_axis(self.axis, self.dst.ndims)
        total = sum(desc.dims[self.axis] for desc in self.srcs if self.axis < desc.ndims)
        for name, desc in zip(self.source_names, self.srcs, strict=True):
            size = desc.dims[self.axis] if self.axis < desc.ndims else 0
            self._check_dims(name, self._with_size(size), "dst's dims, except along the axis")
        self._check_dims("dst", self._with_size(total), "along the axis, the sizes of all srcs")

    def _with_size(self, size: int) -> tuple[int, ...]:
        """Return dst's dims with another size along the axis."""
        return (*self.dst.dims[: self.axis], size, *self.dst.dims[self.axis + 1 :])

    @property
    def starts(self) -> tuple[int, ...]:
        """The index along the axis at which each source starts in dst."""
        sizes = (desc.dims[self.axis] for desc in self.srcs)
        return tuple(itertools.accumulate(sizes, initial=0))[:-1]

    @property
    def places(self) -> Sequence[MemoryDesc | None]:
        """The part of dst for each source, as a descriptor of dst's buffer.

        None if there is no such descriptor: dst has the format `any`, or the part begins or ends
        inside a block.
        """
        return tuple(map(self._place, self.srcs, self.starts))

    def _place(self, desc: MemoryDesc, start: int) -> MemoryDesc | None:
        offsets = [0] * desc.ndims
        offsets[self.axis] = start
        try:
            return self.dst.submemory(desc.dims, offsets)
        except DescriptorError:
            return None

    def place_of(self, name: str) -> MemoryDesc | None:
        """Return the part of dst in which a source may already lie; None if there is none."""
        if name == "dst":
            return None
        index, own = int(name.removeprefix("src")), getattr(self, name)
        place = self._place(own, self.starts[index])
        return place if place and own.with_offset0(0) == place.with_offset0(0) else None

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """Each src: 0."""
        return dict.fromkeys(self.source_names, (0,))
