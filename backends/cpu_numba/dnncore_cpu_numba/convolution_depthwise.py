"""Convolution of many small groups, forward and backward by data: groups are lanes of vectors.

Channel p of each group is one plane of vectors, so that depthwise convolution, with one channel per
group, reads and writes tensors as they lie; with more channels per group, activations are copied so
that the first channels of all groups come first, then the second ones. An output plane sums over
the taps and the planes of the input; `depthwise_kernel` computes its rows.

There is little arithmetic, so nothing is copied for the sake of a border.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import Attributes, Refused
from dnncore_cpu_numba.convolution_brgemm import Brgemm
from dnncore_cpu_numba.depthwise_kernel import DepthwiseKernel
from dnncore_cpu_numba.depthwise_loop import PARAMETERS, depthwise_loop
from dnncore_cpu_numba.depthwise_tiles import Gather
from dnncore_cpu_numba.epilogue import Epilogue, call_rows
from dnncore_cpu_numba.geometry import Geometry, Triple, dot
from dnncore_cpu_numba.image import Image
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.plan import Plan, Tensor
from dnncore_cpu_numba.program import Param, Step, Table
from dnncore_cpu_numba.streaming import LINE, STREAM_BYTES
from dnncore_cpu_numba.tiles import Matrix, utilisation

__all__ = [
    "Depthwise",
    "DepthwiseBackwardData",
    "DepthwiseForward",
    "plane_order",
    "row_axes",
    "turned",
]

# Of what matrix tiles reach, measured: where each vector of the input serves one plane of the
# output, and where it is read from cache for several.
ONE_PLANE, PLANES = 0.25, 0.5
MOST_TAPS = 64  # of a row; they are unrolled
FEW_PIXELS = 6  # of a row: a longer dim takes its part
STRIPS_PER_THREAD = 4  # where images and channels do not share out evenly
# Where channels are contiguous, measured: more pages at a time, or more of each, are slower.
PLACES = 9  # of the input that a tile sees through a row of taps
VECTORS = 8  # of channels of a work item
AHEAD_BYTES = 4 << 20  # of an input that no second-level cache holds


class Depthwise(Brgemm):
    """What the directions share: formats, and channels in the order of planes.

    With P channels per group, an image has P runs of G channels; in the methods inherited, G is the
    number of channels "per group" therefore, and the outer dim of groups runs over the P planes.
    """

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.name = f"cpu_numba:depthwise:{isa.name}"

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """One group is no vector."""
        groups, _, _, *kernel = op.grouped_weights
        if groups == 1:
            return Refused("shape", "one group, where groups are the lanes of vectors")
        if min(kernel) > MOST_TAPS:
            return Refused("shape", f"a kernel of {min(kernel)} in all dims; {MOST_TAPS} at most")
        return super().refused(op, attr)

    def activations(self, geometry: Geometry, per_group: int, spatial: str) -> str:
        """Blocked if each channel has a lane of its own."""
        blocked = per_group == 1 and geometry.groups % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Any) -> str:
        """The tag of the filter that the tiles read or write."""
        letters = "abcdef"[: op.weights_role.ndims]
        return f"{letters.capitalize()}{self.isa.lanes}a"

    def room(self, per_group: int) -> str:
        """Blocked where blocks are whole: pixels that lie close collide less in the caches."""
        lanes = self.isa.lanes
        return "acdeb" if per_group % lanes else f"aBcde{lanes}b"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether channels can be loaded as vectors."""
        return image.vector_step(self.isa.lanes, per_group) is not None

    def utilisation(self, op: Any) -> float:
        """That of tiles of pixels of a row by groups."""
        g = Geometry.of(op)
        share = ONE_PLANE if g.ic == g.oc == 1 else PLANES
        return share * utilisation(self.isa, g.dst[2], g.groups)


