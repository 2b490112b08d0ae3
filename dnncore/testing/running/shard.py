"""Shards: parts of a long list, for several runs or machines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from dnncore.errors import DescriptorError

__all__ = ["Shard"]

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` shards, from 1.

    Only the text of an item determines its shard, so each item is in the same shard of any list.
    """

    index: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read a text such as 2/3. Raises `DescriptorError` for other texts."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise DescriptorError(f"shard: expected i/n with 1 <= i <= n; got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def of(self, items: Iterable[Item], text: Callable[[Item], str] = str) -> list[Item]:
        """Return the items in this shard, in their order."""
        return [item for item in items if self._has(text(item))]

    def _has(self, text: str) -> bool:
        return zlib.crc32(text.encode()) % self.count == self.index - 1
