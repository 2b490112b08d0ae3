"""Convolution as a matrix product with a column matrix, on plain formats.

The column matrix has a row per input channel and tap, and a column per pixel of dst: what that tap
reads for that pixel. Forward, it is packed in panels and multiplied by the filter as it lies;
backward by data, a product is such a matrix and is added up into diff_src; backward by weights, it
is multiplied by diff_dst. Some images are treated at a time, so that their columns stay in cache.
"""

from __future__ import annotations

import math

import numpy as np

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.convolution import channel_rows
from dnncore_cpu_numba.convolution.base import PlannedConvolution, weights_tag
from dnncore_cpu_numba.convolution.col2im import col2im_step
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import as_5d
from dnncore_cpu_numba.copies.gather import Axis, gather_step, places
from dnncore_cpu_numba.gemm.cover import Rows
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns, transposed
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

FEW_PRODUCTS = 32  # per element of a column matrix, in the time that it takes to store and add it
STRETCH_ENTRIES, FAST_ENTRIES = 128, 16  # in units of `table_entries`
COLUMN_BYTES = 4 << 20  # of the column matrices that are made at a time


class _Gemm(PlannedConvolution):
    """Base of the directions: plain formats, and the best instruction set."""

    NAME = "cpu_numba:gemm"

    def __init__(self) -> None:
        super().__init__(BEST)

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse post-ops on a gradient, since it is complete only after all tiles."""
        if attr.post_ops and op.result_name != op.DST:
            return Refused("attribute", f"no post-ops on a gradient; got {len(attr.post_ops)}")
        return super().refused(op, attr)

    def table_entries(self, g: Geometry) -> int:
        """A few steps for each stretch of images; the pixels are numbered in numpy."""
        return max(STRETCH_ENTRIES * len(_stretches(g)), math.prod(g.dst) // FAST_ENTRIES)

    def weights_format(self, op: Convolution) -> str:
        """The order of dims."""
        return weights_tag(op, "oi")

    def utilisation(self, op: Convolution) -> float:
        """The utilisation of tiles of output channels by pixels."""
        g = Geometry.of(op)
        return utilisation(self.isa, g.oc, math.prod(g.dst))


class GemmForward(_Gemm):
    """dst[n, g] = weights[g] * columns[n, g]."""

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        image = _read_image(plan, g)
        weights = _read_weights(plan, g)
        terms = channel_rows.read_terms(plan, op, attr, g)
        dst = channel_rows.write_matrices(plan, plan.tensors["dst"], g, attr)

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(blocked_columns(_columns(g, count), BEST.lanes))
            _add_columns(plan, image, columns, g, first)
            MatrixProduct(
                isa=BEST, a=weights, b=columns, c=dst.images(first, count),
                terms=terms.changed(lambda tensor: tensor.images(first, count)),
            ).append_to(plan)  # fmt: skip

        plan.repeat(_stretches(g), part)


class GemmBackwardData(_Gemm):
    """columns[n, g] = transposed weights[g] * diff_dst[n, g], added up into diff_src."""

    def utilisation(self, op: Convolution) -> float:
        """The utilisation is lower if the sums have few products, since stores take longer then."""
        depth = Geometry.of(op).oc
        return super().utilisation(op) * depth / (depth + FEW_PRODUCTS)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        diff_dst = channel_rows.read_matrices(plan, plan.tensors["diff_dst"], g)
        weights = transposed(_read_weights(plan, g))
        diff_src = as_5d(plan.tensors["diff_src"])
        plain = diff_src.desc.is_plain
        diff_src = plan.write(diff_src, None if plain else diff_src.desc.with_format("abcde"))
        strides = diff_src.desc.strides

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(_columns(g, count))
            images = diff_dst.images(first, count)
            MatrixProduct(isa=BEST, a=weights, b=images, c=columns).append_to(plan)
            target = moved(diff_src.address, 4 * first * strides[0])
            plan.add(
                lambda: col2im_step(columns.address, target, strides, g, count),
                columns.desc.nbytes + 4 * count * math.prod(op.src_role.dims[1:]),
            )

        plan.repeat(_stretches(g), part)


class GemmBackwardWeights(_Gemm):
    """transposed diff_weights[g] = sum over n of columns[n, g] * transposed diff_dst[n, g]."""

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        image = _read_image(plan, g)
        diff_dst = transposed(channel_rows.read_matrices(plan, plan.tensors["diff_dst"], g))
        diff_weights = plan.write(plan.tensors["diff_weights"], weights_tag(op, "i", "o"))
        diff_bias = plan.tensors.get("diff_bias")
        if diff_bias is not None:
            diff_bias = plan.write(diff_bias, "a")

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(_columns(g, count))
            _add_columns(plan, image, columns, g, first)
            images = diff_dst.images(first, count)
            panels = plan.read(images, blocked_columns(images.desc, BEST.lanes))
            step, group, row, _ = (4 * stride for stride in columns.desc.strides)
            a, depth = Matrix(columns.address, (group,), row=row), columns.desc.dims[2]
            _add_reduction(plan, g, a, step, panels, diff_weights, depth, first > 0)
            if diff_bias is not None:
                ones = Matrix(Table(np.ones(max(1, math.prod(g.dst)), np.float32)))
                _add_reduction(plan, g, ones, 0, panels, diff_bias, 1, first > 0)

        plan.repeat(_stretches(g), part)


def _add_reduction(
    plan: ProgramPlan, g: Geometry, a: Matrix, a_step: int, panels: Tensor, output: Tensor,
    rows: int, continues: bool,
) -> None:  # fmt: skip
    """Append output[g] = sum over images and pixels of A * panels; rows x output channels.

    a_step: bytes from image to image in A. continues: output holds the sum over earlier images.
    """
    batch, group, _, block = (4 * stride for stride in panels.desc.strides)
    images, _, pixels, _ = panels.desc.dims
    c = Matrix(output.address, (4 * rows * g.oc,), row=4 * g.oc, block=4 * BEST.lanes)

    def loop() -> list[Step]:
        problem = MatrixProblem(
            isa=BEST, outer=(g.groups,), cover=Rows(rows), columns=g.oc, a=a,
            b=Matrix(panels.address, (group,), block=block), c=c, continues=continues,
            chunks=[Chunk([(n * a_step, n * batch) for n in range(images)], pixels)],
        )  # fmt: skip
        return tile_steps(problem, plan.blocking)

    plan.add_steps(loop)


def _stretches(g: Geometry) -> list[tuple[int, int]]:
    """(first, count) of the images whose columns are made at a time."""
    return g.stretches(max(1, COLUMN_BYTES // max(1, _columns(g, 1).nbytes)))


def _columns(g: Geometry, images: int) -> MemoryDesc:
    """The column matrices of some images: (n, G, IC * taps, pixels)."""
    return MemoryDesc((images, g.groups, g.ic * len(g.taps), math.prod(g.dst)))


def _read_image(plan: ProgramPlan, g: Geometry) -> Tensor:
    """src in a plain layout, with the border that windows read."""
    tensor = as_5d(plan.tensors["src"])
    if g.is_inside and tensor.desc.is_plain:
        return tensor
    wanted = MemoryDesc((*tensor.desc.dims[:2], *g.span))
    return plan.read(tensor, wanted, (0, 0, *g.padding))


def _read_weights(plan: ProgramPlan, g: Geometry) -> Tensor:
    """The filter as (1, G, OC, IC * taps), row-major."""
    tensor = plan.tensors["weights"]
    tensor = plan.read(tensor, "abcdef"[: tensor.desc.ndims])
    return tensor.seen_as(MemoryDesc((1, g.groups, g.oc, g.ic * len(g.taps))))


def _add_columns(
    plan: ProgramPlan, image: Tensor, columns: Tensor, g: Geometry, first: int
) -> None:
    """Append the copy that makes the column matrices of some images."""

    def step() -> Step:
        strides = image.desc.strides
        source = moved(image.address, 4 * first * strides[0])
        n, group, row, pixel = (places(columns.desc, dim) for dim in range(4))
        channel, taps = np.arange(g.groups * g.ic), len(g.taps)
        dilated = np.multiply(strides[2:], g.dilation)
        windows = np.indices(g.dst).reshape(3, -1).T
        axes = [
            Axis(np.arange(len(n)) * strides[0], n),
            Axis(channel * strides[1], group[channel // g.ic] + row[channel % g.ic * taps]),
            Axis(np.array(g.taps) @ dilated, row[:taps]),
            Axis(windows @ np.multiply(strides[2:], g.stride), pixel),
        ]
        return gather_step(source, columns.address, axes)

    plan.add(step, 3 * columns.desc.nbytes)  # short stretches: slower than other copies
