"""Tiles of rows of results for `pooling/row_kernel.py`: their places and their patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore_cpu_numba.pooling.fold import PoolingFold
from dnncore_cpu_numba.pooling.kernel import TILE, PoolingKernel
from dnncore_cpu_numba.pooling.row_kernel import Pattern, RowKernel, places_of, shares_places
from dnncore_cpu_numba.pooling.windows import Along

_MOST_RESULTS = 8  # vectors of results of a tile
_VECTORS = (4, 2, 3)  # of contiguous columns, the best first
_MUCH_SHARED = {1: 1.2, 2: 1.6}  # `_shared` that needs wide tiles, by vectors of columns
_OVERLAP = 1.2  # most columns computed per column
_MOST_TAPS = 72  # taps along w of all results of a tile: limits the size of the code
_MOST_PATTERNS = 4  # the same; usual rows have a left, a middle and a right pattern


@dataclass(frozen=True)
class RowTiles:
    """The tiles of a row.

    patterns: the different patterns. tiles: for each pattern its tiles: the first result of each
    and the place to which the pattern is relative.
    """

    patterns: tuple[Pattern, ...]
    tiles: tuple[tuple[tuple[int, int], ...], ...]

    def table(self, fold: PoolingFold, strides: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Return the records `TILE`. strides: bytes along d, h and w of result, a and b."""
        result, a, b = (stride[-1] for stride in strides)
        rows = []
        for tiles in self.tiles:
            for i, (first, place) in enumerate(tiles):
                place_b = first if fold.name == "largest" else place
                rows.append({
                    "result": first * result, "a": place * a, "b": place_b * b,
                    "count": len(tiles) - i,
                })  # fmt: skip
        return TILE.table(rows)


def row_kernel(
    fold: PoolingFold, kernel: PoolingKernel, columns: int
) -> tuple[RowKernel, RowTiles] | None:
    """Return the kernel of rows in the class of `kernel`, and its tiles.

    Returns None if rows have too many patterns or wide windows, or if a maximum has no cells.
    """
    axis = fold.axes[2]
    if fold.name == "largest" and any((axis.taps == 0).any() for axis in fold.axes):
        return None
    most, count = int(axis.taps.max(initial=0)), len(axis.taps)
    if not count or most * min(count, axis.period) > _MOST_TAPS:
        return None
    for vectors, results, least_shared in _shapes(kernel, columns):
        for width in _widths(count, axis.period, results // vectors):
            if width * most * vectors > _MOST_TAPS:
                continue
            tiles = _divided(axis, width, by_tap=fold.uses_b)
            if (
                len(tiles.patterns) <= _MOST_PATTERNS
                and _fits(tiles, kernel, vectors)
                and _shared(tiles) >= least_shared
            ):
                return RowKernel(
                    **vars(kernel), patterns=tiles.patterns, vectors=vectors,
                    even=fold.divisor is not None,
                ), tiles  # fmt: skip
    return None


def _shapes(kernel: PoolingKernel, columns: int) -> list[tuple[int, int, float]]:
    """Return the shapes of tiles to try: vectors of columns, most vectors, least `_shared`.

    With taps and few shared places, small tiles with contiguous reads are faster (measured).
    """
    vectors = _vectors(columns, kernel.lanes, max(_VECTORS))
    pair = _vectors(columns, kernel.lanes, 2)
    narrow = [(n, _MOST_RESULTS, 0) for n in (pair, 1)]  # if the registers do not suffice
    if kernel.keeps_taps:
        wide = (pair, _MOST_RESULTS, _MUCH_SHARED[pair])
        return [wide, (vectors, _MOST_RESULTS // 2, 0), *narrow]
    return [(vectors, _MOST_RESULTS, 0), *narrow]


def _vectors(columns: int, lanes: int, most: int) -> int:
    """Return the number of vectors of columns in a tile: the best with little overlap."""
    count = -(-columns // lanes)
    for vectors in _VECTORS:
        overlap = -(-count // vectors) * vectors / count
        if vectors <= min(most, columns // lanes) and overlap <= _OVERLAP:
            return vectors
    return 1


def _shared(tiles: RowTiles) -> float:
    """Return how many taps read a place, on average over the pattern with the most taps."""
    return max(
        sum(map(len, pattern)) / max(1, len(places_of(pattern))) for pattern in tiles.patterns
    )


def _widths(count: int, period: int, widest: int) -> list[int]:
    """Return the widths of tiles to try. Equal tiles cover a row, in whole periods if possible."""
    widths = []
    for most in range(min(count, widest), 0, -1):
        width = -(-count // -(-count // most))
        whole = -(-width // period) * period
        widths.append(whole if whole <= min(count, widest) else width)
    return list(dict.fromkeys(widths))


def _fits(tiles: RowTiles, kernel: PoolingKernel, vectors: int) -> bool:
    """Whether the state of each tile fits into the registers."""
    registers = 32 if kernel.has_masks else 16
    for pattern in tiles.patterns:
        if shares_places(kernel, pattern, vectors):
            state, room = len(places_of(pattern)) * (2 if kernel.is_half else 1), registers - 6
        else:
            values = 2 if kernel.keeps_taps or kernel.is_half else 1
            state, room = len(pattern) * values, registers - 8
        if state * vectors > room and len(pattern) * vectors > 1:
            return False
    return True


def _divided(axis: Along, width: int, *, by_tap: bool) -> RowTiles:
    """Divide a row into tiles of a width. The last tile overlaps the tile before it."""
    count = len(axis.taps)
    starts = np.minimum(np.arange(0, count, width), count - width)
    results = starts[:, None] + np.arange(width)
    taps, source, tap = axis.taps[results], axis.source[results], axis.tap[results]
    reach = (taps - 1) * axis.source_step
    lowest = np.where(taps > 0, source + np.minimum(reach, 0), np.iinfo(np.int64).max)
    base = lowest.min(axis=1)
    base = np.where((taps > 0).any(axis=1), base, 0)
    relative = np.where(taps > 0, source - base[:, None], 0)
    numbers = np.where(taps > 0, tap, 0) if by_tap else np.zeros_like(tap)
    forms = np.stack([taps, relative, numbers], axis=1).reshape(len(starts), -1)
    of_forms: dict[tuple[int, ...], list[int]] = {}  # np.unique swallows errors of signal handlers
    for i, form in enumerate(forms.tolist()):
        of_forms.setdefault(tuple(form), []).append(i)
    different = sorted(of_forms)
    patterns = tuple(
        _pattern(np.array(form).reshape(3, width), axis, by_tap=by_tap) for form in different
    )
    tiles = tuple(
        tuple((int(starts[i]), int(base[i])) for i in of_forms[form]) for form in different
    )
    return RowTiles(patterns, tiles)


def _pattern(form: np.ndarray, axis: Along, *, by_tap: bool) -> Pattern:
    """Return the pattern of a tile from the tap count, place and number of each result."""
    step = axis.tap_step if by_tap else 0
    return tuple(
        tuple((int(place) + j * axis.source_step, int(number) + j * step) for j in range(int(taps)))
        for taps, place, number in form.T
    )
