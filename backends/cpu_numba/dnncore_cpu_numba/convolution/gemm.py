"""Convolution as a matrix product with a column matrix, on plain formats.

The column matrix has one row per input channel and tap, and one column per pixel of dst. An element
is the value that the tap reads for the pixel. Forward, the column matrix is packed in panels and
multiplied by the weights in place. Backward by data, the product is a column matrix, which is
summed into diff_src. Backward by weights, the column matrix is multiplied by diff_dst. A few images
are computed at a time, so that their columns stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.convolution import channel_rows
from dnncore_cpu_numba.convolution.base import PlannedConvolution, weights_tag
from dnncore_cpu_numba.convolution.col2im import col2im_step
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import as_5d
from dnncore_cpu_numba.copies.gather import Axis, gather_step, places
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, F64_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.cover import Rows
from dnncore_cpu_numba.gemm.factors import prepare
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns, transposed
from dnncore_cpu_numba.gemm.quantization import ATTRIBUTES, refuse_uniform
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

WHOLE = Arithmetic("s32", "s32")
FEW_PRODUCTS = 32  # products in the time of storing and adding one element of a column matrix
STRETCH_ENTRIES, FAST_ENTRIES = 128, 16  # entries per stretch of images; pixels per entry
COLUMN_BYTES = 4 << 20  # bytes of the column matrices that are computed at a time


class _Gemm(PlannedConvolution):
    """Base of the directions: plain formats, and the best instruction set."""

    NAME = "cpu_numba:gemm"
    data_types: Collection[str] = (*FLOATS, "f64")

    def __init__(self) -> None:
        super().__init__(BEST)

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of f64 or f32."""
        return F64_PRODUCTS if op.data_type == "f64" else F32_PRODUCTS

    def kept(self, op: Convolution) -> tuple[str, ...]:
        """Return all arguments, or none if they are converted to f32."""
        if self.arithmetic(op).converts:
            return ()
        return tuple(argument.name for argument, _ in op.tensors())

    def has_second_pass(self, op: Convolution, attr: Attributes) -> bool:
        """Whether a second pass follows. Post-ops on a gradient need the complete sums."""
        on_gradient = bool(attr.post_ops) and op.result_name != op.DST
        return on_gradient or super().has_second_pass(op, attr)

    def table_entries(self, g: Geometry) -> int:
        """Return the entries for the steps of each stretch, or for the pixels if they are more.

        numpy computes the tables of pixels, which is fast.
        """
        return max(STRETCH_ENTRIES * len(_stretches(g)), math.prod(g.dst) // FAST_ENTRIES)

    def weights_format(self, op: Convolution) -> str:
        """Return the plain format."""
        return weights_tag(op, "oi")

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of output channels by pixels."""
        g, arithmetic = Geometry.of(op), self.arithmetic(op)
        isa = arithmetic.vectors_of(self.isa)
        return arithmetic.speed(self.isa) * utilisation(isa, g.oc, math.prod(g.dst))


class GemmForward(_Gemm):
    """dst[n, g] = weights[g] * columns[n, g].

    Integers are multiplied as s32, after subtracting zero points that vary along K.
    """

    data_types = (*FLOATS, "f64", *INTEGERS)
    attributes = ATTRIBUTES

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of f64, f32 or s32."""
        return WHOLE if op.data_type in INTEGERS else super().arithmetic(op)

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse integers that other implementations compute faster."""
        is_integer = op.data_type in INTEGERS
        return (refuse_uniform(op, attr) if is_integer else None) or super().refused(op, attr)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g, arithmetic = Geometry.of(op), self.arithmetic(op)
        prepare(plan, op, attr, arithmetic)
        lanes = arithmetic.vectors_of(BEST).lanes
        image = _read_image(plan, g)
        weights = _read_weights(plan, g)
        terms = channel_rows.read_terms(plan, op, attr, g)
        dst = channel_rows.write_matrices(plan, plan.tensors["dst"], g, attr)

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(blocked_columns(_columns(g, count, arithmetic), lanes))
            _add_columns(plan, image, columns, g, first)
            MatrixProduct(
                isa=BEST, a=weights, b=columns, c=dst.images(first, count), arithmetic=arithmetic,
                terms=terms.changed(lambda tensor: tensor.images(first, count)),
            ).append_to(plan)  # fmt: skip

        plan.repeat(_stretches(g), part)


class GemmBackwardData(_Gemm):
    """columns[n, g] = transposed weights[g] * diff_dst[n, g], then summed into diff_src."""

    def utilisation(self, op: Convolution) -> float:
        """Return a lower utilisation for sums of few products, because stores then dominate."""
        depth = Geometry.of(op).oc
        return super().utilisation(op) * depth / (depth + FEW_PRODUCTS)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g, arithmetic = Geometry.of(op), self.arithmetic(op)
        diff_dst = channel_rows.read_matrices(plan, plan.tensors["diff_dst"], g)
        weights = transposed(_read_weights(plan, g))
        diff_src = as_5d(plan.tensors["diff_src"])
        plain = diff_src.desc.is_plain
        diff_src = plan.write(diff_src, None if plain else diff_src.desc.with_format("abcde"))
        strides = diff_src.desc.strides

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(_columns(g, count, arithmetic))
            images = diff_dst.images(first, count)
            MatrixProduct(
                isa=BEST, a=weights, b=images, c=columns, arithmetic=arithmetic
            ).append_to(plan)  # fmt: skip
            size = arithmetic.size
            target = moved(diff_src.address, size * first * strides[0])
            plan.add(
                lambda: col2im_step(columns.address, target, strides, g, count, arithmetic.real),
                columns.desc.nbytes + size * count * math.prod(op.src_role.dims[1:]),
            )

        plan.repeat(_stretches(g), part)


class GemmBackwardWeights(_Gemm):
    """transposed diff_weights[g] = sum over n of columns[n, g] * transposed diff_dst[n, g]."""

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g, arithmetic = Geometry.of(op), self.arithmetic(op)
        lanes = arithmetic.vectors_of(BEST).lanes
        image = _read_image(plan, g)
        diff_dst = transposed(channel_rows.read_matrices(plan, plan.tensors["diff_dst"], g))
        diff_weights = plan.write(plan.tensors["diff_weights"], weights_tag(op, "i", "o"))
        diff_bias = plan.tensors.get("diff_bias")
        if diff_bias is not None:
            diff_bias = plan.write(diff_bias, "a")

        def part(plan: ProgramPlan, first: int, count: int) -> None:
            columns = plan.scratch(_columns(g, count, arithmetic))
            _add_columns(plan, image, columns, g, first)
            images = diff_dst.images(first, count)
            panels = plan.read(images, blocked_columns(images.desc, lanes))
            step, group, row, _ = (arithmetic.size * stride for stride in columns.desc.strides)
            a, depth = Matrix(columns.address, (group,), row=row), columns.desc.dims[2]
            _add_reduction(plan, g, a, step, panels, diff_weights, depth, arithmetic, first > 0)
            if diff_bias is not None:
                kind = np.float64 if arithmetic.real == "f64" else np.float32
                ones = Matrix(Table(np.ones(max(1, math.prod(g.dst)), kind)))
                _add_reduction(plan, g, ones, 0, panels, diff_bias, 1, arithmetic, first > 0)

        plan.repeat(_stretches(g), part)


def _add_reduction(
    plan: ProgramPlan, g: Geometry, a: Matrix, a_step: int, panels: Tensor, output: Tensor,
    rows: int, arithmetic: Arithmetic, continues: bool,
) -> None:  # fmt: skip
    """Append output[g] = sum over images and pixels of A * panels.

    The output has `rows` rows and a column per output channel. a_step: bytes from image to image in
    A. continues: output holds the sum over earlier images.
    """
    size, isa = arithmetic.size, arithmetic.vectors_of(BEST)
    batch, group, _, block = (size * stride for stride in panels.desc.strides)
    images, _, pixels, _ = panels.desc.dims
    c = Matrix(output.address, (size * rows * g.oc,), row=size * g.oc, block=size * isa.lanes)

    def loop() -> list[Step]:
        problem = MatrixProblem(
            isa=isa, outer=(g.groups,), cover=Rows(rows), columns=g.oc, a=a, a_k=size,
            b=Matrix(panels.address, (group,), block=block), c=c, continues=continues,
            chunks=[Chunk([(n * a_step, n * batch) for n in range(images)], pixels)],
            arithmetic=arithmetic, result=arithmetic.real,
        )  # fmt: skip
        return tile_steps(problem, plan.blocking)

    plan.add_steps(loop)


def _stretches(g: Geometry) -> list[tuple[int, int]]:
    """Return (first, count) of the images whose columns are computed at a time."""
    return g.stretches(max(1, COLUMN_BYTES // max(1, _columns(g, 1, F32_PRODUCTS).nbytes)))


def _columns(g: Geometry, images: int, arithmetic: Arithmetic) -> MemoryDesc:
    """Return the column matrices of some images: (n, G, IC * taps, pixels)."""
    dims = (images, g.groups, g.ic * len(g.taps), math.prod(g.dst))
    return MemoryDesc(dims, arithmetic.a)


def _read_image(plan: ProgramPlan, g: Geometry) -> Tensor:
    """Return src in a plain layout, with a border for the windows that leave it."""
    tensor = as_5d(plan.tensors["src"])
    if g.is_inside and tensor.desc.is_plain:
        return tensor
    wanted = MemoryDesc((*tensor.desc.dims[:2], *g.span), tensor.desc.data_type)
    return plan.read(tensor, wanted, (0, 0, *g.padding))


def _read_weights(plan: ProgramPlan, g: Geometry) -> Tensor:
    """Return the weights as (1, G, OC, IC * taps), row-major."""
    tensor = plan.tensors["weights"]
    tensor = plan.read(tensor, "abcdef"[: tensor.desc.ndims])
    dims = (1, g.groups, g.oc, g.ic * len(g.taps))
    return tensor.seen_as(MemoryDesc(dims, tensor.desc.data_type))


def _add_columns(
    plan: ProgramPlan, image: Tensor, columns: Tensor, g: Geometry, first: int
) -> None:
    """Append the copy that creates the column matrices of some images.

    The copy moves 4-byte words, two for each f64.
    """

    def step() -> Step:
        words = image.desc.itemsize // 4
        strides = [words * stride for stride in image.desc.strides]
        source = moved(image.address, 4 * first * strides[0])
        n, group, row, pixel = (words * places(columns.desc, dim) for dim in range(4))
        channel, taps = np.arange(g.groups * g.ic), len(g.taps)
        dilated = np.multiply(strides[2:], g.dilation)
        windows = np.indices(g.dst).reshape(3, -1).T
        axes = [
            Axis(np.arange(len(n)) * strides[0], n),
            Axis(channel * strides[1], group[channel // g.ic] + row[channel % g.ic * taps]),
            Axis(np.array(g.taps) @ dilated, row[:taps]),
            Axis(windows @ np.multiply(strides[2:], g.stride), pixel),
            Axis(np.arange(words), np.arange(words)),
        ]
        return gather_step(source, columns.address, axes)

    plan.add(step, 3 * columns.desc.nbytes)  # slower than other copies, because runs are short
