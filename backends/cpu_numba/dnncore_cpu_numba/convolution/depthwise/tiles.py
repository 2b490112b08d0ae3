"""The tiles of a depthwise kernel: some outputs of a row, and the inputs that they read.

Forward and backward by data use the same classes. Along each dim, outputs read inputs with a
period: 1 forward, the stride backward by data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from dnncore_cpu_numba.convolution.geometry import Geometry

Seen = tuple[tuple[int, int], ...]
"""(tap, place) of each tap through which something is seen; places count from an origin."""


@dataclass(frozen=True)
class DepthwiseGather:
    """The places of the input that the outputs read along one dim.

    length, size: of the output and of the input.
    seen: what output i sees is seen[i % period], counted from its origin.
    advance: from the origin of one period to that of the next.
    """

    length: int
    size: int
    seen: tuple[Seen, ...]
    advance: int

    @classmethod
    def of(cls, g: Geometry, dim: int) -> DepthwiseGather:
        """The reads of dst from src; backward by data, of diff_src from diff_dst."""
        stride, padding = g.stride[dim], g.padding[dim]
        shifts = [(tap, tap * g.dilation[dim] - padding) for tap in range(g.kernel[dim])]
        if not g.backward:
            return cls(g.dst[dim], g.src[dim], (tuple(shifts),), stride)
        reached = [[(tap, i - shift) for tap, shift in shifts] for i in range(stride)]
        seen = tuple(tuple((t, at // stride) for t, at in r if at % stride == 0) for r in reached)
        return cls(g.src[dim], g.dst[dim], seen, 1)

    @property
    def period(self) -> int:
        """The outputs of each period read the same places, `advance` after the previous ones."""
        return len(self.seen)

    @property
    def taps(self) -> int:
        """The number of taps that read a place of the input."""
        return len({tap for seen in self.seen for tap, _ in seen})

    @property
    def span(self) -> int:
        """The number of places from the first to the last that a period reads."""
        places = [at for seen in self.seen for _, at in seen]
        return max(places) - min(places) + 1

    def origin(self, index: int) -> int:
        """The origin of the places that an output reads."""
        return index // self.period * self.advance

    def inside(self, index: int) -> Seen:
        """The places inside the input that an output reads, relative to its origin."""
        origin = self.origin(index)
        seen = self.seen[index % self.period]
        return tuple((tap, at) for tap, at in seen if 0 <= origin + at < self.size)

    def tiles(self, most: int) -> tuple[DepthwiseTile, ...]:
        """The outputs in tiles of at most `most`, of about one size, equal ones together."""
        number = -(-self.length // most)
        pixels = -(-self.length // (number * self.period)) * self.period
        tiles = itertools.groupby(self._tiles(pixels), attrgetter("seen"))
        groups = (list(alike) for _, alike in tiles)
        return tuple(replace(alike[0], count=len(alike)) for alike in groups)

    def _tiles(self, pixels: int) -> Iterator[DepthwiseTile]:
        """Single tiles. All tiles inside the input share one computation of their places."""
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
    """Some outputs of a row that are computed together, and others that do the same further on.

    first: the first output. origin: where the places in `seen`, one entry per output, count from.
    count: so many tiles are alike, each `advance` places of the input after the one before.
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
        """(output, tap) of all readers of a place, by place in order."""
        found: dict[int, list[tuple[int, int]]] = {}
        for pixel, seen in enumerate(self.seen):
            for tap, at in seen:
                found.setdefault(at, []).append((pixel, tap))
        return dict(sorted(found.items()))
