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
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.convolution.depthwise.data import Depthwise
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseGather
from dnncore_cpu_numba.convolution.depthwise.view import Shared, row_axes, turned
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
from dnncore_cpu_numba.runtime.program import Param, Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

VECTORS = 8  # of channels of a work item where they are contiguous, measured
SUMS_PER_PIXEL = 3  # registers for sums for each register for a pixel of a tile, measured


class DepthwiseBackwardWeights(Depthwise):
    """Backward by weights and bias."""

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        gathers = [DepthwiseGather.forward(g, dim) for dim in range(3)]
        shared = Shared.of(self.isa, g)
        orders = shared.order(g.ic), shared.order(g.oc)
        src, diff_dst = (
            self.read_image(plan, plan.argument(*tensor), shared.width, order=order)
            for tensor, order in zip(
                (("src", op.src), ("diff_dst", op.diff_dst)), orders, strict=True
            )
        )
        axes = row_axes(gathers, g.kernel)
        rows, most = math.prod(turned(g.dst, axes)[:2]), MAX_TENSORS - 2 - len(attr.operands())
        cut = _Cut.of(self.isa, g, shared, rows, (src, diff_dst), plan.num_threads, most)
        desc, tag = op.diff_weights, self.weights_format(op)
        sums = _Sums(
            plan, plan.argument("diff_weights", desc), desc.with_format(tag), cut.parts, attr
        )
        bias = self._bias(plan, op, shared, orders[1], cut.parts)
        weights = weights_as_6d(sums.first.desc, op.src_role.ndims)
        block, oc, ic, *taps = (4 * stride for stride in weights.strides)

        def loop() -> Step:
            return _Loop(
                isa=self.isa, g=g, shared=shared, gathers=turned(gathers, axes), cut=cut, src=src,
                diff_dst=diff_dst, src_steps=turned(src.spatial, axes),
                diff_dst_steps=turned(diff_dst.spatial, axes), kernel=turned(g.kernel, axes),
                sums=sums, planes=(shared.channels * ic, oc), channel=ic, block=block,
                taps=turned(taps, axes), bias=bias,
            ).step()  # fmt: skip

        plan.add(loop)
        sums.finish(plan, attr)
        if bias is not None:
            bias.finish(plan, Attributes())

    def _bias(
        self, plan: ProgramPlan, op: Any, shared: Shared, order: Sequence[int] | None, parts: int
    ) -> _Sums | None:
        if op.diff_bias is None:
            return None
        tensor = plan.argument("diff_bias", op.diff_bias.reshape((1, *op.diff_bias.dims, 1, 1, 1)))
        wanted = tensor.desc.with_format(self.room(shared.width))
        return _Sums(plan, tensor, wanted, parts, Attributes(), order)


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
    def of(
        cls, isa: Isa, g: Geometry, shared: Shared, rows: int, images: Sequence[Image],
        threads: int, most: int,
    ) -> _Cut:  # fmt: skip
        """rows: of an image. most: parts."""
        vectors = -(-shared.width // isa.lanes)
        blocks = {image.vector_step(isa.lanes, shared.width) for image in images}
        in_turn = blocks == {4 * isa.lanes} and vectors > 1
        chunk = min(VECTORS, -(-vectors // threads)) if in_turn else 1
        chunks = -(-vectors // chunk)
        pairs = g.ic // shared.channels * (g.oc // shared.channels)
        parts = 1 if chunks * pairs % threads == 0 else max(1, min(threads, most))
        row_blocks = max(1, min(rows, -(-parts // max(1, g.batch))))
        row_block = max(1, -(-rows // row_blocks))
        row_blocks = max(1, -(-rows // row_block))
        parts = max(1, min(parts, g.batch * row_blocks))
        return cls(in_turn, chunk, chunks, row_block, row_blocks, parts)


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """The step that sums; all triples are along three dims of which the last is a row.

    planes: bytes between planes of src and of diff_dst in the sums. channel: between channels of
    src in a plane. block: between vectors. taps: between taps.
    """

    isa: Isa
    g: Geometry
    shared: Shared
    gathers: Sequence[DepthwiseGather]
    cut: _Cut
    src: Image
    diff_dst: Image
    src_steps: Sequence[int]
    diff_dst_steps: Sequence[int]
    kernel: Sequence[int]
    sums: _Sums
    planes: tuple[int, int]
    channel: int
    block: int
    taps: Sequence[int]
    bias: _Sums | None

    def step(self) -> Step:
        """Compile the kernels and lay out the parameters."""
        g, cut, lanes = self.g, self.cut, self.isa.lanes
        width, channels = self.shared.width, self.shared.channels
        planes = g.ic // channels, g.oc // channels
        groups, records = self._groups()
        rows = 0 if g.batch == 0 else math.prod(gather.length for gather in self.gathers[:2])
        bias, bias_part, bias_plane, bias_block = self._bias()
        src_block, diff_dst_block = (
            image.vector_step(lanes, width) or 0 for image in (self.src, self.diff_dst)
        )
        values = {
            "groups": Table(groups), "group_count": len(groups) // 2, "records": Table(records),
            "row_count": rows, "row_block": cut.row_block, "row_blocks": cut.row_blocks,
            "images": max(1, g.batch), "parts": cut.parts, "vectors": -(-width // lanes),
            "whole": width // lanes, "chunk": cut.chunk, "chunks": cut.chunks,
            "lanes": width % lanes, "src_planes": planes[0], "diff_dst_planes": planes[1],
            "src": self.src.address, "src_batch": self.src.batch,
            "src_plane": self.src.channel(width), "src_block": src_block,
            "diff_dst": self.diff_dst.address, "diff_dst_batch": self.diff_dst.batch,
            "diff_dst_plane": self.diff_dst.channel(width), "diff_dst_block": diff_dst_block,
            "sums": self.sums.first.address, "sums_part": self.sums.step,
            "sums_src_plane": self.planes[0], "sums_diff_dst_plane": self.planes[1],
            "sums_block": self.block, "bias": bias, "bias_part": bias_part,
            "bias_plane": bias_plane, "bias_block": bias_block,
        }  # fmt: skip
        items = cut.parts * cut.chunks * math.prod(planes)
        return Step(depthwise_weights_loop, values, items)

    def _bias(self) -> tuple[Param, int, int, int]:
        if self.bias is None:
            return 0, 0, 0, 0
        image = Image.chosen(self.bias.first)
        width = self.shared.width
        block = cast(int, image.vector_step(self.isa.lanes, width))
        return image.address, self.bias.step, image.channel(width), block

    def _groups(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The tables of groups and of their rows; see `depthwise_weights_loop`."""
        rows = list(itertools.product(*map(range, self.kernel[:2])))
        width = self.kernel[2] * self.shared.channels
        count = -(-len(rows) // max(1, self.isa.rows[1] // width))
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
        most = self.isa.rows[1] // SUMS_PER_PIXEL
        if self.shared.channels > 1:
            sums = len(group) * self.kernel[2] * self.shared.channels
            most = max(4, min(most, self.isa.rows[1] - sums))
        taps = tuple(
            tuple(
                self._place(tap) - self._place(group[0]) + s * self.taps[2] + channel * self.channel
                for channel in range(self.shared.channels)
                for s in range(self.kernel[2])
            )
            for tap in group
        )
        fresh = self.gathers[1].advance
        kernel = DepthwiseWeightsKernel(
            self.isa, self.gathers[2].tiles(most), self.src_steps[2], fresh * self.src_steps[1],
            fresh, self.diff_dst_steps[2], taps, self.shared.channels, bias, self.cut.in_turn,
            whole=True,
        )  # fmt: skip
        whole, lanes = divmod(self.shared.width, self.isa.lanes)
        partial = replace(kernel, whole=False)
        return kernel.address if whole else 0, partial.address if lanes else 0

    def _place(self, tap: Sequence[int]) -> int:
        """The offset of the sums of a row of taps."""
        return dot(self.taps[:2], tap)

    def _records(self, group: Sequence[Sequence[int]]) -> list[Param]:
        """The records of all rows for a group of rows of taps, one behind the other."""
        depth, height, _ = self.gathers
        records: list[Param] = []
        for z, y in itertools.product(range(depth.length), range(height.length)):
            row = {"diff_dst": dot(self.diff_dst_steps, (z, y))}
            origin = dot(self.src_steps, (depth.origin(z), height.origin(y)))
            seen_z, seen_y = dict(depth.inside(z)), dict(height.inside(y))
            for i, (tap_z, tap_y) in enumerate(group):
                inside = tap_z in seen_z and tap_y in seen_y
                shift = dot(self.src_steps, (seen_z[tap_z], seen_y[tap_y])) if inside else 0
                row |= {f"inside_{i}": inside, f"src_{i}": origin + shift}
            records += row_record(len(group)).pack(row)
        return records
