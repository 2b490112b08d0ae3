"""Convolution of many small groups, in all directions: groups are the lanes of vectors.

Channel p of each group is one plane of vectors, so that depthwise convolution, with one channel per
group, reads and writes tensors as they lie; with more channels per group, activations are copied so
that the first channels of all groups come first, then the second ones. Both factors of a product
are vectors then: the microkernel's A has columns. The reduction is over the taps of a row (k), and
over rows of taps and channels (the batch); backward by weights it is over pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import Attributes, Refused
from dnncore_cpu_numba.convolution_brgemm import Brgemm, in_phase
from dnncore_cpu_numba.convolution_brgemm_weights import REDUCTION, rows_of_pixels
from dnncore_cpu_numba.epilogue import from_post_ops
from dnncore_cpu_numba.geometry import Geometry, Phase, dot, scaled, weights_as_6d
from dnncore_cpu_numba.image import Image
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.plan import Plan, Tensor, has_sum
from dnncore_cpu_numba.program import Step, Table
from dnncore_cpu_numba.tiles import Chunk, Matrix, TileLoop, utilisation

__all__ = ["DepthwiseBackwardData", "DepthwiseBackwardWeights", "DepthwiseForward"]

LOAD_BOUND = 0.5  # of the peak: each multiply-add loads a vector


class _Depthwise(Brgemm):
    """What the directions share: formats, and channels in the order of planes.

    With P channels per group, an image has P runs of G channels; in the methods inherited, G is the
    number of channels "per group" therefore, and the outer dim of groups runs over the P channels.
    """

    weights_tag = "Goi{spatial}{lanes}g"

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.name = f"cpu_numba:depthwise:{isa.name}"

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """One group is no vector."""
        if op.grouped_weights[0] == 1:
            return Refused("shape", "one group, where groups are the lanes of vectors")
        return super().refused(op, attr)

    def activations(self, geometry: Geometry, per_group: int, spatial: str) -> str:
        """Blocked if each channel has a lane of its own."""
        blocked = per_group == 1 and geometry.groups % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Any) -> str:
        """The tag of the filter that the tiles read or write."""
        letters = "abcdef"[: op.weights_role.ndims]
        return f"{letters.capitalize()}{self.isa.lanes}a"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether channels can be loaded as vectors."""
        return image.vector_step(self.isa.lanes, per_group) is not None

    def utilisation(self, op: Any) -> float:
        """That of tiles of pixels of a row by groups."""
        g = Geometry.of(op)
        return LOAD_BOUND * utilisation(self.isa, g.dst[2], g.groups)


class DepthwiseForward(_Depthwise):
    """Forward: rows of a tile are pixels of dst."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g, lanes = Geometry.of(op), self.isa.lanes
        image = plan.argument("src", op.src)
        src = self.read_image(plan, image, g.groups, g.padding, g.span, _planes(g, g.ic))
        weights, steps = self._read_weights(plan, op)
        bias = None if op.bias is None else plan.argument("bias", op.bias)
        order = _planes(g, g.oc)
        epilogue, operands = self._epilogue(plan, attr, g.groups, bias, order)
        dst, edge = self._write_image(plan, plan.argument("dst", op.dst), g.groups, attr, order)
        *outer, row = scaled(src.spatial, g.stride)
        a = Matrix(src.address, (src.batch, 0, *outer), row, src.vector_step(lanes, g.groups))
        b = Matrix(weights.address, (0, steps[1]), block=steps[0])
        distances = scaled(src.spatial, g.dilation)
        taps = [(dot(distances, tap), dot(steps[3:], tap)) for tap in g.taps[:: g.kernel[2]]]

        def loop() -> Step:
            return TileLoop(
                isa=self.isa, outer=(g.batch, g.oc, *g.dst[:2]), rows=g.dst[2], columns=g.groups,
                a=a, b=b, c=dst, a_k=distances[2], edge=edge, epilogue=epilogue, operands=operands,
                chunks=[_over_planes(taps, g.ic, src.channel(g.groups), steps[2], g.kernel[2])],
                by_lanes=True,
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)


class DepthwiseBackwardData(_Depthwise):
    """Backward by data: rows of a tile are pixels of one phase of diff_src."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g, lanes = Geometry.of(op), self.isa.lanes
        phases = g.phases()
        left, size = g.reach(phases)
        image = plan.argument("diff_dst", op.diff_dst)
        diff_dst = self.read_image(plan, image, g.groups, left, size, _planes(g, g.oc))
        weights, steps = self._read_weights(plan, op)
        order = _planes(g, g.ic)
        epilogue, operands = self._epilogue(plan, attr, g.groups, order=order)
        image = plan.argument("diff_src", op.diff_src)
        diff_src, edge = self._write_image(plan, image, g.groups, attr, order)
        *outer, row = diff_dst.spatial
        block, plane = diff_dst.vector_step(lanes, g.groups), diff_dst.channel(g.groups)
        a = Matrix(diff_dst.address, (diff_dst.batch, 0, *outer), row, block)
        b = Matrix(weights.address, (0, steps[2]), block=steps[0])

        def loop(phase: Phase) -> Step:
            taps = [
                (dot(diff_dst.spatial, map(int.__add__, left, shift)), dot(steps[3:], tap))
                for tap, shift in phase.taps
            ]
            k = len({tap[2] for tap, _ in phase.taps})  # of one row, evenly spaced
            a_k, b_k = (
                (end - start for start, end in zip(*taps[:2], strict=True)) if k > 1 else (0, 0)
            )
            return TileLoop(
                isa=self.isa, outer=(g.batch, g.ic, *phase.count[:2]), rows=phase.count[2],
                columns=g.groups, a=a, b=b, c=in_phase(diff_src, phase, g.stride), a_k=a_k, b_k=b_k,
                edge=edge, epilogue=epilogue,
                operands=[in_phase(operand, phase, g.stride) for operand in operands],
                chunks=[_over_planes(taps[:: k or 1], g.oc, plane, steps[1], k)], by_lanes=True,
            ).step(plan.num_threads)  # fmt: skip

        for phase in phases:
            plan.add(lambda phase=phase: loop(phase))


