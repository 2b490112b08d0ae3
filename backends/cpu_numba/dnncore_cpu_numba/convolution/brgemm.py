"""Direct convolution by batch-reduce GEMM, forward and backward by data: taps are the batch.

A tile is some pixels of dst times some vectors of output channels. The batch runs over taps, in
blocks of input channels, so that each tile is finished in registers. Backward by data is the same
loop over diff_dst, once per phase of the strides. If windows leave the image, tiles have fewer
taps. Images in unsuitable layouts are first copied to the scratchpad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from dnncore.backend import Accepted, Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.isa import DOT_ISAS
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.convolution.base import PlannedConvolution, weights_tag
from dnncore_cpu_numba.convolution.geometry import Geometry, Phase, dot, scaled, weights_as_6d
from dnncore_cpu_numba.convolution.groups import GroupReader
from dnncore_cpu_numba.convolution.image import Image, as_5d, spatial_tag
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.elementwise.epilogue import Epilogue
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.corrections import Term
from dnncore_cpu_numba.gemm.cover import Windows
from dnncore_cpu_numba.gemm.plan import INTEGERS, ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.quantization import ATTRIBUTES, Terms, refuse_varying
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import lesser_share, utilisation
from dnncore_cpu_numba.runtime.program import Arg
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

MOST_PHASES = 1 << 10  # most products; planning one takes about a millisecond
FEW_CHANNELS = 4  # most channels of images that stay plain, such as colour images


class Brgemm(PlannedConvolution):
    """Base of the three directions: their formats."""

    def activations(self, g: Geometry, spatial: str) -> tuple[str, str]:
        """Return blocked tags if the channels fill the blocks, otherwise channels last.

        An input with few channels, as networks have, stays plain if no window leaves it. If windows
        leave it, rows of windows are read faster with channels last (measured).
        """
        src, dst = (self.tag(per_group, spatial, g) for per_group in (g.ic, g.oc))
        few = not g.backward and g.groups == 1 and g.ic <= FEW_CHANNELS
        return f"nc{spatial}" if few and g.is_inside and g.kernel[2] > 1 else src, dst

    def tag(self, per_group: int, spatial: str, _g: Geometry) -> str:
        """Return the tag of activations with `per_group` channels per group."""
        blocked = per_group % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Convolution) -> str | MemoryDesc:
        """Return a format with vectors of output channels.

        The input channels are in runs of the same length as in the image.
        """
        g, lanes = Geometry.of(op), self.isa.lanes
        read, written = "oi" if g.backward else "io"
        if (group := self.arithmetic(op).group) > 1:
            return weights_tag(op, written.upper(), f"{read.upper()}{lanes}{written}{group}{read}")
        image = Image.of(as_5d(Tensor(Arg(0), op.dst_role if g.backward else op.src_role)))
        outer, inner = "", read
        if image is not None and not image.is_channels_last and self.serves(image, g.depth):
            if image.run == 1:
                outer, inner = read, ""
            else:
                outer, inner = read.upper(), f"{lanes}{read}"
        return weights_tag(op, f"{written.upper()}{outer}", f"{inner}{lanes}{written}")

    def room(self, _per_group: int) -> str:
        """Return the tag for the copy of a 5-D image in an unsuitable layout."""
        return "acdeb"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether tiles can read the image.

        Runs of channels must be long, or there must be few channels and contiguous rows of taps.
        """
        if image.is_channels_last or image.run == self.isa.lanes:
            return image.is_channels_last or per_group % image.run == 0
        return image.run == 1 and per_group <= FEW_CHANNELS and image.spatial[2] in (0, image.size)

    def read_image(
        self, plan: ProgramPlan, tensor: Tensor, per_group: int,
        border: tuple[Sequence[int], Sequence[int]] | None = None,
        order: Sequence[int] | None = None,
    ) -> Image:  # fmt: skip
        """Return the tensor, or a copy, as an image that tiles can read.

        border: (pixels before the tensor's first pixel, size) of an image with a border of zeros.
        order: the order of the channels if it differs from the tensor's.
        """
        tensor = as_5d(tensor)
        left, size = border or ((0, 0, 0), tensor.desc.dims[2:])
        image = None if order else Image.of(tensor)
        if image is not None and not self.serves(image, per_group):
            image = None
        if image is not None and not any(left) and all(map(int.__le__, size, image.dims[2:])):
            return image
        tag = self.room(per_group) if image is None else image.tag
        wanted = MemoryDesc((*tensor.desc.dims[:2], *size), tensor.desc.data_type, tag)
        return Image.chosen(plan.read(tensor, wanted, (0, 0, *left), order=order))

    def _read_weights(self, plan: ProgramPlan, op: Convolution) -> Tensor:
        """Return the weights in this direction's format as a 6-D tensor."""
        weights = plan.read(plan.tensors["weights"], self.weights_format(op))
        return weights_as_6d(weights, op.src_role.ndims)

    def _epilogue(
        self, plan: ProgramPlan, op: Convolution, attr: Attributes, per_group: int,
        order: Sequence[int] | None = None, *, fused: bool = True,
    ) -> tuple[Epilogue, list[Matrix]]:  # fmt: skip
        """Return the stages of the epilogue and their operands.

        Operands in unsuitable layouts are copied to channels last. If channels are in another
        order, operands are converted to f32. fused: as in `epilogue.Sum`.
        """
        terms = Terms.of(plan, op, attr, partial(_as_dst, op))
        tensors = [
            as_5d(plan.as_f32(own) if order and own.desc.dims[1] > 1 else own)
            for own in terms.tensors
        ]
        images = [self._read_operand(plan, tensor, per_group, order) for tensor in tensors]
        matrices = [image.matrix(self.isa.lanes, per_group) for image in images]
        splats = [image.dims[1] == 1 for image in images]
        types = [tensor.desc.data_type for tensor in tensors]
        return terms.epilogue(splats, types, fused=fused), matrices

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
    ) -> tuple[Matrix, Literal["zeroed", "masked"]]:  # fmt: skip
        """Return the output as a matrix, and the microkernel's `edge` for its last channels."""
        tensor = as_5d(tensor)
        image = None if order else Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, per_group) is None:
            wanted = tensor.desc.with_format(self.room(per_group))
            tensor = plan.write(tensor, wanted, old=attr.reads_dst, order=order)
            image = Image.chosen(tensor)
        matrix = image.matrix(self.isa.lanes, per_group)
        return matrix, "zeroed" if tensor.desc.has_padding else "masked"


