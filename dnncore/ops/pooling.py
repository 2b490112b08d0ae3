"""Pooling by maximum or average, and its gradient.

Shapes: src (N, C, H, W), dst (N, C, OH, OW), kernel (KH, KW); 1 to 3 spatial dims.

    max: dst[n, c, y, x] = max over r, s of src[n, c, y*SH - PT + r*(DH+1), x*SW - PL + s*(DW+1)]

over the cells inside src; the first maximum in row-major order of the window is taken. For a window
with no cell inside src, dst is the lowest number of its type and the workspace is 0.

    avg_include_padding: the sum over those cells, divided by KH * KW
    avg_exclude_padding: the sum over those cells, divided by their number

The workspace of max, written by forward_training and read by backward, has dst's dims and layout
and holds the flat kernel index (r*KW + s) of the maximum: u8 when the kernel has at most 255 cells,
else s32. Averages have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dnncore.algorithms.rules import check_algorithm
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows, one_type_rows
from dnncore.ops.window import Windowed, effective_kernel, entries
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Pooling", "PoolingBackward", "PoolingForward"]

ALGORITHMS = ("max", "avg_include_padding", "avg_exclude_padding")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Pooling(Windowed, Operation):
    """The part common to both directions; `..._role` name tensors by their forward roles."""

    SRC: ClassVar[str] = "src"
    DST: ClassVar[str] = "dst"
    LEAST_REACH: ClassVar[int] = 0

    kernel: tuple[int, ...]

    def _check(self, algorithm: str) -> None:
        check_algorithm(self.KIND, algorithm, ALGORITHMS)
        self._check_descs()
        self._check_types()
        x, y = self.src_role, self.dst_role
        if not 3 <= x.ndims <= 5:
            self._fail(f"{self.SRC} must have 3 to 5 dims (N, C, [[D,] H,] W); got {x.dims}")
        if y.dims[:2] != x.dims[:2] or y.ndims != x.ndims:
            self._fail(f"{self.DST} must have {self.SRC}'s batch, channels and rank"
                       f" {x.dims[:2]}, {x.ndims} dims; got {y.dims}")  # fmt: skip
        self._normalise_window(self.KIND, x.ndims - 2)
        kernel = entries(self.KIND, "kernel", self.kernel, x.ndims - 2)
        if min(kernel) < 1:
            self._fail(f"kernel must hold {x.ndims - 2} positive integers; got {self.kernel!r}")
        self._set(kernel=kernel)
        self._check_output(self.KIND, x.dims[2:], self.kernel, y.dims[2:], self.DST)
        if algorithm == "avg_exclude_padding":
            self._check_windows_see_cells()

    def _check_windows_see_cells(self) -> None:
        """Check that each window of an average contains a cell of src. Otherwise its value is
        0 / 0.
        """
        for i, size in enumerate(self.src_role.dims[2:]):
            span = effective_kernel(self.kernel[i], self.dilations[i])
            left, right, dilation = self.padding_l[i], self.padding_r[i], self.dilations[i]
            if left >= span or right >= span or dilation >= size > 0:
                self._fail(
                    "avg_exclude_padding needs paddings below the effective kernel and dilations"
                    f" below {self.SRC}, so that no window is empty; got padding {left} and"
                    f" {right}, effective kernel {span}, dilation {dilation}, {self.SRC} {size}"
                )

    @property
    def src_role(self) -> MemoryDesc:
        """Src or diff_src."""
        desc: MemoryDesc = getattr(self, self.SRC)
        return desc

    @property
    def dst_role(self) -> MemoryDesc:
        """Dst or diff_dst."""
        desc: MemoryDesc = getattr(self, self.DST)
        return desc

    @property
    def workspace_type(self) -> str:
        """The data type of the workspace's kernel indices."""
        return "u8" if math.prod(self.kernel) <= 255 else "s32"

    @property
    def is_max(self) -> bool:
        """Whether this is max pooling; averages have no workspace."""
        return bool(vars(self)["algorithm"] == "max")

    @property
    def flops(self) -> float:
        """One comparison or addition per window cell."""
        return float(math.prod(self.dst_role.dims) * math.prod(self.kernel))


@dataclass(frozen=True, eq=False, kw_only=True)
class PoolingForward(_Pooling):
    """Pooling forward. `help(dnncore.ops.pooling)` shows the formulas.

    prop_kind: "forward_training" or "forward_inference"; only training writes a workspace.
    algorithm: "max", "avg_include_padding" or "avg_exclude_padding".
    src: (N, C, spatial dims), with one to three spatial dims.
    dst: (N, C, spatial dims); each is (size - effective kernel + both paddings) // stride + 1.
    workspace: the kernel's index of each maximum, with dst's dims and format; u8 if the kernel has
        up to 255 cells, else s32. Averages have none.
    kernel: the size of the window in each spatial dim.
    strides, dilations, padding_l, padding_r: one number for each spatial dim, or one for all.
        A dilation of 0 is dense. The defaults are 1, 0, 0 and padding_l.

    dst may have the format `any`, src may not. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "pooling"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst", "workspace")
    TYPES: ClassVar[Rows] = (
        *one_type_rows(("src", "dst"), ("f64", "f32", *HALF_TYPES, *INTEGER_TYPES)),
        *mixed_rows(("src", "dst"), ("f32", "f16", "s8", "u8")),
    )

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check(self.algorithm)
        self._check_descs(concrete=("src",))

    @property
    def type_rows(self) -> Rows:
        """Only inference combines several types."""
        return self.TYPES if self.prop_kind == "forward_inference" else self.TYPES[:-1]

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """Kernel indices in dst's layout; None except in training of max pooling."""
        if self.prop_kind == "forward_inference" or not self.is_max:
            return None
        return self.dst.with_data_type(self.workspace_type)


@dataclass(frozen=True, eq=False, kw_only=True)
class PoolingBackward(_Pooling):
    """The gradient with respect to src.

    For "max", each diff_dst is added to diff_src at the place that the workspace states. For
    averages, each diff_dst, divided as in forward, is added to diff_src at all cells of its window.

    algorithm: as in `PoolingForward`.
    diff_src: (N, C, spatial dims), as src of `PoolingForward`.
    diff_dst: (N, C, spatial dims), as dst.
    workspace: the workspace of the forward; averages have no workspace.
    kernel, strides, dilations, padding_l, padding_r: as in `PoolingForward`.

    Both formats may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "pooling backward"
    SRC: ClassVar[str] = "diff_src"
    DST: ClassVar[str] = "diff_dst"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("diff_dst", "workspace") + writes("diff_src")
    TYPES: ClassVar[Rows] = one_type_rows(("diff_dst", "diff_src"), ("f64", "f32", *HALF_TYPES))

    algorithm: str = field(kw_only=False)
    diff_src: MemoryDesc
    diff_dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check(self.algorithm)

    @property
    def forward_op(self) -> Operation:
        """The forward operation with a concrete src; for max it keeps the workspace."""
        src = self.diff_src.with_format(None) if self.diff_src.is_any else self.diff_src
        return self._as_forward(PoolingForward, src=src, dst=self.diff_dst)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint of max pooling keeps a workspace."""
        super().check_hint(hint)
        if self.is_max:
            self._check_keeps_workspace(hint)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """Return the hint's workspace or kernel indices in diff_dst's layout; None for averages."""
        if not self.is_max:
            return None
        if hint is not None:
            desc: MemoryDesc | None = hint.workspace_desc
            return desc
        return self.diff_dst.with_data_type(self.workspace_type)


Pooling: TypeAlias = PoolingForward | PoolingBackward
