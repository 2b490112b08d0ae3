"""Operations with several sources by number: the arguments src0, src1, ... and dst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.ops.operation import Argument, Operation
from dnncore.ops.types import Rows, mixed_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Sources"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Sources(Operation):
    """Base of operations with the fields `srcs`, a tuple of descriptors, and `dst`.

    `src{i}` is the descriptor of source i. Each tensor may have any of the types in `TYPES`.
    """

    srcs: Sequence[MemoryDesc]
    dst: MemoryDesc

    @property
    def source_names(self) -> list[str]:
        """src0, src1, ..."""
        return [f"src{i}" for i in range(len(self.srcs))]

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
        rows = [Argument(name, "in") for name in self.source_names]
        return (*rows, Argument("dst", "out"))

    @property
    def type_rows(self) -> Rows:
        """Return any combination of `TYPES`."""
        return mixed_rows([row.name for row in self.ARGUMENTS], self.TYPES[0]["dst"])
