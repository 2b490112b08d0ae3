"""Images of bf16 or integers whose channels are multiplied in groups, and their corrections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry, dot, scaled
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.copies.fill_task import fill_step
from dnncore_cpu_numba.copies.group_task import group_step
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.corrections import Term, corrected
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import MatrixProblem
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, moved


class GroupReader:
    """Reads an image with channels last and whole groups of channels.

    depth: the channels per group of the convolution, filled up to whole groups of elements.
    zero_point: the zero point of the image, or None. inside: use a border instead of omitting taps.
    g: the convolution of the image that `image` returns. Without a zero point, this image has a
    border if `inside` is set, or if omitted taps would need further corrections.
    """

    def __init__(
        self, plan: ProgramPlan, arithmetic: Arithmetic, g: Geometry,
        zero_point: Term | None = None, *, inside: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.arithmetic, self.g, self.zero_point = plan, arithmetic, g, zero_point
        self.inside = inside
        self.depth = arithmetic.group * arithmetic.groups(g.depth)
        self._added = self.depth - g.depth
        self._is_flipped = False

    def image(self, tensor: Tensor) -> Image:
        """Return a 5-D tensor, or its copy, as an image with whole groups."""
        self._is_flipped = tensor.desc.data_type != self.arithmetic.a
        needs_border = (self._is_flipped or self.inside) and not self.g.is_inside
        image = Image.of(tensor)
        whole = image is not None and image.is_channels_last and self.depth == self.g.depth
        if image is not None and whole and not (self._is_flipped or needs_border):
            return image
        if self.g.kernel == ONES and self.g.is_inside and not self.g.backward:
            tensor = self._strided(tensor) if tensor.desc.is_plain else tensor
        n, _, *spatial = tensor.desc.dims
        left: Sequence[int] = (0, 0, 0)
        if needs_border and self.zero_point is None:
            left, spatial = self.g.padding, list(self.g.span)
            self.g = dataclasses.replace(self.g, src=self.g.span, padding=(0, 0, 0))
        ends = map(int.__add__, left, tensor.desc.dims[2:])
        is_cut = any(map(int.__gt__, ends, spatial))
        if is_cut and any(dim > 1 for dim, _ in tensor.desc.inner_blocks):
            tensor = self.plan.read(tensor, "acdeb")  # blocks cannot be cut
        groups = self.g.groups
        room = MemoryDesc((n, groups * self.depth, *spatial), self.arithmetic.a, "acdeb")
        if groups == 1 and self._is_one_group(tensor, room, left):
            return Image.chosen(self._grouped(tensor, room, left))
        if groups == 1 or self.depth == self.g.depth:
            return Image.chosen(self._copied(tensor, room, (0, 0, *left)))
        if tensor.desc.inner_blocks:
            tensor = self.plan.read(tensor, "acdeb")
        own = tensor.desc.dims[2:]
        apart = tensor.seen_as(tensor.desc.reshape((n, groups, self.g.depth, *own)))
        wanted = room.reshape((n, groups, self.depth, *spatial))
        return Image.chosen(self._copied(apart, wanted, (0, 0, 0, *left)).seen_as(room))

    def _strided(self, tensor: Tensor) -> Tensor:
        """Return only the pixels that 1x1 windows read. Their strides become tensor strides."""
        g, desc = self.g, tensor.desc
        n, channel, *steps = desc.strides
        self.g = dataclasses.replace(g, src=g.dst, stride=ONES)
        return tensor.seen_as(
            MemoryDesc(
                (*desc.dims[:2], *g.dst), desc.data_type,
                strides=(n, channel, *scaled(steps, g.stride)),
            )
        )  # fmt: skip

    def _is_one_group(self, tensor: Tensor, room: MemoryDesc, left: Sequence[int]) -> bool:
        """Whether each pixel is contiguous and smaller than one word, and all fit into `room`.

        A word has 4 or 8 bytes and holds the channels of one pixel in the copy.
        """
        desc = tensor.desc
        word, size = (dims[1] * desc.itemsize for dims in (room.dims, desc.dims))
        if not desc.is_plain or not desc.nelems or word not in (4, 8) or size >= word:
            return False
        dense = desc.strides[1] == 1 or desc.dims[1] == 1
        dense = dense and (desc.strides[4] == desc.dims[1] or desc.dims[4] == 1)
        ends = map(int.__add__, left, desc.dims[2:])
        return dense and all(map(int.__le__, ends, room.dims[2:]))

    def _grouped(self, tensor: Tensor, wanted: MemoryDesc, left: Sequence[int]) -> Tensor:
        """Return a copy of an image whose pixels are smaller than one word."""
        room, desc, flipped = self.plan.scratch(wanted), tensor.desc, self._is_flipped
        size = desc.itemsize
        sources, (*targets, pixel) = (
            [size * own.strides[dim] for dim in (0, 2, 3, 4)] for own in (desc, wanted)
        )
        start = moved(room.address, dot((*targets[1:], pixel), left))
        shape = (desc.dims[0], *desc.dims[2:])

        def steps() -> list[Step]:
            copy = group_step(
                tensor.address, start, size * desc.dims[1], size * wanted.dims[1], shape,
                sources[:3], targets, flipped=flipped,
            )  # fmt: skip
            has_border = wanted.dims[2:] != desc.dims[2:]
            return [fill_step(room, 128 * flipped), copy] if has_border else [copy]

        self.plan.add_steps(steps)
        return room

    def _copied(self, tensor: Tensor, wanted: MemoryDesc, starts: Sequence[int]) -> Tensor:
        copy = self.plan.flipped if self._is_flipped else self.plan.read
        return copy(tensor, wanted, starts)

    def corrected(self, problem: MatrixProblem, b_zero: Term | None) -> MatrixProblem:
        """Return a problem of this image with corrections. b_zero: the zero point of weights."""
        return corrected(
            self.plan, problem, self.depth - self._added, flipped=self._is_flipped,
            a_zero=self.zero_point, b_zero=b_zero,
        )  # fmt: skip
