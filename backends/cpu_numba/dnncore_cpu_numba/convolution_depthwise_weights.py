"""Convolution of many small groups, backward by weights: groups are lanes, pixels the reduction.

Rows of a tile are the taps of a row of the filter, and k runs along a line of pixels. Of pixels
near an image's edges, which see some of the taps, the sums are added to what the others gave.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import Attributes
from dnncore_cpu_numba.convolution_brgemm_weights import REDUCTION
from dnncore_cpu_numba.convolution_depthwise import (
    FEW_ROWS,
    LOAD_BOUND,
    MOST_PARTS,
    NO_BORDER,
    ONES,
    Depthwise,
    plane_order,
)
from dnncore_cpu_numba.epilogue import from_post_ops
from dnncore_cpu_numba.geometry import Geometry, Phase, dot, scaled, weights_as_6d
from dnncore_cpu_numba.image import Image
from dnncore_cpu_numba.plan import Plan, Tensor, has_sum, moved
from dnncore_cpu_numba.program import Step, Table
from dnncore_cpu_numba.tiles import Chunk, Matrix, Rows, TileLoop, utilisation

__all__ = ["DepthwiseBackwardWeights"]


class DepthwiseBackwardWeights(Depthwise):
    """Backward by weights and bias: rows of a tile are the taps of a row."""

    def utilisation(self, op: Any) -> float:
        """That of tiles of taps by groups."""
        g = Geometry.of(op)
        return LOAD_BOUND * utilisation(self.isa, g.kernel[2], g.groups)

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src, parts = self._read_parts(plan, plan.argument("src", op.src), g, attr)
        image = plan.argument("diff_dst", op.diff_dst)
        diff_dst = self.read_image(plan, image, g.groups, order=plane_order(g, g.oc))
        splats, operands = self._read_operands(plan, op, attr)
        epilogue = from_post_ops(attr, splats)
        desc, tag = op.diff_weights, self.weights_format(op)
        wanted = None if desc.matches(tag) else desc.with_format(tag)
        diff_weights = plan.write(plan.argument("diff_weights", desc), wanted, old=has_sum(attr))
        c = _filter(diff_weights, op)
        distances = scaled(src.spatial, g.dilation)
        block = src.vector_step(self.isa.lanes, g.groups)
        a = Matrix(src.address, (0, src.channel(g.groups), *distances[:2]), distances[2], block)
        block = diff_dst.vector_step(self.isa.lanes, g.groups)
        b = Matrix(diff_dst.address, (diff_dst.channel(g.groups),), block=block)

        def loop(part: Phase) -> Step:
            lines = _Lines.of(part, g, src, diff_dst)
            place = dot((*c.outer[2:], c.row), part.taps[0][0])
            *outer, rows = (len({tap[dim] for tap, _ in part.taps}) for dim in range(3))
            return TileLoop(
                isa=self.isa, outer=(g.oc, g.ic, *outer), cover=Rows(rows), columns=g.groups, a=a, b=b,
                c=dataclasses.replace(c, address=moved(c.address, place)), a_k=lines.a_k,
                b_k=lines.b_k, edge="zeroed", epilogue=epilogue, operands=operands, by_lanes=True,
                chunks=lines.chunks(whole=has_sum(attr)), continues=part is not parts[0],
            ).step(plan.num_threads)  # fmt: skip

        for part in parts:
            plan.add(lambda part=part: loop(part))
        if op.diff_bias is not None:
            self._plan_bias(plan, op, g, src, diff_dst, b)

    def _read_parts(
        self, plan: Plan, tensor: Tensor, g: Geometry, attr: Attributes
    ) -> tuple[Image, list[Phase]]:
        """src and the parts of the pixels, of which the first has all taps.

        A gradient that is more than the sum over the parts is computed in one.
        """
        windows = g.windows()
        image = self.lying(tensor, g, g.ic)
        if image is not None:
            parts = windows.parts(ONES, NO_BORDER, g.stride, image.dims[2:])
            parts = sorted((p for p in parts if p.taps), key=lambda part: -len(part.taps))
            whole = bool(parts) and len(parts[0].taps) == len(windows.taps)
            if whole and len(parts) <= (1 if attr.post_ops else MOST_PARTS):
                return image, parts
        image = self.read_image(plan, tensor, g.groups, (g.padding, g.span), plane_order(g, g.ic))
        return image, windows.parts(ONES, g.padding, g.stride, g.span)

    def _plan_bias(
        self, plan: Plan, op: Any, g: Geometry, src: Image, diff_dst: Image, b: Matrix
    ) -> None:
        """The sum over all pixels: products with ones."""
        bias = plan.argument("diff_bias", op.diff_bias.reshape((1, *op.diff_bias.dims, 1, 1, 1)))
        c, _ = self._write_image(plan, bias, g.groups, Attributes(), plane_order(g, g.oc))
        ones = Matrix(Table(np.ones(self.isa.lanes, np.float32)))
        c = Matrix(c.address, c.outer[1:2], block=c.block)

        def loop() -> Step:
            lines = _Lines.of(g.windows(), g, src, diff_dst)
            (chunk,) = lines.chunks(whole=True)
            return TileLoop(
                isa=self.isa, outer=(g.oc,), cover=Rows(1), columns=g.groups, a=ones, b=b, c=c, a_k=0,
                b_k=lines.b_k, by_lanes=True,
                chunks=[Chunk([(0, offset) for _, offset in chunk.batch], chunk.k)],
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)

    def _read_operands(
        self, plan: Plan, op: Any, attr: Attributes
    ) -> tuple[list[bool], list[Matrix]]:
        """The post-ops' operands, and which of them are broadcast along groups."""
        splats, matrices = [], []
        for operand in plan.operands(attr):
            tag = self.weights_format(op)
            splat = operand.desc.dims[0] == 1
            serves = operand.desc.is_plain if splat else operand.desc.matches(tag)
            tensor = plan.read(operand, None if serves else operand.desc.with_format(tag))
            splats.append(splat)
            matrices.append(_filter(tensor, op))
        return splats, matrices


