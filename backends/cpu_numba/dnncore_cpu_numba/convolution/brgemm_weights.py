"""Direct convolution by batch-reduce GEMM, backward by weights: rows of pixels are the batch.

A tile is some input channels times some vectors of output channels of one tap. k runs over the
pixels of a row of diff_dst for which the tap is inside the image. A few rows are reduced at a time,
so that their parts of src and diff_dst stay in cache while all tiles are computed.

If an image has few channels, a tile holds the channels of all taps of a row of weights. If windows
leave such an image, it is copied with a border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dnncore.backend import Attributes, Convolution, MemoryDesc
from dnncore_cpu_numba.convolution.brgemm import Brgemm
from dnncore_cpu_numba.convolution.geometry import Geometry, Triple, dot, scaled, weights_as_6d
from dnncore_cpu_numba.convolution.image import Image, as_5d
from dnncore_cpu_numba.copies.gather import Axis, gather_step, places
from dnncore_cpu_numba.elementwise.epilogue import from_post_ops
from dnncore_cpu_numba.gemm.cover import Rows, Taps
from dnncore_cpu_numba.gemm.microkernel import ELEMENT, SEGMENT
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem, steps
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

Offsets = np.ndarray[Any, Any]

REDUCTION = 1600  # pixels of a chunk; their panel and src fit into a second-level cache
VECTORS = 3  # vectors of output channels in a panel; four are not faster, as src leaves the cache
BORDERED_BYTES = 1 << 20  # bytes of the images that are copied with a border at a time
FEW_ROWS = 8  # input channels of a tap; fewer do not fill the rows of a tile


class BrgemmWeights(Brgemm):
    """Backward by weights and bias. Weights of format `any` become `OIhw16i16o`, as forward."""

    def table_entries(self, g: Geometry) -> int:
        """Return one entry for each row of pixels."""
        return g.batch * g.dst[0] * g.dst[1]

    def activations(self, g: Geometry, spatial: str) -> tuple[str, str]:
        """Return a blocked tag for diff_dst, with padding if needed, because tiles read blocks."""
        src, diff_dst = super().activations(g, spatial)
        return src, f"nC{spatial}{self.isa.lanes}c" if g.groups == 1 else diff_dst

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of input channels by output channels."""
        g = Geometry.of(op)
        return 0.9 * utilisation(self.isa, g.kernel[2] * g.ic, g.oc)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        diff_dst = self._read_blocks(plan, plan.tensors["diff_dst"], g)
        diff_weights = plan.tensors["diff_weights"]
        diff_weights = plan.write(diff_weights, self.weights_format(op), old=attr.reads_dst)
        group = diff_dst.channel(diff_dst.dims[1] // g.groups)
        b = Matrix(diff_dst.address, (group,), block=diff_dst.block)

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            images = replace(g, batch=count)
            own = replace(b, address=moved(b.address, first * diff_dst.batch))
            self._plan_loop(plan, op, attr, images, first, diff_dst, own, diff_weights)

        plan.repeat(g.stretches(_images_together(g, op.src_role, attr)), part)
        if op.bias_role is not None:
            self._plan_bias(plan, g, diff_dst, b)

    def _plan_loop(
        self, plan: ProgramPlan, op: Convolution, attr: Attributes, g: Geometry, first: int,
        diff_dst: Image, b: Matrix, diff_weights: Tensor,
    ) -> None:  # fmt: skip
        """Append the step that sums over some images.

        g: the geometry of these images. first: the first of them. b: diff_dst from this image on.
        """
        few = g.ic < FEW_ROWS
        border = (g.padding, g.span) if few else None
        images = plan.tensors["src"].images(first, g.batch)
        src = self.read_image(plan, images, g.ic, border)
        run = min(src.run, g.ic)
        splats, operands = self._read_operands(plan, op, attr, run)
        c = self._matrix(diff_weights, op, run)
        padding = (0, 0, 0) if few else g.padding
        a = Matrix(
            moved(src.address, -dot(src.spatial, padding)), (src.channel(g.ic), src.block), row=4,
            planes=scaled(src.spatial, g.dilation),
        )  # fmt: skip
        joins = few and not operands and a.planes[2] == 4 * run

        def loop() -> list[Step]:
            pixels = _Pixels.of(g, src, diff_dst, padding)
            length = len(pixels.a) if attr.reads_dst else REDUCTION // max(1, pixels.width)
            problem = MatrixProblem(
                isa=self.isa, outer=(g.groups, g.ic // run), cover=Taps(g.kernel, run),
                columns=g.oc, a=a, b=b, c=c, a_k=src.spatial[2] * g.stride[2], edge="zeroed",
                epilogue=from_post_ops(attr, [(splat, "f32") for splat in splats]),
                operands=operands,
                chunks=pixels.chunks(length), most_vectors=VECTORS, continues=first > 0,
            )  # fmt: skip
            return tile_steps(_joined(problem) if joins else problem, plan.blocking)

        plan.add_steps(loop)

    def _plan_bias(self, plan: ProgramPlan, g: Geometry, diff_dst: Image, b: Matrix) -> None:
        """Append the sum over all pixels, which is a product with ones."""
        bias = plan.write(plan.tensors["diff_bias"], "a")
        ones = Table(np.ones(max(1, g.dst[2]), np.float32))
        c = Matrix(bias.address, (4 * g.oc,), block=4 * self.isa.lanes)

        def loop() -> list[Step]:
            rows = _places((diff_dst.batch, *diff_dst.spatial[:2]), (g.batch, *g.dst[:2]))
            problem = MatrixProblem(
                isa=self.isa, outer=(g.groups,), cover=Rows(1), columns=g.oc, a=Matrix(ones), b=b,
                c=c, chunks=[Chunk([(0, row) for row in rows.tolist()], g.dst[2])], most_vectors=1,
            )  # fmt: skip
            return tile_steps(problem, plan.blocking)

        plan.add_steps(loop)

    def _read_blocks(self, plan: ProgramPlan, tensor: Tensor, g: Geometry) -> Image:
        """Return diff_dst with channels in vectors and contiguous pixels.

        Each group begins with a new vector.
        """
        tensor, lanes = as_5d(tensor), self.isa.lanes
        desc = tensor.desc
        whole = -(-g.oc // lanes) * lanes
        aligned = g.groups == 1 or g.oc == whole
        if desc.inner_blocks == ((1, lanes),) and desc.strides[4] == lanes and aligned:
            return Image.chosen(tensor)
        wanted = MemoryDesc((g.batch, g.groups * whole, *g.dst), "f32", f"aBcde{lanes}b")
        if aligned:
            return Image.chosen(plan.read(tensor, wanted))
        copy = plan.scratch(wanted)

        def spread() -> Step:
            axes = [Axis(places(desc, dim), places(wanted, dim)) for dim in range(5)]
            channel = np.arange(g.groups * g.oc)
            channel = channel // g.oc * whole + channel % g.oc
            axes[1] = Axis(axes[1].source[: len(channel)], axes[1].target[channel])
            return gather_step(tensor.address, copy.address, axes)

        plan.add(spread, desc.nbytes + wanted.nbytes)
        return Image.chosen(copy)

    def _read_operands(
        self, plan: ProgramPlan, op: Convolution, attr: Attributes, run: int
    ) -> tuple[list[bool], list[Matrix]]:
        """Return, of the post-ops' operands, broadcast flags along output channels and matrices."""
        operands, matrices = plan.operands(attr), []
        splats = [operand.desc.dims[-op.src_role.ndims] == 1 for operand in operands]
        for operand, splat in zip(operands, splats, strict=True):
            wanted: MemoryDesc | str | None = self.weights_format(op)
            if splat:
                wanted = None if operand.desc.is_plain else operand.desc.with_format(None)
            matrices.append(self._matrix(plan.read(operand, wanted), op, run))
        return splats, matrices

    def _matrix(self, tensor: Tensor, op: Convolution, run: int) -> Matrix:
        """Return weights as a matrix: rows are input channels of a tap, columns output channels.

        The outer dims are groups and runs of input channels. The planes are the kernel's dims.
        """
        desc = weights_as_6d(tensor, op.src_role.ndims).desc
        group, block, _, *kernel = steps(desc)
        channels = 4 * places(desc, 2)
        row = 4 * self.isa.lanes
        if run > 1:
            row = int(channels[1]) if desc.dims[2] > 1 else 0  # 0: broadcast
        step = int(channels[run]) if run < desc.dims[2] else 0
        return Matrix(tensor.address, (group, step), row, block, tuple(kernel))


def _images_together(g: Geometry, src: MemoryDesc, attr: Attributes) -> int:
    """Return the number of images that are read at a time. Copies with borders limit it."""
    apart = all(dim for dim, _ in src.inner_blocks) and not attr.post_ops
    if g.ic >= FEW_ROWS or g.is_inside or not apart:
        return max(1, g.batch)
    return max(1, BORDERED_BYTES // max(1, 4 * g.groups * g.ic * math.prod(g.span)))


def _joined(problem: MatrixProblem) -> MatrixProblem:
    """Return an equal problem with the rows of neighbouring taps joined.

    Each tap must be inside the image for all pixels.
    """
    cover = cast(Taps, problem.cover)
    *outside, across = cover.kernel
    chunks = [
        Chunk(list(zip(part.a.tolist(), part.b.tolist(), strict=True)), part.width)
        for part in problem.chunks
    ]
    return replace(problem.as_rows(across * cover.channels, outside), chunks=chunks)


@dataclass(frozen=True, eq=False)
class _Pixels:
    """Rows of pixels of diff_dst: a part of the reduction. A batch stands for a tap.

    a, b: the offsets of the first pixel of each row in src, for the first tap, and in diff_dst, in
    bytes. step: bytes from pixel to pixel in src and in diff_dst. seen: for each tap along D and H,
    whether it is inside the image for each row. along: for each tap along W, the first pixel for
    which it is inside, and the number of such pixels.
    """

    a: Offsets
    b: Offsets
    step: tuple[int, int]
    seen: tuple[Offsets, Offsets]
    along: Sequence[tuple[int, int]]
    width: int
    blocks: int = 1
    a_advance: int = 0
    b_advance: int = 0

    @classmethod
    def of(cls, g: Geometry, src: Image, diff_dst: Image, padding: Triple) -> _Pixels:
        """Return all rows of all images."""
        steps = scaled(src.spatial, g.stride), diff_dst.spatial
        inside = [_seen(g, dim, padding[dim], src.dims[2 + dim]) for dim in range(3)]
        together = 1  # contiguous rows for which all taps are inside the image
        if inside[1].all() and inside[2].all() and all(y == g.dst[2] * x for _, y, x in steps):
            most = max(1, REDUCTION // max(1, g.dst[2]))
            fitting = (n for n in range(1, g.dst[1] + 1) if g.dst[1] % n == 0 and n <= most)
            together = max(fitting, default=1)
        rows = (g.batch, g.dst[0], g.dst[1] // together)
        a, b = (
            _places((image.batch, z, together * y), rows)
            for image, (z, y, _) in zip((src, diff_dst), steps, strict=True)
        )
        _, z, y = np.indices(rows).reshape(3, -1)
        seen = inside[0][:, z], inside[1][:, together * y]
        along = [
            (int(tap.argmax()) if tap.size else 0, together * int(tap.sum())) for tap in inside[2]
        ]
        return cls(a, b, (steps[0][2], steps[1][2]), seen, along, together * g.dst[2])

    @property
    def k(self) -> int:
        """A common divisor of the k of all elements."""
        return math.gcd(*(count for _, count in self.along))

    @property
    def depth(self) -> int:
        """The most products that are summed for an element."""
        return len(self.a) * self.width

    def chunks(self, length: int) -> list[_Pixels]:
        """Return the rows in parts of `length` rows. There is at least one part."""
        length, (seen_z, seen_y) = max(1, length), self.seen
        parts = (slice(at, at + length) for at in range(0, max(1, len(self.a)), length))
        return [
            replace(self, a=self.a[rows], b=self.b[rows], seen=(seen_z[:, rows], seen_y[:, rows]))
            for rows in parts
        ]

    def table(self, tap: Triple) -> Offsets:
        """Return the microkernel's batch: one segment with the rows for which a tap is inside."""
        first, count = self.along[tap[2]]
        seen = self.seen[0][tap[0]] & self.seen[1][tap[1]] & (count > 0)
        pairs = zip((self.a, self.b), self.step, strict=True)
        a, b = (x[seen] + first * step for x, step in pairs)
        sizes = SEGMENT.pack({"count": len(a), "k": count, "elements": []})
        return np.concatenate([sizes, ELEMENT.columns({"a": a, "b": b}).ravel()])


def _seen(g: Geometry, dim: int, padding: int, size: int) -> Offsets:
    """Return whether each tap along a dim is inside the image for each pixel of diff_dst."""
    taps = np.arange(g.kernel[dim])[:, None] * g.dilation[dim] - padding
    at = taps + np.arange(g.dst[dim]) * g.stride[dim]
    return (at >= 0) & (at < size)


def _places(steps: Sequence[int], counts: Sequence[int]) -> Offsets:
    """Return the offsets of all index combinations. The last index changes fastest."""
    return np.tensordot(steps, np.indices(counts), axes=1).ravel()
