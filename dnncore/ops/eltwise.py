"""Eltwise: dst = f(src), element by element, and its gradient.

The formulas of the algorithms are in `dnncore.algorithms.eltwise`. Algorithms named
..._use_dst_for_bwd compute the same dst. They compute the gradient from dst, so that src need not
be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from dnncore.algorithms.eltwise import ELTWISE, USE_DST, check_eltwise
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["OF_INTEGERS", "Eltwise", "EltwiseBackward", "EltwiseForward"]

OF_INTEGERS = ("relu", "linear", "clip", "clip_v2")
"""The algorithms that also compute with integers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EltwiseForward(Operation):
    """dst = algorithm(src). `python -m dnncore.algorithms` prints the formulas.

    prop_kind: "forward_training" or "forward_inference"; they are computed in the same way.
    algorithm: a name such as "relu". Algorithms with a gradient from dst also exist with the ending
        _use_dst_for_bwd.
    src: of any dims.
    dst: of src's dims; it may be src's memory.
    alpha, beta: parameters of some algorithms.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "eltwise"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
    TYPES: ClassVar[Rows] = one_type_rows(
        ("src", "dst"), ("f64", "f32", *HALF_TYPES, *INTEGER_TYPES)
    )
    HAS_DROPOUT: ClassVar[bool] = True
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src", "dst"),)

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        check_eltwise(self.KIND, self.algorithm, self.alpha, self.beta)
        self._set(alpha=float(self.alpha), beta=float(self.beta))
        self._check_descs(concrete=("src",))
        self._check_types()
        self._check_dims("dst", self.src.dims, "src's dims")

    @property
    def type_rows(self) -> Rows:
        """Integers only for the algorithms in `OF_INTEGERS`."""
        if self.function in OF_INTEGERS:
            return self.TYPES
        return tuple(row for row in self.TYPES if row["src"][0] not in INTEGER_TYPES)

    @property
    def function(self) -> str:
        """The name of f: the algorithm's name without the suffix about the gradient."""
        return self.algorithm.removesuffix(USE_DST)


@dataclass(frozen=True, eq=False, kw_only=True)
class EltwiseBackward(Operation):
    """diff_src = diff_dst * f', with the derivative f' of the algorithm.

    algorithm, alpha, beta: as in `EltwiseForward`.
    src: of any dims; None if the algorithm's name ends in _use_dst_for_bwd.
    dst: of any dims, from which f' is computed if the algorithm's name ends in _use_dst_for_bwd;
        else None.
    diff_dst: of the dims of src or dst.
    diff_src: of the same dims; it may be diff_dst's memory.

    src and dst must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "eltwise backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "dst", "diff_dst") + writes("diff_src")
    TYPES: ClassVar[Rows] = one_type_rows(
        ("src", "dst", "diff_dst", "diff_src"), ("f64", "f32", *HALF_TYPES)
    )
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("diff_dst", "diff_src"),)

    algorithm: str = field(kw_only=False)
    src: MemoryDesc | None = None
    dst: MemoryDesc | None = None
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        function = check_eltwise(self.KIND, self.algorithm, self.alpha, self.beta)
        self._set(alpha=float(self.alpha), beta=float(self.beta))
        if not ELTWISE[function].slope:
            self._fail(f"{function} has no gradient; it exists forward only")
        name, other = ("dst", "src") if self.uses_dst else ("src", "dst")
        if getattr(self, name) is None or getattr(self, other) is not None:
            self._fail(
                f"{self.algorithm} computes the gradient from {name}, not from {other};"
                f" give {name}= alone"
            )
        self._check_descs(concrete=(name,))
        self._check_types()
        self._check_dims("diff_dst", self.kept.dims, f"{name}'s dims")
        self._check_dims("diff_src", self.kept.dims, f"{name}'s dims")

    @property
    def function(self) -> str:
        """The name of f: the algorithm's name without the suffix about the gradient."""
        return self.algorithm.removesuffix(USE_DST)

    @property
    def forward_op(self) -> Operation:
        """The forward operation on tensors with the descriptor of `kept`."""
        return self._as_forward(EltwiseForward, src=self.kept, dst=self.kept)

    @property
    def uses_dst(self) -> bool:
        """Whether f' is computed from dst."""
        return self.algorithm.endswith(USE_DST)

    @property
    def kept(self) -> MemoryDesc:
        """The tensor kept from forward, from which f' is computed: src or dst."""
        desc = self.dst if self.src is None else self.src
        assert desc is not None
        return desc


Eltwise: TypeAlias = EltwiseForward | EltwiseBackward
