"""The division of a Winograd convolution into blocks of tiles and panels of channels.

This module computes the parameters of `convolution/winograd/task.py`. It copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.convolution.winograd.direct_task import direct_sums
from dnncore_cpu_numba.convolution.winograd.task import KERNELS, winograd_loop
from dnncore_cpu_numba.convolution.winograd.transforms import (
    OUTPUTS,
    POSITIONS,
    SPAN,
    DstTransform,
    SrcTransform,
)
from dnncore_cpu_numba.elementwise.epilogue import Epilogue
from dnncore_cpu_numba.gemm.cover import ALL, evenly
from dnncore_cpu_numba.gemm.microkernel import Microkernel
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix
from dnncore_cpu_numba.runtime.program import Param, Step, Table

# Measured on 2 cores with 1 MiB of second-level and 32 MiB of third-level cache:
LEAST_TILES = 24  # least tiles of a block; each block reads all weights from a distant cache
MOST_TILES = 96  # most tiles of a block; their transforms stay in a third-level cache
FILTER_BYTES_PER_TILE = 256 << 10  # bytes of weights per tile if weights are read from memory
LONG_SHARE = 8  # blocks of a share; from this number on, the last block may be shorter


@dataclass(frozen=True)
class WinogradLoop:
    """The division of a forward convolution. `convolution/winograd/task.py` defines the terms."""

    isa: Isa
    g: Geometry
    block: int
    blocks: int
    groups: int
    panels: int
    vectors: int
    shares: int

    @classmethod
    def of(cls, isa: Isa, g: Geometry, threads: int) -> WinogradLoop:
        """Return a division with work for each thread.

        Blocks are so long that reading the weights takes a small part of the time.
        """
        all_vectors = -(-g.oc // isa.lanes)
        panels = -(-all_vectors // isa.most_vectors)
        vectors = -(-all_vectors // panels)
        panels = -(-all_vectors // vectors)
        filter_bytes = 4 * POSITIONS * g.ic * g.oc
        wanted = min(max(LEAST_TILES, filter_bytes // FILTER_BYTES_PER_TILE), MOST_TILES)
        tiles = max(1, g.batch * math.prod(_tiling(g)))
        per_thread = 0
        if tiles >= threads * LEAST_TILES:
            per_thread = max(1, round(tiles / (wanted * threads)))
        groups = 1 if per_thread else min(panels, threads)
        block = -(-tiles // max(1, per_thread * threads, threads // groups))
        if per_thread >= LONG_SHARE:
            block = -(-block // isa.rows[vectors]) * isa.rows[vectors]
        blocks = -(-tiles // block)
        shares = min(threads, blocks * groups)
        return cls(isa, g, block, blocks, groups, panels, vectors, shares)

    @property
    def tiles(self) -> int:
        """The number of tiles of all images."""
        return self.g.batch * math.prod(_tiling(self.g))

    @property
    def src_bytes(self) -> int:
        """The size of a transformed tile at one position in bytes."""
        return 4 * -(-self.g.ic // self.isa.lanes) * self.isa.lanes

    @property
    def src_plane(self) -> int:
        """The stride between the positions of the transformed tiles in bytes."""
        return _odd_lines(self.block * self.src_bytes)

    @property
    def dst_plane(self) -> int:
        """The stride between the positions of the products of one panel in bytes."""
        return _odd_lines(4 * self.block * self.vectors * self.isa.lanes)

    @property
    def share_bytes(self) -> int:
        """The size of a share's part of the scratchpad in bytes."""
        return POSITIONS * (self.src_plane + self.dst_plane)

    @property
    def last_vectors(self) -> int:
        """The number of vectors of the last panel."""
        return -(-self.g.oc // self.isa.lanes) - (self.panels - 1) * self.vectors

    def step(
        self, src: Image, weights: Param, dst: Matrix, scratch: Param, edge: Any, chain: Epilogue,
        operands: list[Matrix],
    ) -> Step:  # fmt: skip
        """Return the step. Compiles its kernels."""
        g, lanes = self.g, self.isa.lanes
        if self.tiles == 0:
            return Step(winograd_loop, {}, 0)
        tail = g.ic % lanes if src.is_channels_last else 0
        down, across = _tiling(g)
        most = self.isa.rows[self.vectors]
        batch = Chunk([(0, 0)], g.ic).table(ALL)
        values = {
            "shares": self.shares, "blocks": self.blocks, "groups": self.groups,
            "panels": self.panels, "block": self.block, "tiles": self.tiles,
            "tiles_down": down, "tiles_across": across, "scratch": scratch,
            "share_bytes": self.share_bytes, "products": POSITIONS * self.src_plane,
            "src": src.address, "src_batch": src.batch, "src_row": src.spatial[1],
            "src_pixel": src.spatial[2], "src_step": src.vector_step(lanes, g.ic),
            "src_vectors": -(-g.ic // lanes) - (tail > 0), "src_lanes": tail,
            "height": g.src[1], "width": g.src[2], "top": g.padding[1],
            "left": g.padding[2], "readers": self._readers(tail),
            "src_plane": self.src_plane, "src_bytes": self.src_bytes, "weights": weights,
            "depth": g.ic, "lane_bytes": 4 * lanes, "batch_table": Table(batch),
            "kernels": self._kernels(), "most_rows": most, "vectors": self.vectors,
            "last_vectors": self.last_vectors, "dst_plane": self.dst_plane, "dst": dst.address,
            "dst_batch": dst.outer[0], "dst_row": dst.planes[1], "dst_pixel": dst.row,
            "dst_step": dst.block, "dst_lanes": g.oc % lanes,
            "dst_height": g.dst[1], "dst_width": g.dst[2],
            "writers": self._writers(edge, chain), "direct": direct_sums.address,
            "operand_count": len(operands),
            "operands": [_operand(operand) for operand in operands],
        }  # fmt: skip
        return Step(winograd_loop, values, self.shares)

    def _readers(self, tail: int) -> Table:
        """Return kernels by [bordered][last, masked vector]; 0 for unused combinations."""
        sizes = zip(_tiling(self.g), self.g.padding[1:], self.g.src[1:], strict=True)
        inside = [
            [0 <= OUTPUTS * tile - left <= size - SPAN for tile in range(tiles)]
            for tiles, left, size in sizes
        ]
        occurs = all(map(any, inside)), not all(map(all, inside))
        whole = self.g.ic // self.isa.lanes > 0 or not tail
        return _kernel_pairs(
            [SrcTransform(self.isa, bordered, masked) if occurs[bordered] and some else None
             for masked, some in ((False, whole), (True, tail))]
            for bordered in (False, True)
        )  # fmt: skip

    def _writers(self, edge: Literal["masked", "zeroed"], chain: Epilogue) -> Table:
        """Return kernels by [last tile of a row][last vector]; 0 for unused combinations."""
        whole, tail = divmod(self.g.oc, self.isa.lanes)
        tiles, last = divmod(self.g.dst[2], OUTPUTS)
        full: Literal["full"] = "full"
        return _kernel_pairs(
            [DstTransform(self.isa, columns, kind, chain) if occurs else None
             for kind, occurs in ((full, some and whole), (edge, some and tail))]
            for columns, some in ((OUTPUTS, tiles), (last, last))
        )  # fmt: skip

    def _kernels(self) -> Table:
        """Return microkernels by [last panel][rows]."""
        most = self.isa.rows[self.vectors]
        table = np.zeros((2, most + 1), np.int64)
        blocks = {self.block, self.tiles - (self.blocks - 1) * self.block}
        sizes = {n for block in blocks for _, n in evenly(block, most)}
        for last, vectors in enumerate((self.vectors, self.last_vectors)):
            for rows in sizes:
                table[last, rows] = Microkernel(self.isa, rows, vectors).address
        return Table(table)


def _tiling(g: Geometry) -> list[int]:
    """Return the numbers of tiles down and across an image of dst."""
    return [-(-size // OUTPUTS) for size in g.dst[1:]]


def _operand(operand: Matrix) -> dict[str, Any]:
    """Return the values of the operand's `task.MATRIX` record."""
    batch, row = (*operand.outer, 0)[0], (*operand.planes, 0, 0)[1]
    strides = {"batch": batch, "row": row, "pixel": operand.row, "step": operand.block}
    return {"address": operand.address, **strides}


def _kernel_pairs(pairs: Iterable[Sequence[Any]]) -> Table:
    addresses = ([kernel.address if kernel else 0 for kernel in pair] for pair in pairs)
    return Table(KERNELS.table({"whole": whole, "last": last} for whole, last in addresses))


def _odd_lines(nbytes: int) -> int:
    """Round bytes up to an odd number of cache lines.

    Planes at such distances do not share the sets of a first-level cache.
    """
    lines = -(-nbytes // 64)
    return 64 * (lines + 1 - lines % 2)