class BrgemmData(Brgemm):
    """Forward and backward by data.

    Weights of format `any` become `OIhw16i16o` or `IOhw16o16i` for 16 lanes.
    """

    data_types = (*FLOATS, "f64", *INTEGERS)
    attributes = ATTRIBUTES

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Plan with the lanes of a vector of this element type."""
        isa = self.arithmetic(op).vectors_of(self.isa)
        own = self if self.isa in DOT_ISAS or isa == self.isa else type(self)(isa)
        return PlannedConvolution.accept(own, op, attr, engine, hint)

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse very many phases, and scales and zero points that vary along K."""
        g = Geometry.of(op)
        phases = math.prod(map(min, g.src, g.stride)) if g.backward else 1
        if phases > MOST_PHASES:
            return Refused("shape", f"has up to {MOST_PHASES} phases; strides make {phases}")
        return super().refused(op, attr) or refuse_varying(op, attr, self.arithmetic(op).group)

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of groups of channels if the instruction set has such products."""
        return Arithmetic.of(op.tensors()[0][1], op.weights_role, self.isa)

    def kept(self, op: Convolution) -> tuple[str, ...]:
        """Return the result and bias, and the factors if they are not converted to f32."""
        factors = [argument.name for argument, _ in op.tensors()[:2]]
        return (op.result_name, op.BIAS, *(() if self.arithmetic(op).converts else factors))

    def resolved(self, op: Convolution) -> Convolution:
        """Use channels last for products of groups, because groups are contiguous there."""
        is_grouped = self.arithmetic(op).group > 1
        return super().resolved(with_channels_last(op) if is_grouped else op)

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of pixels of one phase by output channels.

        Blocks with padding are stored completely.
        """
        g = Geometry.of(op)
        pixels = -(-op.result.dims[-1] // g.phase_stride[2])
        depth = max(1, g.depth * len(g.taps) // math.prod(g.phase_stride))
        stored = self.isa.lanes if op.result.has_padding else g.columns
        arithmetic = self.arithmetic(op)
        filled = g.depth / (arithmetic.group * max(1, arithmetic.groups(g.depth)))
        share = arithmetic.speed(self.isa) * filled * lesser_share(self.isa, stored, depth)
        return share * utilisation(self.isa, pixels, g.columns)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append a tile loop for each phase of the output."""
        g, arithmetic = Geometry.of(op), self.arithmetic(op)
        tensor, depth = as_5d(plan.tensors[g.gathered]), g.depth
        if arithmetic.group > 1:
            inside = self.isa.has_tiles and not g.backward
            reader = GroupReader(plan, arithmetic, g, _zero_point(plan, "src"), inside=inside)
            image, g, depth = reader.image(tensor), reader.g, reader.depth
        else:
            image = self.read_image(plan, tensor, depth)
        weights = self._read_weights(plan, op)
        fused = not arithmetic.is_integer
        epilogue, operands = self._epilogue(plan, op, attr, g.columns, fused=fused)
        output, edge = self._write_image(plan, plan.tensors[op.result_name], g.columns, attr)
        read, written = (1, 2) if g.backward else (2, 1)
        size, group_size = weights.desc.itemsize, arithmetic.size
        strides = [size * stride for stride in weights.desc.strides]
        run = min(image.run, depth)
        k = arithmetic.groups(run)
        b_advance = size * int(places(weights.desc, read)[run]) if run < depth else 0
        b = Matrix(weights.address, (0, strides[0]), block=strides[written])
        *planes, row = scaled(image.spatial, g.step)
        group = image.channel(depth)
        a = Matrix(image.address, (image.batch, group), row, planes=tuple(planes))

        def problem(phase: Phase) -> MatrixProblem:
            shifts = [shift for _, shift in phase.taps]
            batch = [
                (dot(image.spatial, shift), dot(strides[3:], tap)) for tap, shift in phase.taps
            ]
            a_step, b_step = map(int.__sub__, batch[1], batch[0]) if len(batch) > 1 else (0, 0)
            joined = (a_step, b_step) == (group_size * k, group_size * self.isa.lanes * k)
            joined = joined and g.kernel[2] > 1
            c, *others = (in_phase(matrix, phase, g.phase_stride) for matrix in (output, *operands))
            return MatrixProblem(
                isa=self.isa, outer=(g.batch, g.groups), columns=g.columns, a=a, b=b, c=c,
                a_k=group_size,
                cover=Windows(phase.count, g.step, image.dims[2:], shifts, joined), edge=edge,
                epilogue=epilogue, operands=others, row_bytes=size * depth * math.prod(g.step),
                chunks=[Chunk(batch, k, depth // run, image.block, b_advance)],
                arithmetic=arithmetic, result=op.result.data_type,
            )  # fmt: skip

        if arithmetic.is_integer:
            (phase,) = g.phases()
            whole = reader.corrected(problem(phase), _zero_point(plan, "weights"))
            plan.add_steps(lambda: tile_steps(whole, plan.blocking))
            return
        for phase in g.phases():
            plan.add_steps(partial(lambda phase: tile_steps(problem(phase), plan.blocking), phase))


def with_channels_last(op: Convolution) -> Convolution:
    """Return the operation with channels last in place of `any` for activations."""
    last = f"n{spatial_tag(op.src_role.ndims)}c"
    return op.resolve_any(**{op.SRC: last, op.DST: last})


def _zero_point(plan: ProgramPlan, name: str) -> Term | None:
    """Return the zero point of a tensor, which has one value; None without a zero point."""
    tensor = plan.tensors.get(f"{name}_zero_points")
    return None if tensor is None else Term(Matrix(tensor.address), True, tensor.desc.data_type)


def _as_dst(op: Convolution, name: str, tensor: Tensor) -> Tensor:
    """Return an argument of the epilogue with the rank of dst."""
    if name in ("src_scales", "weights_scales", "bias"):
        count = tensor.desc.nelems
        return tensor.seen_as(tensor.desc.reshape((1, count, *[1] * (op.result.ndims - 2))))
    return tensor


def in_phase(matrix: Matrix, phase: Phase, stride: Sequence[int]) -> Matrix:
    """Return the pixels of one phase of an image."""
    steps = matrix.spatial
    *planes, row = scaled(steps, stride)
    address = moved(matrix.address, dot(steps, phase.position))
    return replace(matrix, address=address, planes=tuple(planes), row=row)
