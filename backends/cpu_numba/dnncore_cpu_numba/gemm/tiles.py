"""Tiles: how a matrix problem is cut for caches, registers and threads.

A problem is C[i][row][column] = sum over k of A[i][row][k] * B[i][k][column] for each index i of up
to ten outer dims. Columns are the lanes of vectors; several vectors make a *panel*. Rows are cut
into tiles, and those into blocks, by a *cover* (`gemm/cover.py`). The loops over them are
in `gemm/tile_loop.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dnncore_cpu_numba.codegen.isa import AVX2, BEST, Isa
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, Sum, call_rows
from dnncore_cpu_numba.gemm.cover import Cover, Kind, Rows, Segment, Taps, Windows
from dnncore_cpu_numba.gemm.microkernel import SEGMENT, UNROLL, Microkernel
from dnncore_cpu_numba.gemm.tile_loop import BLOCK, CHUNK, OUTER, TILE, tile_loop
from dnncore_cpu_numba.gemm.tiling import AHEAD, Tiling
from dnncore_cpu_numba.runtime.program import Param, Step, Table

__all__ = ["Chunk", "Matrix", "Rows", "Taps", "TileLoop", "Windows", "lesser_share", "utilisation"]

UNFUSED = 0.65  # of the speed of fused multiply-adds; measured
# Of a row of AVX2's tiles with less than a vector of columns, in units of a multiply-add of
# AVX-512's tiles with as many: each multiply-add, and the masked store. Measured on Zen 5.
EDGE_MULTIPLY_ADD, EDGE_STORE = 0.8, 12
LARGE_C = 8 << 20  # of C: above, where B is in place, its prefetch gains 15 %; below, it loses


@dataclass(frozen=True)
class Matrix:
    """Where A, B, C or an operand of the post-ops lies: an address and its strides in bytes.

    block: from one vector of columns to the next; B has no rows, and A no columns.
    planes: those of a cover's places before the row's, where it has several coordinates.
    """

    address: Param
    outer: tuple[int, ...] = ()
    row: int = 0
    block: int = 0
    planes: tuple[int, ...] = ()

    def values(self) -> dict[str, Any]:
        """Its `MATRIX`."""
        outer = _filled(self.outer)
        return {"address": self.address, "row": self.row, "block": self.block, "outer": outer}

    @property
    def spatial(self) -> tuple[int, ...]:
        """Along each coordinate of a place."""
        return (*self.planes, self.row)

    @property
    def unfolded(self) -> Matrix:
        """The same with the planes as further outer dims."""
        return dataclasses.replace(self, outer=(*self.outer, *self.planes), planes=())

    def at(self, place: Sequence[int]) -> int:
        """The offset of a place in bytes."""
        return sum(map(int.__mul__, place, self.spatial[-len(place) :]))


@dataclass(frozen=True)
class Chunk:
    """A part of the reduction: (offset in A, offset in B) in bytes per element, and their k.

    All of it is repeated for `blocks` places of A and B that are a_advance and b_advance apart.
    """

    batch: Sequence[tuple[int, int]]
    k: int
    blocks: int = 1
    a_advance: int = 0
    b_advance: int = 0

    @property
    def depth(self) -> int:
        """The products that are added up for an element of C."""
        return self.blocks * len(self.batch) * self.k

    def table(self, batch: tuple[Segment, ...]) -> np.ndarray[Any, Any]:
        """What the microkernel reads of a tile's part of the batch."""
        slots: list[Any] = []
        for segment in batch or (Segment(tuple(range(len(self.batch)))),):
            elements = [{"a": a, "b": b} for a, b in map(self.batch.__getitem__, segment.firsts)]
            sizes = {"count": len(elements), "k": segment.length * self.k}
            slots += SEGMENT.pack(sizes | {"elements": elements})
        return np.array(slots, np.int64)


