"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dnncore.algorithms.rules import check_finite
from dnncore.ops.operation import Argument, Operation
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES, Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Sum"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Operation):
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
    srcs: Sequence[MemoryDesc]
    dst: MemoryDesc

    def __post_init__(self) -> None:
        for name in ("scales", "srcs"):
            self._set(**{name: self._items(name)})
        if not self.srcs or len(self.scales) != len(self.srcs):
            self._fail(
                "there must be one scale per src and at least one src;"
                f" got {len(self.scales)} scales and {len(self.srcs)} srcs"
            )
        names = [f"src{i}" for i in range(len(self.srcs))]
        scales = {f"scale of {name}": s for name, s in zip(names, self.scales, strict=True)}
        check_finite(self.KIND, **scales)
        self._set(scales=tuple(map(float, self.scales)))
        self._check_srcs()
        self._check_descs(concrete=names)
        self._check_types()
        for name in names:
            self._check_dims(name, self.dst.dims, "dst's dims")

    def _items(self, name: str) -> tuple[Any, ...]:
        try:
            return tuple(getattr(self, name))
        except Exception:  # a third-party iterable may raise any exception
            self._fail(f"{name} must be a sequence; got {getattr(self, name)!r}")

    def _check_srcs(self) -> None:
        for i, desc in enumerate(self.srcs):
            if not isinstance(desc, MemoryDesc):
                self._fail(f"src{i} must be a MemoryDesc; got {type(desc).__name__}")

    def __getattr__(self, name: str) -> Any:
        """Return the descriptor src{i}, so that each input can be read as a field."""
        index = name.removeprefix("src")
        if index.isdecimal() and int(index) < len(self.srcs):
            return self.srcs[int(index)]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def ARGUMENTS(self) -> tuple[Argument, ...]:  # type: ignore[override]  # noqa: N802
        """One row per src, then dst."""
        rows = [Argument(f"src{i}", "in") for i in range(len(self.srcs))]
        return (*rows, Argument("dst", "out"))

    @property
    def type_rows(self) -> Rows:
        """Return any combination of `TYPES`."""
        return mixed_rows([row.name for row in self.ARGUMENTS], self.TYPES[0]["dst"])

    @property
    def flops(self) -> float:
        """One multiply-add per src and element."""
        return 2.0 * len(self.srcs) * math.prod(self.dst.dims)
