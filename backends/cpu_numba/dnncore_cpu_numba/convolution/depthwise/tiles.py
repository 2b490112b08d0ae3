"""The tiles of a depthwise kernel: some outputs of a row, and the inputs that they read.

Forward and backward by data use the same classes. Along each dim, the inputs that outputs read are
periodic. The period is 1 forward and the stride backward by data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from dnncore_cpu_numba.convolution.geometry import Geometry

Seen = tuple[tuple[int, int], ...]
"""(tap, place) for each tap of an output. The tap reads the input at origin + place."""


@dataclass(frozen=True)
class DepthwiseGather:
    """The places of the input that the outputs read along one dim.

    length, size: of the output and of the input.
    seen: output i reads seen[i % period], relative to its origin.
    advance: the distance between the origins of successive periods.
    """

    length: int
    size: int
    seen: tuple[Seen, ...]
    advance: int

    @classmethod
    def of(cls, g: Geometry, dim: int) -> DepthwiseGather:
        """Return the reads of dst from src; backward by data, of diff_src from diff_dst."""
        stride, padding = g.stride[dim], g.padding[dim]
        shifts = [(tap, tap * g.dilation[dim] - padding) for tap in range(g.kernel[dim])]
        if not g.backward:
            return cls(g.dst[dim], g.src[dim], (tuple(shifts),), stride)
        reached = [[(tap, i - shift) for tap, shift in shifts] for i in range(stride)]
        seen = tuple(tuple((t, at // stride) for t, at in r if at % stride == 0) for r in reached)
        return cls(g.src[dim], g.dst[dim], seen, 1)

    @property
    def period(self) -> int:
        """The period in outputs. An output one period later reads places `advance` later."""
        return len(self.seen)

    @property
    def taps(self) -> int:
        """The number of different taps of all outputs."""
        return len({tap for seen in self.seen for tap, _ in seen})

    @property
    def span(self) -> int:
        """The number of places from the first to the last one that a period reads."""
        places = [at for seen in self.seen for _, at in seen]
        return max(places) - min(places) + 1

    def origin(self, index: int) -> int:
        """Return the origin of the places that an output reads."""
        return index // self.period * self.advance

    def inside(self, index: int) -> Seen:
        """Return the places inside the input that an output reads, relative to its origin."""
        origin = self.origin(index)
        seen = self.seen[index % self.period]
        return tuple((tap, at) for tap, at in seen if 0 <= origin + at < self.size)

    def tiles(self, most: int) -> tuple[DepthwiseTile, ...]:
        """Divide the outputs into tiles of at most `most`, of similar sizes.

        Consecutive equal tiles are one entry with a count.
        """
        number = -(-self.length // most)
        pixels = -(-self.length // (number * self.period)) * self.period
        tiles = itertools.groupby(self._tiles(pixels), attrgetter("seen"))
        groups = (list(alike) for _, alike in tiles)
        return tuple(replace(alike[0], count=len(alike)) for alike in groups)

    def _tiles(self, pixels: int) -> Iterator[DepthwiseTile]:
        """Yield the single tiles. All tiles inside the input share their places."""
        advance = self.origin(pixels)
        whole = tuple(
            tuple((tap, at + self.origin(i)) for tap, at in self.seen[i % self.period])
            for i in range(pixels)
        )
        places = [at for seen in whole for _, at in seen]
        for first in range(0, self.length, pixels):
            origin = self.origin(first)
            is_inside = origin + min(places) >= 0 and origin + max(places) < self.size
            seen = whole[: self.length - first]
            if not is_inside:
                seen = tuple(
                    tuple((tap, at) for tap, at in pixel if 0 <= origin + at < self.size)
                    for pixel in seen
                )
            yield DepthwiseTile(first, origin, seen, advance)


@dataclass(frozen=True)
class DepthwiseTile:
    """Outputs of a row that are computed together, repeated for `count` equal tiles.

    first: the first output. origin: the origin of the places in `seen`, which has one entry per
    output. advance: from tile to tile, places move by this distance in the input.
    """

    first: int
    origin: int
    seen: tuple[Seen, ...]
    advance: int
    count: int = 1

    @property
    def pixels(self) -> int:
        """The number of outputs."""
        return len(self.seen)

    @property
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """The readers (output, tap) of each place, in the order of places."""
        found: dict[int, list[tuple[int, int]]] = {}
        for pixel, seen in enumerate(self.seen):
            for tap, at in seen:
                found.setdefault(at, []).append((pixel, tap))
        return dict(sorted(found.items()))