class DepthwiseBackwardWeights(_Depthwise):
    """Backward by weights and bias: rows of a tile are the taps of a row."""

    def utilisation(self, op: Any) -> float:
        """That of tiles of taps by groups."""
        g = Geometry.of(op)
        return LOAD_BOUND * utilisation(self.isa, g.kernel[2], g.groups)

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g, lanes = Geometry.of(op), self.isa.lanes
        image = plan.argument("src", op.src)
        src = self.read_image(plan, image, g.groups, g.padding, g.span, _planes(g, g.ic))
        image = plan.argument("diff_dst", op.diff_dst)
        diff_dst = self.read_image(plan, image, g.groups, (0, 0, 0), g.dst, _planes(g, g.oc))
        splats, operands = self._read_operands(plan, op, attr)
        desc, tag = op.diff_weights, self.weights_format(op)
        wanted = None if desc.matches(tag) else desc.with_format(tag)
        diff_weights = plan.write(plan.argument("diff_weights", desc), wanted, old=has_sum(attr))
        distances = scaled(src.spatial, g.dilation)
        planes = src.channel(g.groups), diff_dst.channel(g.groups)
        a = Matrix(
            src.address, (0, planes[0], *distances[:2]), distances[2],
            src.vector_step(lanes, g.groups),
        )  # fmt: skip
        b = Matrix(diff_dst.address, (planes[1],), block=diff_dst.vector_step(lanes, g.groups))
        pixels = rows_of_pixels(g, src, diff_dst)
        length = max(1, len(pixels) if has_sum(attr) else REDUCTION // max(1, g.dst[2]))

        def loop() -> Step:
            return TileLoop(
                isa=self.isa, outer=(g.oc, g.ic, *g.kernel[:2]), rows=g.kernel[2],
                columns=g.groups, a=a, b=b, c=_filter(diff_weights, op),
                a_k=src.spatial[2] * g.stride[2], b_k=diff_dst.spatial[2] or 4, edge="zeroed",
                epilogue=from_post_ops(attr, splats), operands=operands,
                chunks=[
                    Chunk(pixels[first : first + length], g.dst[2])
                    for first in range(0, max(1, len(pixels)), length)
                ],
                by_lanes=True,
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)
        if op.diff_bias is not None:
            self._plan_bias(plan, op, g, diff_dst, b, pixels)

    def _plan_bias(
        self, plan: Plan, op: Any, g: Geometry, diff_dst: Image, b: Matrix,
        pixels: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """The sum over all pixels: products with ones."""
        bias = plan.argument("diff_bias", op.diff_bias.reshape((1, *op.diff_bias.dims, 1, 1, 1)))
        c, _ = self._write_image(plan, bias, g.groups, Attributes(), _planes(g, g.oc))
        ones = Matrix(Table(np.ones(self.isa.lanes, np.float32)))
        c = Matrix(c.address, c.outer[1:2], block=c.block)

        def loop() -> Step:
            return TileLoop(
                isa=self.isa, outer=(g.oc,), rows=1, columns=g.groups, a=ones, b=b, c=c, a_k=0,
                b_k=diff_dst.spatial[2] or 4, by_lanes=True,
                chunks=[Chunk([(0, offset) for _, offset in pixels], g.dst[2])],
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


def _planes(g: Geometry, per_group: int) -> list[int] | None:
    """The channels in the order of planes; None where that is their own."""
    if per_group == 1:
        return None
    return np.arange(g.groups * per_group).reshape(g.groups, per_group).T.ravel().tolist()


def _over_planes(
    taps: Sequence[tuple[int, int]], planes: int, a_step: int, b_step: int, k: int
) -> Chunk:
    """A batch over rows of taps and planes; the steps are bytes from plane to plane."""
    batch = [(a + p * a_step, b + p * b_step) for a, b in taps for p in range(planes)]
    return Chunk(batch, k)


def _filter(tensor: Tensor, op: Any) -> Matrix:
    """A filter: rows are the taps of a row, columns groups; outer dims OC, IC, D, H."""
    desc = weights_as_6d(tensor.desc, op.src_role.ndims)
    block, *outer, row = (
        0 if size == 1 else 4 * stride for size, stride in zip(desc.dims, desc.strides, strict=True)
    )
    return Matrix(tensor.address, tuple(outer), row, block)
