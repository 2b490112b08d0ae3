"""Convolution: dst = src * weights + bias, and its two gradients.

Shapes, with G groups: src (N, G*IC, H, W), weights (OC, IC, KH, KW) or grouped (G, OC, IC, KH, KW),
bias (G*OC), dst (N, G*OC, OH, OW). One and three spatial dims work the same way.

    dst[n, g*OC+o, y, x] = bias[g*OC+o] + sum over i, r, s of
        src[n, g*IC+i, y*SH - PT + r*(DH+1), x*SW - PL + s*(DW+1)] * weights[g, o, i, r, s]

with zeros outside src: this is cross-correlation, which deep learning calls convolution.

The field `algorithm` selects the method of computation, with oneDNN's names:

    direct      (the default) the products of the formula; their sums may be in any order
    winograd    Winograd's method: fewer products, of transformed tiles, and larger rounding errors;
                if no implementation supports it, none accepts the operation
    auto        the method that is estimated to be faster; the operation of a primitive descriptor
                states which

The results differ only by rounding, so a gradient's algorithm may differ from its hint's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeAlias, cast

from dnncore.algorithms.rules import check_algorithm
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import Rows, gradient_rows, product_rows
from dnncore.ops.window import Windowed
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "ConvolutionForward",
]


ALGORITHMS = ("direct", "winograd", "auto")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Convolution(Windowed, Operation):
    """The part common to the three directions; `..._role` name tensors by their forward roles."""

    KIND: ClassVar[str] = "convolution"
    SRC: ClassVar[str] = "src"
    WEIGHTS: ClassVar[str] = "weights"
    BIAS: ClassVar[str] = "bias"
    DST: ClassVar[str] = "dst"
    ALGORITHMS: ClassVar[tuple[str, ...]] = ALGORITHMS
    MAY_DIFFER: ClassVar[tuple[str, ...]] = ("prop_kind", "algorithm")

    algorithm: str = "direct"

    def __post_init__(self) -> None:
        self._check_descs()
        check_algorithm(self.KIND, self.algorithm, self.ALGORITHMS)
        self._check_types()
        x, w, y = self.src_role, self.weights_role, self.dst_role
        if not 3 <= x.ndims <= 5:
            self._fail(f"{self.SRC} must have 3 to 5 dims (N, C, [[D,] H,] W); got {x.dims}")
        if w.ndims not in (x.ndims, x.ndims + 1):
            self._fail(
                f"{self.WEIGHTS} must have {x.ndims} dims (OC, IC, kernel), or {x.ndims + 1} with"
                f" the groups first; got {w.dims}"
            )
        if y.ndims != x.ndims:
            self._fail(f"{self.DST} must have {x.ndims} dims as {self.SRC} has; got {y.dims}")
        self._normalise_window(self.KIND, x.ndims - 2)
        groups, oc, ic, *taps = self.grouped_weights
        if groups * ic != x.dims[1]:
            self._fail(
                f"{self.SRC} has {x.dims[1]} channels but {self.WEIGHTS} expect {groups * ic}"
                f" ({self.WEIGHTS} dim {w.ndims - x.ndims + 1} x groups {groups})"
            )
        if 0 in w.dims:
            self._fail(f"{self.WEIGHTS} must not be empty; got {w.dims}")
        if y.dims[:2] != (x.dims[0], groups * oc):
            self._fail(
                f"{self.DST} must begin with {(x.dims[0], groups * oc)}, {self.SRC}'s batch and"
                f" {self.WEIGHTS}' output channels; got {y.dims[:2]}"
            )
        self._check_windows(taps)
        if self.bias_role is not None:
            self._check_dims(self.BIAS, (groups * oc,), "one value per output channel")

    def _check_windows(self, taps: Sequence[int]) -> None:
        """Check that dst has one place per window in src."""
        x, y = self.src_role.dims[2:], self.dst_role.dims[2:]
        self._check_output(self.KIND, x, taps, y, self.DST)

    @property
    def src_role(self) -> MemoryDesc:
        """The image: src, or diff_src in backward data."""
        return cast(MemoryDesc, getattr(self, self.SRC))

    @property
    def weights_role(self) -> MemoryDesc:
        """The weights: weights or diff_weights."""
        return cast(MemoryDesc, getattr(self, self.WEIGHTS))

    @property
    def dst_role(self) -> MemoryDesc:
        """The output: dst, or diff_dst in the backward directions."""
        return cast(MemoryDesc, getattr(self, self.DST))

    @property
    def forward_op(self) -> Operation | None:
        """The forward operation, with bias if the gradient of bias is wanted."""
        if isinstance(self, ConvolutionForward):
            return None
        roles = {"src": self.src_role, "weights": self.weights_role, "dst": self.dst_role}
        tensors = {name: desc.with_data_type(self.data_type) for name, desc in roles.items()}
        return self._as_forward(ConvolutionForward, bias=self.bias_role, **tensors)

    @property
    def bias_role(self) -> MemoryDesc | None:
        """Bias or diff_bias; None if it is absent."""
        return getattr(self, self.BIAS, None)

    @property
    def grouped_weights(self) -> tuple[int, ...]:
        """The dims of the weights as (G, OC, IC, *kernel), with G = 1 if they have no group dim."""
        w = self.weights_role
        return w.dims if w.ndims > self.src_role.ndims else (1, *w.dims)

    def resolve_any(self, **formats: str | MemoryDesc) -> Self:
        """As for any operation; the algorithm `auto` also becomes `direct`."""
        return super().resolve_any(**formats).resolve_auto("direct")

    def resolve_auto(self, algorithm: str) -> Self:
        """Return the operation with the algorithm `auto` replaced by the selected one."""
        if self.algorithm != "auto":
            return self
        resolved = self.with_descs()
        resolved._set(algorithm=algorithm)
        return resolved

    @property
    def flops(self) -> float:
        """Two per multiply-add of the direct algorithm."""
        return 2.0 * math.prod(self.dst_role.dims) * math.prod(self.grouped_weights[2:])


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvolutionForward(_Convolution):
    """Convolution forward. `help(dnncore.ops.convolution)` shows the formula.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    src: (N, C, spatial dims), with one to three spatial dims.
    weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    bias: (OC,), or None.
    dst: (N, OC, spatial dims).
    algorithm: "direct", "winograd" or "auto".
    strides, dilations, padding_l, padding_r: one number for each spatial dim, or one for all.
        A dilation of 0 is dense. The defaults are 1, 0, 0 and padding_l.

    Every format may be `any`. Raises `DescriptorError`.
    """

    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "weights", "bias") + writes("dst")
    TYPES: ClassVar[Rows] = product_rows(decompressed=False)

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
        """src: 0; weights: 0 or the bits of all dims of output channels, which is 1, or 3 if they
        have a dim G; dst: 0 or 2.
        """
        per_channel = 3 if self.weights.ndims > self.src.ndims else 1
        return {"src": (0,), "weights": (0, per_channel), "dst": (0, 2)}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0 or 2; weights: 0."""
        return {"src": (0, 2), "weights": (0,), "dst": (0, 2)}


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvolutionBackwardData(_Convolution):
    """The gradient with respect to src. `help(dnncore.ops.convolution)` shows the formula.

    diff_src: (N, C, spatial dims), as src of `ConvolutionForward`.
    weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    diff_dst: (N, OC, spatial dims), as dst.
    algorithm, strides, dilations, padding_l, padding_r: as in `ConvolutionForward`.

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
class ConvolutionBackwardWeights(_Convolution):
    """The gradients with respect to weights and bias.

    src: (N, C, spatial dims), with one to three spatial dims.
    diff_weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    diff_bias: (OC,), or None: then it is not computed.
    diff_dst: (N, OC, spatial dims), as dst of `ConvolutionForward`.
    algorithm, strides, dilations, padding_l, padding_r: as in `ConvolutionForward`.

    Every format may be `any`. Raises `DescriptorError`.
    """

    SRC: ClassVar[str] = "src"
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


Convolution: TypeAlias = ConvolutionForward | ConvolutionBackwardData | ConvolutionBackwardWeights
