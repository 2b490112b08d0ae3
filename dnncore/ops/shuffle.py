"""Shuffle: the elements along one axis, as a matrix of groups, are transposed."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Shuffle", "ShuffleBackward", "ShuffleForward"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Shuffle(Operation):
    """Base of both directions: the common fields and rules."""

    axis: int
    group_size: int

    def _check_shuffle(self, read: str, written: str) -> None:
        self._check_descs()
        self._check_types()
        desc: MemoryDesc = getattr(self, read)
        self._check_dims(written, desc.dims, f"{read}'s dims")
        self._check_axis(self.axis, desc.ndims)
        size = desc.dims[self.axis]
        try:
            group = operator.index(self.group_size)
        except TypeError:
            group = 0
        if group < 1 or (size and group > size) or size % group:
            self._fail(
                f"group_size must be a positive divisor of the {size} elements along axis"
                f" {self.axis}; got {self.group_size!r}"
            )
        self._set(group_size=group)

    @property
    def rows(self) -> int:
        """The rows of the matrix that is transposed. Each has `columns` neighbouring elements."""
        return self.result.dims[self.axis] // self.columns

    @property
    def columns(self) -> int:
        """The elements of a row: a group."""
        return self.group_size


@dataclass(frozen=True, eq=False, kw_only=True)
class ShuffleForward(Shuffle):
    """dst[..., u * (C / G) + v, ...] = src[..., v * G + u, ...] along `axis`, as in oneDNN.

    prop_kind: "forward_training" or "forward_inference".
    src: of any dims; C is its size along the axis.
    dst: of src's dims.
    axis: the dim whose elements move, counted from 0.
    group_size: G, a divisor of C; u counts up to G, v up to C / G.

    ShuffleNet's exchange between g groups has group_size C / g. Only dst may have the format
    `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "shuffle"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
    TYPES: ClassVar[Rows] = one_type_rows(("src", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES))

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check_shuffle("src", "dst")
        self._check_descs(concrete=("src",))


@dataclass(frozen=True, eq=False, kw_only=True)
class ShuffleBackward(Shuffle):
    """diff_src[..., v * G + u, ...] = diff_dst[..., u * (C / G) + v, ...]: the inverse.

    diff_src: of diff_dst's dims.
    diff_dst: of any dims; C is its size along the axis.
    axis: the dim whose elements move, counted from 0.
    group_size: G of the forward operation.

    Only diff_src may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "shuffle backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("diff_dst") + writes("diff_src")
    TYPES: ClassVar[Rows] = one_type_rows(("diff_dst", "diff_src"), ("f32", *HALF_TYPES))

    diff_src: MemoryDesc
    diff_dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_shuffle("diff_dst", "diff_src")
        self._check_descs(concrete=("diff_dst",))

    @property
    def columns(self) -> int:
        """The elements of a row of diff_dst."""
        return self.diff_dst.dims[self.axis] // self.group_size

    @property
    def forward_op(self) -> Operation:
        """The forward operation with a concrete src."""
        src = self.diff_src.with_format(None) if self.diff_src.is_any else self.diff_src
        return self._as_forward(ShuffleForward, src=src, dst=self.diff_dst)
