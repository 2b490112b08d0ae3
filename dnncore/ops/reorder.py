"""Reorder: dst = src in another format, data type or place.

A conversion computes the exact value and rounds once, half to even. Integer types saturate; a value
too large for f16, bf16 or f32 becomes infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Reorder"]

DATA_TYPES = ("f32", "f64", "f16", "bf16", "s32", "s8", "u8")


@dataclass(frozen=True, eq=False, kw_only=True)
class Reorder(Operation):
    """dst = src, element by element.

    src: of any dims.
    dst: of src's dims, in another format, data type or place.

    No format may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "reorder"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")

    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_descs(concrete=("src", "dst"))
        self._check_types({"src": DATA_TYPES, "dst": DATA_TYPES})
        self._check_dims("dst", self.src.dims, "src's dims")
