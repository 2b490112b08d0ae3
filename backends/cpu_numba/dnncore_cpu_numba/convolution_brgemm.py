"""Direct convolution by batch-reduce GEMM, forward and backward by data: taps are the batch.

A tile is some pixels of one row of dst times some vectors of output channels; the batch runs over
taps and runs of input channels, so that each tile is finished in registers. Backward by data is the
same loop over diff_dst, once per phase of the strides. Where windows leave the image, or its layout
does not serve, it is first copied, with a border of zeros, into the scratchpad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Refused
from dnncore_cpu_numba.epilogue import Epilogue, Operand, from_post_ops
from dnncore_cpu_numba.geometry import (
    Geometry,
    Phase,
    dot,
    refuse_algorithm,
    scaled,
    weights_as_6d,
)
from dnncore_cpu_numba.image import Image, as_5d, spatial_tag
from dnncore_cpu_numba.plan import Plan, Planned, Tensor, has_sum, moved
from dnncore_cpu_numba.program import Step
from dnncore_cpu_numba.tiles import Chunk, Matrix, TileLoop, utilisation

__all__ = ["Brgemm", "BrgemmBackwardData", "BrgemmForward", "in_phase", "joins_taps"]


class Brgemm(Planned):
    """What the three directions share: the formats that they want."""

    weights_tag: str  # of an ungrouped filter

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """Another algorithm."""
        return refuse_algorithm(op, "direct") or super().refused(op, attr)

    def resolved(self, op: Any) -> Any:
        """Activations become blocked where channels fill the blocks, else channels last."""
        g, spatial = Geometry.of(op), spatial_tag(op.src_role.ndims)
        formats = {
            name: self.activations(g, per_group, spatial)
            for name, per_group in ((op.SRC, g.ic), (op.DST, g.oc))
        }
        formats[op.WEIGHTS] = self.weights_format(op)
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        return op.resolve_any(**formats)

    def activations(self, _geometry: Geometry, per_group: int, spatial: str) -> str:
        """The tag that activations with so many channels per group become."""
        blocked = per_group % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Any) -> str:
        """The tag of the filter that the tiles read or write."""
        grouped = "g" if op.weights_role.ndims > op.src_role.ndims else ""
        spatial = spatial_tag(op.src_role.ndims)
        return grouped + self.weights_tag.format(spatial=spatial, lanes=self.isa.lanes)

    def room(self, _per_group: int) -> str:
        """The tag of a 5-D image that is copied since its layout does not serve."""
        return "acdeb"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether tiles can read an image as it lies."""
        return image.is_channels_last or per_group % image.run == 0

    def read_image(
        self, plan: Plan, tensor: Tensor, per_group: int, left: Sequence[int], size: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> Image:  # fmt: skip
        """An image of `size` pixels whose first one lies `left` of the tensor's.

        order: of the channels, if not the tensor's.
        """
        tensor = tensor.seen_as(as_5d(tensor.desc))
        image = None if order else Image.of(tensor)
        serves = image is not None and self.serves(image, per_group)
        inside = not any(left) and all(map(int.__le__, size, tensor.desc.dims[2:]))
        if serves and inside:
            return image
        tag = image.tag if serves else self.room(per_group)
        wanted = MemoryDesc((*tensor.desc.dims[:2], *size), "f32", tag)
        return Image.of(plan.read(tensor, wanted, (0, 0, *left), order=order))

    def _read_weights(self, plan: Plan, op: Any) -> tuple[Tensor, list[int]]:
        """The filter in this direction's format, and its strides, in bytes, as 6-D."""
        desc, tag = op.weights, self.weights_format(op)
        wanted = None if desc.matches(tag) else desc.with_format(tag)
        weights = plan.read(plan.argument("weights", desc), wanted)
        return weights, [4 * s for s in weights_as_6d(weights.desc, op.src_role.ndims).strides]

    def _epilogue(
        self, plan: Plan, attr: Attributes, per_group: int, bias: Tensor | None = None,
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
        self, plan: Plan, tensor: Tensor, per_group: int, order: Sequence[int] | None
    ) -> Image:
        if tensor.desc.dims[1] == 1:
            order = None
        image = None if order else Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, per_group) is None:
            wanted = tensor.desc.with_format(self.room(per_group) if order else "acdeb")
            image = Image.of(plan.read(tensor, wanted, order=order))
        return image

    def _write_image(
        self, plan: Plan, tensor: Tensor, per_group: int, attr: Attributes,
        order: Sequence[int] | None = None,
    ) -> tuple[Matrix, str]:  # fmt: skip
        """The output, and how the edge of its channels is treated."""
        tensor = tensor.seen_as(as_5d(tensor.desc))
        image = None if order else Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, per_group) is None:
            wanted = tensor.desc.with_format(self.room(per_group))
            tensor = plan.write(tensor, wanted, old=has_sum(attr), order=order)
            image = Image.of(tensor)
        edge = "zeroed" if tensor.desc.has_padding else "masked"
        return image.matrix(self.isa.lanes, per_group), edge


