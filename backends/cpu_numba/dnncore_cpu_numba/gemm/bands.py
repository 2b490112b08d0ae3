"""Bands: divide a matrix problem of many rows into several problems, to keep tables short.

The tables of a step have one entry per block of tiles. The blocks of long covers differ only at
the borders. A long cover therefore becomes a few problems: bands at the borders, and equal bands
in between, which form an outer dim of one problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dnncore_cpu_numba.gemm.cover import Rows, Windows
from dnncore_cpu_numba.gemm.problem import Matrix, MatrixProblem

LONG = 1 << 13  # rows, or pixels along a dim; longer covers are divided
BAND = 1 << 10  # rows of a band; a block has about a hundred


def bands(problem: MatrixProblem) -> list[MatrixProblem]:
    """Divide a problem into bands. A problem whose cover is not long remains undivided."""
    cover = problem.cover
    if isinstance(cover, Rows):
        return list(_of_rows(problem, cover.count)) if cover.count > LONG else [problem]
    found = [problem]
    if isinstance(cover, Windows):
        for dim in (dim for dim in range(3) if cover.pixels[dim] > LONG):
            found = [band for one in found for band in _of_windows(one, dim)]
    return found


def _of_rows(problem: MatrixProblem, count: int) -> Iterator[MatrixProblem]:
    several, rest = divmod(count, BAND)
    yield _repeated(problem, -1, several, Rows(BAND))
    if rest:
        yield replace(_moved(problem, -1, several * BAND), cover=Rows(rest))


def _of_windows(problem: MatrixProblem, dim: int) -> Iterator[MatrixProblem]:
    """Divide the pixels along dim: windows that leave the image at its start, inside, at its end.

    The pixels whose windows are inside form equal bands and a remainder.
    """
    cover = problem.cover
    assert isinstance(cover, Windows)
    count, step, size = cover.pixels[dim], cover.step[dim], cover.size[dim]
    shifts = [shift[dim] for shift in cover.shifts] or [0]
    low = min(count, max(0, -(min(shifts) // step)))
    high = max(low, min(count, (size - 1 - max(shifts)) // step + 1))
    several, rest = divmod(high - low, BAND)
    if low:
        yield _cut(problem, dim, 0, low)
    if several:
        band = _cut(problem, dim, low, BAND)
        inner = band.cover
        assert isinstance(inner, Windows)
        reach = (low + BAND - 1) * step + max(shifts) + 1
        sizes = _with(inner.size, dim, reach)  # all bands read as much of the image as the first
        yield _repeated(band, dim - 3, several, replace(inner, size=sizes))
    for first, last in ((high - rest, high), (high, count)):
        if last > first:
            yield _cut(problem, dim, first, last - first)


def _cut(problem: MatrixProblem, dim: int, first: int, count: int) -> MatrixProblem:
    """Return the problem of the pixels [first, first + count) along a dim."""
    cover = problem.cover
    assert isinstance(cover, Windows)
    part = replace(
        cover,
        pixels=_with(cover.pixels, dim, count),
        shifts=[_with(shift, dim, shift[dim] + first * cover.step[dim]) for shift in cover.shifts],
    )
    return replace(_moved(problem, dim - 3, first), cover=part)


def _moved(problem: MatrixProblem, dim: int, places: int) -> MatrixProblem:
    """Move the start along a spatial dim. dim: negative, counted from the last."""
    return problem.changed(lambda matrix: matrix.moved(places * matrix.step(dim)))


def _repeated(problem: MatrixProblem, dim: int, count: int, cover: Rows | Windows) -> MatrixProblem:
    """Repeat the problem of one band for `count` consecutive bands, as an outer dim."""

    def with_dim(matrix: Matrix) -> Matrix:
        filler = (0,) * (len(problem.outer) - len(matrix.outer))
        step = BAND * matrix.step(dim)
        return replace(matrix, outer=(*matrix.outer, *filler, step))

    return problem.changed(with_dim, cover=cover, outer=(*problem.outer, count))


def _with(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])
