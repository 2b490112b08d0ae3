"""The division of matrix problems: width of panels, height of tiles, order of loops.

All constants were measured on AVX-512 with f32. Covers (`gemm/cover.py`) divide the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.backend import Knob
from dnncore_cpu_numba.codegen.isa import AVX2, BEST, Isa
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS
from dnncore_cpu_numba.gemm.cover import STRIDED_ROWS, Rows, TileBlocks, Windows
from dnncore_cpu_numba.gemm.microkernel import UNROLL
from dnncore_cpu_numba.gemm.problem import MatrixProblem

CACHE_BYTES = 256 << 10  # bytes of A or of a panel of B that stay in a core's cache (1 MiB or more)
FEW_PIXELS = 256  # most rows of C for which a large B is prefetched
LARGE_B = 8 << 20  # bytes of B; a larger B arrives too late without prefetching
AHEAD = 16 << 10  # bytes of B's vectors between the prefetched and the read position
# (bytes of a panel of B, bytes of it that arrive per cycle) by cache level.
SECOND_LEVEL = 768 << 10
PANEL_RATES = ((16 << 10, 64), (SECOND_LEVEL, 24), (1 << 62, 12))
ONE_TILE = 8  # this number of rows, or fewer, are one tile
STREAMED_ROWS = 64  # most rows for which reading B limits the speed; more are bound by arithmetic

UNFUSED = 0.65  # speed without fused multiply-adds, relative to them; measured
# Times for one row of an AVX2 tile with less than one vector of columns: a multiply-add, and the
# masked store. The unit is the time of a multiply-add of one row with AVX-512. Measured on Zen 5.
EDGE_MULTIPLY_ADD, EDGE_STORE = 0.8, 12
MOST_WAITING = 0.05  # part of the threads' time that may be spent waiting for the last item


CACHE_KIB = (0, 32, 64, 128, 256, 512, 1024)  # values of the knob
BY_RULE = "0: chosen by a rule"


@dataclass(frozen=True)
class Blocking:
    """The number of threads, and values of knobs for the division of a problem.

    vectors: the most vectors of a panel. cache_kib: KiB of A or of a panel of B that stay in a
    core's cache. 0: a rule chooses the value.
    """

    threads: int
    vectors: int = 0
    cache_kib: int = 0


def knobs(isa: Isa) -> tuple[Knob, ...]:
    """Return the knobs: the fields of `Blocking` that a program may choose."""
    vectors = tuple(sorted(isa.rows))
    return (
        Knob("vectors", 0, (0, *vectors), f"most vectors of a panel; {BY_RULE}"),
        Knob("cache_kib", 0, CACHE_KIB, f"KiB of a block that stays in a core's cache; {BY_RULE}"),
    )


@dataclass(frozen=True)
class Tiling:
    """The division of a problem into panels of vectors, blocks of tiles and stretches of items.

    rest: the items of a group of panels. b_ahead: as in `Microkernel`.
    """

    vectors: int
    panels: int
    last_vectors: int
    last_lanes: int
    tiles: TileBlocks
    rest: int
    stretch: int
    panels_per_group: int
    b_ahead: int

    @classmethod
    def of(cls, problem: MatrixProblem, blocking: Blocking) -> Tiling:
        """Return the tiling that was fastest for such problems in measurements."""
        lanes = problem.isa.lanes
        blocks = max(1, -(-problem.columns // lanes))
        others = [matrix.spatial for matrix in (problem.c, *problem.operands)]
        threads, cache_bytes = blocking.threads, (blocking.cache_kib << 10) or CACHE_BYTES
        tiles_of = _tiles_of(problem)
        limit = problem.most_vectors or max(tiles_of)
        limit = min(limit, blocking.vectors or limit)
        widths = {-(-blocks // -(-blocks // most)) for most in tiles_of if most <= limit}
        vectors = min(widths, key=lambda vectors: (_cycles(problem, vectors, others), vectors))
        panels = -(-blocks // vectors)
        depth = problem.arithmetic.size * max(chunk.depth for chunk in problem.chunks)
        panel_bytes = vectors * lanes * depth
        streams_b = panels > 1 and panel_bytes <= cache_bytes and _streams_b(problem)
        outer = math.prod(problem.outer)
        parts = 1 if streams_b else -(-4 * threads // outer)
        tiles = problem.cover.tiles(_most_rows(problem, vectors), parts, problem.a.spatial, others)
        rest = outer * len(tiles.blocks)
        item_bytes = tiles.rows_per_block * (problem.row_bytes or depth)
        waits = -(-rest // threads) * threads > (1 + MOST_WAITING) * rest
        b_is_larger = panels * panel_bytes > rest * item_bytes and not _has_own_b(problem)
        by_panels = panels > 1 and (waits or b_is_larger)
        height = len(tiles.blocks[0][0])
        strided = problem.b_k > 0 and height > 1 and _has_own_b(problem)  # B's rows are pages apart
        b_ahead = 0
        if strided or (streams_b and by_panels):
            b_ahead = -(-UNROLL // height)
        elif _reads_b_once(problem):
            b_ahead = UNROLL
        stretch = rest
        if panel_bytes <= cache_bytes:
            stretch = max(1, cache_bytes // max(1, item_bytes))
        return cls(
            vectors, panels, blocks - (panels - 1) * vectors,
            problem.columns - (blocks - 1) * lanes, tiles, rest, stretch,
            1 if by_panels else panels, b_ahead,
        )  # fmt: skip

    @property
    def items(self) -> int:
        """The number of work items of all groups of panels."""
        return self.rest * -(-self.panels // self.panels_per_group)


def _cycles(problem: MatrixProblem, vectors: int, others: Sequence[Sequence[int]]) -> float:
    """Return the cycles of one step of k in all tiles, for panels of this number of vectors.

    A cycle has two multiply-adds. Fewer than eight accumulators do not hide the latency. The cost
    of A's elements, and the rate of B's vectors by cache level of the panel, were measured.
    """
    vector_bytes = problem.vector_bytes
    panels = -(-problem.columns // (vectors * problem.isa.lanes))
    depth = max(chunk.depth for chunk in problem.chunks)
    b_bytes = vectors * vector_bytes
    rate = next(rate for size, rate in PANEL_RATES if depth * b_bytes <= size)
    most = _most_rows(problem, vectors)
    return panels * sum(
        count * max(max(rows * vectors, 8) / 2 + rows / 8, b_bytes / rate)
        for rows, count in problem.cover.sizes(most, others).items()
    )


def _tiles_of(problem: MatrixProblem) -> dict[int, int]:
    """Return the tiles of the problem: vectors -> the most rows."""
    is_wide = isinstance(problem.cover, Rows) and problem.arithmetic == F32_PRODUCTS
    return problem.isa.tiles_of(problem.cover.count) if is_wide else dict(problem.isa.rows)


def _most_rows(problem: MatrixProblem, vectors: int) -> int:
    """Return the most rows of a tile.

    The registers are a limit. If A's rows are strided, the cache and LLVM are further limits: rows
    at multiples of 4 KiB share the 8 lines of one set of a first-level cache.
    """
    rows = next(rows for n, rows in sorted(_tiles_of(problem).items()) if n >= vectors)
    if problem.isa.has_tiles:
        return rows
    if problem.along == "k" and problem.a.row:
        rows = min(rows, 8 * 4096 // math.gcd(4096, problem.a.row))
        if vectors > 1 and isinstance(problem.cover, Rows):
            rows = min(rows, STRIDED_ROWS)
    return rows


def _has_own_b(problem: MatrixProblem) -> bool:
    """Whether outer indices have different B and share A."""
    return math.prod(problem.outer) > 1 and any(problem.b.outer) and not any(problem.a.outer)


def _streams_b(problem: MatrixProblem) -> bool:
    """Whether B is read from memory for few rows, so that reading takes most of the time."""
    few = isinstance(problem.cover, Rows) and problem.cover.count <= STREAMED_ROWS
    return few and not _shares_b(problem) and _bytes_of_b(problem) > SECOND_LEVEL


def _reads_b_once(problem: MatrixProblem) -> bool:
    """Whether a large B is read for few pixels. It then needs prefetching."""
    few = math.prod(problem.outer) * problem.cover.count <= FEW_PIXELS
    gathers = isinstance(problem.cover, Windows) or not _shares_b(problem)
    return few and gathers and _bytes_of_b(problem) > LARGE_B


def _shares_b(problem: MatrixProblem) -> bool:
    """Whether several outer indices share B."""
    steps = itertools.zip_longest(problem.b.outer, problem.outer, fillvalue=0)
    return any(step == 0 and size > 1 for step, size in steps)


def _bytes_of_b(problem: MatrixProblem) -> int:
    """Return the bytes of B of one outer index."""
    depth: int = sum(chunk.depth for chunk in problem.chunks)
    return problem.arithmetic.size * problem.columns * depth


def utilisation(isa: Isa, rows: int, columns: int) -> float:
    """Return the part of the processor's peak that tiles reach with data in cache; measured.

    The losses are empty lanes, latency if there are few accumulators, and the unused part of vector
    registers if the instruction set is not the best.
    """
    vectors = max(1, -(-columns // isa.lanes))
    accumulators = min(vectors, isa.most_vectors) * max(1, min(rows, isa.rows[isa.most_vectors]))
    filled = columns / (vectors * isa.lanes)
    return 0.8 * max(filled, 1e-3) * min(1.0, accumulators / 8) * isa.lanes / BEST.lanes


def lesser_share(isa: Isa, columns: int, depth: int) -> float:
    """Return the part of `utilisation` that an older instruction set reaches; 1 for AVX-512.

    Without fused multiply-adds, products and sums are two instructions. If columns do not fill a
    vector, AVX2 uses slow masked stores. Many products per element (`depth`) hide their cost.
    """
    if "-fma" in isa.features.split(","):
        return UNFUSED
    if isa is not AVX2 or columns >= isa.lanes:
        return 1.0
    return min(1.0, depth / (EDGE_MULTIPLY_ADD * depth + EDGE_STORE))
