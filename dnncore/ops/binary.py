"""Binary: dst = src0 op src1, each input broadcast to dst along dims of size 1.

The formulas of the algorithms are in `dnncore.algorithms.binary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.algorithms.binary import BINARY, check_condition
from dnncore.algorithms.rules import check_algorithm
from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Binary"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Binary(Operation):
    """dst = algorithm(src0, src1). `python -m dnncore.algorithms` prints the formulas.

    algorithm: a name such as "add".
    src0, src1: of the same rank. Each dim of src0 equals the dim of src1, or one of them is 1 and
        its element is used for the whole dim.
    src2: the condition of `select`, of type s8, with dst's rank and dims that are 1 or dst's. Where
        src2 is not 0, dst is src0, elsewhere src1. None for other algorithms.
    dst: each dim is the dim of src0 or, if that is 1, the dim of src1. dst may be src0's memory.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "binary"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src0", "src1", "src2") + writes("dst")
    TYPES: ClassVar[Rows] = mixed_rows(
        ("src0", "src1", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES)
    )
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src0", "dst"),)

    algorithm: str = field(kw_only=False)
    src0: MemoryDesc
    src1: MemoryDesc
    src2: MemoryDesc | None = None
    dst: MemoryDesc

    def __post_init__(self) -> None:
        check_algorithm(self.KIND, self.algorithm, BINARY)
        check_condition(self.KIND, self.algorithm, self.src2)
        self._check_descs(concrete=("src0", "src1", "src2"))
        self._check_types()
        a, b = self.src0.dims, self.src1.dims
        if len(a) != len(b) or any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
            self._fail(
                f"src0 and src1 must have one rank and dims that are equal or 1; got {a}, {b}"
            )
        broadcast = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
        self._check_dims("dst", broadcast, "src0's and src1's dims, broadcast")
        if self.src2 is not None and not self.src2.broadcasts_to(broadcast):
            self._fail(
                f"src2 must have dst's rank and each of its dims be 1 or dst's;"
                f" got {self.src2.dims} for dst {broadcast}"
            )

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src0 and src1: 0."""
        return {"src0": (0,), "src1": (0,)}
