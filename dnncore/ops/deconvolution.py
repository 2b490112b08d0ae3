"""Deconvolution, also called transposed convolution, and its two gradients.

Shapes, with G groups: src (N, G*IC, H, W), weights (OC, IC, KH, KW) or grouped (G, OC, IC, KH, KW),
bias (G*OC), dst (N, G*OC, OH, OW). One and three spatial dims work the same way.

    dst[n, g*OC+o, y, x] = bias[g*OC+o] + sum over i, r, s, h, w
        with h*SH - PT + r*(DH+1) = y and w*SW - PL + s*(DW+1) = x of
        src[n, g*IC+i, h, w] * weights[g, o, i, r, s]

Each cell of src is multiplied by the kernel and added to dst at its window. This is the gradient of
a convolution by its src: a convolution of dst with the same strides, dilations and paddings has
src's size. In comparison with the convolution's weights, the two dims of channels are exchanged.

The smallest dst that contains all windows has along W, and in the same way along other dims,

    OW = (W - 1) * SW + 1 + (KW - 1) * (DW + 1) - PL - PR

with PL = padding_l and PR = padding_r. Sizes from OW to OW + SW - 1 are permitted, since a
convolution with this stride has W cells for each of them. The cells behind OW that no window
reaches get the bias. If W is 1, sizes from OW - SW + 1 are also permitted, because oneDNN's
division by the stride truncates. A padding_r below 0, at least 1 - SW, also enlarges dst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dnncore.ops.convolution import _Convolution
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import Rows, gradient_rows, product_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "Deconvolution",
    "DeconvolutionBackwardData",
    "DeconvolutionBackwardWeights",
    "DeconvolutionForward",
]


ALGORITHMS = ("direct",)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Deconvolution(_Convolution):
    """The part common to the three directions."""

    KIND: ClassVar[str] = "deconvolution"
    ALGORITHMS: ClassVar[tuple[str, ...]] = ALGORITHMS

    def _check_windows(self, taps: Sequence[int]) -> None:
        """Check that src has one place per window in dst."""
        x, y = self.src_role.dims[2:], self.dst_role.dims[2:]
        self._check_output(self.KIND, y, taps, x, self.SRC, self.DST)

    @property
    def forward_op(self) -> Operation | None:
        """The forward operation, with bias if the gradient of bias is wanted."""
        if isinstance(self, DeconvolutionForward):
            return None
        roles = {"src": self.src_role, "weights": self.weights_role, "dst": self.dst_role}
        tensors = {name: desc.with_data_type(self.data_type) for name, desc in roles.items()}
        return self._as_forward(DeconvolutionForward, bias=self.bias_role, **tensors)

    @property
    def window_fields(self) -> dict[str, Any]:
        """The strides, dilations and paddings, for a convolution with the same windows."""
        names = ("strides", "dilations", "padding_l", "padding_r")
        return {name: getattr(self, name) for name in names}

    @property
    def flops(self) -> float:
        """Two per multiply-add: each cell of src times a kernel per output channel."""
        _, oc, _, *taps = self.grouped_weights
        return 2.0 * math.prod(self.src_role.dims) * oc * math.prod(taps)


@dataclass(frozen=True, eq=False, kw_only=True)
class DeconvolutionForward(_Deconvolution):
    """Deconvolution forward. `help(dnncore.ops.deconvolution)` shows the formula.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    src: (N, C, spatial dims), with one to three spatial dims.
    weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    bias: (OC,), or None.
    dst: (N, OC, spatial dims). The size OW along W is (W - 1) * SW + 1 + (KW - 1) * (DW + 1) - PL -
        PR, or up to SW - 1 more, so that a convolution of dst with these windows has src's size.
    algorithm: "direct".
    strides, dilations, padding_l, padding_r: one number for each spatial dim, or one for all.
        A dilation of 0 is dense. The defaults are 1, 0, 0 and padding_l. Padding is cut off dst.

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
        """src and dst: 0; weights: 0 or the bits of all dims of output channels, which is 1, or 3
        if they have a dim G.
        """
        per_channel = 3 if self.weights.ndims > self.src.ndims else 1
        return {"src": (0,), "weights": (0, per_channel), "dst": (0,)}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0 or 2."""
        return {"src": (0, 2), "dst": (0, 2)}


@dataclass(frozen=True, eq=False, kw_only=True)
class DeconvolutionBackwardData(_Deconvolution):
    """The gradient with respect to src, a convolution of diff_dst.

    diff_src: (N, C, spatial dims), as src of `DeconvolutionForward`.
    weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    diff_dst: (N, OC, spatial dims), as dst.
    algorithm, strides, dilations, padding_l, padding_r: as in `DeconvolutionForward`.

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
class DeconvolutionBackwardWeights(_Deconvolution):
    """The gradients with respect to weights and bias.

    src: (N, C, spatial dims), with one to three spatial dims.
    diff_weights: (OC, C, kernel dims), or with groups (G, OC / G, C / G, kernel dims).
    diff_bias: (OC,), or None: then it is not computed.
    diff_dst: (N, OC, spatial dims), as dst of `DeconvolutionForward`.
    algorithm, strides, dilations, padding_l, padding_r: as in `DeconvolutionForward`.

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


Deconvolution: TypeAlias = (
    DeconvolutionForward | DeconvolutionBackwardData | DeconvolutionBackwardWeights
)
