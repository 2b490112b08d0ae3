"""Convolution of many small groups, forward and backward by data: groups are lanes of vectors.

Channel p of each group is one plane of vectors, so that depthwise convolution, with one channel per
group, reads and writes tensors as they lie; with more channels per group, activations are copied so
that the first channels of all groups come first, then the second ones. Both factors of a product
are vectors then: the microkernel's A has columns. The reduction is over the taps of a row (k), and
over rows of taps and planes (the batch).

There is little arithmetic, so no image is copied for the sake of a border: pixels are treated in
parts, those near the edges with fewer taps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnncore.backend import Attributes, Refused
from dnncore_cpu_numba.convolution_brgemm import Brgemm, in_phase
from dnncore_cpu_numba.geometry import ONES, Geometry, Phase, Triple, dot, scaled
from dnncore_cpu_numba.image import Image, as_5d
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.plan import Plan, Tensor
from dnncore_cpu_numba.program import Step
from dnncore_cpu_numba.tiles import Chunk, Matrix, Rows, TileLoop, utilisation

__all__ = [
    "FEW_ROWS",
    "LOAD_BOUND",
    "MOST_PARTS",
    "NO_BORDER",
    "ONES",
    "Depthwise",
    "DepthwiseBackwardData",
    "DepthwiseForward",
    "plane_order",
]

LOAD_BOUND = 0.25  # of the peak, measured: each multiply-add loads a vector
MOST_PARTS = 32  # of an image; a border costs less than more steps
FEW_ROWS = 6  # that are worth to be exchanged for another dim
NO_BORDER: Triple = (0, 0, 0)


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
        return LOAD_BOUND * utilisation(self.isa, g.dst[2], g.groups)

    def lying(self, tensor: Tensor, g: Geometry, planes: int) -> Image | None:
        """An image that tiles can read as it lies, or None."""
        image = Image.of(tensor.seen_as(as_5d(tensor.desc))) if planes == 1 else None
        return image if image is not None and self.serves(image, g.groups) else None


class _Gathering(Depthwise):
    """Forward and backward by data: rows of a tile are pixels of the output."""

    def read(
        self, plan: Plan, tensor: Tensor, g: Geometry, planes: int, border: tuple[Triple, Triple],
        parts: Callable[[Triple, Triple], list[Phase]],
    ) -> tuple[Image, list[Phase]]:  # fmt: skip
        """An image, and the parts of the output that gather from it.

        border, and the arguments of parts: (pixels before the first, size) of an image.
        """
        image = self.lying(tensor, g, planes)
        if image is not None:
            found = parts(NO_BORDER, image.dims[2:])
            if len(found) <= MOST_PARTS:
                return image, found
        image = self.read_image(plan, tensor, g.groups, border, plane_order(g, planes))
        return image, parts(*border)

    def gather(
        self, plan: Plan, attr: Attributes, g: Geometry, image: Image, parts: Sequence[Phase],
        step: Triple, b: Matrix, steps: Sequence[int], planes: tuple[int, int],
        output: Tensor, stride: Triple, bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append a tile loop for each part of the output.

        step: from window to window in the image. steps: bytes in B, from plane to plane of the
        image and along the dims of the kernel. planes: of the image and the output. stride: from
        pixel to pixel of a part.
        """
        order = plane_order(g, planes[1])
        epilogue, operands = self._epilogue(plan, attr, g.groups, bias, order)
        c, edge = self._write_image(plan, output, g.groups, attr, order)
        *outer, row = scaled(image.spatial, step)
        block = image.vector_step(self.isa.lanes, g.groups)
        a = Matrix(image.address, (image.batch, 0, *outer), row, block)
        plane = image.channel(g.groups), steps[0]

        def loop(part: Phase) -> Step:
            taps = [(dot(image.spatial, shift), dot(steps[1:], tap)) for tap, shift in part.taps]
            k = max(1, len({tap[2] for tap, _ in part.taps}))  # of a row; evenly spaced
            a_k, b_k = map(int.__sub__, taps[1], taps[0]) if k > 1 else (0, 0)
            batch = [
                (at + p * plane[0], tap + p * plane[1])
                for at, tap in taps[::k]
                for p in range(planes[0])
            ]
            return _shaped(TileLoop(
                isa=self.isa, outer=(g.batch, planes[1], *part.count[:2]), cover=Rows(part.count[2]),
                columns=g.groups, a=a, b=b, c=in_phase(c, part, stride).unfolded, a_k=a_k, b_k=b_k,
                edge=edge, epilogue=epilogue, chunks=[Chunk(batch, k)], by_lanes=True,
                operands=[in_phase(operand, part, stride).unfolded for operand in operands],
            )).step(plan.num_threads)  # fmt: skip

        for part in parts:
            plan.add(lambda part=part: loop(part))


