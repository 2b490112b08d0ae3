"""Direct convolution by batch-reduce GEMM, forward and backward by data: taps are the batch.

A tile is some pixels of dst times some vectors of output channels; the batch runs over taps, in
blocks of input channels, so that each tile is finished in registers. Backward by data is the same
loop over diff_dst, once per phase of the strides. Where windows leave the image, tiles have fewer
taps. An image whose layout does not serve is first copied into the scratchpad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Refused
from dnncore_cpu_numba.convolution.geometry import (
    ONES,
    Geometry,
    Phase,
    Triple,
    dot,
    refuse_algorithm,
    scaled,
    weights_as_6d,
)
from dnncore_cpu_numba.convolution.image import Image, as_5d, spatial_tag
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, Operand, from_post_ops
from dnncore_cpu_numba.gemm.cover import Windows
from dnncore_cpu_numba.gemm.plan import PlannedImplementation, ProgramPlan, has_sum
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.tiles import tile_step
from dnncore_cpu_numba.gemm.tiling import lesser_share, utilisation
from dnncore_cpu_numba.runtime.program import Arg, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

FEW_CHANNELS = 4  # of a plain image, such as an input with its colours


class Brgemm(PlannedImplementation):
    """Base of the three directions: the formats that they need.

    filter_letters: of the filter's channels, those of the image that is read and of the output.
    """

    filter_letters = "i", "o"

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """Refuse other algorithms."""
        return refuse_algorithm(op, "direct") or super().refused(op, attr)

    def resolved(self, op: Any) -> Any:
        """Activations become blocked where channels fill the blocks, else channels last.

        The input of a network, with few channels, stays plain, as users have it, where no window
        leaves it; elsewhere, measured, the rows of windows are read quicker channels last.
        """
        g, spatial = Geometry.of(op), spatial_tag(op.src_role.ndims)
        formats = {
            name: self.activations(g, per_group, spatial)
            for name, per_group in ((op.SRC, g.ic), (op.DST, g.oc))
        }
        if self.filter_letters[0] == "i" and g.groups == 1 and g.ic <= FEW_CHANNELS:
            leaves = any(g.padding) or any(map(int.__gt__, g.span, g.src))
            if not leaves and g.kernel[2] > 1:
                formats[op.SRC] = f"nc{spatial}"
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        op = op.resolve_any(**formats)
        return op.resolve_any(**{op.WEIGHTS: self.weights_format(op)})

    def activations(self, _geometry: Geometry, per_group: int, spatial: str) -> str:
        """The tag of activations with `per_group` channels per group."""
        blocked = per_group % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def gathered(self, op: Any) -> MemoryDesc:
        """The image whose channels are the filter's that come first in `filter_letters`."""
        desc: MemoryDesc = op.src_role
        return desc

    def weights_format(self, op: Any) -> str:
        """Vectors of the output's channels; inside, the image's channels in its own runs."""
        read, written = self.filter_letters
        image = Image.of(Tensor(Arg(0), as_5d(self.gathered(op))))
        ndims, lanes = op.src_role.ndims, self.isa.lanes
        grouped, spatial = "g" * (op.weights_role.ndims - ndims), spatial_tag(ndims)
        channels = op.grouped_weights[1 if read == "o" else 2]
        inside = f"{spatial}{read}"
        if image is not None and not image.is_channels_last and self.serves(image, channels):
            if image.run == 1:
                inside = f"{read}{spatial}"
            elif channels % lanes == 0:
                inside = f"{read.upper()}{spatial}{lanes}{read}"
        return f"{grouped}{written.upper()}{inside}{lanes}{written}"

    def room(self, _per_group: int) -> str:
        """The tag of a 5-D image that is copied since its layout does not serve."""
        return "acdeb"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether runs of channels are long, or so few that rows of taps do as well."""
        if image.is_channels_last or image.run == self.isa.lanes:
            return image.is_channels_last or per_group % image.run == 0
        return image.run == 1 and per_group <= FEW_CHANNELS and image.spatial[2] in (0, 4)

    def read_image(
        self, plan: ProgramPlan, tensor: Tensor, per_group: int,
        border: tuple[Sequence[int], Sequence[int]] | None = None,
        order: Sequence[int] | None = None,
    ) -> Image:  # fmt: skip
        """An image that tiles can read.

        border: (pixels before the tensor's first one, size) of an image with a border of zeros.
        order: of the channels, if not the tensor's.
        """
        tensor = tensor.seen_as(as_5d(tensor.desc))
        left, size = border or ((0, 0, 0), tensor.desc.dims[2:])
        image = None if order else Image.of(tensor)
        if image is not None and not self.serves(image, per_group):
            image = None
        inside = not any(left) and all(map(int.__le__, size, tensor.desc.dims[2:]))
        if image is not None and inside:
            return image
        tag = self.room(per_group) if image is None else image.tag
        wanted = MemoryDesc((*tensor.desc.dims[:2], *size), "f32", tag)
        return Image.chosen(plan.read(tensor, wanted, (0, 0, *left), order=order))

    def _read_weights(self, plan: ProgramPlan, op: Any) -> Tensor:
        """The filter in this direction's format, as 6-D."""
        weights = plan.read(plan.argument("weights", op.weights), self.weights_format(op))
        return weights.seen_as(weights_as_6d(weights.desc, op.src_role.ndims))

    def _epilogue(
        self, plan: ProgramPlan, attr: Attributes, per_group: int, bias: Tensor | None = None,
        order: Sequence[int] | None = None,
    ) -> tuple[Epilogue, list[Matrix]]:  # fmt: skip
        """Bias and post-ops; operands whose layout does not serve are read as channels last."""
        tensors = [operand.seen_as(as_5d(operand.desc)) for operand in plan.operands(attr)]
        if bias is not None:
            tensors.insert(0, bias.seen_as(bias.desc.reshape((1, *bias.desc.dims, 1, 1, 1))))
        images = [self._read_operand(plan, tensor, per_group, order) for tensor in tensors]
        splats = [image.dims[1] == 1 for image in images]
        first = () if bias is None else (Operand("add", splats.pop(0)),)
        matrices = [image.matrix(self.isa.lanes, per_group) for image in images]
        return (*first, *from_post_ops(attr, splats)), matrices

    def _read_operand(
        self, plan: ProgramPlan, tensor: Tensor, per_group: int, order: Sequence[int] | None
    ) -> Image:
        if tensor.desc.dims[1] == 1:
            order = None
        image = None if order else Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, per_group) is None:
            wanted = tensor.desc.with_format(self.room(per_group) if order else "acdeb")
            image = Image.chosen(plan.read(tensor, wanted, order=order))
        return image

    def _write_image(
        self, plan: ProgramPlan, tensor: Tensor, per_group: int, attr: Attributes,
        order: Sequence[int] | None = None,
    ) -> tuple[Matrix, str]:  # fmt: skip
        """The output as a matrix, and the microkernel's `edge` for its last channels."""
        tensor = tensor.seen_as(as_5d(tensor.desc))
        image = None if order else Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, per_group) is None:
            wanted = tensor.desc.with_format(self.room(per_group))
            tensor = plan.write(tensor, wanted, old=has_sum(attr), order=order)
            image = Image.chosen(tensor)
        edge = "zeroed" if tensor.desc.has_padding else "masked"
        return image.matrix(self.isa.lanes, per_group), edge


