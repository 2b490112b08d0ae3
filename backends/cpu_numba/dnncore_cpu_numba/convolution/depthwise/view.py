"""Layouts of depthwise convolution: the channels that share a vector, and the dim of rows."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseGather
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.gemm.problem import Matrix
from dnncore_cpu_numba.runtime.tensor import Tensor

MOST_TAPS = 64  # most taps of a row; they are unrolled
FEW_PIXELS = 6  # pixels of a row along W; below, rows run along a longer dim


@dataclass(frozen=True)
class DepthwiseView:
    """A problem as planes of rows.

    channels: the number of neighbouring channels of each group in a vector. Properties that are
    pairs refer to the image that is read, then the image that is written.
    """

    isa: Isa
    g: Geometry
    channels: int

    @classmethod
    def of(cls, isa: Isa, g: Geometry) -> DepthwiseView:
        """Return the view with the most channels that divide both sides' channels and the lanes.

        If one group would fill a vector, the view has one channel.
        """
        channels = math.gcd(g.ic, g.oc, isa.lanes)
        return cls(isa, g, channels if channels < isa.lanes else 1)

    @property
    def width(self) -> int:
        """The number of channels of a plane."""
        return self.g.groups * self.channels

    @property
    def planes(self) -> tuple[int, int]:
        """The numbers of planes of both images."""
        return self.g.depth // self.channels, self.g.columns // self.channels

    @property
    def orders(self) -> tuple[list[int] | None, list[int] | None]:
        """The channels of both images in the order of planes; None if they have this order."""
        read, written = map(self._order, self.planes)
        return read, written

    def _order(self, planes: int) -> list[int] | None:
        if planes == 1:
            return None
        channels = np.arange(planes * self.width)
        return channels.reshape(-1, planes, self.channels).swapaxes(0, 1).ravel().tolist()

    @functools.cached_property
    def axes(self) -> tuple[int, ...]:
        """The order of spatial dims; the last is the row: W, unless W is short or has many taps."""
        kernel, lengths = self.g.kernel, self.g.src if self.g.backward else self.g.dst
        longest = max(range(3), key=lambda dim: (kernel[dim] <= MOST_TAPS, lengths[dim]))
        row = 2 if kernel[2] <= MOST_TAPS and lengths[2] >= FEW_PIXELS else longest
        return (*(dim for dim in range(3) if dim != row), row)

    @functools.cached_property
    def gathers(self) -> list[DepthwiseGather]:
        """The reads of the outputs along each dim, in the order `axes`."""
        return [DepthwiseGather.of(self.g, dim) for dim in self.axes]

    @property
    def rows(self) -> int:
        """The number of rows of an image."""
        return self.gathers[0].length * self.gathers[1].length

    def turned(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return values for the dims D, H and W in the order `axes`."""
        return tuple(values[axis] for axis in self.axes)

    def image(self, image: Image) -> Matrix:
        """Return an image as a matrix: outer dims are images and planes, spatial dims `axes`."""
        return self.matrix(image.matrix(self.isa.lanes, self.width))

    def matrix(self, matrix: Matrix) -> Matrix:
        """Return a matrix with its spatial dims in the order `axes`."""
        *planes, row = self.turned(matrix.spatial)
        return dataclasses.replace(matrix, planes=tuple(planes), row=row)

    def filter(self, weights: Tensor) -> Matrix:
        """Return 6-D weights as a matrix: blocks are vectors, spatial dims are taps, as `axes`.

        The outer dims are the planes of the image that is read, its channels within a plane, and
        the planes of the image that is written.
        """
        size = weights.desc.itemsize
        block, oc, ic, *taps = (size * stride for stride in weights.desc.strides)
        read, written = (oc, ic) if self.g.backward else (ic, oc)
        outer = self.channels * read, read, written
        return self.matrix(Matrix(weights.address, outer, taps[2], block, tuple(taps[:2])))