class _Gathering(Depthwise):
    """Forward and backward by data: each pixel of the output gathers from the input."""

    def append(
        self, plan: Plan, attr: Attributes, g: Geometry, gathers: Sequence[Gather],
        planes: tuple[int, int], source: Tensor, filters: _Filters, output: Tensor,
        bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append the steps; gathers: along D, H and W. planes: of the input and the output."""
        orders = [plane_order(g, count) for count in planes]
        src = self.read_image(plan, source, g.groups, order=orders[0])
        epilogue, operands = self._epilogue(plan, attr, g.groups, bias, orders[1])
        dst, edge = self._write_image(plan, output, g.groups, attr, orders[1])
        axes = row_axes(gathers, g.kernel)

        def loop() -> Step:
            return _Loop(
                isa=self.isa, batch=g.batch, groups=g.groups, planes=planes,
                gathers=turned(gathers, axes), src=src, src_steps=turned(src.spatial, axes),
                filters=dataclasses.replace(filters, taps=turned(filters.taps, axes)),
                dst=_turned_matrix(dst, axes), edge=edge, epilogue=epilogue,
                operands=[_turned_matrix(operand, axes) for operand in operands],
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)


class DepthwiseForward(_Gathering):
    """Forward: dst gathers from src."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        weights = self._read_weights(plan, op)
        block, oc, ic, *taps = (4 * stride for stride in weights.desc.strides)
        self.append(
            plan, attr, g, [Gather.forward(g, dim) for dim in range(3)], (g.ic, g.oc),
            plan.argument("src", op.src), _Filters(weights.address, block, ic, oc, tuple(taps)),
            plan.argument("dst", op.dst),
            None if op.bias is None else plan.argument("bias", op.bias),
        )  # fmt: skip


class DepthwiseBackwardData(_Gathering):
    """Backward by data: diff_src gathers from diff_dst."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        weights = self._read_weights(plan, op)
        block, oc, ic, *taps = (4 * stride for stride in weights.desc.strides)
        self.append(
            plan, attr, g, [Gather.backward(g, dim) for dim in range(3)], (g.oc, g.ic),
            plan.argument("diff_dst", op.diff_dst),
            _Filters(weights.address, block, oc, ic, tuple(taps)),
            plan.argument("diff_src", op.diff_src),
        )  # fmt: skip


def plane_order(g: Geometry, per_group: int) -> list[int] | None:
    """The channels in the order of planes; None where that is their own."""
    if per_group == 1:
        return None
    return np.arange(g.groups * per_group).reshape(g.groups, per_group).T.ravel().tolist()


@dataclass(frozen=True)
class _Filters:
    """The weights: an address, and bytes between vectors, planes of the input and output, taps."""

    address: Param
    block: int
    source_plane: int
    output_plane: int
    taps: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """One step of a program that computes a depthwise convolution.

    gathers, src_steps, and the dims of all else: along three dims of which the last is a row.
    """

    isa: Isa
    batch: int
    groups: int
    planes: tuple[int, int]
    gathers: Sequence[Gather]
    src: Image
    src_steps: Sequence[int]
    filters: _Filters
    dst: Matrix
    edge: Any
    epilogue: Epilogue
    operands: Sequence[Matrix]

    def step(self, threads: int) -> Step:
        """Compile the kernels and lay out the parameters."""
        *outer, row = self.gathers
        row_count = math.prod(gather.length for gather in outer)
        if 0 in (self.batch, row_count, row.length):
            return Step(depthwise_loop, (), items=0)
        lanes = self.isa.lanes
        vectors = -(-self.groups // lanes)
        src_block = self.src.vector_step(lanes, self.groups) or 0
        is_contiguous = src_block == self.dst.block == 4 * lanes
        chunk = min(vectors, VECTORS) if is_contiguous else 1
        chunks = -(-vectors // chunk)
        items = self.batch * self.planes[1] * chunks
        strips = 1 if items % threads == 0 else min(row_count, STRIPS_PER_THREAD * threads)
        rows, lists = self._rows()
        kernels = self._kernels(PLACES if is_contiguous else 1 << 30)
        operands = [*self.operands, *(Matrix(Table(row)) for row in call_rows(self.epilogue))]
        image, plane = self.dst.outer
        values: dict[str, Param] = {
            "kernel": kernels[0], "last_kernel": kernels[1],
            "stream_kernel": kernels[2], "lists": Table(lists),
            "rows": Table(rows), "row_count": row_count, "strips": strips, "vectors": vectors,
            "whole": self.groups // lanes, "chunk": chunk, "chunks": chunks,
            "lanes": self.groups % lanes, "planes": self.planes[1],
            "src": self.src.address, "src_batch": self.src.batch,
            "src_block": src_block, "weights": self.filters.address,
            "weights_plane": self.filters.output_plane, "weights_block": self.filters.block,
            "dst": self.dst.address, "dst_batch": image, "dst_plane": plane,
            "dst_block": self.dst.block, "operand_count": len(operands),
        }  # fmt: skip
        params = [values[name] for name in PARAMETERS]
        for operand in operands:
            image, plane = operand.outer or (0, 0)
            z, y = operand.planes or (0, 0)
            params += [operand.address, image, plane, operand.block, operand.row, z, y]
        return Step(depthwise_loop, params, items * strips)

    def _kernels(self, places: int) -> tuple[int, int, int]:
        """Addresses: for whole vectors, for the last one, and for whole ones that are streamed."""
        row = self.gathers[2]
        most = max(4, self.isa.rows[1] - max(0, row.taps - 3))
        most = min(most, (max(0, places - row.span) // row.advance + 1) * row.period)
        kernel = DepthwiseKernel(
            self.isa, row.tiles(most), self.src_steps[2], self.dst.row,
            self.filters.taps[2], "full", self.epilogue, ahead=self._ahead(),
        )  # fmt: skip
        partial = dataclasses.replace(kernel, edge=self.edge)
        whole, lanes = divmod(self.groups, self.isa.lanes)
        streamed = dataclasses.replace(kernel, streamed=True)
        return (
            kernel.address if whole else 0,
            partial.address if lanes else 0,
            streamed.address if whole and self._streams() else 0,
        )

    def _streams(self) -> bool:
        """Whether dst is written past the caches, which hold less than it and src."""
        pixels = math.prod(gather.length for gather in self.gathers)
        written = self.batch * self.planes[1] * self.groups * pixels
        steps = (*self.dst.outer, *self.dst.spatial, self.dst.block)
        in_lines = 4 * self.isa.lanes == LINE and not any(step % LINE for step in steps)
        return in_lines and 4 * (math.prod(self.src.dims) + written) >= STREAM_BYTES

    def _rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The tables of rows and of lists; see `DepthwiseKernel`."""
        depth, height, _ = self.gathers
        plane = self.src.channel(self.groups), self.filters.source_plane
        lists: list[tuple[int, int]] = []
        known: dict[Any, tuple[int, int]] = {}
        rows, last = [], []
        for z in range(depth.length):
            for y in range(height.length):
                key = depth.inside(z), height.inside(y)
                if key not in known:
                    found = [
                        (
                            p * plane[0] + dot(self.src_steps, (at_z, at_y)),
                            p * plane[1] + dot(self.filters.taps, (tap_z, tap_y)),
                        )
                        for p in range(self.planes[0])
                        for tap_z, at_z in key[0]
                        for tap_y, at_y in key[1]
                    ]
                    known[key] = 16 * len(lists), len(found)
                    lists += found
                src = dot(self.src_steps, (depth.origin(z), height.origin(y)))
                start, count = known[key]
                last.append(src + (lists[start // 16 + count - 1][0] if count else 0))
                rows.append((src, dot(self.dst.planes, (z, y)), start, count, z, y))
        ahead = [*last[1:], last[-1] + self.src_steps[1]]
        rows = [(*row, place) for row, place in zip(rows, ahead, strict=True)]
        return np.array(rows, np.int64), np.array(lists or [(0, 0)], np.int64)

    def _ahead(self) -> tuple[int, ...]:
        """Which rows of a large input are prefetched: those that the next row is the first to see.

        Rows are too short for the processor to do so (measured).
        """
        if 4 * math.prod(self.src.dims) < AHEAD_BYTES:
            return ()
        height = self.gathers[1]
        return tuple(-row * self.src_steps[1] for row in range(min(height.advance, height.span)))


def row_axes(gathers: Sequence[Gather], kernel: Triple) -> tuple[int, ...]:
    """The order of dims to work in: the last is a row, W unless that is short or has many taps."""
    longest = max(range(3), key=lambda dim: (kernel[dim] <= MOST_TAPS, gathers[dim].length))
    serves = kernel[2] <= MOST_TAPS and gathers[2].length >= FEW_PIXELS
    row = 2 if serves else longest
    return (*(dim for dim in range(3) if dim != row), row)


def turned(values: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """What belongs to the dims D, H and W, in another order."""
    return tuple(values[axis] for axis in axes)


def _turned_matrix(matrix: Matrix, axes: Sequence[int]) -> Matrix:
    """The same with other spatial dims outside and along rows."""
    *planes, row = turned(matrix.spatial, axes)
    return dataclasses.replace(matrix, planes=tuple(planes), row=row)
