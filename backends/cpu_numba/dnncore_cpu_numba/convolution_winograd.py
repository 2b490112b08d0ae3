"""Winograd's convolution F(4x4, 3x3), forward and backward by data: 36 products instead of 144.

dst is cut into tiles of 4x4 pixels, each of which depends on 6x6 pixels of src. Tiles and filters
are transformed (`dnncore_cpu_numba.convolution_winograd_transforms`), multiplied position by
position, which is a matrix product of tiles by channels for each of 36 positions, and transformed
back. Backward by data is the same from diff_dst to diff_src with flipped filters.

Rounding errors are `ERROR_FACTOR` times those of direct sums, and nothing is exact. One NaN or
infinity makes all 16 pixels of each tile that reads it NaN or infinite, where the direct algorithm
has at most 9; and where a filter overflows when transformed, so does dst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, MemoryDesc, Refused
from dnncore_cpu_numba.convolution_brgemm import Brgemm
from dnncore_cpu_numba.convolution_winograd_loop import OPERANDS, winograd_loop
from dnncore_cpu_numba.convolution_winograd_transforms import (
    ERROR_FACTOR,
    OUTPUTS,
    POSITIONS,
    TAPS,
    DstTransform,
    SrcTransform,
)
from dnncore_cpu_numba.convolution_winograd_weights import WinogradFilter
from dnncore_cpu_numba.epilogue import Epilogue, call_rows
from dnncore_cpu_numba.geometry import Geometry, refuse_algorithm
from dnncore_cpu_numba.image import Image, as_5d
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.microkernel import Microkernel
from dnncore_cpu_numba.plan import Plan, Planned, Tensor
from dnncore_cpu_numba.program import Param, Step, Table
from dnncore_cpu_numba.tiles import Matrix, utilisation

__all__ = ["WinogradBackwardData", "WinogradForward"]

# Measured on 2 cores with 1 MiB of second-level and 32 MiB of third-level cache:
LEAST_TILES = 24  # of a block, each a use of the whole filter, which comes from a farther cache
FILTER_BYTES_PER_TILE = 256 << 10  # the same of filters that come from memory
LONG_SHARE = 8  # blocks, of which the last one may be shorter
SHORT_DEPTH = 32  # channels in whose time a microkernel starts and ends
CACHED_FILTER = 16 << 20  # bytes
# Multiplications and additions in the time of a byte that is transformed, or read of a filter:
TRANSFORM_FLOPS, CACHED_FLOPS, MEMORY_FLOPS = 11, 4, 13


class Winograd(Brgemm):
    """What the directions share; `image` is what is read, `result` what is written."""

    direction: str

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.name = f"cpu_numba:winograd:{isa.name}"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: object) -> Accepted | Refused:
        """Plan; the result is not exact."""
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, Refused):
            return answer
        return replace(answer, exact=False, error_factor=ERROR_FACTOR)

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """All but dense 3x3 windows with stride 1 of one group."""
        if refused := refuse_algorithm(op, "winograd"):
            return refused
        groups, _, _, *kernel = op.grouped_weights
        for what, got, wanted in (
            ("kernel", tuple(kernel), (TAPS, TAPS)), ("strides", op.strides, (1, 1)),
            ("dilations", op.dilations, (0, 0)), ("groups", groups, 1),
        ):  # fmt: skip
            if got != wanted:
                return Refused("shape", f"{what} must be {wanted}; got {got}")
        weights = op.weights
        if weights.format_kind == "opaque" and weights != self.filter.desc(weights):
            return Refused("format", f"weights must have strides; got {weights.tag}")
        return Planned.refused(self, op, attr)

    @property
    def filter(self) -> WinogradFilter:
        """What the filter becomes."""
        return WinogradFilter(self.direction, self.isa)

    def resolved(self, op: Any) -> Any:
        """The filter becomes transformed."""
        return super().resolved(op.resolve_auto("winograd"))

    def weights_format(self, op: Any) -> Any:
        """The transformed filter."""
        return self.filter.desc(op.weights)

    def utilisation(self, op: Any) -> float:
        """The direct algorithm's work over this one's, traffic counted in the time of flops."""
        problem = _Problem.of(op, self.direction)
        depth, columns = problem.depth, problem.columns
        share = utilisation(self.isa, problem.tiles, columns) * depth / (depth + SHORT_DEPTH)
        work = 2 * POSITIONS * problem.tiles * depth * columns / share
        lanes = self.isa.lanes
        vectors = -(-depth // lanes) + -(-columns // lanes)
        work += 4 * POSITIONS * problem.tiles * vectors * lanes * TRANSFORM_FLOPS
        filter_bytes = self.filter.desc(op.weights).nbytes
        if filter_bytes <= CACHED_FILTER:
            work += filter_bytes * CACHED_FLOPS
        else:
            work += filter_bytes * _Loop.of(self.isa, problem, 1).blocks * MEMORY_FLOPS
        return max(op.flops, 1.0) / work

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        problem = _Problem.of(op, self.direction)
        backward = self.direction == "backward_data"
        src_name, dst_name = ("diff_dst", "diff_src") if backward else ("src", "dst")
        src = self._read(plan, plan.argument(src_name, getattr(op, src_name)), problem.depth)
        weights = plan.argument("weights", op.weights)
        if op.weights.format_kind != "opaque":
            made = self.filter.desc(op.weights)
            room = plan.scratch(MemoryDesc((made.nbytes // 4,)))
            self.filter.append_to(plan, weights, Tensor(room.address, made))
            weights = room
        bias = None if backward or op.bias is None else plan.argument("bias", op.bias)
        chain, operands = self._epilogue(plan, attr, problem.columns, bias)
        dst_desc = getattr(op, dst_name)
        dst, edge = self._write_image(
            plan, plan.argument(dst_name, dst_desc), problem.columns, attr
        )
        loop = _Loop.of(self.isa, problem, plan.num_threads)
        room = plan.scratch(MemoryDesc((loop.shares * loop.share_bytes // 4,)))

        def step() -> Step:
            calls = [Matrix(Table(row)) for row in call_rows(chain)]
            return loop.step(
                src, weights.address, dst, room.address, edge, chain, [*operands, *calls]
            )

        plan.add(step)

    def _read(self, plan: Plan, tensor: Tensor, channels: int) -> Image:
        """An image whose channels can be loaded as vectors."""
        tensor = tensor.seen_as(as_5d(tensor.desc))
        image = Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, channels) is None:
            blocked = f"aBcde{self.isa.lanes}b"
            image = Image.of(plan.read(tensor, tensor.desc.with_format(blocked)))
        return image


class WinogradForward(Winograd):
    """Forward."""

    direction = "forward"


class WinogradBackwardData(Winograd):
    """Backward by data."""

    direction = "backward_data"


@dataclass(frozen=True)
class _Problem:
    """What is to be computed, in the roles of the direction.

    depth: channels that are summed up; columns: those that come out. left: pixels of the first
    window before the image.
    """

    batch: int
    depth: int
    columns: int
    src: tuple[int, int]
    dst: tuple[int, int]
    left: tuple[int, int]

    @classmethod
    def of(cls, op: Any, direction: str) -> _Problem:
        g = Geometry.of(op)
        src, dst, padding = g.src[1:], g.dst[1:], g.padding[1:]
        if direction == "forward":
            return cls(g.batch, g.ic, g.oc, src, dst, padding)
        return cls(g.batch, g.oc, g.ic, dst, src, tuple(TAPS - 1 - p for p in padding))

    @property
    def tiling(self) -> tuple[int, int]:
        """Tiles down and across an image of dst."""
        down, across = (-(-size // OUTPUTS) for size in self.dst)
        return down, across

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.batch * math.prod(self.tiling)


@dataclass(frozen=True)
class _Loop:
    """How a problem is cut; see `dnncore_cpu_numba.convolution_winograd_loop`."""

    isa: Isa
    problem: _Problem
    block: int
    blocks: int
    groups: int
    panels: int
    vectors: int
    shares: int

    @classmethod
    def of(cls, isa: Isa, problem: _Problem, threads: int) -> _Loop:
        all_vectors = -(-problem.columns // isa.lanes)
        panels = -(-all_vectors // isa.most_vectors)
        vectors = -(-all_vectors // panels)
        panels = -(-all_vectors // vectors)
        filter_bytes = 4 * POSITIONS * problem.depth * problem.columns
        wanted = max(LEAST_TILES, filter_bytes // FILTER_BYTES_PER_TILE)
        tiles = max(1, problem.tiles)
        per_thread = round(tiles / (wanted * threads))
        groups = 1 if per_thread else min(panels, threads)
        block = -(-tiles // max(1, per_thread * threads, threads // groups))
        if per_thread >= LONG_SHARE:
            block = -(-block // isa.rows[vectors]) * isa.rows[vectors]
        blocks = -(-tiles // block)
        shares = min(threads, blocks * groups)
        return cls(isa, problem, block, blocks, groups, panels, vectors, shares)

    @property
    def lane_bytes(self) -> int:
        """Of a vector."""
        return 4 * self.isa.lanes

    @property
    def src_bytes(self) -> int:
        """Of a transformed tile at one position."""
        return -(-self.problem.depth // self.isa.lanes) * self.lane_bytes

    @property
    def dst_bytes(self) -> int:
        """Of a tile's products at one position, of a panel."""
        return self.vectors * self.lane_bytes

    @property
    def src_plane(self) -> int:
        """From position to position of the transformed tiles."""
        return _odd_lines(self.block * self.src_bytes)

    @property
    def dst_plane(self) -> int:
        """From position to position of the products."""
        return _odd_lines(self.block * self.dst_bytes)

    @property
    def share_bytes(self) -> int:
        """Of a share's part of the scratchpad."""
        return POSITIONS * (self.src_plane + self.dst_plane)

    @property
    def last_vectors(self) -> int:
        """Of the last panel."""
        return -(-self.problem.columns // self.isa.lanes) - (self.panels - 1) * self.vectors

    def step(
        self, src: Image, weights: Param, dst: Matrix, scratch: Param, edge: str, chain: Epilogue,
        operands: list[Matrix],
    ) -> Step:  # fmt: skip
        """The step; compiles its kernels."""
        problem, lanes = self.problem, self.isa.lanes
        if 0 in (problem.tiles, problem.columns):
            return Step(winograd_loop, (), 0)
        tail = problem.depth % lanes if src.is_channels_last else 0
        down, across = problem.tiling
        most = self.isa.rows[self.vectors]
        params: list[Param] = [
            self.shares, self.blocks, self.groups, self.panels, self.block, problem.tiles, down,
            across, scratch, self.share_bytes, POSITIONS * self.src_plane,
            src.address, src.batch, *src.spatial[1:], src.vector_step(lanes, problem.depth),
            -(-problem.depth // lanes) - (tail > 0), tail, *problem.src, *problem.left,
            self._readers(tail), self.src_plane, self.src_bytes,
            weights, problem.depth, self.lane_bytes, Table(np.array((1, problem.depth, 0, 0))),
            self._kernels(), most, self.vectors, self.last_vectors, self.dst_plane,
            dst.address, dst.outer[0], dst.planes[1], dst.row, dst.block, problem.columns % lanes,
            *problem.dst, self._writers(edge, chain), len(operands),
        ]  # fmt: skip
        assert len(params) == OPERANDS
        for operand in operands:
            (batch, _), (_, row) = operand.outer or (0, 0), operand.planes or (0, 0)
            params += [operand.address, batch, row, operand.row, operand.block]
        return Step(winograd_loop, params, self.shares)

    def _readers(self, tail: int) -> Table:
        kernels = [
            SrcTransform(self.isa, bordered, masked).address if tail or not masked else 0
            for bordered in (False, True)
            for masked in (False, True)
        ]
        return Table(np.array(kernels, np.int64))

    def _writers(self, edge: str, chain: Epilogue) -> Table:
        tail, last = (self.problem.columns % self.isa.lanes, self.problem.dst[1] % OUTPUTS)
        kernels = [
            DstTransform(self.isa, columns, kind, chain).address
            for columns in (OUTPUTS, last or OUTPUTS)
            for kind in ("full", edge if tail else "full")
        ]
        return Table(np.array(kernels, np.int64))

    def _kernels(self) -> Table:
        """Microkernels by [last panel][rows]."""
        most = self.isa.rows[self.vectors]
        table = np.zeros((2, most + 1), np.int64)
        for last, vectors in enumerate((self.vectors, self.last_vectors)):
            for rows in self._tile_rows(most):
                table[last, rows] = Microkernel(self.isa, rows, vectors).address
        return Table(table)

    def _tile_rows(self, most: int) -> set[int]:
        """Rows of the microkernels' tiles: blocks are cut as evenly as can be."""
        sizes = set()
        for block in {self.block, self.problem.tiles - (self.blocks - 1) * self.block}:
            parts = -(-block // most)
            sizes |= {block // parts, -(-block // parts)}
        return sizes


def _odd_lines(nbytes: int) -> int:
    """At least so many bytes, an odd number of cache lines, so that planes share no set of a
    first-level cache.
    """
    lines = -(-nbytes // 64)
    return 64 * (lines + 1 - lines % 2)
