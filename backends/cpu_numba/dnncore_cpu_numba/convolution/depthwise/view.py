"""Layouts of depthwise convolution: the channels that share a vector, the dim of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseGather
from dnncore_cpu_numba.convolution.geometry import Geometry, Triple

MOST_TAPS = 64  # of a row; they are unrolled
FEW_PIXELS = 6  # of a row: a longer dim takes its part


@dataclass(frozen=True)
class Shared:
    """The groups of a vector. channels: the neighbouring channels of each group in it."""

    groups: int
    channels: int

    @classmethod
    def of(cls, isa: Isa, g: Geometry) -> Shared:
        """The most channels that divide both sides' and a vector, but not all lanes for a group."""
        channels = math.gcd(g.ic, g.oc, isa.lanes)
        return cls(g.groups, channels if channels < isa.lanes else 1)

    @property
    def width(self) -> int:
        """The channels of a plane."""
        return self.groups * self.channels

    def order(self, per_group: int) -> list[int] | None:
        """The channels in the order of planes; None if they have this order."""
        if per_group == self.channels:
            return None
        channels = np.arange(self.groups * per_group)
        return channels.reshape(self.groups, -1, self.channels).swapaxes(0, 1).ravel().tolist()


def row_axes(gathers: Sequence[DepthwiseGather], kernel: Triple) -> tuple[int, ...]:
    """The order of dims to work in: the last is a row, W unless that is short or has many taps."""
    longest = max(range(3), key=lambda dim: (kernel[dim] <= MOST_TAPS, gathers[dim].length))
    serves = kernel[2] <= MOST_TAPS and gathers[2].length >= FEW_PIXELS
    row = 2 if serves else longest
    return (*(dim for dim in range(3) if dim != row), row)


def turned(values: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """Values for the dims D, H and W in the order `axes`."""
    return tuple(values[axis] for axis in axes)
