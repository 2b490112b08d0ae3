"""Steps of matrix problems: the tables and parameters of `tile_loop`, and the kernels it calls."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore_cpu_numba.elementwise.epilogue import call_rows, with_fixed
from dnncore_cpu_numba.gemm.bands import bands
from dnncore_cpu_numba.gemm.cover import TileKind
from dnncore_cpu_numba.gemm.microkernel import UNROLL, Microkernel
from dnncore_cpu_numba.gemm.problem import Matrix, MatrixProblem, filled
from dnncore_cpu_numba.gemm.tile_loop import BLOCK, CHUNK, TILE, tile_loop
from dnncore_cpu_numba.gemm.tiling import AHEAD, Blocking, Tiling
from dnncore_cpu_numba.runtime.program import Step, Table


def tile_steps(problem: MatrixProblem, blocking: Blocking) -> list[Step]:
    """Return the steps that compute a problem. Compiles their microkernels."""
    if 0 in (*problem.outer, problem.cover.count, problem.columns):
        return []
    calls = [Matrix(Table(row)) for row in call_rows(problem.epilogue)]
    problem = dataclasses.replace(problem, operands=[*problem.operands, *calls]).collapsed()
    fixed = [operand.row == 0 for operand in problem.operands]
    problem = dataclasses.replace(problem, epilogue=with_fixed(problem.epilogue, fixed))
    return [_step(band, Tiling.of(band, blocking)) for band in bands(problem)]


def _step(problem: MatrixProblem, tiling: Tiling) -> Step:
    kinds, batches, tile_table, block_table = _tables(problem, tiling)
    batch_table, chunk_table, starts = _batches(problem, batches, tiling)
    for tile in tile_table:
        tile["batch"] = starts[tile["batch"]]
    values = {
        "kernels": Table(_kernels(problem, tiling, kinds)), "kinds": len(kinds),
        "batches": Table(batch_table), "chunks": Table(chunk_table),
        "chunk_count": len(problem.chunks), "tiles": Table(TILE.table(tile_table)),
        "blocks": Table(block_table), "block_count": len(tiling.tiles.blocks),
        "rest": tiling.rest, "stretch": tiling.stretch, "panels": tiling.panels,
        "panels_per_group": tiling.panels_per_group, "vectors": tiling.vectors,
        "last_lanes": tiling.last_lanes, "b_row": problem.b_k, "continues": problem.continues,
        "a_stride": problem.a_k if problem.along == "rows" else problem.a.row,
        "operand_count": len(problem.operands), "dims": len(problem.outer),
        "extents": filled(problem.outer), "a": problem.a.values(), "b": problem.b.values(),
        "c": problem.c.values(), "operands": [operand.values() for operand in problem.operands],
    }  # fmt: skip
    return Step(tile_loop, values, tiling.items)


def _tables(problem: MatrixProblem, tiling: Tiling) -> tuple[Any, ...]:
    """Return the kinds and the batches of tiles, in order, and the tables of tiles and blocks.

    The tables refer to batches by number. The `fetch` of a tile is the offset of the rows of B that
    this tile prefetches; see `Microkernel.b_ahead`.
    """
    matrices = [problem.a, Matrix(0), problem.c, *problem.operands]
    b_row = problem.b_k or problem.vector_bytes
    kinds: dict[TileKind, int] = {}
    batches: dict[tuple[Any, ...], int] = {}
    places: dict[int, int] = {}  # id of a sequence of tiles -> index of its first tile
    tile_table: list[Any] = []
    block_table: list[Any] = []
    for made, place in tiling.tiles.blocks:
        if id(made) not in places:
            places[id(made)] = len(tile_table)
            for i, tile in enumerate(made):
                kind = kinds.setdefault(tile.kind, len(kinds))
                batch = batches.setdefault(tile.batch, len(batches))
                tile_table.append({
                    "kind": kind, "batch": batch, "a": problem.a.at(tile.place),
                    "fetch": i * tiling.b_ahead % UNROLL * b_row, "c": problem.c.at(tile.place),
                    "operands": [operand.at(tile.place) for operand in problem.operands],
                })  # fmt: skip
        offsets = [matrix.at(place) for matrix in matrices]
        block_table.append({"first": places[id(made)], "count": len(made), "offsets": offsets})
    return list(kinds), list(batches), tile_table, BLOCK.table(block_table)


def _batches(
    problem: MatrixProblem, batches: Sequence[tuple[Any, ...]], tiling: Tiling
) -> tuple[Any, Any, Any]:
    """Return the tables of all batches of each chunk, the chunks, and the offsets of batches.

    A batch has the same offset in all chunks. Its space is the size of its longest table.
    """
    tables = [[chunk.table(batch) for batch in batches] for chunk in problem.chunks]
    lengths = [max(map(len, same)) for same in zip(*tables, strict=True)]
    places = np.cumsum([0, *lengths])
    room = np.zeros((len(tables), places[-1]), np.int64)
    for row, made in zip(room, tables, strict=True):
        for place, table in zip(places, made, strict=False):
            row[place : place + len(table)] = table
    fetches = _fetch(problem, tiling)
    chunks = [
        {
            "batches": 8 * i * places[-1], "blocks": chunk.blocks,
            "a_advance": chunk.a_advance, "b_advance": chunk.b_advance, "fetch": fetch,
        }
        for i, (chunk, fetch) in enumerate(zip(problem.chunks, fetches, strict=True))
    ]  # fmt: skip
    return room, CHUNK.table(chunks), 8 * places


def _fetch(problem: MatrixProblem, tiling: Tiling) -> list[int]:
    """Return the prefetch distance in B of each chunk, in bytes.

    If each tile prefetches all rows that it reads, the distance is a fixed number of rows. If the
    tiles of a block share the prefetches, it is the distance to the next chunk. The last chunk is
    followed by the first chunk of the next panel.
    """
    if tiling.b_ahead in (0, UNROLL):
        row = problem.vector_bytes
        rows = AHEAD // (tiling.vectors * row) if tiling.b_ahead else 0
        return [rows * (problem.b_k or row)] * len(problem.chunks)
    starts = [chunk.batch[0][1] for chunk in problem.chunks]
    starts.append(starts[0] + tiling.vectors * problem.b.block)
    return [after - own for own, after in itertools.pairwise(starts)]


def _kernels(
    problem: MatrixProblem, tiling: Tiling, kinds: Sequence[TileKind]
) -> np.ndarray[Any, Any]:
    """Return kernel addresses by [last chunk][last panel][kind]; 0 for unused combinations."""
    table = np.zeros((2, 2, len(kinds)), np.int64)
    whole = all(chunk.k % UNROLL == 0 for chunk in problem.chunks)
    streamed = problem.is_streamed()
    for stage in range(int(len(problem.chunks) == 1), 2):  # 1: the last chunk
        for last in range(int(tiling.panels == 1), 2):
            vectors = tiling.last_vectors if last else tiling.vectors
            partial = last and tiling.last_lanes < problem.isa.lanes
            for place, kind in enumerate(kinds):
                table[stage, last, place] = Microkernel(
                    problem.isa, kind.rows, vectors, problem.along, problem.b_is_panel,
                    problem.edge if partial else "full", problem.epilogue if stage else (),
                    kind.a_rows, kind.segments, problem.a_ahead(), tiling.b_ahead,
                    problem.c_ahead(), whole, streamed and not partial, problem.arithmetic,
                    problem.result,
                ).address  # fmt: skip
    return table