@dataclass(frozen=True, kw_only=True)
class TileLoop:
    """A matrix problem; `step()` makes it one step of a program.

    a_k: bytes from k to k in A; 4, or else its rows are 4 bytes apart.
    b_k: the same in B; 0 stands for the bytes of a vector, B in panels.
    epilogue, operands: post-ops, and the matrix of each `Operand` in them.
    chunks: `Chunk`s or, for a cover of other batches, what has the same attributes; with an
        epilogue that reads C there can be only one.
    most_vectors: of a panel, if it may not have as many as the instruction set's.
    continues: C holds the sum of another loop's chunks.
    row_bytes: of A, that each row adds to what is read; 0 stands for all that it reads.
    """

    isa: Isa
    outer: tuple[int, ...]
    cover: Cover
    columns: int
    a: Matrix
    b: Matrix
    c: Matrix
    chunks: Sequence[Any]
    a_k: int = 4
    b_k: int = 0
    edge: Literal["masked", "zeroed"] = "masked"
    epilogue: Epilogue = ()
    operands: Sequence[Matrix] = ()
    most_vectors: int = 0
    continues: bool = False
    row_bytes: int = 0

    def step(self, threads: int) -> Step:
        """Compile the microkernels that are needed and lay out the parameters."""
        if 0 in (*self.outer, self.cover.count, self.columns):
            return Step(tile_loop, {}, items=0)
        calls = [Matrix(Table(row)) for row in call_rows(self.epilogue)]
        loop = dataclasses.replace(self, operands=[*self.operands, *calls])._collapsed()
        return loop._step(Tiling.of(loop, threads))

    @property
    def along(self) -> Literal["k", "rows"]:
        """The direction in which A is contiguous."""
        return "k" if self.a_k == 4 else "rows"

    @property
    def b_is_panel(self) -> bool:
        """Whether all vectors of B are whole and follow each other."""
        lanes = self.isa.lanes
        return self.b_k == 0 or (self.b_k == 4 * lanes and self.columns % lanes == 0)

    def _a_ahead(self) -> Literal["", "block", "tile"]:
        """What of A the microkernel prefetches, see there; of few rows there is no next tile."""
        if self.along == "rows":
            return ""
        if self.chunks[0].blocks > 1:
            return "block"
        several = isinstance(self.cover, Rows) and self.cover.count > max(self.isa.rows.values())
        return "tile" if several else ""

    def _c_ahead(self) -> bool:
        """Whether C's rows, far apart, are so many that no cache has them when they are written."""
        return self.b_k > 0 and self._c_bytes >= LARGE_C and not self._is_streamed()

    @property
    def _c_bytes(self) -> int:
        return 4 * math.prod(self.outer) * self.cover.count * self.columns

    def _is_streamed(self) -> bool:
        """Whether C is too large to be found in cache, and made of whole lines written once."""
        once = len(self.chunks) == 1 and not self.continues
        once = once and not any(isinstance(stage, Sum) for stage in self.epilogue)
        return once and 4 * self.isa.lanes == LINE and self._c_bytes >= STREAM_BYTES

    def _collapsed(self) -> TileLoop:
        """The same problem with outer dims joined to the rows where all strides allow it."""
        if isinstance(self.cover, Windows) and self.cover.is_inside and self._is_flat():
            return self._as_rows()._collapsed()
        if not isinstance(self.cover, Rows):
            return self
        rows, matrices = self.cover.count, [self.a, self.b, self.c, *self.operands]
        for dim in reversed(range(len(self.outer))):
            extent = self.outer[dim]
            if extent == 1 or all(_filled(m.outer)[dim] == rows * m.row for m in matrices):
                a, b, c, *operands = (_without(m, dim) for m in matrices)
                joined = dataclasses.replace(
                    self, cover=Rows(rows * extent), outer=_drop(self.outer, dim),
                    a=a, b=b, c=c, operands=operands,
                )  # fmt: skip
                return joined._collapsed()
        return self

    def _is_flat(self) -> bool:
        """Whether the rows of an image follow each other."""
        _, height, width = self.cover.pixels
        flat = (m.planes[-1:] in ((), (width * m.row,)) for m in (self.a, self.c, *self.operands))
        return height == 1 or all(flat)

    def _as_rows(self) -> TileLoop:
        """The same problem with the image's planes as outer dims, and its rows joined."""
        depth, height, width = self.cover.pixels

        def joined(matrix: Matrix) -> Matrix:
            return dataclasses.replace(matrix, planes=matrix.planes[:1]).unfolded

        return dataclasses.replace(
            self, cover=Rows(height * width), outer=(*self.outer, depth), a=joined(self.a),
            b=joined(self.b), c=joined(self.c), operands=[joined(o) for o in self.operands],
        )  # fmt: skip

    def _step(self, tiling: Tiling) -> Step:
        kinds, batches, tile_table, block_table = self._tables(tiling)
        batch_table, chunk_table, starts = self._batches(batches, tiling)
        for tile in tile_table:
            tile["batch"] = starts[tile["batch"]]
        values = {
            "kernels": Table(self._kernels(tiling, kinds)), "kinds": len(kinds),
            "batches": Table(batch_table), "chunks": Table(chunk_table),
            "chunk_count": len(self.chunks), "tiles": Table(TILE.table(tile_table)),
            "blocks": Table(block_table), "block_count": len(tiling.tiles.blocks),
            "rest": tiling.rest, "stretch": tiling.stretch, "panels": tiling.panels,
            "panels_per_group": tiling.panels_per_group, "vectors": tiling.vectors,
            "last_lanes": tiling.last_lanes, "b_row": self.b_k, "continues": self.continues,
            "a_stride": self.a_k if self.along == "rows" else self.a.row,
            "operand_count": len(self.operands), "dims": len(self.outer),
            "extents": _filled(self.outer), "a": self.a.values(), "b": self.b.values(),
            "c": self.c.values(), "operands": [operand.values() for operand in self.operands],
        }  # fmt: skip
        return Step(tile_loop, values, tiling.items)

    def _tables(self, tiling: Tiling) -> tuple[Any, ...]:
        """The kinds and batches of tiles, in order, and the tables of tiles and blocks.

        A tile's batch is told by its number; the tile's `fetch` is what it fetches of the rows that
        a turn reads, see `Microkernel.b_ahead`.
        """
        matrices = [self.a, Matrix(0), self.c, *self.operands]
        b_row = self.b_k or 4 * self.isa.lanes
        kinds: dict[Kind, int] = {}
        batches: dict[tuple[Any, ...], int] = {}
        places: dict[int, int] = {}  # of the first of some tiles
        tile_table, block_table = [], []
        for made, place in tiling.tiles.blocks:
            if id(made) not in places:
                places[id(made)] = len(tile_table)
                for i, tile in enumerate(made):
                    kind = kinds.setdefault(tile.kind, len(kinds))
                    batch = batches.setdefault(tile.batch, len(batches))
                    tile_table.append({
                        "kind": kind, "batch": batch, "a": self.a.at(tile.place),
                        "fetch": i * tiling.b_ahead % UNROLL * b_row, "c": self.c.at(tile.place),
                        "operands": [operand.at(tile.place) for operand in self.operands],
                    })  # fmt: skip
            offsets = [matrix.at(place) for matrix in matrices]
            block_table.append({"first": places[id(made)], "count": len(made), "offsets": offsets})
        return list(kinds), list(batches), tile_table, BLOCK.table(block_table)

    def _batches(self, batches: Sequence[tuple[Any, ...]], tiling: Tiling) -> tuple[Any, Any, Any]:
        """The tables of all batches of each chunk, the chunks, and where a chunk's batches begin.

        A batch begins at the same place in all chunks: there, it has the room of its longest table.
        """
        tables = [[chunk.table(batch) for batch in batches] for chunk in self.chunks]
        lengths = [max(map(len, same)) for same in zip(*tables, strict=True)]
        places = np.cumsum([0, *lengths])
        room = np.zeros((len(tables), places[-1]), np.int64)
        for row, made in zip(room, tables, strict=True):
            for place, table in zip(places, made, strict=False):
                row[place : place + len(table)] = table
        chunks = [
            {
                "batches": 8 * i * places[-1], "blocks": chunk.blocks,
                "a_advance": chunk.a_advance, "b_advance": chunk.b_advance, "fetch": fetch,
            }
            for i, (chunk, fetch) in enumerate(zip(self.chunks, self._fetch(tiling), strict=True))
        ]  # fmt: skip
        return room, CHUNK.table(chunks), 8 * places

    def _fetch(self, tiling: Tiling) -> list[int]:
        """For each chunk, how far ahead in B it fetches.

        That is a fixed number of rows where each tile fetches all that it will read, and the next
        chunk where tiles take turns; after the last one comes the first of the next panel.
        """
        if tiling.b_ahead in (0, UNROLL):
            row = 4 * self.isa.lanes
            rows = AHEAD // (tiling.vectors * row) if tiling.b_ahead else 0
            return [rows * (self.b_k or row)] * len(self.chunks)
        starts = [chunk.batch[0][1] for chunk in self.chunks]
        starts.append(starts[0] + tiling.vectors * self.b.block)
        return [after - own for own, after in itertools.pairwise(starts)]

    def _kernels(self, tiling: Tiling, kinds: Sequence[Kind]) -> np.ndarray[Any, Any]:
        """Addresses by [last chunk][last panel][kind]; 0 where a combination does not occur."""
        table = np.zeros((2, 2, len(kinds)), np.int64)
        whole = all(chunk.k % UNROLL == 0 for chunk in self.chunks)
        streamed = self._is_streamed()
        for stage in {int(c == len(self.chunks) - 1) for c in range(len(self.chunks))}:
            for last in {int(p == tiling.panels - 1) for p in range(tiling.panels)}:
                vectors = tiling.last_vectors if last else tiling.vectors
                partial = last and tiling.last_lanes < self.isa.lanes
                for place, kind in enumerate(kinds):
                    table[stage, last, place] = Microkernel(
                        self.isa, kind.rows, vectors, self.along, self.b_is_panel,
                        self.edge if partial else "full", self.epilogue if stage else (),
                        kind.a_rows, kind.segments, self._a_ahead(), tiling.b_ahead,
                        self._c_ahead(), whole, streamed and not partial,
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


def lesser_share(isa: Isa, columns: int, depth: int) -> float:
    """The part of `utilisation` that is left to a lesser instruction set; 1 for AVX-512.

    Products and sums are two instructions where they are not fused. AVX2's masked stores, where
    columns fill no vector, are slow; `depth` products for each element hide them if they are many.
    """
    if "-fma" in isa.features.split(","):
        return UNFUSED
    if isa is not AVX2 or columns >= isa.lanes:
        return 1.0
    return min(1.0, depth / (EDGE_MULTIPLY_ADD * depth + EDGE_STORE))


def _without(matrix: Matrix, dim: int) -> Matrix:
    return dataclasses.replace(matrix, outer=_drop(matrix.outer, dim))


def _drop(values: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return values[:dim] + values[dim + 1 :]


def _filled(outer: Sequence[int]) -> list[int]:
    """Sizes or strides of outer dims, filled up with zeros."""
    return [*outer, *[0] * (OUTER - len(outer))]
