"""Reduction of some dims of a tensor to 1; the formulas are in `dnncore.algorithms.reduction`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.algorithms.reduction import REDUCTION, check_power
from dnncore.algorithms.rules import check_algorithm, check_finite
from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows, one_type_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Reduction"]

_F64 = one_type_rows(("src", "dst"), ("f64",))
_NORM_TYPES = (*mixed_rows(("src", "dst"), ("f32", *HALF_TYPES)), *_F64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduction(Operation):
    """dst = algorithm(src) along the dims in which dst is 1 and src is not.

    algorithm: a name such as "mean"; `python -m dnncore.algorithms` prints the formulas.
    src: of any dims.
    dst: of src's rank; each dim is 1 or src's, and at least one dim is reduced. Only a sum may
        reduce an empty dim; it is 0.
    p, eps: of the norms, p at least 1; other algorithms do not read them.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "reduction"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src") + writes("dst")
    TYPES: ClassVar[Rows] = (
        *mixed_rows(("src", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES)),
        *_F64,
    )

    algorithm: str = field(kw_only=False)
    src: MemoryDesc
    dst: MemoryDesc
    p: float = 2.0
    eps: float = 0.0

    def __post_init__(self) -> None:
        check_algorithm(self.KIND, self.algorithm, REDUCTION)
        check_finite(self.KIND, p=self.p, eps=self.eps)
        self._set(p=float(self.p), eps=float(self.eps))
        if self.is_norm:
            check_power(self.KIND, self.p)
        self._check_descs(concrete=("src",))
        self._check_types()
        if not self.dst.broadcasts_to(self.src.dims) or self.dst.dims == self.src.dims:
            self._fail(
                "dst must have src's rank, each dim be 1 or src's, and one at least be reduced;"
                f" got {self.dst.dims} for src {self.src.dims}"
            )
        if self.dst.nelems and not self.src.nelems and self.algorithm != "sum":
            self._fail(
                "there is nothing to reduce along an empty dim, except by sum, which is 0;"
                f" got {self.algorithm} of src {self.src.dims}"
            )

    @property
    def type_rows(self) -> Rows:
        """Norms do not permit tensors of integers."""
        return _NORM_TYPES if self.is_norm else self.TYPES

    @property
    def is_norm(self) -> bool:
        """Whether the algorithm is one of norm_lp_..., which read p and eps."""
        return REDUCTION[self.algorithm].is_norm

    @property
    def reduced_dims(self) -> tuple[int, ...]:
        """The dims that are reduced to 1."""
        pairs = zip(self.src.dims, self.dst.dims, strict=True)
        return tuple(i for i, (size, left) in enumerate(pairs) if size != left)

    @property
    def flops(self) -> float:
        """One per element of src."""
        return float(math.prod(self.src.dims))
