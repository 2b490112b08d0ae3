"""Convolution of many small groups, forward and backward by data: groups share vectors.

A vector has one channel of each of its groups, or a few neighbouring ones, as many as divide a
group's channels on both sides and the vector. Where these are all of a group, as in depthwise
convolution, tensors are read and written as they lie. Otherwise the first channels of all groups
are one plane of vectors, the next ones another, and activations are copied so that plane follows
plane. An output plane sums over the taps and the planes of the input; `depthwise_kernel` computes
its rows.

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
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.convolution.brgemm import Brgemm
from dnncore_cpu_numba.convolution.depthwise.kernel import PAIR, ROW, DepthwiseKernel
from dnncore_cpu_numba.convolution.depthwise.task import depthwise_loop
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseGather
from dnncore_cpu_numba.convolution.depthwise.view import MOST_TAPS, Shared, row_axes, turned
from dnncore_cpu_numba.convolution.geometry import Geometry, dot
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, call_rows
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Matrix
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

# Of what matrix tiles reach, measured: where each vector of the input serves one plane of the
# output, where it is read from cache for several, and where it has several channels of a group.
ONE_PLANE, PLANES, GROUPS = 0.25, 0.5, 0.7
STRIPS_PER_THREAD = 4  # where images and channels do not share out evenly
# Where channels are contiguous, measured: more pages at a time, or more of each, are slower.
PLACES = 9  # of the input that a tile sees through a row of taps
VECTORS = 8  # of channels of a work item
PIXELS_OF_GROUPS = 14  # of a tile with several channels of a group: its code is longer
AHEAD_BYTES = 4 << 20  # of an input that no second-level cache holds


class Depthwise(Brgemm):
    """Base of the directions: formats, and channels in the order of planes.

    In the methods inherited, a plane's channels are those "per group", and the outer dim of groups
    runs over the planes.
    """

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.name = f"cpu_numba:depthwise:{isa.name}"

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """Refuse problems with one group, which fills no vector."""
        groups, _, _, *kernel = op.grouped_weights
        if groups == 1:
            return Refused("shape", "one group, where groups are the lanes of vectors")
        if min(kernel) > MOST_TAPS:
            return Refused("shape", f"a kernel of {min(kernel)} in all dims; {MOST_TAPS} at most")
        return super().refused(op, attr)

    def activations(self, geometry: Geometry, per_group: int, spatial: str) -> str:
        """Blocked if there is one plane of whole vectors."""
        shared = Shared.of(self.isa, geometry)
        blocked = per_group == shared.channels and shared.width % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Any) -> str:
        """The tag of the filter that the tiles read or write."""
        letters, lanes = "abcdef"[: op.weights_role.ndims], self.isa.lanes
        channels = Shared.of(self.isa, Geometry.of(op)).channels
        if channels == 1:
            return f"{letters.capitalize()}{lanes}a"
        written = "b" if self.filter_letters[1] == "o" else "c"
        outer = letters.capitalize().replace(written, written.upper())
        return f"{outer}{lanes // channels}a{channels}{written}"

    def room(self, per_group: int) -> str:
        """Blocked where blocks are whole: pixels that lie close collide less in the caches."""
        lanes = self.isa.lanes
        return "acdeb" if per_group % lanes else f"aBcde{lanes}b"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether channels can be loaded as vectors."""
        return image.vector_step(self.isa.lanes, per_group) is not None

    def utilisation(self, op: Any) -> float:
        """The utilisation of tiles of pixels of a row by groups."""
        g = Geometry.of(op)
        shared = Shared.of(self.isa, g)
        share = GROUPS if shared.channels > 1 else ONE_PLANE if g.ic == g.oc == 1 else PLANES
        return share * utilisation(self.isa, g.dst[2], shared.width)


