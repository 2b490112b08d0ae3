"""Covers: each row once, each pixel with just the taps that it sees."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from dnncore_cpu_numba.gemm.cover import Rows, Windows

MOST = st.integers(1, 14)


@settings(deadline=None)
@given(st.integers(1, 200), MOST, st.integers(1, 9))
def test_rows_are_covered_once(count, most, parts):
    tiles = Rows(count).tiles(most, parts, (4,), [])
    covered = [
        place + tile.place[0] + row
        for block, (place,) in tiles.blocks
        for tile in block
        for row in range(tile.kind.rows)
    ]
    assert covered == list(range(count))
    assert max(tile.kind.rows for block, _ in tiles.blocks for tile in block) <= most
    assert len(tiles.blocks) >= min(parts, -(-count // most))


def axis():
    """(pixels, step, size, dilation, padding, taps) along one dim."""
    numbers = (st.integers(1, 9), st.integers(1, 3), st.integers(1, 12), st.integers(1, 2))
    return st.tuples(*numbers, st.integers(0, 4), st.integers(1, 4))


@settings(deadline=None)
@given(st.tuples(axis(), axis(), axis()), MOST, st.booleans(), st.booleans())
def test_pixels_gather_through_the_taps_that_they_see(axes, most, joined, follow):
    pixels, step, size, *_ = zip(*axes, strict=True)
    shifts = list(itertools.product(*(
        [tap * dilation - padding for tap in range(taps)]
        for _, _, _, dilation, padding, taps in axes
    )))  # fmt: skip
    cover = Windows(pixels, step, size, shifts, joined)
    a = (10000, 100, 1)
    output = (1000, pixels[2], 1) if follow else (1000, 50, 1)
    tiles = cover.tiles(most, 1, a, [output])
    met: Counter[tuple[tuple[int, ...], int]] = Counter()
    sizes: Counter[int] = Counter()
    for block, place in tiles.blocks:
        for tile in block:
            sizes[tile.kind.rows] += 1
            origin = tuple(map(int.__add__, place, tile.place))
            offsets = tile.kind.a_rows or range(tile.kind.rows)  # without any: one row of pixels
            rows = [divmod(offset - offsets[0], 100) for offset in offsets]
            seen = [(origin[0], origin[1] + y, origin[2] + x) for y, x in rows]
            subsets = tile.kind.segments or (range(tile.kind.rows),)
            for subset, segment in zip(subsets, tile.batch, strict=True):
                for start in segment.firsts:
                    for tap, row in itertools.product(range(start, start + segment.length), subset):
                        met[seen[row], tap] += 1
    expected = {
        (pixel, tap)
        for pixel in itertools.product(*map(range, pixels))
        for tap, shift in enumerate(shifts)
        if all(
            0 <= at * every + far < extent
            for at, every, far, extent in zip(pixel, step, shift, size, strict=True)
        )
    }
    assert met.keys() == expected
    assert set(met.values()) <= {1}
    assert sizes == cover.sizes(most, [output])
    assert sum(n * count for n, count in sizes.items()) == cover.count


def test_the_example_of_the_document():
    shifts = [(0, y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    cover = Windows((1, 4, 8), (1, 1, 1), (1, 4, 8), shifts)
    tiles = cover.tiles(14, 1, (0, 512, 64), [(0, 512, 64)])
    kinds = {tile.kind for block, _ in tiles.blocks for tile in block}
    (kind,) = kinds
    assert kind.segments == (tuple(range(1, 8)), tuple(range(8)), tuple(range(7)))
    taps = [[segment.firsts for segment in block[0].batch] for block, _ in tiles.blocks]
    assert taps[0] == [(3, 6), (4, 7), (5, 8)]
    assert taps[1] == taps[2] == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    assert taps[3] == [(0, 3), (1, 4), (2, 5)]
