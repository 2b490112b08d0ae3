"""Group normalization and its gradients. Statistics belong to a group of channels of an image.

    dst = scale[c] * (src - mean[n, g]) / sqrt(variance[n, g] + epsilon) + shift[c]

with g = c * groups // C. `help(dnncore.ops.normalization)` has the definitions of statistics and
gradients. With one group, each image is normalized as a whole. With a group per channel, this is
instance normalization.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dnncore.ops.normalization import (
    NormalizationBackward,
    NormalizationForward,
    backward_table,
    forward_table,
    gradient_types,
    typed_rows,
)
from dnncore.ops.operation import Argument, Operation, PropKind
from dnncore.ops.types import HALF_TYPES, Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["GroupNormalization", "GroupNormalizationBackward", "GroupNormalizationForward"]

FLOATS = ("f32", *HALF_TYPES)


class _Groups:
    """The rules of both directions."""

    RANKS: ClassVar[tuple[int, int]] = (3, 5)

    def _check_shape(self) -> None:
        op: Any = self
        try:
            groups = operator.index(op.groups)
        except TypeError:
            groups = 0
        channels = op.source.dims[1]
        if groups < 1 or channels % groups:
            op._fail(
                f"groups must be a positive integer that divides the {channels} channels of src;"
                f" got {op.groups!r}"
            )
        op._set(groups=groups)

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The images and the groups."""
        op: Any = self
        return (op.source.dims[0], op.groups)

    @property
    def count(self) -> int:
        """The number of elements of a group in one image."""
        op: Any = self
        return int(op.source.dims[1] // op.groups * math.prod(op.source.dims[2:]))


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupNormalizationForward(_Groups, NormalizationForward):
    """Group normalization forward. `help(dnncore.ops.group_normalization)` shows the formula.

    prop_kind: "forward_training" or "forward_inference". Training writes mean and variance, unless
        `use_global_stats` is true.
    src, dst: (N, C, spatial dims), with one to three spatial dims.
    groups: the number of groups. It divides C.
    mean, variance: (N, groups), f32; by default row-major. Inputs with `use_global_stats`, else
        outputs in training. In inference without it they are absent.
    scale, shift: (C), f32; each may be None.
    epsilon: of the formula, at least 0.
    use_global_stats: whether mean and variance are inputs.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "group normalization"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = forward_table()
    TYPES: ClassVar[Rows] = typed_rows(mixed_rows(("src", "dst"), (*FLOATS, "s8", "u8")), "f32")

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    groups: int

    def __post_init__(self) -> None:
        self._check_forward(self.prop_kind)

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0."""
        return {"src": (0,), "dst": (0,)}


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupNormalizationBackward(_Groups, NormalizationBackward):
    """The gradients with respect to src, scale and shift.

    src, diff_dst, diff_src: (N, C, spatial dims), with the dims of the forward's src.
    groups: as in `GroupNormalizationForward`.
    mean, variance: (N, groups), f32; those of the forward. By default row-major.
    scale: (C), f32, or None.
    diff_scale, diff_shift: (C), f32; each may be None. Without both, only src has a gradient.
    epsilon, use_global_stats: as in `GroupNormalizationForward`.

    Inputs other than diff_dst must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "group normalization backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = backward_table()
    TYPES: ClassVar[Rows] = gradient_types("f32")

    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    groups: int

    def __post_init__(self) -> None:
        self._check_backward()

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps the statistics."""
        return self._forward(GroupNormalizationForward)


GroupNormalization: TypeAlias = GroupNormalizationForward | GroupNormalizationBackward