@dataclass(frozen=True)
class _Lines:
    """The pixels of a part of diff_dst as a reduction: lines of evenly spaced ones.

    starts: (offset in src, offset in diff_dst) of each line's first pixel, in bytes; a_k and b_k
    lead to the next one. length: in pixels.
    """

    starts: Sequence[tuple[int, int]]
    length: int
    a_k: int
    b_k: int

    @classmethod
    def of(cls, part: Phase, g: Geometry, src: Image, diff_dst: Image) -> _Lines:
        """Lines along rows, or along the longest dim where rows are short."""
        dims = range(3)
        along = 2 if part.count[2] >= FEW_ROWS else max(dims, key=lambda dim: part.count[dim])
        extents = [1 if dim == along else part.count[dim] for dim in dims]
        a, b = scaled(src.spatial, g.stride), diff_dst.spatial
        origin = dot(src.spatial, part.taps[0][1]), dot(b, part.position)
        starts = [
            (
                origin[0] + n * src.batch + dot(a, pixel),
                origin[1] + n * diff_dst.batch + dot(b, pixel),
            )
            for n, *pixel in itertools.product(range(g.batch), *map(range, extents))
        ]
        # where there is one pixel, any step serves
        return cls(starts, part.count[along], a[along], b[along] or 4)

    def chunks(self, *, whole: bool) -> list[Chunk]:
        """The reduction in chunks that stay in cache, or as a whole."""
        count = max(1, len(self.starts))
        length = count if whole else max(1, REDUCTION // max(1, self.length))
        return [
            Chunk(self.starts[first : first + length], self.length)
            for first in range(0, count, length)
        ]


def _filter(tensor: Tensor, op: Any) -> Matrix:
    """A filter: rows are the taps of a row, columns groups; outer dims OC, IC, D, H."""
    desc = weights_as_6d(tensor.desc, op.src_role.ndims)
    block, *outer, row = (
        0 if size == 1 else 4 * stride for size, stride in zip(desc.dims, desc.strides, strict=True)
    )
    return Matrix(tensor.address, tuple(outer), row, block)
