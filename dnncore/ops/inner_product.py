"""Inner product (a fully connected layer) and its two gradients.

Shapes: src (N, IC) or (N, IC, H, W), weights (OC, IC) or (OC, IC, H, W), bias (OC), dst (N, OC).

    dst[n, o] = bias[o] + sum over i, y, x of src[n, i, y, x] * weights[o, i, y, x]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, cast

from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import Rows, gradient_rows, product_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "InnerProduct",
    "InnerProductBackwardData",
    "InnerProductBackwardWeights",
    "InnerProductForward",
]


@dataclass(frozen=True, eq=False, kw_only=True)
class _InnerProduct(Operation):
    """The part common to the three directions; `..._role` name tensors by their forward roles."""

    KIND: ClassVar[str] = "inner product"
    SRC: ClassVar[str] = "src"
    WEIGHTS: ClassVar[str] = "weights"
    BIAS: ClassVar[str] = "bias"
    DST: ClassVar[str] = "dst"

    def __post_init__(self) -> None:
        self._check_descs()
        self._check_types()
        x, w = self.src_role, self.weights_role
        if not 2 <= x.ndims <= 5:
            self._fail(f"{self.SRC} must have 2 to 5 dims (N, IC, [[D,] H,] W); got {x.dims}")
        if w.dims[1:] != x.dims[1:]:
            self._fail(
                f"{self.WEIGHTS} must be (OC, {', '.join(map(str, x.dims[1:]))}), with"
                f" {self.SRC}'s dims after the batch; got {w.dims}"
            )
        oc = w.dims[0]
        self._check_dims(self.DST, (x.dims[0], oc), "batch x output channels")
        if self.bias_role is not None:
            self._check_dims(self.BIAS, (oc,), "one value per output channel")

    @property
    def src_role(self) -> MemoryDesc:
        """Src or diff_src."""
        return cast(MemoryDesc, getattr(self, self.SRC))

    @property
    def weights_role(self) -> MemoryDesc:
        """Weights or diff_weights."""
        return cast(MemoryDesc, getattr(self, self.WEIGHTS))

    @property
    def dst_role(self) -> MemoryDesc:
        """Dst or diff_dst."""
        return cast(MemoryDesc, getattr(self, self.DST))

    @property
    def forward_op(self) -> Operation | None:
        """The forward operation, with bias if the gradient of bias is wanted."""
        if isinstance(self, InnerProductForward):
            return None
        roles = {"src": self.src_role, "weights": self.weights_role, "dst": self.dst_role}
        tensors = {name: desc.with_data_type(self.data_type) for name, desc in roles.items()}
        return self._as_forward(InnerProductForward, bias=self.bias_role, **tensors)

    @property
    def bias_role(self) -> MemoryDesc | None:
        """Bias or diff_bias; None if there is none."""
        return getattr(self, self.BIAS, None)

    @property
    def flops(self) -> float:
        """Two per multiply-add."""
        return 2.0 * math.prod(self.weights_role.dims) * self.src_role.dims[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class InnerProductForward(_InnerProduct):
    """Inner product forward. `help(dnncore.ops.inner_product)` shows the formula.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    src: (N, C), or (N, C, spatial dims) with one to three spatial dims.
    weights: (OC, C), or (OC, C, spatial dims) with the spatial dims of src.
    bias: (OC,), or None.
    dst: (N, OC).

    Every format may be `any`. Raises `DescriptorError`.
    """

    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "weights", "bias") + writes("dst")
    TYPES: ClassVar[Rows] = product_rows(decompressed=True)
    GROUPED: ClassVar[tuple[str, ...]] = ("weights",)

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    weights: MemoryDesc
    bias: MemoryDesc | None = None
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        super().__post_init__()

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0; weights: 0, 1 or 3, which is for groups."""
        return {"src": (0,), "weights": (0, 1, 3), "dst": (0,)}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0; weights: 0, 1 or 3, which is for groups."""
        return self.scale_masks


@dataclass(frozen=True, eq=False, kw_only=True)
class InnerProductBackwardData(_InnerProduct):
    """The gradient with respect to src.

    diff_src: (N, C), or (N, C, spatial dims) with one to three spatial dims.
    weights: (OC, C), or (OC, C, spatial dims) with the spatial dims of diff_src.
    diff_dst: (N, OC).

    Every format may be `any`. Raises `DescriptorError`.
    """

    SRC: ClassVar[str] = "diff_src"
    DST: ClassVar[str] = "diff_dst"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("diff_dst", "weights") + writes("diff_src")
    TYPES: ClassVar[Rows] = gradient_rows(("diff_dst", "weights"), ("diff_src",))

    diff_src: MemoryDesc
    weights: MemoryDesc
    diff_dst: MemoryDesc


@dataclass(frozen=True, eq=False, kw_only=True)
class InnerProductBackwardWeights(_InnerProduct):
    """The gradients with respect to weights and bias.

    src: (N, C), or (N, C, spatial dims) with one to three spatial dims.
    diff_weights: (OC, C), or (OC, C, spatial dims) with the spatial dims of src.
    diff_bias: (OC,), or None: then it is not computed.
    diff_dst: (N, OC).

    Every format may be `any`. Raises `DescriptorError`.
    """

    WEIGHTS: ClassVar[str] = "diff_weights"
    BIAS: ClassVar[str] = "diff_bias"
    DST: ClassVar[str] = "diff_dst"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "diff_dst") + writes(
        "diff_weights", "diff_bias"
    )
    TYPES: ClassVar[Rows] = gradient_rows(("src", "diff_dst"), ("diff_weights", "diff_bias"))

    src: MemoryDesc
    diff_weights: MemoryDesc
    diff_bias: MemoryDesc | None = None
    diff_dst: MemoryDesc


InnerProduct: TypeAlias = (
    InnerProductForward | InnerProductBackwardData | InnerProductBackwardWeights
)
