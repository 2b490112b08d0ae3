"""Backward by weights in bf16: products of pairs of neighbouring pixels.

A tile is some input channels times some vectors of output channels of one tap. k runs over pairs of
pixels of a row of diff_dst. The rows are the batch. src is therefore copied with contiguous pixels
and a border of zeros, and diff_dst with its pixels in pairs. If the number of pixels in a row is
odd, the rows of both copies end with a zero. In this case, and for strides along the row, src is
copied once for each tap of a row.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.convolution.base import weights_tag
from dnncore_cpu_numba.convolution.brgemm_weights import REDUCTION, BrgemmWeights
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry, dot, scaled
from dnncore_cpu_numba.convolution.image import as_5d, spatial_tag
from dnncore_cpu_numba.copies.interleave_task import interleave_step
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.cover import Rows, Taps
from dnncore_cpu_numba.gemm.placed import placed_steps
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

ONE = 0x3F80  # the bits of 1.0 in bf16
SIZE, PAIR = 2, 4  # bytes of an element, of a pair


class PairedWeights(BrgemmWeights):
    """Backward by weights and bias.

    `any` becomes `Ohwi16o` for weights and channels last for activations.
    """

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of pairs."""
        return Arithmetic.of(op.src_role, op.dst_role, self.isa)

    def kept(self, op: Convolution) -> tuple[str, ...]:
        """Return the factors, which are copied without conversion."""
        return (op.SRC, op.DST)

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse post-ops. The f32 implementation computes them."""
        if attr.post_ops:
            return Refused("attribute", f"no post-ops on a gradient; got {len(attr.post_ops)}")
        return super().refused(op, attr)

    def resolved(self, op: Convolution) -> Convolution:
        """Resolve activations to channels last, as forward."""
        last = f"n{spatial_tag(op.src_role.ndims)}c"
        return super().resolved(op.resolve_any(**{op.SRC: last, op.DST: last}))

    def weights_format(self, op: Convolution) -> str:
        """Return a format with vectors of output channels for each input channel."""
        return weights_tag(op, "O", f"i{self.isa.lanes}o")

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of input channels by output channels."""
        g = Geometry.of(op)
        return 0.9 * self.arithmetic(op).speed(self.isa) * utilisation(self.isa, g.ic, g.oc)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src, diff_dst = (self._channels_last(plan, plan.tensors[name]) for name in (op.SRC, op.DST))
        if g.kernel == g.stride == ONES and g.src == g.dst:  # all pixels are one row
            pixels = g.src[0] * g.src[1] * g.src[2]
            g = replace(g, src=(1, 1, pixels), dst=(1, 1, pixels))
            src, diff_dst = (_in_one_row(tensor) for tensor in (src, diff_dst))
        b, rows = self._read_pairs(plan, diff_dst, g)
        diff_weights = plan.write(plan.tensors[op.WEIGHTS], self.weights_format(op))
        c = self._matrix(diff_weights, op, g.ic)
        c = replace(c, outer=c.outer[:1])
        even = g.dst[2] % 2 == 0 and g.stride[2] == 1
        taps = [None] if even else list(range(g.kernel[2]))
        for tap in taps:
            a = self._read_rows(plan, src, g, tap)
            self._plan_tap(plan, g, a, b, rows, c, tap)
        if op.bias_role is not None:
            self._plan_bias_of_pairs(plan, g, b, rows)

    def _channels_last(self, plan: ProgramPlan, tensor: Tensor) -> Tensor:
        tensor = as_5d(tensor)
        step = tensor.desc.strides[1] if tensor.desc.is_plain else 0
        serves = tensor.desc.is_plain and (step == 1 or tensor.desc.dims[1] == 1)
        return tensor if serves else plan.read(tensor, "acdeb")

    def _read_pairs(
        self, plan: ProgramPlan, diff_dst: Tensor, g: Geometry
    ) -> tuple[Matrix, list[int]]:
        """Return B, and the offsets of the rows of all images in B."""
        desc, lanes = diff_dst.desc, self.isa.lanes
        n, channel, z, y, x = desc.strides
        dims = (g.batch, *g.dst[:2], g.groups, g.dst[2], g.oc)
        source = diff_dst.seen_as(
            MemoryDesc(dims, desc.data_type, strides=(n, z, y, channel * g.oc, x, channel))
        )
        room = plan.scratch(MemoryDesc(dims, desc.data_type, f"abcdFE{lanes}f2e"))
        plan.add(lambda: interleave_step(source, room, lanes, 2), 2 * room.desc.nbytes)
        steps = [SIZE * stride for stride in room.desc.strides]
        places = itertools.product(*map(range, dims[:3]))
        rows = [dot(steps[:3], place) for place in places]
        return Matrix(room.address, (steps[3],), block=steps[5]), rows

    def _read_rows(self, plan: ProgramPlan, src: Tensor, g: Geometry, tap: int | None) -> Tensor:
        """Return src with contiguous pixels and a border of zeros.

        tap: the tap of a row whose pixels are copied; None copies the pixels of all taps.
        """
        *outside, across = g.span
        if tap is None:
            room = MemoryDesc((g.batch, g.groups * g.ic, *outside, across), "bf16", "abcde")
            return plan.read(src, room, (0, 0, *g.padding))
        length = 2 * -(-g.dst[2] // 2)
        room = MemoryDesc((g.batch, g.groups * g.ic, *outside, length), "bf16", "abcde")
        first = tap * g.dilation[2] - g.padding[2]  # position in src that pixel 0 reads
        stride, width = g.stride[2], src.desc.dims[4]
        start = max(0, -(first // stride))  # first pixel that reads inside src
        stop = min(g.dst[2], max(start, (width - 1 - first) // stride + 1))
        desc = src.desc
        *steps, step = desc.strides
        inside = Tensor(
            moved(src.address, SIZE * step * (first + start * stride)),
            MemoryDesc(
                (*desc.dims[:4], stop - start), desc.data_type, strides=(*steps, stride * step)
            ),
        )
        target = plan.scratch(room)
        starts = (0, 0, *g.padding[:2], start)
        plan.add_steps(lambda: placed_steps(inside, target, starts))
        return target

    def _plan_tap(
        self, plan: ProgramPlan, g: Geometry, src: Tensor, b: Matrix, rows: list[int], c: Matrix,
        tap: int | None,
    ) -> None:  # fmt: skip
        """Append the products of one tap of each row, or of all taps if `tap` is None."""
        n, channel, *spatial = (SIZE * stride for stride in src.desc.strides)
        kernel = g.kernel
        planes = list(scaled(spatial, g.dilation))
        if tap is not None:
            kernel = (*kernel[:2], 1)
            planes[2] = 0
        a = Matrix(src.address, (channel * g.ic,), row=channel, planes=tuple(planes))
        images = itertools.product(*map(range, (g.batch, *g.dst[:2])))
        steps = (n, *scaled(spatial[:2], g.stride[:2]))
        batch = [(dot(steps, place), row) for place, row in zip(images, rows, strict=True)]
        k = -(-g.dst[2] // 2)
        length = max(1, REDUCTION // max(1, 2 * k))
        chunks = [Chunk(batch[i : i + length], k) for i in range(0, max(1, len(batch)), length)]
        address = c.address if tap is None else moved(c.address, tap * c.planes[2])

        def loop() -> list[Step]:
            problem = MatrixProblem(
                isa=self.isa, outer=(g.groups,), cover=Taps(kernel, g.ic), columns=g.oc, a=a, b=b,
                c=replace(c, address=address), edge="zeroed", chunks=chunks,
                arithmetic=Arithmetic("bf16", "bf16"),
            )  # fmt: skip
            return tile_steps(problem.as_rows(g.ic, kernel), plan.blocking)

        plan.add_steps(loop)

    def _plan_bias_of_pairs(
        self, plan: ProgramPlan, g: Geometry, b: Matrix, rows: list[int]
    ) -> None:
        """Append the sum over all pixels, which is a product with ones."""
        bias = plan.write(plan.tensors["diff_bias"], "a")
        k = -(-g.dst[2] // 2)
        ones = Table(np.full(max(1, 2 * k), ONE, np.uint16))
        c = Matrix(bias.address, (4 * g.oc,), block=4 * self.isa.lanes)

        def loop() -> list[Step]:
            problem = MatrixProblem(
                isa=self.isa, outer=(g.groups,), cover=Rows(1), columns=g.oc, a=Matrix(ones), b=b,
                c=c, chunks=[Chunk([(0, row) for row in rows], k)], most_vectors=1,
                arithmetic=Arithmetic("bf16", "bf16"),
            )  # fmt: skip
            return tile_steps(problem, plan.blocking)

        plan.add_steps(loop)


def _in_one_row(tensor: Tensor) -> Tensor:
    """Return the image with all pixels in one row."""
    n, c, *spatial = tensor.desc.dims
    return tensor.seen_as(tensor.desc.reshape((n, c, 1, 1, spatial[0] * spatial[1] * spatial[2])))
