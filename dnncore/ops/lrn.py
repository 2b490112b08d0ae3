"""Local response normalisation across or within channels, and its gradient.

    base[i]     = k + alpha / n * sum over j in window(i) of src[j]**2
    dst[i]      = src[i] * base[i]**-beta
    diff_src[i] = diff_dst[i] * base[i]**-beta
                  - 2 * alpha * beta / n * src[i]
                    * sum over j in window(i) of diff_dst[j] * src[j] * base[j]**(-beta - 1)

Shapes: src and dst (N, C, H, W), with 0 to 3 spatial dims. With h = (local_size - 1) // 2,

    across_channels: the window is the channels c - h ... c + h at one place, n = local_size;
    within_channel:  the window is x - h ... x + h along every spatial dim, n = local_size ** dims.

Windows are clipped at the tensor's borders. n does not change there. The workspace, written by
forward_training and read by backward, holds base: f32, in dst's dims and layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dnncore.algorithms.rules import check_algorithm, check_finite
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, Rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["LRN", "LRNBackward", "LRNForward"]

# algorithm: the least number of dims of src
ALGORITHMS = {"across_channels": 2, "within_channel": 3}
LARGEST_SIZE = 2**31 - 1
WORKSPACE_TYPE = "f32"  # for tensors of any type


@dataclass(frozen=True, eq=False, kw_only=True)
class _LRN(Operation):
    """The part common to both directions. Defaults follow the successors of AlexNet: k = 1."""

    TYPES: ClassVar[Rows] = one_type_rows(
        ("src", "dst", "diff_dst", "diff_src"), ("f32", *HALF_TYPES)
    )

    local_size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def _check(self, algorithm: str, *names: str) -> None:
        check_algorithm(self.KIND, algorithm, ALGORITHMS)
        check_finite(self.KIND, alpha=self.alpha, beta=self.beta, k=self.k)
        check_finite(self.KIND, local_size=self.local_size)
        size = int(self.local_size)
        if self.local_size != size or not 1 <= size <= LARGEST_SIZE:
            self._fail(
                f"local_size must be an integer from 1 to {LARGEST_SIZE}; got {self.local_size!r}"
            )
        numbers = {name: float(getattr(self, name)) for name in ("alpha", "beta", "k")}
        self._set(local_size=size, **numbers)
        self._check_descs(concrete=("src",))
        self._check_types()
        least = ALGORITHMS[algorithm]
        if not least <= self.source.ndims <= 5:
            self._fail(f"src must have {least} to 5 dims for {algorithm}; got {self.source.dims}")
        for name in names:
            self._check_dims(name, self.source.dims, "src's dims")

    @property
    def source(self) -> MemoryDesc:
        """The tensor src, which both directions read."""
        desc: MemoryDesc = vars(self)["src"]
        return desc

    @property
    def window_dims(self) -> tuple[int, ...]:
        """Return the dims along which the window extends."""
        across = vars(self)["algorithm"] == "across_channels"
        return (1,) if across else tuple(range(2, self.source.ndims))

    @property
    def half_window(self) -> int:
        """Elements on each side of the window's middle element."""
        return (self.local_size - 1) // 2

    @property
    def divisor(self) -> int:
        """n: the number of elements of a whole window if local_size is odd."""
        return int(self.local_size ** len(self.window_dims))

    @property
    def flops(self) -> float:
        """Two per element of each window, for direct summation."""
        window = float(2 * self.half_window + 1) ** len(self.window_dims)
        return 2.0 * window * math.prod(self.source.dims)


@dataclass(frozen=True, eq=False, kw_only=True)
class LRNForward(_LRN):
    """LRN forward. `help(dnncore.ops.lrn)` shows the formula.

    prop_kind: "forward_training" or "forward_inference"; only training writes a workspace.
    algorithm: "across_channels" or "within_channel".
    src, dst: (N, C, spatial dims), with zero to three spatial dims; "within_channel" needs one at
        least.
    workspace: base of the formula, f32, with dst's dims and format.
    local_size, alpha, beta, k: of the formula.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "lrn"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst", "workspace")

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check(self.algorithm, "dst")

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The descriptor of base in dst's layout; None except in training."""
        if self.prop_kind == "forward_inference":
            return None
        return self.dst.with_data_type(WORKSPACE_TYPE)


@dataclass(frozen=True, eq=False, kw_only=True)
class LRNBackward(_LRN):
    """The gradient with respect to src. `help(dnncore.ops.lrn)` shows the formula.

    algorithm, local_size, alpha, beta, k: as in `LRNForward`.
    src, diff_dst, diff_src: (N, C, spatial dims), with the dims of the forward's src.
    workspace: the workspace of the forward.

    src must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "lrn backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "diff_dst", "workspace") + writes(
        "diff_src"
    )

    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc

    def __post_init__(self) -> None:
        self._check(self.algorithm, "diff_dst", "diff_src")

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps the workspace."""
        return self._as_forward(LRNForward, src=self.src, dst=self.diff_dst)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint is an LRN that keeps a workspace."""
        super().check_hint(hint)
        self._check_keeps_workspace(hint)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The hint's workspace, else base in diff_dst's layout."""
        if hint is not None:
            desc: MemoryDesc | None = hint.workspace_desc
            return desc
        return self.diff_dst.with_data_type(WORKSPACE_TYPE)


LRN: TypeAlias = LRNForward | LRNBackward
