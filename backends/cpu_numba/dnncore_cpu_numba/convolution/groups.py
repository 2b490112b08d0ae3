"""Images whose channels are multiplied in groups, of bf16 or of integers, and their corrections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.corrections import Term, corrected
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import MatrixProblem
from dnncore_cpu_numba.runtime.tensor import Tensor


class GroupReader:
    """Reads an image with channels last and whole groups of them.

    depth: the channels per group of the convolution, with those added that fill the last group.
    zero_point: that of the image, or None. inside: taps beyond the edge are to be avoided. g: the
    convolution of the image that `image` returns; it has a border where it is to be avoided, or
    would need corrections of its own.
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
        """The 5-D tensor as such an image, or its copy."""
        self._is_flipped = tensor.desc.data_type != self.arithmetic.a
        needs_border = (self._is_flipped or self.inside) and not self.g.is_inside
        image = Image.of(tensor)
        whole = image is not None and image.is_channels_last and self.depth == self.g.depth
        if image is not None and whole and not (self._is_flipped or needs_border):
            return image
        n, _, *spatial = tensor.desc.dims
        left: Sequence[int] = (0, 0, 0)
        if needs_border and self.zero_point is None:
            left, spatial = self.g.padding, list(self.g.span)
            self.g = dataclasses.replace(self.g, src=self.g.span, padding=(0, 0, 0))
        groups = self.g.groups
        room = MemoryDesc((n, groups * self.depth, *spatial), self.arithmetic.a, "acdeb")
        if groups == 1 or self.depth == self.g.depth:
            return Image.chosen(self._copied(tensor, room, (0, 0, *left)))
        if tensor.desc.inner_blocks:
            tensor = self.plan.read(tensor, "acdeb")
        own = tensor.desc.dims[2:]
        apart = tensor.seen_as(tensor.desc.reshape((n, groups, self.g.depth, *own)))
        wanted = room.reshape((n, groups, self.depth, *spatial))
        return Image.chosen(self._copied(apart, wanted, (0, 0, 0, *left)).seen_as(room))

    def _copied(self, tensor: Tensor, wanted: MemoryDesc, starts: Sequence[int]) -> Tensor:
        copy = self.plan.flipped if self._is_flipped else self.plan.read
        return copy(tensor, wanted, starts)

    def corrected(self, problem: MatrixProblem, b_zero: Term | None) -> MatrixProblem:
        """A problem of this image with corrections; b_zero: the zero point of weights."""
        return corrected(
            self.plan, problem, self.depth - self._added, flipped=self._is_flipped,
            a_zero=self.zero_point, b_zero=b_zero,
        )  # fmt: skip
