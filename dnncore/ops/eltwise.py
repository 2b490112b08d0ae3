"""Eltwise: dst = f(src), element by element, and its gradient.

The formulas of the algorithms are in `dnncore.ops.algorithms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.memory_desc import MemoryDesc
from dnncore.ops.algorithms import check_eltwise
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes

__all__ = ["EltwiseBackward", "EltwiseForward"]


@dataclass(frozen=True, eq=False, kw_only=True)
class EltwiseForward(Operation):
    """dst = algorithm(src) in src's dims, in place if wanted. Raises `DescriptorError`."""

    KIND: ClassVar[str] = "eltwise"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
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
        self._check_descs(concrete=("src",))
        self._check_types({"src": ("f32",), "dst": ("f32",)})
        self._check_dims("dst", self.src.dims, "src's dims")


@dataclass(frozen=True, eq=False, kw_only=True)
class EltwiseBackward(Operation):
    """diff_src = diff_dst * algorithm'(src); diff_src may be diff_dst's memory."""

    KIND: ClassVar[str] = "eltwise backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "diff_dst") + writes("diff_src")
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("diff_dst", "diff_src"),)

    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_src: MemoryDesc
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        check_eltwise(self.KIND, self.algorithm, self.alpha, self.beta)
        self._check_descs(concrete=("src",))
        self._check_types(dict.fromkeys(("src", "diff_dst", "diff_src"), ("f32",)))
        self._check_dims("diff_dst", self.src.dims, "src's dims")
        self._check_dims("diff_src", self.src.dims, "src's dims")