class _Gathering(Depthwise):
    """Forward and backward by data: each pixel of the output gathers from the input."""

    def append(
        self, plan: ProgramPlan, op: Any, attr: Attributes, gathers: Sequence[DepthwiseGather],
        source: Tensor, output: Tensor, bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append the steps; gathers: along D, H and W."""
        g = Geometry.of(op)
        shared = Shared.of(self.isa, g)
        per_group = (g.ic, g.oc) if self.filter_letters[0] == "i" else (g.oc, g.ic)
        orders = [shared.order(count) for count in per_group]
        src = self.read_image(plan, source, shared.width, order=orders[0])
        filters = self._read_filters(plan, op, shared)
        epilogue, operands = self._epilogue(plan, attr, shared.width, bias, orders[1])
        dst, edge = self._write_image(plan, output, shared.width, attr, orders[1])
        axes = row_axes(gathers, g.kernel)

        def loop() -> Step:
            return _Loop(
                isa=self.isa, batch=g.batch, shared=shared,
                planes=tuple(count // shared.channels for count in per_group),
                gathers=turned(gathers, axes), src=src, src_steps=turned(src.spatial, axes),
                filters=dataclasses.replace(filters, taps=turned(filters.taps, axes)),
                dst=_turned_matrix(dst, axes), edge=edge, epilogue=epilogue,
                operands=[_turned_matrix(operand, axes) for operand in operands],
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)

    def _read_filters(self, plan: ProgramPlan, op: Any, shared: Shared) -> _Filters:
        weights = self._read_weights(plan, op)
        block, oc, ic, *taps = (4 * stride for stride in weights.desc.strides)
        read, written = (ic, oc) if self.filter_letters[0] == "i" else (oc, ic)
        return _Filters(weights.address, block, shared.channels * read, read, written, tuple(taps))


class DepthwiseForward(_Gathering):
    """Forward: dst gathers from src."""

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        gathers = [DepthwiseGather.forward(Geometry.of(op), dim) for dim in range(3)]
        src, dst = plan.argument("src", op.src), plan.argument("dst", op.dst)
        bias = None if op.bias is None else plan.argument("bias", op.bias)
        self.append(plan, op, attr, gathers, src, dst, bias)


class DepthwiseBackwardData(_Gathering):
    """Backward by data: diff_src gathers from diff_dst."""

    filter_letters = "o", "i"

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        gathers = [DepthwiseGather.backward(Geometry.of(op), dim) for dim in range(3)]
        diff_dst = plan.argument("diff_dst", op.diff_dst)
        self.append(plan, op, attr, gathers, diff_dst, plan.argument("diff_src", op.diff_src))


@dataclass(frozen=True)
class _Filters:
    """The weights: an address, and strides in bytes.

    block: vectors. source_plane, source_channel: planes of the input, and channels of a group in
    one. output_plane: planes of the output.
    """

    address: Param
    block: int
    source_plane: int
    source_channel: int
    output_plane: int
    taps: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """One step of a program that computes a depthwise convolution.

    gathers, src_steps, and the dims of all else: along three dims of which the last is a row.
    """

    isa: Isa
    batch: int
    shared: Shared
    planes: tuple[int, ...]
    gathers: Sequence[DepthwiseGather]
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
            return Step(depthwise_loop, {}, items=0)
        lanes, width = self.isa.lanes, self.shared.width
        vectors = -(-width // lanes)
        src_block = self.src.vector_step(lanes, width) or 0
        is_contiguous = src_block == self.dst.block == 4 * lanes
        chunk = min(vectors, VECTORS) if is_contiguous else 1
        chunks = -(-vectors // chunk)
        items = self.batch * self.planes[1] * chunks
        strips = 1 if items % threads == 0 else min(row_count, STRIPS_PER_THREAD * threads)
        rows, lists = self._rows()
        kernels = self._kernels(PLACES if is_contiguous else 1 << 30)
        operands = [*self.operands, *(Matrix(Table(row)) for row in call_rows(self.epilogue))]
        image, plane = self.dst.outer
        values = {
            "kernel": kernels[0], "last_kernel": kernels[1],
            "stream_kernel": kernels[2], "lists": Table(lists),
            "rows": Table(rows), "row_count": row_count, "strips": strips, "vectors": vectors,
            "whole": width // lanes, "chunk": chunk, "chunks": chunks,
            "lanes": width % lanes, "planes": self.planes[1],
            "src": self.src.address, "src_batch": self.src.batch,
            "src_block": src_block, "weights": self.filters.address,
            "weights_plane": self.filters.output_plane, "weights_block": self.filters.block,
            "dst": self.dst.address, "dst_batch": image, "dst_plane": plane,
            "dst_block": self.dst.block, "operand_count": len(operands),
            "operands": [_operand(operand) for operand in operands],
        }  # fmt: skip
        return Step(depthwise_loop, values, items * strips)

    def _kernels(self, places: int) -> tuple[int, int, int]:
        """Addresses: for whole vectors, for the last one, and for whole ones that are streamed."""
        row = self.gathers[2]
        most = max(4, self.isa.rows[1] - max(0, row.taps - 3))
        if self.shared.channels > 1:
            most = min(most, PIXELS_OF_GROUPS)
        most = min(most, (max(0, places - row.span) // row.advance + 1) * row.period)
        kernel = DepthwiseKernel(
            self.isa, row.tiles(most), self.src_steps[2], self.dst.row, self.filters.taps[2],
            self.shared.channels, self.filters.source_channel, epilogue=self.epilogue,
            ahead=self._ahead(),
        )  # fmt: skip
        partial = dataclasses.replace(kernel, edge=self.edge)
        whole, lanes = divmod(self.shared.width, self.isa.lanes)
        streamed = dataclasses.replace(kernel, streamed=True)
        return (
            kernel.address if whole else 0,
            partial.address if lanes else 0,
            streamed.address if whole and self._streams() else 0,
        )

    def _streams(self) -> bool:
        """Whether dst is written past the caches, since src and dst are larger than these."""
        pixels = math.prod(gather.length for gather in self.gathers)
        written = self.batch * self.planes[1] * self.shared.width * pixels
        steps = (*self.dst.outer, *self.dst.spatial, self.dst.block)
        in_lines = 4 * self.isa.lanes == LINE and not any(step % LINE for step in steps)
        return in_lines and 4 * (math.prod(self.src.dims) + written) >= STREAM_BYTES

    def _rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The tables of rows and of lists; see `DepthwiseKernel`."""
        depth, height, _ = self.gathers
        plane = self.src.channel(self.shared.width), self.filters.source_plane
        lists: list[dict[str, int]] = []
        known: dict[Any, tuple[int, int]] = {}
        rows, last = [], []
        for z in range(depth.length):
            for y in range(height.length):
                key = depth.inside(z), height.inside(y)
                if key not in known:
                    found = [
                        {
                            "src": p * plane[0] + dot(self.src_steps, (at_z, at_y)),
                            "weights": p * plane[1] + dot(self.filters.taps, (tap_z, tap_y)),
                        }
                        for p in range(self.planes[0])
                        for tap_z, at_z in key[0]
                        for tap_y, at_y in key[1]
                    ]
                    known[key] = len(lists), len(found)
                    lists += found
                src = dot(self.src_steps, (depth.origin(z), height.origin(y)))
                start, count = known[key]
                last.append(src + (lists[start + count - 1]["src"] if count else 0))
                rows.append({
                    "src": src, "dst": dot(self.dst.planes, (z, y)),
                    "list": PAIR.nbytes * start, "count": count, "z": z, "y": y,
                })  # fmt: skip
        ahead = [*last[1:], last[-1] + self.src_steps[1]]
        rows = [row | {"ahead": place} for row, place in zip(rows, ahead, strict=True)]
        return ROW.table(rows), PAIR.table(lists)

    def _ahead(self) -> tuple[int, ...]:
        """Which rows of a large input are prefetched: those that the next row is the first to see.

        Rows are too short for the processor to do so (measured).
        """
        if 4 * math.prod(self.src.dims) < AHEAD_BYTES:
            return ()
        height = self.gathers[1]
        return tuple(-row * self.src_steps[1] for row in range(min(height.advance, height.span)))


def _operand(operand: Matrix) -> dict[str, Any]:
    """The values of its `task.MATRIX`."""
    batch, plane = operand.outer or (0, 0)
    z, y = operand.planes or (0, 0)
    strides = {"batch": batch, "plane": plane, "block": operand.block}
    return {"address": operand.address, **strides, "x": operand.row, "z": z, "y": y}


def _turned_matrix(matrix: Matrix, axes: Sequence[int]) -> Matrix:
    """The same operand with its spatial dims in the order of the loops."""
    *planes, row = turned(matrix.spatial, axes)
    return dataclasses.replace(matrix, planes=tuple(planes), row=row)
