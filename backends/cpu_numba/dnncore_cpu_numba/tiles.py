"""Tiles: how a matrix problem is cut for caches, registers and threads.

A problem is C[i][row][column] = sum over k of A[i][row][k] * B[i][k][column] for each index i of up
to ten outer dims. Columns are the lanes of vectors; several vectors make a *panel*, some rows a
*row block*. The loops over them are in `dnncore_cpu_numba.tile_loop`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dnncore_cpu_numba.epilogue import Epilogue, call_rows
from dnncore_cpu_numba.isa import BEST, Isa
from dnncore_cpu_numba.microkernel import Microkernel
from dnncore_cpu_numba.program import Param, Step, Table
from dnncore_cpu_numba.tile_loop import MATRICES, OUTER, tile_loop

__all__ = ["Chunk", "Matrix", "TileLoop", "utilisation"]

CACHE_BYTES = 256 << 10  # of A or of a panel of B that stay in a core's cache of 1 MiB or more

MOST_WAITING = 0.05  # of the threads' time, for the last item


@dataclass(frozen=True)
class Matrix:
    """Where A, B, C or an operand of the post-ops lies: an address and its strides in bytes.

    block: from one vector of columns to the next; B has no rows, and A no columns unless they are
        those of B.
    """

    address: Param
    outer: tuple[int, ...] = ()
    row: int = 0
    block: int = 0

    def strides(self) -> list[int]:
        """Row, block, and the outer strides, filled up with zeros."""
        return [self.row, self.block, *self.outer, *[0] * (OUTER - len(self.outer))]


@dataclass(frozen=True)
class Chunk:
    """A part of the reduction: (offset in A, offset in B) in bytes per element, and their k."""

    batch: Sequence[tuple[int, int]]
    k: int


@dataclass(frozen=True, kw_only=True)
class TileLoop:
    """A matrix problem; `step()` makes it one step of a program.

    a_k: bytes from k to k in A; 4, or else its rows are 4 bytes apart, unless `by_lanes`.
    b_k: the same in B; 0 stands for the bytes of a vector, B in panels.
    epilogue, operands: post-ops, and the matrix of each `Operand` in them.
    chunks: with an epilogue that reads C there can be only one.
    most_vectors: of a panel, if not the instruction set's.
    continues: C holds the sum of another loop's chunks.
    by_lanes: A has columns too: C[i][row][column] sums A[i][row][k][column] * B[i][k][column].
    """

    isa: Isa
    outer: tuple[int, ...]
    rows: int
    columns: int
    a: Matrix
    b: Matrix
    c: Matrix
    chunks: Sequence[Chunk]
    a_k: int = 4
    b_k: int = 0
    edge: Literal["masked", "zeroed"] = "masked"
    epilogue: Epilogue = ()
    operands: Sequence[Matrix] = ()
    most_vectors: int = 0
    continues: bool = False
    by_lanes: bool = False

    def step(self, threads: int) -> Step:
        """Compile the microkernels that are needed and lay out the parameters."""
        if 0 in (*self.outer, self.rows, self.columns):
            return Step(tile_loop, (), items=0)
        calls = [Matrix(Table(row)) for row in call_rows(self.epilogue)]
        loop = dataclasses.replace(self, operands=[*self.operands, *calls])._collapsed()
        return loop._step(_Tiling.of(loop, threads))

    @property
    def along(self) -> Literal["k", "rows", "lanes"]:
        """The direction in which A is contiguous."""
        if self.by_lanes:
            return "lanes"
        return "k" if self.a_k == 4 else "rows"

    @property
    def b_is_panel(self) -> bool:
        """Whether all vectors of B are whole and follow each other."""
        lanes = self.isa.lanes
        return self.b_k == 0 or (self.b_k == 4 * lanes and self.columns % lanes == 0)

    def _most_rows_in_cache(self) -> int:
        """Rows of A at multiples of 4 KiB share the 8 lines of one set of a first-level cache."""
        broadcast = self.along == "k" and self.a.row
        return 8 * 4096 // math.gcd(4096, self.a.row) if broadcast else 8 * 4096

    def _collapsed(self) -> TileLoop:
        """The same problem with outer dims joined to the rows where all strides allow it."""
        matrices = [self.a, self.b, self.c, *self.operands]
        for dim in reversed(range(len(self.outer))):
            extent = self.outer[dim]
            if extent == 1 or all(m.strides()[2 + dim] == self.rows * m.row for m in matrices):
                a, b, c, *operands = (_without(m, dim) for m in matrices)
                joined = dataclasses.replace(
                    self, rows=self.rows * extent, outer=_drop(self.outer, dim),
                    a=a, b=b, c=c, operands=operands,
                )  # fmt: skip
                return joined._collapsed()
        return self

    def _step(self, tiling: _Tiling) -> Step:
        kernels, batch_table, chunk_table = self._kernels(tiling), [], []
        for chunk in self.chunks:
            chunk_table.append((16 * len(batch_table), len(chunk.batch), chunk.k))
            batch_table.extend(chunk.batch)
        params: list[Param] = [
            Table(kernels), Table(_table(batch_table)), Table(_table(chunk_table)),
            len(self.chunks), tiling.row_blocks, tiling.rest, tiling.stretch, tiling.panels,
            tiling.panels_per_group, tiling.vectors, tiling.last_lanes, self.rows, tiling.row_block,
            tiling.most_rows, self.a_k if self.along == "rows" else self.a.row, self.a_k, self.b_k,
            self.continues, len(self.operands), len(self.outer),
            *self.outer, *[0] * (OUTER - len(self.outer)),
        ]  # fmt: skip
        assert len(params) == MATRICES
        for matrix in (self.a, self.b, self.c, *self.operands):
            params += [matrix.address, *matrix.strides()]
        return Step(tile_loop, params, tiling.items)

    def _kernels(self, tiling: _Tiling) -> np.ndarray[Any, Any]:
        """Addresses by [last chunk][last panel][rows]; 0 where a combination does not occur."""
        table = np.zeros((2, 2, tiling.most_rows + 1), np.int64)
        kinds = {int(p == tiling.panels - 1) for p in range(tiling.panels)}
        stages = {int(c == len(self.chunks) - 1) for c in range(len(self.chunks))}
        for stage in stages:
            for kind in kinds:
                vectors = tiling.last_vectors if kind else tiling.vectors
                partial = kind and tiling.last_lanes < self.isa.lanes
                for rows in tiling.tile_rows(self.rows):
                    table[stage, kind, rows] = Microkernel(
                        self.isa, rows, vectors, self.along, self.b_is_panel,
                        self.edge if partial else "full", self.epilogue if stage else (),
                    ).address  # fmt: skip
        return table


def utilisation(isa: Isa, rows: int, columns: int) -> float:
    """The part of the processor's peak that tiles reach whose data are in cache; measured.

    Lost are empty lanes, latency where accumulators are few, and the part of each vector register
    that a lesser instruction set leaves unused.
    """
    vectors = max(1, -(-columns // isa.lanes))
    accumulators = min(vectors, isa.most_vectors) * max(1, min(rows, isa.rows[isa.most_vectors]))
    filled = columns / (vectors * isa.lanes)
    return 0.8 * max(filled, 1e-3) * min(1.0, accumulators / 8) * isa.lanes / BEST.lanes


@dataclass(frozen=True)
class _Tiling:
    """How a problem is cut: into panels, row blocks, and stretches of items."""

    vectors: int
    panels: int
    last_vectors: int
    last_lanes: int
    most_rows: int
    row_block: int
    row_blocks: int
    rest: int
    stretch: int
    panels_per_group: int

    @classmethod
    def of(cls, loop: TileLoop, threads: int) -> _Tiling:
        lanes = loop.isa.lanes
        blocks = max(1, -(-loop.columns // lanes))
        panels = -(-blocks // (loop.most_vectors or loop.isa.most_vectors))
        vectors = -(-blocks // panels)
        panels = -(-blocks // vectors)
        most_rows = min(loop.isa.rows[vectors], loop._most_rows_in_cache())
        outer = math.prod(loop.outer)
        row_block = _row_block(loop.rows, most_rows, outer, threads)
        row_blocks = -(-loop.rows // row_block)
        rest = outer * row_blocks
        depth = 4 * max(len(chunk.batch) * chunk.k for chunk in loop.chunks)
        panel_bytes, item_bytes = vectors * lanes * depth, row_block * depth
        waits = -(-rest // threads) * threads > (1 + MOST_WAITING) * rest
        by_panels = panels > 1 and (waits or panels * panel_bytes > rest * item_bytes)
        stretch = rest
        if panel_bytes <= CACHE_BYTES:
            stretch = max(1, CACHE_BYTES // max(1, item_bytes))
        return cls(
            vectors, panels, blocks - (panels - 1) * vectors,
            loop.columns - (blocks - 1) * lanes, most_rows, row_block, row_blocks, rest, stretch,
            1 if by_panels else panels,
        )  # fmt: skip

    @property
    def items(self) -> int:
        """Work items: those of each group of panels, group after group."""
        return self.rest * -(-self.panels // self.panels_per_group)

    def tile_rows(self, rows: int) -> set[int]:
        """The sizes of tiles that occur: row blocks are cut as evenly as can be."""
        sizes = set()
        for block in {min(self.row_block, rows), rows - (self.row_blocks - 1) * self.row_block}:
            tiles = -(-block // self.most_rows)
            sizes |= {block // tiles, -(-block // tiles)}
        return sizes


def _row_block(rows: int, most: int, outer: int, threads: int) -> int:
    """Rows of one item: about eight tiles, fewer where the threads would lack work."""
    tiles = -(-rows // most)
    wanted = min(8, max(1, tiles * outer // (4 * threads)))
    blocks = -(-tiles // wanted)
    return -(-rows // blocks)


def _without(matrix: Matrix, dim: int) -> Matrix:
    return dataclasses.replace(matrix, outer=_drop(matrix.outer, dim))


def _drop(values: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return values[:dim] + values[dim + 1 :]


def _table(rows: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    return np.array(rows or [(0,)], np.int64)
