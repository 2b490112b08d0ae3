"""The source of random problems for drivers: sizes, shapes, and the values of common options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

__all__ = ["ANY_TAGS", "LAYER_DIRECTIONS", "PAIR_DIRECTIONS", "TAGS",
           "Draws", "Options", "shape_text"]  # fmt: skip

Options: TypeAlias = Mapping[str, Sequence[str]]
"""Option -> values. The first is the value if a text omits the option."""

TAGS = ("abx", "axb", "xba", "aBx8b", "aBx16b", "aBx4b", "aBx32b", "Abx16a", "ABx4b8a")
ANY_TAGS = ("any", *TAGS)
LAYER_DIRECTIONS = ("FWD_B", "FWD_D", "FWD_I", "FWD_IB", "BWD_D", "BWD_W", "BWD_WB")
PAIR_DIRECTIONS = ("FWD_D", "FWD_I", "BWD_D")


class Draws(Protocol):
    """Random values of one problem."""

    def one_of(self, values: Sequence[str]) -> str:
        """Return one of some texts; the first is the simplest."""

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from low to high."""

    def batch(self) -> int:
        """Return a number of images, which may be 0."""

    def channels(self) -> int:
        """Return a number of channels, at least 1."""

    def dims(self, least: int = 1) -> list[int]:
        """Return from `least` to 6 dims; sizes may be 0."""

    def some_ones(self, dims: Sequence[int]) -> list[int]:
        """Return the same dims, some of them replaced by 1."""

    def window(self) -> str:
        """Return sizes, kernel, strides, dilations and padding of up to three axes, as letters."""

    def image(self) -> str:
        """Return sizes of up to three axes, as letters."""


def shape_text(*tensors: Sequence[int]) -> str:
    """Return dims as text, such as 2x3:3x4."""
    return ":".join("x".join(map(str, dims)) for dims in tensors)
