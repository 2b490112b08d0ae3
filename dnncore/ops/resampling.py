"""Resampling: an image of another size, by the nearest element or by linear interpolation.

Shapes: src (N, C, H, W), dst (N, C, OH, OW); 1 to 3 spatial dims. Element o of dst lies at

    x(o) = (o + 1/2) * I / O - 1/2

along a dim with I elements in src and O in dst: the centres of the outer elements have the same
distance to the edges (half-pixel centres), as in oneDNN.

    nearest: dst[o] = src[min(floor(x(o) + 1/2), I - 1)]: of two nearest elements, the upper one
    linear: dst[o] = (1 - f) * src[max(i, 0)] + f * src[min(i + 1, I - 1)], i = floor(x), f = x - i

Weights of several dims are multiplied. Elements whose weight is 0 are not read. Positions are
exact, so ties do not depend on rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from dnncore.algorithms.rules import check_algorithm
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Resampling", "ResamplingBackward", "ResamplingForward"]

ALGORITHMS = ("nearest", "linear")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Resampling(Operation):
    """The part common to both directions; `..._role` name tensors by their forward roles."""

    SRC: ClassVar[str] = "src"
    DST: ClassVar[str] = "dst"

    def _check(self, algorithm: str) -> None:
        check_algorithm(self.KIND, algorithm, ALGORITHMS)
        self._check_descs()
        self._check_types()
        x, y = self.src_role.dims, self.dst_role.dims
        if not 3 <= len(x) <= 5:
            self._fail(f"{self.SRC} must have 3 to 5 dims (N, C, [[D,] H,] W); got {x}")
        if len(y) != len(x) or y[:2] != x[:2]:
            self._fail(
                f"{self.DST} must have {self.SRC}'s batch, channels and rank {x[:2]}, {len(x)}"
                f" dims; got {y}"
            )
        if 0 in x[2:] and 0 not in y[2:]:
            self._fail(
                f"{self.SRC} must have elements along each spatial dim if {self.DST} has; got {x}"
                f" for {y}"
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
    def is_nearest(self) -> bool:
        """Whether each element of dst is an element of src."""
        return bool(vars(self)["algorithm"] == "nearest")

    @property
    def flops(self) -> float:
        """One multiply-add per element of dst and element of src that it depends on."""
        taps = 1 if self.is_nearest else 1 << (self.dst_role.ndims - 2)
        return 2.0 * taps * self.dst_role.nelems


@dataclass(frozen=True, eq=False, kw_only=True)
class ResamplingForward(_Resampling):
    """Resampling forward. `help(dnncore.ops.resampling)` shows the formulas.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    algorithm: "nearest" or "linear" (bilinear, trilinear).
    src: (N, C, spatial dims), with one to three spatial dims.
    dst: (N, C, spatial dims), of any sizes.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "resampling"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
    TYPES: ClassVar[Rows] = mixed_rows(("src", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES))

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check(self.algorithm)
        self._check_descs(concrete=("src",))


@dataclass(frozen=True, eq=False, kw_only=True)
class ResamplingBackward(_Resampling):
    """The gradient with respect to src: each diff_dst, times its weights, is added to diff_src.

    algorithm: as in `ResamplingForward`.
    diff_src: (N, C, spatial dims), as src of `ResamplingForward`.
    diff_dst: (N, C, spatial dims), as dst.

    Only diff_src may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "resampling backward"
    SRC: ClassVar[str] = "diff_src"
    DST: ClassVar[str] = "diff_dst"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("diff_dst") + writes("diff_src")
    TYPES: ClassVar[Rows] = mixed_rows(("diff_dst", "diff_src"), ("f32", *HALF_TYPES))

    algorithm: str = field(kw_only=False)
    diff_src: MemoryDesc
    diff_dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check(self.algorithm)
        self._check_descs(concrete=("diff_dst",))

    @property
    def forward_op(self) -> Operation:
        """The forward operation with a concrete src."""
        src = self.diff_src.with_format(None) if self.diff_src.is_any else self.diff_src
        return self._as_forward(ResamplingForward, src=src, dst=self.diff_dst)


Resampling: TypeAlias = ResamplingForward | ResamplingBackward
