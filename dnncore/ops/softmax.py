"""Softmax and log-softmax along one axis, and their gradients.

    accurate: dst = exp(src - max) / sum(exp(src - max))
              diff_src = dst * (diff_dst - sum(diff_dst * dst))
    log:      dst = src - max - log(sum(exp(src - max)))
              diff_src = diff_dst - exp(dst) * sum(diff_dst)

with max and sum along the axis. Both algorithms can also return the statistics of forward, which
attention needs:

    lse = max + log(sum(exp(src - max)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from dnncore.algorithms.rules import check_algorithm
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, Rows, mixed_rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Softmax", "SoftmaxBackward", "SoftmaxForward"]

ALGORITHMS = ("accurate", "log")
STORED = ("f32", *HALF_TYPES, "s8", "u8")


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxForward(Operation):
    """Softmax forward. `help(dnncore.ops.softmax)` shows the formulas.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    algorithm: "accurate", or "log" for the logarithm of the result.
    src: of any dims.
    dst: of src's dims; it may be src's memory.
    lse: the logarithm of the sum of exponentials in f32, of src's dims, but 1 along the axis, and
        without blocks; or None. Attributes of dst do not change it.
    axis: the dim along which results add up to 1, counted from 0.

    dst and lse may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "softmax"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst", "lse")
    TYPES: ClassVar[Rows] = (
        *({**row, "lse": ("f32",)} for row in mixed_rows(("src", "dst"), STORED)),
        *({**row, "lse": ("f32",)} for row in one_type_rows(("src", "dst"), ("f64",))),
    )
    HAS_DROPOUT: ClassVar[bool] = True
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src", "dst"),)

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    lse: MemoryDesc | None = None
    axis: int

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        check_algorithm(self.KIND, self.algorithm, ALGORITHMS)
        self._check_descs(concrete=("src",))
        self._check_types()
        self._check_dims("dst", self.src.dims, "src's dims")
        self._check_axis(self.axis, self.src.ndims)
        if self.lse is not None:
            self._check_lse(self.lse)

    def _check_lse(self, lse: MemoryDesc) -> None:
        dims = list(self.src.dims)
        if not dims[self.axis]:
            self._fail(f"lse needs elements along the axis; got src of {self.src.dims}")
        dims[self.axis] = 1
        self._check_dims("lse", tuple(dims), "src's dims, but 1 along the axis")
        if lse.inner_blocks:
            self._fail(f"lse must have a format without blocks; got {lse.tag!r}")

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0."""
        return {"src": (0,), "dst": (0,)}


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxBackward(Operation):
    """The gradient with respect to src. `help(dnncore.ops.softmax)` shows the formulas.

    algorithm, axis: as in `SoftmaxForward`.
    dst: of any dims; the result of the forward.
    diff_dst: of dst's dims.
    diff_src: of dst's dims; it may be diff_dst's memory.

    dst must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "softmax backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("dst", "diff_dst") + writes("diff_src")
    TYPES: ClassVar[Rows] = (
        *mixed_rows(("dst", "diff_dst", "diff_src"), ("f32", *HALF_TYPES)),
        *one_type_rows(("dst", "diff_dst", "diff_src"), ("f64",)),
    )
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("diff_dst", "diff_src"),)

    algorithm: str = field(kw_only=False)
    dst: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    axis: int

    def __post_init__(self) -> None:
        check_algorithm(self.KIND, self.algorithm, ALGORITHMS)
        self._check_descs(concrete=("dst",))
        self._check_types()
        self._check_dims("diff_dst", self.dst.dims, "dst's dims")
        self._check_dims("diff_src", self.dst.dims, "dst's dims")
        self._check_axis(self.axis, self.dst.ndims)

    @property
    def forward_op(self) -> Operation:
        """The forward operation whose dst this gradient reads."""
        return self._as_forward(SoftmaxForward, src=self.dst, dst=self.dst)


Softmax: TypeAlias = SoftmaxForward | SoftmaxBackward
