"""Covers: the division of the rows of a matrix problem into tiles, and of tiles into blocks.

One work item computes a block in one panel. There are three covers:

    Rows        all rows sum over the same batch: most problems
    Windows     rows are pixels of a convolution; a tile omits the taps that are outside the image,
                so that images need no copy with a border
    Taps        rows are the input channels of each tap of a weights gradient; each tap reads other
                pixels

A cover provides the `count` of its rows, the `sizes` of its tiles, and the `tiles`. most: the most
rows of a tile. parts: the least number of blocks, if there are enough tiles. a, others: the strides
of A, and of C and the operands, in bytes along the coordinates of a place, as `Matrix.spatial`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STRIDED_ROWS = 12  # rows of A; for more, LLVM spills sums in the innermost loop to hold addresses

Place = tuple[int, ...]
Subset = tuple[int, ...]


@dataclass(frozen=True)
class TileKind:
    """The properties of a tile that are compiled into its microkernel; see `Microkernel`."""

    rows: int
    a_rows: tuple[int, ...] = ()
    segments: tuple[Subset, ...] = ()


@dataclass(frozen=True)
class BatchSegment:
    """A segment of the batch: the first element of each run, and the length of the runs."""

    firsts: tuple[int, ...]
    length: int = 1


ALL: tuple[BatchSegment, ...] = ()
"""Stands for one segment of all elements."""


@dataclass(frozen=True)
class GemmTile:
    """A tile: its kind, its batch and its place in its block. `Chunk.table` reads the batch."""

    kind: TileKind
    batch: tuple[Any, ...]
    place: Place


@dataclass(frozen=True)
class TileBlocks:
    """All tiles of one outer index: (tiles, place) of each block. Blocks may share tiles."""

    blocks: Sequence[tuple[Sequence[GemmTile], Place]]
    rows_per_block: int


def evenly(count: int, most: int) -> list[tuple[int, int]]:
    """Return (first, count) of the fewest parts of at most `most`, with almost equal counts."""
    parts = -(-count // most)
    bounds = [count * i // parts for i in range(parts + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(bounds)]


@dataclass(frozen=True)
class Rows:
    """Evenly spaced rows that sum over the whole batch. A place is the number of a row."""

    count: int

    def sizes(self, most: int, _others: Sequence[Sequence[int]]) -> Counter[int]:
        """Return the number of tiles of each size."""
        return Counter(n for _, n in evenly(self.count, most))

    def tiles(
        self, most: int, parts: int, _a: Sequence[int], _others: Sequence[Sequence[int]]
    ) -> TileBlocks:
        """Return blocks of about eight tiles."""
        tiles = -(-self.count // most)
        wanted = max(-(-tiles // 8), min(tiles, parts))
        block = -(-self.count // wanted)
        if wanted > 1:  # the size above may give fewer blocks
            block = min(block, (self.count - 1) // (wanted - 1))
        made = {
            rows: [GemmTile(TileKind(n), ALL, (first,)) for first, n in evenly(rows, most)]
            for rows in {block, self.count % block or block}
        }
        starts = range(0, self.count, block)
        return TileBlocks([(made[min(block, self.count - at)], (at,)) for at in starts], block)


@dataclass(frozen=True)
class Windows:
    """Pixels of an image. A place is (z, y, x).

    pixels: the size of the output along its three dims. step: from window to window in the input.
    size: the size of the input. shifts: for each element of the batch, which is a tap, its place
    in the input for the pixel (0, 0, 0). joined: neighbouring taps of a row, with their channels,
    are contiguous in A and in B.
    """

    pixels: Place
    step: Place
    size: Place
    shifts: Sequence[Place]
    joined: bool = False

    @property
    def count(self) -> int:
        """The number of pixels."""
        depth, height, width = self.pixels
        return depth * height * width

    @property
    def is_inside(self) -> bool:
        """Whether no window leaves the image."""
        last = [(n - 1) * step for n, step in zip(self.pixels, self.step, strict=True)]
        return all(
            at >= 0 and at + far < size
            for shift in self.shifts
            for at, far, size in zip(shift, last, self.size, strict=True)
        )

    def sizes(self, most: int, others: Sequence[Sequence[int]]) -> Counter[int]:
        """Return the number of tiles of each size in all planes."""
        down, across = (Counter(n for _, n in cuts) for cuts in self._cuts(most, others))
        found: Counter[int] = Counter()
        for (high, rows), (wide, columns) in itertools.product(down.items(), across.items()):
            found[high * wide] += self.pixels[0] * rows * columns
        return found

    def _cuts(
        self, most: int, others: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return (first, count) of tiles down and across a plane.

        A tile has several rows of pixels if they fit.
        """
        _, height, width = self.pixels
        follow = all(len(m) < 2 or m[-2] == width * m[-1] for m in others)
        rows = max(1, most // width) if follow else 1
        return evenly(height, rows), evenly(width, most)

    def tiles(
        self, most: int, _parts: int, a: Sequence[int], others: Sequence[Sequence[int]]
    ) -> TileBlocks:
        """Return blocks of one row of pixels, or of several rows that fit into one tile."""
        down, across = self._cuts(most, others)
        made: dict[object, list[GemmTile]] = {}
        blocks = []
        for z, (y, high) in itertools.product(range(self.pixels[0]), down):
            seen = self._subsets(0, z, 1), self._subsets(1, y, high)
            key = high, *(tuple(subsets.items()) for subsets in seen)
            if key not in made:
                made[key] = [self._tile(seen, high, x, n, a) for x, n in across]
            blocks.append((made[key], (z, y, 0)))
        return TileBlocks(blocks, down[0][1] * self.pixels[2])

    def _subsets(self, dim: int, first: int, count: int) -> dict[int, Subset]:
        """Return, for each shift along a dim, the pixels whose shifted place is in the image."""
        step, size = self.step[dim], self.size[dim]
        return {
            shift: tuple(i for i in range(count) if 0 <= (first + i) * step + shift < size)
            for shift in sorted({shift[dim] for shift in self.shifts})
        }

    def _tile(
        self, seen: Sequence[dict[int, Subset]], height: int, x: int, width: int, a: Sequence[int]
    ) -> GemmTile:
        """Return the tile of `width` pixels that begins at column x."""
        deep, high, wide = *seen, self._subsets(2, x, width)
        segments: dict[tuple[Subset, int], list[int]] = {}
        for first, length in self._runs(wide):
            z, y, shift = self.shifts[first]
            rows = [i * width + j for _ in deep[z] for i in high[y] for j in wide[shift]]
            if rows:
                segments.setdefault((tuple(rows), length), []).append(first)
        subsets = tuple(rows for rows, _ in segments)
        every = tuple(range(height * width))
        a_rows: Subset = ()  # even spacing: the stride is an argument, one kernel serves all images
        if height > 1 or width > STRIDED_ROWS:
            a_rows = tuple(i * a[1] + j * a[2] for i in range(height) for j in range(width))
        kind = TileKind(height * width, a_rows, () if subsets in ((), (every,)) else subsets)
        batch = tuple(BatchSegment(tuple(firsts), n) for (_, n), firsts in segments.items())
        return GemmTile(kind, batch or (BatchSegment(()),), (0, 0, x))

    def _runs(self, wide: dict[int, Subset]) -> list[tuple[int, int]]:
        """Return (first, length) of runs of joined taps that the same pixels have in the image."""

        def seen(index: int) -> object:
            *row, shift = self.shifts[index]
            return (row, wide[shift]) if self.joined else index

        runs = [list(run) for _, run in itertools.groupby(range(len(self.shifts)), seen)]
        return [(run[0], len(run)) for run in runs]


@dataclass(frozen=True)
class Taps:
    """Rows of a weights gradient: channels of each tap.

    A place is (z, y, x, channel). A batch is (z, y, x).
    """

    kernel: Place
    channels: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return math.prod(self.kernel) * self.channels

    def sizes(self, most: int, _others: Sequence[Sequence[int]]) -> Counter[int]:
        """Return the number of tiles of each size in all taps."""
        tap = Counter(n for _, n in evenly(self.channels, most))
        return Counter({size: math.prod(self.kernel) * count for size, count in tap.items()})

    def tiles(
        self, most: int, _parts: int, _a: Sequence[int], _others: Sequence[Sequence[int]]
    ) -> TileBlocks:
        """Return one block per tap."""
        parts = evenly(self.channels, most)
        blocks = [
            ([GemmTile(TileKind(n), tap, (0, 0, 0, first)) for first, n in parts], (*tap, 0))
            for tap in itertools.product(*map(range, self.kernel))
        ]
        return TileBlocks(blocks, self.channels)


Cover = Rows | Windows | Taps
