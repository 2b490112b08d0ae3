"""Nests of loops: divided, they visit the same elements, and no part is too large."""

from __future__ import annotations

import itertools

import pytest
from dnncore_cpu_numba.codegen.nest import Loop, Nest

SHAPES = [(1,), (7,), (40,), (3, 5), (9, 4), (100, 2), (2, 100), (5, 3, 7), (4, 9, 2, 3), (2, 1, 6)]


def nest(extents):
    """Loops over two tensors: one row-major with gaps, one in the reverse order."""
    first, second, loops = 1, 1, []
    strides = []
    for extent in reversed(extents):
        strides.insert(0, first)
        first *= extent + 1
    for extent, stride in zip(extents, strides, strict=True):
        loops.append(Loop(extent, (stride, second)))
        second *= extent
    return Nest((2, 3), tuple(loops))


def visited(part):
    """The places of all elements in both tensors, in the order of the loops."""
    return [
        tuple(
            offset + sum(i * loop.strides[n] for i, loop in zip(index, part.loops, strict=True))
            for n, offset in enumerate(part.offsets)
        )
        for index in itertools.product(*(range(loop.extent) for loop in part.loops))
    ]


@pytest.mark.parametrize("largest", [8, 10, 64])
@pytest.mark.parametrize("extents", SHAPES)
def test_tiles(extents, largest):
    whole = nest(extents)
    parts = list(whole.tiles(largest))
    for part in parts:
        rows, columns = (loop.extent for loop in part.loops[-2:])
        assert rows * columns <= largest
    assert sorted(p for part in parts for p in visited(part)) == sorted(visited(whole))
    assert len(parts) <= 4


@pytest.mark.parametrize("longest", [1, 4, 7, 64])
@pytest.mark.parametrize("extents", SHAPES)
def test_rows(extents, longest):
    whole = nest(extents)
    parts = list(whole.rows(longest))
    assert len(parts) <= 2
    assert all(part.loops[-1].extent <= longest for part in parts)
    assert sorted(p for part in parts for p in visited(part)) == sorted(visited(whole))


def test_neighbouring_loops_are_joined_in_the_order_of_memory():
    dense = Nest((0, 0), (Loop(2, (1, 12)), Loop(3, (2, 4)), Loop(4, (6, 1))))
    assert dense.ordered().loops == (Loop(4, (6, 1)), Loop(3, (2, 4)), Loop(2, (1, 12)))
    assert dense.ordered(1).loops == (Loop(2, (1, 12)), Loop(3, (2, 4)), Loop(4, (6, 1)))
    joined = Nest((0,), (Loop(2, (12,)), Loop(1, (99,)), Loop(3, (4,)), Loop(4, (1,))))
    assert joined.ordered().loops == (Loop(24, (1,)),)
