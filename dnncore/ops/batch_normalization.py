"""Batch normalization and its gradients. Statistics belong to a channel of the whole batch.

    dst = scale[c] * (src - mean[c]) / sqrt(variance[c] + epsilon) + shift[c]

`help(dnncore.ops.normalization)` has the definitions of statistics and gradients.

With `fuse_relu`, src1 is added, if present, and negative results become 0:

    z = scale[c] * (src - mean[c]) / sqrt(variance[c] + epsilon) + shift[c] + src1
    dst = 0 where z <= 0, else z

The workspace, written by forward_training and read by the gradient, is the mask: u8, in dst's dims
and layout, 0 where z <= 0 and else 1. The gradient sets diff_dst to 0 where the mask is 0. The
result is also diff_src1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dnncore.ops.normalization import (
    NormalizationBackward,
    NormalizationForward,
    backward_table,
    forward_table,
    typed_rows,
)
from dnncore.ops.operation import Argument, Operation, PropKind
from dnncore.ops.types import HALF_TYPES, Rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["BatchNormalization", "BatchNormalizationBackward", "BatchNormalizationForward"]

FLOATS = ("f32", *HALF_TYPES)
WORKSPACE_TYPE = "u8"


def _count(src: MemoryDesc) -> int:
    return src.dims[0] * math.prod(src.dims[2:])


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchNormalizationForward(NormalizationForward):
    """Batch normalization forward. `help(dnncore.ops.batch_normalization)` shows the formula.

    prop_kind: "forward_training" or "forward_inference". Training writes mean and variance, unless
        `use_global_stats` is true, and the workspace.
    src, dst: (N, C, spatial dims), with zero to three spatial dims.
    src1: of src's dims; added before the relu. It requires `fuse_relu`.
    mean, variance: (C), f32; by default row-major. Inputs with `use_global_stats`, else outputs in
        training. In inference without it they are absent.
    scale, shift: (C), f32; each may be None.
    workspace: the mask of the relu, u8, with dst's dims and format; only in training.
    epsilon: of the formula, at least 0.
    use_global_stats: whether mean and variance are inputs.
    fuse_relu: whether negative results become 0.

    Only dst may have the format `any`. s8 requires inference with `use_global_stats`. Raises
    `DescriptorError`.
    """

    KIND: ClassVar[str] = "batch normalization"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = forward_table("src1", "workspace")
    TYPES: ClassVar[Rows] = typed_rows(
        one_type_rows(("src", "src1", "dst"), (*FLOATS, "s8")), "f32"
    )

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    src1: MemoryDesc | None = None
    fuse_relu: bool = False

    def __post_init__(self) -> None:
        self._check_flag("fuse_relu")
        self._check_forward(self.prop_kind)
        if self.src1 is not None and not self.fuse_relu:
            self._fail("src1 must be None without fuse_relu; a post-op add adds a tensor alone")

    @property
    def type_rows(self) -> Rows:
        """Only inference with given statistics has s8."""
        has_s8 = self.use_global_stats and self.prop_kind == "forward_inference"
        return self.TYPES if has_s8 else self.TYPES[:-1]

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The number of channels."""
        return (self.src.dims[1],)

    @property
    def count(self) -> int:
        """The number of elements of a channel."""
        return _count(self.src)

    @property
    def bytes(self) -> float:
        """Every argument once; src twice if statistics are computed."""
        again = 0 if self.use_global_stats else self.src.nelems * self.src.itemsize
        return super().bytes + again

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The descriptor of the mask in dst's layout; None without a fused relu in training."""
        if self.prop_kind == "forward_inference" or not self.fuse_relu:
            return None
        return self.dst.with_data_type(WORKSPACE_TYPE)


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchNormalizationBackward(NormalizationBackward):
    """The gradients with respect to src, scale, shift and src1.

    src, diff_dst, diff_src: (N, C, spatial dims), with the dims of the forward's src.
    mean, variance: (C), f32; those of the forward. By default row-major.
    scale: (C), f32, or None.
    workspace: the mask of the forward's relu.
    diff_scale, diff_shift: (C), f32; each may be None. Without both, only src has a gradient.
    diff_src1: of src's dims, or None; it requires `fuse_relu`.
    epsilon, use_global_stats, fuse_relu: as in `BatchNormalizationForward`.

    Inputs other than diff_dst must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "batch normalization backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = backward_table("diff_src1", "workspace")
    TYPES: ClassVar[Rows] = typed_rows(
        one_type_rows(("src", "diff_dst", "diff_src", "diff_src1"), FLOATS), "f32"
    )

    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    diff_src1: MemoryDesc | None = None
    fuse_relu: bool = False

    def __post_init__(self) -> None:
        self._check_flag("fuse_relu")
        self._check_backward()
        if self.diff_src1 is not None and not self.fuse_relu:
            self._fail("diff_src1 must be None without fuse_relu, because it is then diff_dst")

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The number of channels."""
        return (self.src.dims[1],)

    @property
    def count(self) -> int:
        """The number of elements of a channel."""
        return _count(self.src)

    @property
    def bytes(self) -> float:
        """Every argument once; src and diff_dst twice if there are sums."""
        again = 2 * self.src.nelems * self.src.itemsize if self.has_sums else 0
        return super().bytes + again

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps statistics and mask."""
        src1 = self.diff_src1
        if src1 is not None and src1.is_any:
            src1 = src1.with_format(None)
        return self._forward(BatchNormalizationForward, src1=src1)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint of a fused relu keeps a workspace."""
        super().check_hint(hint)
        if self.fuse_relu:
            self._check_keeps_workspace(hint)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """Return the hint's workspace, or the mask in diff_dst's layout; None without a relu."""
        if not self.fuse_relu:
            return None
        if hint is not None:
            desc: MemoryDesc | None = hint.workspace_desc
            return desc
        return self.diff_dst.with_data_type(WORKSPACE_TYPE)


BatchNormalization: TypeAlias = BatchNormalizationForward | BatchNormalizationBackward