class BrgemmForward(Brgemm):
    """Forward; weights become `Ohwi16o` (with the lanes of the instruction set)."""

    weights_tag = "O{spatial}i{lanes}o"

    def utilisation(self, op: Any) -> float:
        """That of tiles of pixels by output channels."""
        g = Geometry.of(op)
        return utilisation(self.isa, g.dst[2], g.oc)

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src = self.read_image(plan, plan.argument("src", op.src), g.ic, g.padding, g.span)
        weights, steps = self._read_weights(plan, op)
        bias = None if op.bias is None else plan.argument("bias", op.bias)
        epilogue, operands = self._epilogue(plan, attr, g.oc, bias)
        dst, edge = self._write_image(plan, plan.argument("dst", op.dst), g.oc, attr)
        *outer, row = scaled(src.spatial, g.stride)
        a = Matrix(src.address, (src.batch, src.channel(g.ic), *outer), row)
        b = Matrix(weights.address, (0, steps[0]), block=steps[1])

        def loop() -> Step:
            return TileLoop(
                isa=self.isa, outer=(g.batch, g.groups, *g.dst[:2]), rows=g.dst[2], columns=g.oc,
                a=a, b=b, c=dst, edge=edge, epilogue=epilogue, operands=operands,
                chunks=[self._taps(g, src, steps)],
            ).step(plan.num_threads)  # fmt: skip

        plan.add(loop)

    def _taps(self, g: Geometry, src: Image, steps: Sequence[int]) -> Chunk:
        """All taps and runs of channels; taps of one row are joined where they are contiguous."""
        distances = scaled(src.spatial, g.dilation)
        taps = [(dot(distances, tap), dot(steps[3:], tap)) for tap in g.taps]
        if joins_taps(g, src):
            return Chunk(taps[:: g.kernel[2]], g.kernel[2] * g.ic)
        return _over_runs(taps, src, g.ic, steps[2])


class BrgemmBackwardData(Brgemm):
    """Backward by data; weights become `Ihwo16i` (with the lanes of the instruction set)."""

    weights_tag = "I{spatial}o{lanes}i"

    def utilisation(self, op: Any) -> float:
        """That of tiles of pixels of one phase by input channels."""
        g = Geometry.of(op)
        return utilisation(self.isa, -(-g.src[2] // g.stride[2]), g.ic)

    def plan(self, plan: Plan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        phases = g.phases()
        left, size = g.reach(phases)
        diff_dst = self.read_image(plan, plan.argument("diff_dst", op.diff_dst), g.oc, left, size)
        weights, steps = self._read_weights(plan, op)
        epilogue, operands = self._epilogue(plan, attr, g.ic)
        diff_src = plan.argument("diff_src", op.diff_src)
        diff_src, edge = self._write_image(plan, diff_src, g.ic, attr)
        a = replace(diff_dst.matrix(self.isa.lanes, g.oc), block=0)
        b = Matrix(weights.address, (0, steps[0]), block=steps[2])

        def loop(phase: Phase) -> Step:
            taps = [
                (dot(diff_dst.spatial, map(int.__add__, left, shift)), dot(steps[3:], tap))
                for tap, shift in phase.taps
            ]
            return TileLoop(
                isa=self.isa, outer=(g.batch, g.groups, *phase.count[:2]), rows=phase.count[2],
                columns=g.ic, a=a, b=b, c=in_phase(diff_src, phase, g.stride),
                edge=edge, epilogue=epilogue,
                operands=[in_phase(operand, phase, g.stride) for operand in operands],
                chunks=[_over_runs(taps, diff_dst, g.oc, steps[1])],
            ).step(plan.num_threads)  # fmt: skip

        for phase in phases:
            plan.add(lambda phase=phase: loop(phase))


def joins_taps(g: Geometry, src: Image) -> bool:
    """Whether the taps of one row, and their channels, are one contiguous run of src."""
    dense = src.is_channels_last and src.spatial[2] == 4 * g.ic
    return dense and g.groups == 1 and g.dilation[2] == 1


def _over_runs(taps: Sequence[tuple[int, int]], image: Image, channels: int, step: int) -> Chunk:
    """A batch over taps and runs of channels; step: bytes from channel to channel in B."""
    run = min(image.run, channels)
    batch = [
        (a + image.channel(first), b + first * step)
        for a, b in taps
        for first in range(0, channels, run)
    ]
    return Chunk(batch, run)


def in_phase(matrix: Matrix, phase: Phase, stride: Sequence[int]) -> Matrix:
    """The pixels of one phase of an image."""
    batch, group, *spatial = *matrix.outer, matrix.row
    *outer, row = scaled(spatial, stride)
    address = moved(matrix.address, dot(spatial, phase.position))
    return replace(matrix, address=address, outer=(batch, group, *outer), row=row)
