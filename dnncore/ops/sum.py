"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.algorithms.rules import check_finite
from dnncore.ops.sources import Sources
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows

__all__ = ["Sum"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Sources):
    """dst = scales[0] * src0 + scales[1] * src1 + ...

    scales: a number for each src.
    srcs: one or more descriptors of equal dims. At execution, they are the arguments `src0`,
        `src1`, ...
    dst: of the same dims; it may be src0's memory.

    Only dst may have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "sum"
    TYPES: ClassVar[Rows] = mixed_rows(("src0", "dst"), ("f32", *HALF_TYPES, *INTEGER_TYPES))
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src0", "dst"),)

    scales: Sequence[float] = field(kw_only=False)

    def __post_init__(self) -> None:
        for name in ("scales", "srcs"):
            self._set(**{name: self._items(name)})
        if not self.srcs or len(self.scales) != len(self.srcs):
            self._fail(
                "there must be one scale per src and at least one src;"
                f" got {len(self.scales)} scales and {len(self.srcs)} srcs"
            )
        names = self.source_names
        scales = {f"scale of {name}": s for name, s in zip(names, self.scales, strict=True)}
        check_finite(self.KIND, **scales)
        self._set(scales=tuple(map(float, self.scales)))
        self._check_srcs()
        self._check_descs(concrete=names)
        self._check_types()
        for name in names:
            self._check_dims(name, self.dst.dims, "dst's dims")

    @property
    def flops(self) -> float:
        """One multiply-add per src and element."""
        return 2.0 * len(self.srcs) * math.prod(self.dst.dims)
