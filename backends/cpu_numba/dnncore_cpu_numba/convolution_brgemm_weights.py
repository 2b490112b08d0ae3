"""Direct convolution by batch-reduce GEMM, backward by weights: rows of pixels are the batch.

A tile is some input channels times some vectors of output channels of one tap; k runs over the
pixels of a row of diff_dst. The rows of all images are reduced a few at a time, so that what they
read of src and diff_dst stays in cache while all tiles pass.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dnncore.backend import Attributes, MemoryDesc
from dnncore_cpu_numba.convolution_brgemm import Brgemm
from dnncore_cpu_numba.epilogue import from_post_ops
from dnncore_cpu_numba.geometry import Geometry, dot, scaled, weights_as_6d
from dnncore_cpu_numba.image import Image, as_5d
from dnncore_cpu_numba.packing import Axis, copy_step, places
from dnncore_cpu_numba.plan import Plan, Tensor, has_sum
from dnncore_cpu_numba.program import Step, Table
from dnncore_cpu_numba.tiles import Chunk, Matrix, Rows, TileLoop, utilisation

__all__ = ["REDUCTION", "BrgemmBackwardWeights", "rows_of_pixels"]

REDUCTION = 256  # pixels of a chunk: 64 KiB of four vectors of diff_dst


class BrgemmBackwardWeights(Brgemm):
    """Backward by weights and bias; weights become `OIhw16i16o`, as forward."""

    def utilisation(self, op: Any) -> float:
        """That of tiles of input by output channels."""
        g = Geometry.of(op)
        return 0.9 * utilisation(self.isa, g.kernel[2] * g.ic, g.oc)

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src = self.read_image(plan, plan.argument("src", op.src), g.ic, (g.padding, g.span))
        diff_dst = self._read_blocks(plan, plan.argument("diff_dst", op.diff_dst), g)
        splats, operands = self._read_operands(plan, op, attr, min(src.run, g.ic))
        desc, tag = op.diff_weights, self.weights_format(op)
        wanted = None if desc.matches(tag) else desc.with_format(tag)
        diff_weights = plan.write(plan.argument("diff_weights", desc), wanted, old=has_sum(attr))
        run = min(src.run, g.ic)
        c = self._matrix(diff_weights, op, run)
        group, *taps, block = src.channel(g.ic), *scaled(src.spatial, g.dilation), src.block
        outer, a = (g.groups, *g.kernel, g.ic // run), (group, *taps, block)
        rows = run
        if not operands and taps[2] == 4 * run and c.outer[3] in (0, run * c.row):
            rows = g.kernel[2] * run  # those of neighbouring taps follow each other
            outer = (*outer[:3], 1, outer[4])
        a = Matrix(src.address, a, row=4)
        count = g.batch * g.dst[0] * g.dst[1]
        length = max(1, count if has_sum(attr) else REDUCTION // max(1, g.dst[2]))
        group = diff_dst.channel(diff_dst.dims[1] // g.groups)
        b = Matrix(diff_dst.address, (group,), block=diff_dst.block)

        def loop() -> Step:
            pixels = rows_of_pixels(g, src, diff_dst)
            return TileLoop(
                isa=self.isa, outer=outer, cover=Rows(rows), columns=g.oc, a=a, b=b, c=c,
                a_k=src.spatial[2] * g.stride[2], edge="zeroed",
                epilogue=from_post_ops(attr, splats), operands=operands,
                chunks=[
                    Chunk(pixels[first : first + length], g.dst[2])
                    for first in range(0, max(1, count), length)
                ],
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)
        if op.diff_bias is not None:
            self._plan_bias(plan, op, g, src, diff_dst, b)

    def _plan_bias(
        self, plan: Plan, op: Any, g: Geometry, src: Image, diff_dst: Image, b: Matrix
    ) -> None:
        """The sum over all pixels: a product with ones."""
        desc = op.diff_bias
        wanted = None if desc.matches("a") else desc.with_format("a")
        bias = plan.write(plan.argument("diff_bias", desc), wanted)
        ones = Table(np.ones(max(1, g.dst[2]), np.float32))
        c = Matrix(bias.address, (4 * g.oc,), block=4 * self.isa.lanes)

        def loop() -> Step:
            pixels = [(0, offset) for _, offset in rows_of_pixels(g, src, diff_dst)]
            return TileLoop(
                isa=self.isa, outer=(g.groups,), cover=Rows(1), columns=g.oc, a=Matrix(ones), b=b,
                c=c, chunks=[Chunk(pixels, g.dst[2])], most_vectors=1,
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)

    def _read_blocks(self, plan: Plan, tensor: Tensor, g: Geometry) -> Image:
        """diff_dst with channels in vectors, a group's first in a new one, pixels without gap."""
        tensor = tensor.seen_as(as_5d(tensor.desc))
        desc, lanes = tensor.desc, self.isa.lanes
        whole = -(-g.oc // lanes) * lanes
        aligned = g.groups == 1 or g.oc == whole
        if desc.inner_blocks == ((1, lanes),) and desc.strides[4] == lanes and aligned:
            return Image.of(tensor)
        wanted = MemoryDesc((g.batch, g.groups * whole, *g.dst), "f32", f"aBcde{lanes}b")
        if aligned:
            return Image.of(plan.read(tensor, wanted))
        copy = plan.scratch(wanted)

        def spread() -> Step:
            axes = [Axis(places(desc, dim), places(wanted, dim)) for dim in range(5)]
            channel = np.arange(g.groups * g.oc)
            channel = channel // g.oc * whole + channel % g.oc
            axes[1] = Axis(axes[1].source[: len(channel)], axes[1].target[channel])
            return copy_step(tensor.address, copy.address, axes)

        plan.add(spread, desc.nbytes + wanted.nbytes)
        return Image.of(copy)

    def _read_operands(
        self, plan: Plan, op: Any, attr: Attributes, run: int
    ) -> tuple[list[bool], list[Matrix]]:
        """The post-ops' operands, and which of them are broadcast along output channels."""
        splats, matrices = [], []
        for operand in plan.operands(attr):
            desc = operand.desc
            splat = desc.dims[desc.ndims - op.src.ndims] == 1
            tag = None if splat else self.weights_format(op)
            serves = desc.is_plain if splat else desc.matches(tag)
            tensor = plan.read(operand, None if serves else desc.with_format(tag))
            splats.append(splat)
            matrices.append(self._matrix(tensor, op, run))
        return splats, matrices

    def _matrix(self, tensor: Tensor, op: Any, run: int) -> Matrix:
        """A filter: rows are a run of input channels, columns output channels.

        Its outer dims are groups, the kernel's and runs.
        """
        desc = weights_as_6d(tensor.desc, op.src.ndims)
        group, block, _, *kernel = (
            0 if size == 1 else 4 * stride
            for size, stride in zip(desc.dims, desc.strides, strict=True)
        )
        channels = 4 * places(desc, 2)
        row = (
            int(channels[1])
            if 1 < run <= desc.dims[2]
            else 0
            if desc.dims[2] == 1
            else 4 * self.isa.lanes
        )
        step = int(channels[run]) if run < desc.dims[2] else 0
        return Matrix(tensor.address, (group, *kernel, step), row, block)


def rows_of_pixels(g: Geometry, src: Image, diff_dst: Image) -> list[tuple[int, int]]:
    """(offset in src, offset in diff_dst) of each row of diff_dst: the reduction."""
    a = (src.batch, *scaled(src.spatial, g.stride)[:2])
    b = (diff_dst.batch, *diff_dst.spatial[:2])
    rows = itertools.product(range(g.batch), range(g.dst[0]), range(g.dst[1]))
    return [(dot(a, row), dot(b, row)) for row in rows]
