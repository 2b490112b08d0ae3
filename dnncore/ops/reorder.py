"""Reorder: dst = src in another format, data type or place.

A conversion computes the exact value and rounds once, half to even. Integer types saturate; a value
too large for f16, bf16, f32 or f8_e5m2 becomes infinity. f8_e4m3 has no infinity: magnitudes above
464, half a step beyond its largest number 448, become NaN, as in oneDNN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.ops.types import (
    F8_TYPES,
    HALF_TYPES,
    INTEGER_TYPES,
    PACKED_TYPES,
    Rows,
    mixed_rows,
)
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Reorder"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reorder(Operation):
    """dst = src, element by element.

    src: of any dims.
    dst: of src's dims, in another format, data type or place.

    No format may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "reorder"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
    TYPES: ClassVar[Rows] = mixed_rows(
        ("src", "dst"), ("f64", "f32", *HALF_TYPES, *F8_TYPES, *INTEGER_TYPES, *PACKED_TYPES)
    )
    GROUPED: ClassVar[tuple[str, ...]] = ("src", "dst")

    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_descs(concrete=("src", "dst"))
        self._check_types()
        self._check_dims("dst", self.src.dims, "src's dims")

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: any."""
        masks = range(1 << self.src.ndims)
        return {"src": masks, "dst": masks}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: any."""
        return self.scale_masks
