"""PReLU: dst = src where src > 0, else weights * src, and its gradient.

    dst          = src if src > 0 else weights * src
    diff_src     = diff_dst if src > 0 else weights * diff_dst
    diff_weights = sum of (0 if src > 0 else src * diff_dst)

The weights are broadcast to src along their dims of size 1. The sum is over all elements of src
that share a weight. (K. He et al. 2015, "Delving deep into rectifiers".)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["PReLU", "PReLUBackward", "PReLUForward"]

_FLOATS = ("f32", *HALF_TYPES)


@dataclass(frozen=True, eq=False, kw_only=True)
class PReLUForward(Operation):
    """PReLU forward. `help(dnncore.ops.prelu)` shows the formulas.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    src: of any dims.
    weights: of src's rank, with dims that are 1 or src's, such as (1, C, 1, 1) for one per channel.
    dst: of src's dims and type; it may be src's memory.

    src must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "prelu"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "weights") + writes("dst")
    TYPES: ClassVar[Rows] = tuple(
        {"src": (own,), "weights": tuple(dict.fromkeys((*_FLOATS, own))), "dst": (own,)}
        for own in (*_FLOATS, *INTEGER_TYPES)
    )
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src", "dst"),)

    prop_kind: PropKind = field(kw_only=False)
    src: MemoryDesc
    weights: MemoryDesc
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check_descs(concrete=("src",))
        self._check_types()
        _check_weights(self, self.src, self.weights)
        self._check_dims("dst", self.src.dims, "src's dims")


@dataclass(frozen=True, eq=False, kw_only=True)
class PReLUBackward(Operation):
    """The gradients with respect to src and weights. `help(dnncore.ops.prelu)` has the formulas.

    src, weights: as in `PReLUForward`.
    diff_dst: of src's dims and type.
    diff_src: of src's dims and type; it may be diff_dst's memory.
    diff_weights: of weights' dims and type.

    src must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "prelu backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "weights", "diff_dst") + writes(
        "diff_src", "diff_weights"
    )
    TYPES: ClassVar[Rows] = tuple(
        dict.fromkeys(("src", "diff_dst", "diff_src"), (own,))
        | dict.fromkeys(("weights", "diff_weights"), (slope,))
        for own in _FLOATS
        for slope in _FLOATS
    )
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("diff_dst", "diff_src"),)

    src: MemoryDesc
    weights: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    diff_weights: MemoryDesc

    def __post_init__(self) -> None:
        self._check_descs(concrete=("src",))
        self._check_types()
        _check_weights(self, self.src, self.weights)
        self._check_dims("diff_dst", self.src.dims, "src's dims")
        self._check_dims("diff_src", self.src.dims, "src's dims")
        self._check_dims("diff_weights", self.weights.dims, "weights' dims")

    @property
    def forward_op(self) -> Operation:
        """The forward operation."""
        return self._as_forward(PReLUForward, dst=self.diff_dst)

    @property
    def shared_dims(self) -> tuple[int, ...]:
        """The dims along which several elements of src share a weight."""
        pairs = zip(self.src.dims, self.weights.dims, strict=True)
        return tuple(dim for dim, (size, own) in enumerate(pairs) if size != own)

    @property
    def flops(self) -> float:
        """Three per element of src: two products and a sum."""
        return 3.0 * self.src.nelems


def _check_weights(op: Operation, src: MemoryDesc, weights: MemoryDesc) -> None:
    if not weights.broadcasts_to(src.dims):
        op._fail(
            "weights must have src's rank and each dim be 1 or src's;"
            f" got {weights.dims} for src {src.dims}{_advice(src, weights)}"
        )


def _advice(src: MemoryDesc, weights: MemoryDesc) -> str:
    if src.ndims < 2 or weights.dims != (src.dims[1],):
        return ""
    dims = (1, src.dims[1], *(1 for _ in src.dims[2:]))
    return f"; reshape one weight per channel to {dims}"


PReLU: TypeAlias = PReLUForward | PReLUBackward
