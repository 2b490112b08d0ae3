"""Convolution of many small groups, backward by weights and bias: groups are lanes of vectors.

See `convolution/depthwise/data.py` for planes. Where threads would lack work, the pixels
are cut into parts with sums of their own, which a chain adds at the end; the number of parts
depends on the problem and the number of threads only, so that results repeat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dnncore.backend import Attributes, MemoryDesc
from dnncore_cpu_numba.convolution.depthwise.data import Depthwise
from dnncore_cpu_numba.convolution.depthwise.view import DepthwiseView
from dnncore_cpu_numba.convolution.depthwise.weights_kernel import (
    DepthwiseWeightsKernel,
    row_record,
)
from dnncore_cpu_numba.convolution.depthwise.weights_task import GROUP, depthwise_weights_loop
from dnncore_cpu_numba.convolution.geometry import Geometry, dot, weights_as_6d
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS
from dnncore_cpu_numba.elementwise.post_ops import add, stages_of
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Matrix
from dnncore_cpu_numba.runtime.program import Param, Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

VECTORS = 8  # of channels of a work item where they are contiguous, measured
SUMS_PER_PIXEL = 3  # registers for sums for each register for a pixel of a tile, measured


class DepthwiseWeights(Depthwise):
    """Backward by weights and bias."""

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        view = DepthwiseView.of(self.isa, Geometry.of(op))
        src, diff_dst = (
            self.read_image(plan, plan.tensors[name], view.width, order=order)
            for name, order in zip(("src", "diff_dst"), view.orders, strict=True)
        )
        most = MAX_TENSORS - 2 - len(attr.operands())
        cut = _Cut.of(view, (src, diff_dst), plan.num_threads, most)
        output = plan.tensors["diff_weights"]
        wanted = output.desc.with_format(self.weights_format(op))
        sums = _Sums(plan, output, wanted, cut.parts, attr)
        bias = self._bias(plan, view, cut.parts)
        weights = sums.first.seen_as(weights_as_6d(sums.first.desc, op.src.ndims))

        def loop() -> Step:
            images = view.image(src), view.image(diff_dst)
            return _Loop(view, cut, *images, view.filter(weights), sums, bias).step()

        plan.add(loop)
        sums.finish(plan, attr)
        if bias is not None:
            bias.finish(plan, Attributes())

    def _bias(self, plan: ProgramPlan, view: DepthwiseView, parts: int) -> _Sums | None:
        if (bias := plan.tensors.get("diff_bias")) is None:
            return None
        bias = bias.seen_as(bias.desc.reshape((1, *bias.desc.dims, 1, 1, 1)))
        wanted = bias.desc.with_format(self.room(view.width))
        return _Sums(plan, bias, wanted, parts, Attributes(), view.orders[1])


class _Sums:
    """Memory for the sums of each part of the pixels, and the output.

    first: that of the first part; where nothing is left to do, the output itself. step: bytes from
    part to part.
    """

    def __init__(
        self, plan: ProgramPlan, output: Tensor, wanted: MemoryDesc, parts: int, attr: Attributes,
        order: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.output, self.order, self.wanted = output, order, wanted
        serves = order is None and output.desc == wanted
        self.rooms: list[Tensor] = []
        if parts == 1 and not attr.post_ops:
            self.first = plan.write(output, None if serves else wanted, order=order)
        else:
            self.rooms = [plan.scratch(wanted) for _ in range(parts)]
            self.first = self.rooms[0]
        self.step = 0
        if parts > 1:
            places = [cast(Scratch, room.address).byte_offset for room in self.rooms]
            self.step = places[1] - places[0]

    def finish(self, plan: ProgramPlan, attr: Attributes) -> None:
        """Append the steps that compute the output from the sums."""
        if self.rooms:
            target = self.output
            if self.order is not None:
                target = plan.write(target, self.wanted, order=self.order)
            added = len(self.rooms) - 1
            stages = [*(add(2 + i) for i in range(added)), *stages_of(attr.post_ops, 2 + added)]
            plan.chain([target, *self.rooms, *plan.operands(attr)], stages)


@dataclass(frozen=True)
class _Cut:
    """The division of work: vectors of channels in chunks, pixels in parts of blocks of rows."""

    in_turn: bool
    chunk: int
    chunks: int
    row_block: int
    row_blocks: int
    parts: int

    @classmethod
    def of(cls, view: DepthwiseView, images: Sequence[Image], threads: int, most: int) -> _Cut:
        """most: parts."""
        g, lanes, rows = view.g, view.isa.lanes, view.rows
        vectors = -(-view.width // lanes)
        blocks = {image.vector_step(lanes, view.width) for image in images}
        in_turn = blocks == {4 * lanes} and vectors > 1
        chunk = min(VECTORS, -(-vectors // threads)) if in_turn else 1
        chunks = -(-vectors // chunk)
        parts = 1 if chunks * math.prod(view.planes) % threads == 0 else max(1, min(threads, most))
        row_blocks = max(1, min(rows, -(-parts // max(1, g.batch))))
        row_block = max(1, -(-rows // row_blocks))
        row_blocks = max(1, -(-rows // row_block))
        parts = max(1, min(parts, g.batch * row_blocks))
        return cls(in_turn, chunk, chunks, row_block, row_blocks, parts)


@dataclass(frozen=True)
class _Loop:
    """The step that sums. weights: where the sums lie. All dims are in the view's order."""

    view: DepthwiseView
    cut: _Cut
    src: Image
    diff_dst: Image
    weights: Matrix
    sums: _Sums
    bias: _Sums | None

    def step(self) -> Step:
        """Compile the kernels and lay out the parameters."""
        view, cut, lanes, batch = self.view, self.cut, self.view.isa.lanes, self.view.g.batch
        width, planes = view.width, view.planes
        groups, records = self._groups()
        bias, bias_part, bias_plane, bias_block = self._bias()
        src_block, diff_dst_block = (
            image.vector_step(lanes, width) or 0 for image in (self.src, self.diff_dst)
        )
        values = {
            "groups": Table(groups), "group_count": len(groups) // 2, "records": Table(records),
            "row_count": view.rows if batch else 0, "row_block": cut.row_block,
            "row_blocks": cut.row_blocks,
            "images": max(1, batch), "parts": cut.parts, "vectors": -(-width // lanes),
            "whole": width // lanes, "chunk": cut.chunk, "chunks": cut.chunks,
            "lanes": width % lanes, "src_planes": planes[0], "diff_dst_planes": planes[1],
            "src": self.src.address, "src_batch": self.src.batch,
            "src_plane": self.src.channel(width), "src_block": src_block,
            "diff_dst": self.diff_dst.address, "diff_dst_batch": self.diff_dst.batch,
            "diff_dst_plane": self.diff_dst.channel(width), "diff_dst_block": diff_dst_block,
            "sums": self.weights.address, "sums_part": self.sums.step,
            "sums_src_plane": self.weights.outer[0], "sums_diff_dst_plane": self.weights.outer[2],
            "sums_block": self.weights.block, "bias": bias, "bias_part": bias_part,
            "bias_plane": bias_plane, "bias_block": bias_block,
        }  # fmt: skip
        items = cut.parts * cut.chunks * math.prod(planes)
        return Step(depthwise_weights_loop, values, items)

    def _bias(self) -> tuple[Param, int, int, int]:
        if self.bias is None:
            return 0, 0, 0, 0
        image = Image.chosen(self.bias.first)
        width = self.view.width
        block = cast(int, image.vector_step(self.view.isa.lanes, width))
        return image.address, self.bias.step, image.channel(width), block

    def _groups(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The tables of groups and of their rows; see `depthwise_weights_loop`."""
        *kernel, across = map(range, self.view.turned(self.view.g.kernel))
        rows = list(itertools.product(*kernel))
        width = len(across) * self.view.channels
        count = -(-len(rows) // max(1, self.view.isa.rows[1] // width))
        size = -(-len(rows) // count)
        groups = [rows[first : first + size] for first in range(0, len(rows), size)]
        entries: list[Any] = []
        records: list[Any] = []
        for with_bias in (self.bias is not None, False):
            for group in groups:
                whole, last = self._kernels(group, bias=with_bias and group is groups[0])
                entries.append({
                    "whole": whole, "last": last, "records": 8 * len(records),
                    "nbytes": row_record(len(group)).nbytes, "sums": self._place(group[0]),
                })  # fmt: skip
                records += self._records(group)
        return GROUP.table(entries), np.array(records, np.int64)

    def _kernels(self, group: Sequence[Sequence[int]], *, bias: bool) -> tuple[int, int]:
        """Addresses: for whole vectors, and for the last one."""
        view, channel = self.view, self.weights.outer[1]
        across = view.turned(view.g.kernel)[2]
        most = view.isa.rows[1] // SUMS_PER_PIXEL
        if view.channels > 1:
            sums = len(group) * across * view.channels
            most = max(4, min(most, view.isa.rows[1] - sums))
        taps = tuple(
            tuple(
                self._place(tap) - self._place(group[0]) + s * self.weights.row + c * channel
                for c in range(view.channels)
                for s in range(across)
            )
            for tap in group
        )
        fresh = view.gathers[1].advance
        _, src_row, src_pixel = self.src.spatial
        kernel = DepthwiseWeightsKernel(
            view.isa, view.gathers[2].tiles(most), src_pixel, fresh * src_row, fresh,
            self.diff_dst.spatial[2], taps, view.channels, bias, self.cut.in_turn, whole=True,
        )  # fmt: skip
        whole, lanes = divmod(view.width, view.isa.lanes)
        partial = replace(kernel, whole=False)
        return kernel.address if whole else 0, partial.address if lanes else 0

    def _place(self, tap: Sequence[int]) -> int:
        """The offset of the sums of a row of taps."""
        return dot(self.weights.planes, tap)

    def _records(self, group: Sequence[Sequence[int]]) -> list[Param]:
        """The records of all rows for a group of rows of taps, one behind the other."""
        depth, height, _ = self.view.gathers
        records: list[Param] = []
        for z, y in itertools.product(range(depth.length), range(height.length)):
            row = {"diff_dst": dot(self.diff_dst.spatial, (z, y))}
            origin = dot(self.src.spatial, (depth.origin(z), height.origin(y)))
            seen_z, seen_y = dict(depth.inside(z)), dict(height.inside(y))
            for i, (tap_z, tap_y) in enumerate(group):
                inside = tap_z in seen_z and tap_y in seen_y
                shift = dot(self.src.spatial, (seen_z[tap_z], seen_y[tap_y])) if inside else 0
                row |= {f"inside_{i}": inside, f"src_{i}": origin + shift}
            records += row_record(len(group)).pack(row)
        return records
