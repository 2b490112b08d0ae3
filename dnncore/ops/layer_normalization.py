"""Layer normalization along the last dim, and its gradients.

    dst = scale[c] * (src - mean[...]) / sqrt(variance[...] + epsilon) + shift[c]

`help(dnncore.ops.normalization)` has the definitions of statistics and gradients. With `rms`
(Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"), the mean is not subtracted, and
variance is the average of src**2:

    dst = scale[c] * src / sqrt(variance[...] + epsilon) + shift[c]

In the formula of diff_src, the average of g is then absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

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

__all__ = ["LayerNormalization", "LayerNormalizationBackward", "LayerNormalizationForward"]

FLOATS = ("f32", *HALF_TYPES)


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerNormalizationForward(NormalizationForward):
    """Layer normalization forward. `help(dnncore.ops.layer_normalization)` shows the formula.

    prop_kind: "forward_training" or "forward_inference". Training writes mean and variance, unless
        `use_global_stats` is true.
    src, dst: of two to five dims; the last has C elements.
    mean, variance: src's dims without the last, f32; by default row-major. Inputs with
        `use_global_stats`, else outputs in training. In inference without it they are absent.
    scale, shift: (C), of one type; each may be None.
    epsilon: of the formula, at least 0.
    use_global_stats: whether mean and variance are inputs.
    rms: whether the mean is not subtracted. Then it is no argument.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "layer normalization"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = forward_table()
    TYPES: ClassVar[Rows] = typed_rows(mixed_rows(("src", "dst"), (*FLOATS, "s8", "u8")), *FLOATS)

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    rms: bool = False

    def __post_init__(self) -> None:
        self._check_flag("rms")
        self._check_forward(self.prop_kind)

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src and dst: 0."""
        return {"src": (0,), "dst": (0,)}

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The dims of src without the last."""
        return self.src.dims[:-1]

    @property
    def channels(self) -> int:
        """The last dim of src."""
        return self.src.dims[-1]

    @property
    def count(self) -> int:
        """The last dim of src."""
        return self.src.dims[-1]

    @property
    def has_mean(self) -> bool:
        """Whether the mean is subtracted."""
        return not self.rms


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerNormalizationBackward(NormalizationBackward):
    """The gradients with respect to src, scale and shift.

    src, diff_dst, diff_src: of two to five dims, with the dims of the forward's src.
    mean, variance: src's dims without the last, f32; those of the forward. By default row-major.
    scale: (C), or None.
    diff_scale, diff_shift: (C), of scale's type; each may be None. Without both, only src has a
        gradient.
    epsilon, use_global_stats, rms: as in `LayerNormalizationForward`.

    Inputs other than diff_dst must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "layer normalization backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = backward_table()
    TYPES: ClassVar[Rows] = gradient_types(*FLOATS)

    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    rms: bool = False

    def __post_init__(self) -> None:
        self._check_flag("rms")
        self._check_backward()

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The dims of src without the last."""
        return self.src.dims[:-1]

    @property
    def channels(self) -> int:
        """The last dim of src."""
        return self.src.dims[-1]

    @property
    def count(self) -> int:
        """The last dim of src."""
        return self.src.dims[-1]

    @property
    def has_mean(self) -> bool:
        """Whether the mean is subtracted."""
        return not self.rms

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps the statistics."""
        return self._forward(LayerNormalizationForward)


LayerNormalization: TypeAlias = LayerNormalizationForward | LayerNormalizationBackward