class DepthwiseForward(_Gathering):
    """Forward: dst gathers from src."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src, parts = self.read(
            plan, plan.argument("src", op.src), g, g.ic, (g.padding, g.span),
            lambda left, size: g.windows().parts(ONES, left, g.stride, size),
        )  # fmt: skip
        weights = self._read_weights(plan, op)
        block, oc, *steps = (4 * stride for stride in weights.desc.strides)
        self.gather(
            plan, attr, g, src, parts, g.stride, Matrix(weights.address, (0, oc), block=block),
            steps, (g.ic, g.oc), plan.argument("dst", op.dst), ONES,
            None if op.bias is None else plan.argument("bias", op.bias),
        )  # fmt: skip


class DepthwiseBackwardData(_Gathering):
    """Backward by data: each phase of diff_src gathers from diff_dst."""

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        phases = g.phases()
        diff_dst, parts = self.read(
            plan, plan.argument("diff_dst", op.diff_dst), g, g.oc, g.reach(phases),
            lambda left, size: [
                part for phase in phases for part in phase.parts(g.stride, left, ONES, size)
            ],
        )  # fmt: skip
        weights = self._read_weights(plan, op)
        block, oc, ic, *steps = (4 * stride for stride in weights.desc.strides)
        self.gather(
            plan, attr, g, diff_dst, parts, ONES, Matrix(weights.address, (0, ic), block=block),
            (oc, *steps), (g.oc, g.ic), plan.argument("diff_src", op.diff_src), g.stride,
        )  # fmt: skip


def plane_order(g: Geometry, per_group: int) -> list[int] | None:
    """The channels in the order of planes; None where that is their own."""
    if per_group == 1:
        return None
    return np.arange(g.groups * per_group).reshape(g.groups, per_group).T.ravel().tolist()


def _shaped(loop: TileLoop) -> TileLoop:
    """The same problem in tiles of the fewest vectors whose rows there are: streams of memory."""
    loop = _turned(loop)
    most = sorted(loop.isa.rows.items())
    fitting = next((vectors for vectors, rows in most if rows <= loop.cover.count), most[-1][0])
    return dataclasses.replace(loop, most_vectors=fitting)


def _turned(loop: TileLoop) -> TileLoop:
    """The same problem with the longest outer dim as rows, where there are few; B has neither."""
    extents = {dim: loop.outer[dim] for dim in (0, 2, 3)}
    longest = max(extents, key=lambda dim: extents[dim])
    if loop.cover.count >= min(FEW_ROWS, extents[longest]):
        return loop

    def turned(matrix: Matrix) -> Matrix:
        outer = list(matrix.outer)
        row, outer[longest] = outer[longest], matrix.row
        return dataclasses.replace(matrix, outer=tuple(outer), row=row)

    outer = list(loop.outer)
    rows, outer[longest] = outer[longest], loop.cover.count
    return dataclasses.replace(
        loop, outer=tuple(outer), cover=Rows(rows), a=turned(loop.a), c=turned(loop.c),
        operands=[turned(operand) for operand in loop.operands],
    )  # fmt: skip