class _Gathering(Brgemm):
    """Forward and backward by data: pixels of the output gather from an image through taps."""

    def gather(
        self, plan: ProgramPlan, g: Geometry, phases: Sequence[Phase], step: Triple, image: Image,
        weights: Tensor, channels: tuple[int, int], output: Matrix, stride: Triple, **loop: Any,
    ) -> None:  # fmt: skip
        """Append a tile loop for each phase of the output.

        step: from window to window in the image. channels: per group, of the image and the output.
        stride: from pixel to pixel of a phase. loop: further fields of the `MatrixProblem`.
        """
        depth, columns = channels
        read, written = (2, 1) if self.filter_letters[0] == "i" else (1, 2)
        strides = [4 * stride for stride in weights.desc.strides]
        run = min(image.run, depth)
        b_advance = 4 * int(places(weights.desc, read)[run]) if run < depth else 0
        b = Matrix(weights.address, (0, strides[0]), block=strides[written])
        row_bytes = 4 * depth * math.prod(step)
        operands = loop.pop("operands")
        *planes, row = scaled(image.spatial, step)
        a = Matrix(image.address, (image.batch, image.channel(depth)), row, planes=tuple(planes))

        def part(phase: Phase) -> Step:
            shifts = [shift for _, shift in phase.taps]
            batch = [
                (dot(image.spatial, shift), dot(strides[3:], tap)) for tap, shift in phase.taps
            ]
            a_step, b_step = map(int.__sub__, batch[1], batch[0]) if len(batch) > 1 else (0, 0)
            joined = (a_step, b_step) == (4 * run, 4 * self.isa.lanes * run)
            cover = Windows(phase.count, step, image.dims[2:], shifts, joined and g.kernel[2] > 1)
            c, *others = (in_phase(matrix, phase, stride) for matrix in (output, *operands))
            problem = MatrixProblem(
                isa=self.isa, outer=(g.batch, g.groups), cover=cover, columns=columns, a=a, b=b,
                c=c, operands=others, row_bytes=row_bytes,
                chunks=[Chunk(batch, run, depth // run, image.block, b_advance)], **loop,
            )  # fmt: skip
            return tile_step(problem, plan.num_threads)

        for phase in phases:
            plan.add(partial(part, phase))

    def reached(self, output: MemoryDesc, pixels: int, columns: int, depth: int) -> float:
        """The part of the peak that tiles reach; blocks with padding are stored whole."""
        stored = self.isa.lanes if output.has_padding else columns
        return lesser_share(self.isa, stored, depth) * utilisation(self.isa, pixels, columns)


class BrgemmForward(_Gathering):
    """Forward; weights become `OIhw16i16o` (with the lanes of the instruction set)."""

    def utilisation(self, op: Any) -> float:
        """The utilisation of tiles of pixels by output channels."""
        g = Geometry.of(op)
        return self.reached(op.dst, g.dst[2], g.oc, g.ic * len(g.taps))

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src = self.read_image(plan, plan.argument("src", op.src), g.ic)
        weights = self._read_weights(plan, op)
        bias = None if op.bias is None else plan.argument("bias", op.bias)
        epilogue, operands = self._epilogue(plan, attr, g.oc, bias)
        dst, edge = self._write_image(plan, plan.argument("dst", op.dst), g.oc, attr)
        self.gather(
            plan, g, [g.windows()], g.stride, src, weights, (g.ic, g.oc), dst, ONES,
            edge=edge, epilogue=epilogue, operands=operands,
        )  # fmt: skip


class BrgemmBackwardData(_Gathering):
    """Backward by data; weights become `IOhw16o16i` (with the lanes of the instruction set)."""

    filter_letters = "o", "i"

    def gathered(self, op: Any) -> MemoryDesc:
        """The image that is read."""
        desc: MemoryDesc = op.dst_role
        return desc

    def utilisation(self, op: Any) -> float:
        """The utilisation of tiles of pixels of one phase by input channels."""
        g = Geometry.of(op)
        pixels = -(-g.src[2] // g.stride[2])
        depth = g.oc * len(g.taps) // math.prod(g.stride)
        return self.reached(op.diff_src, pixels, g.ic, depth)

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        diff_dst = self.read_image(plan, plan.argument("diff_dst", op.diff_dst), g.oc)
        weights = self._read_weights(plan, op)
        epilogue, operands = self._epilogue(plan, attr, g.ic)
        result = plan.argument("diff_src", op.diff_src)
        diff_src, edge = self._write_image(plan, result, g.ic, attr)
        self.gather(
            plan, g, g.phases(), ONES, diff_dst, weights, (g.oc, g.ic), diff_src, g.stride,
            edge=edge, epilogue=epilogue, operands=operands,
        )  # fmt: skip


def in_phase(matrix: Matrix, phase: Phase, stride: Sequence[int]) -> Matrix:
    """The pixels of one phase of an image."""
    steps = matrix.spatial
    *planes, row = scaled(steps, stride)
    address = moved(matrix.address, dot(steps, phase.position))
    return replace(matrix, address=address, planes=tuple(planes), row=row)
