"""Convolution of many small groups, backward by weights and bias: groups are lanes of vectors.

`convolution/depthwise/data.py` defines planes. If there is not enough work for all threads, the
pixels are divided into parts with separate sums. A chain adds the sums at the end. The number of
parts depends only on the problem and the thread count, so that results are reproducible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
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

IMAGES = ("src", "diff_dst")
VECTORS = 8  # most vectors of channels per work item if channels are contiguous; measured
SUMS_PER_PIXEL = 3  # registers for sums per register for a pixel of a tile; measured


class DepthwiseWeights(Depthwise):
    """Backward by weights and bias."""

    data_types = (*FLOATS, "f64")

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse post-ops of f64."""
        if op.data_type == "f64" and attr.post_ops:
            return Refused("attribute", f"no post-ops of f64; got {len(attr.post_ops)}")
        return super().refused(op, attr)

    def kept(self, op: Convolution) -> tuple[str, ...]:
        """Return the images whose channels keep their order; in f64 also the results."""
        results = (op.result_name, op.BIAS) if op.data_type == "f64" else ()
        return (*results, *self.kept_in(op, IMAGES))

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        view = DepthwiseView.of(self.isa, Geometry.of(op))
        tensors = [plan.tensors[name] for name in IMAGES]
        src, diff_dst = (
            view.image(self.read_image(plan, tensor, view.width, order=order))
            for tensor, order in zip(tensors, view.orders, strict=True)
        )
        types = (tensors[0].desc.data_type, tensors[1].desc.data_type)
        most = MAX_TENSORS - 2 - len(attr.operands())
        lanes = self.isa.lanes
        vectors = [tensor.desc.itemsize * lanes for tensor in tensors]
        in_turn = [src.block, diff_dst.block] == vectors and view.width > lanes
        division = _division(view, plan.num_threads, most, in_turn=in_turn)
        output = plan.tensors["diff_weights"]
        wanted = output.desc.with_format(self.weights_format(op))
        sums = _Sums(plan, output, wanted, division["parts"], attr)
        bias = self._bias(plan, view, division["parts"])
        weights = view.filter(weights_as_6d(sums.first, op.src_role.ndims))
        loop = _Loop(view, division, in_turn, src, diff_dst, weights, sums, bias, types)
        plan.add(loop.step)
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

    first: the sums of the first part, or the output if no further computation is needed. step:
    bytes from part to part.
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
        offsets = [cast(Scratch, room.address).byte_offset for room in self.rooms[:2]] or [0]
        self.step = offsets[-1] - offsets[0]

    def finish(self, plan: ProgramPlan, attr: Attributes) -> None:
        """Append the steps that compute the output from the sums."""
        if self.rooms:
            target = self.output
            if self.order is not None:
                target = plan.write(target, self.wanted, order=self.order)
            added = len(self.rooms) - 1
            stages = [*(add(2 + i) for i in range(added)), *stages_of(attr.post_ops, 2 + added)]
            plan.chain([target, *self.rooms, *plan.operands(attr)], stages)


def _division(view: DepthwiseView, threads: int, most: int, *, in_turn: bool) -> dict[str, int]:
    """Return the task's parameters that divide the work.

    Vectors are divided into chunks, and pixels into parts of blocks of rows. most: the most parts.
    """
    batch, rows, vectors = view.g.batch, view.rows, -(-view.width // view.isa.lanes)
    chunk = min(VECTORS, -(-vectors // threads)) if in_turn else 1
    chunks = -(-vectors // chunk)
    parts = 1 if chunks * math.prod(view.planes) % threads == 0 else max(1, min(threads, most))
    row_blocks = max(1, min(rows, -(-parts // max(1, batch))))
    row_block = max(1, -(-rows // row_blocks))
    row_blocks = max(1, -(-rows // row_block))
    parts = max(1, min(parts, batch * row_blocks))
    blocks = {"row_block": row_block, "row_blocks": row_blocks}
    return {"chunk": chunk, "chunks": chunks, "parts": parts, **blocks}


@dataclass(frozen=True)
class _Loop:
    """The step that computes the sums. All dims are in the view's order.

    in_turn: the kernel alternates between vectors of channels. weights: the matrix of the sums.
    types: of src and diff_dst.
    """

    view: DepthwiseView
    division: dict[str, int]
    in_turn: bool
    src: Matrix
    diff_dst: Matrix
    weights: Matrix
    sums: _Sums
    bias: _Sums | None
    types: tuple[str, str]

    def step(self) -> Step:
        """Compile the kernels and return the step."""
        view, lanes, batch = self.view, self.view.isa.lanes, self.view.g.batch
        width, planes, division = view.width, view.planes, self.division
        groups, records = self._groups()
        values = {
            "groups": Table(groups), "group_count": len(groups) // 2, "records": Table(records),
            "row_count": view.rows if batch else 0, "images": max(1, batch), **division,
            "vectors": -(-width // lanes), "whole": width // lanes, "lanes": width % lanes,
            "src_planes": planes[0], "diff_dst_planes": planes[1],
            "src": self.src.address, "src_batch": self.src.outer[0],
            "src_plane": self.src.outer[1], "src_block": self.src.block,
            "diff_dst": self.diff_dst.address, "diff_dst_batch": self.diff_dst.outer[0],
            "diff_dst_plane": self.diff_dst.outer[1], "diff_dst_block": self.diff_dst.block,
            "sums": self.weights.address, "sums_part": self.sums.step,
            "sums_src_plane": self.weights.outer[0], "sums_diff_dst_plane": self.weights.outer[2],
            "sums_block": self.weights.block, **self._bias(),
        }  # fmt: skip
        items = division["parts"] * division["chunks"] * math.prod(planes)
        return Step(depthwise_weights_loop, values, items)

    def _bias(self) -> dict[str, Param]:
        if self.bias is None:
            return dict.fromkeys(("bias", "bias_part", "bias_plane", "bias_block"), 0)
        sums = self.view.image(Image.chosen(self.bias.first))
        places = {"bias_plane": sums.outer[1], "bias_block": sums.block}
        return {"bias": sums.address, "bias_part": self.bias.step, **places}

    def _groups(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the tables of groups and of their rows; see `depthwise_weights_loop`."""
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
                kernels = self._kernels(group, bias=with_bias and group is groups[0])
                entries.append({
                    **kernels, "records": 8 * len(records), "sums": self._place(group[0]),
                    "nbytes": row_record(len(group)).nbytes,
                })  # fmt: skip
                records += self._records(group)
        return GROUP.table(entries), np.array(records, np.int64)

    def _kernels(self, group: Sequence[Sequence[int]], *, bias: bool) -> dict[str, int]:
        """Return the addresses of kernels: for whole vectors, and for the last vector."""
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
            self.diff_dst.spatial[2], taps, view.channels, bias, self.in_turn, types=self.types,
        )  # fmt: skip
        whole, lanes = divmod(view.width, view.isa.lanes)
        partial = replace(kernel, edge="masked")
        return {
            "whole": kernel.address if whole else 0,
            "last": partial.address if lanes else 0,
        }

    def _place(self, tap: Sequence[int]) -> int:
        """Return the offset of the sums of a row of taps."""
        return dot(self.weights.planes, tap)

    def _records(self, group: Sequence[Sequence[int]]) -> list[Param]:
        """Return the records of all rows for a group of rows of taps."""
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
