"""Convolution of single pixels on plain formats: products of matrices that stay where they lie.

Where each window is one pixel, each image of dst is weights * src: a row per output channel, a row
per input channel, a column per pixel. Vectors hold neighbouring pixels, as plain formats have them,
so that neither tensor is copied. Backward by data is the same with the filter transposed.
"""

from __future__ import annotations

import math
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.convolution.channel_rows import (
    read_bias,
    read_matrices,
    read_operand,
    write_matrices,
)
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry, refuse_algorithm, weights_as_6d
from dnncore_cpu_numba.convolution.image import spatial_tag
from dnncore_cpu_numba.gemm.plan import PlannedImplementation, ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, transposed
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.tensor import Tensor

REACHED = 0.95  # of what tiles reach whose data are in cache, measured


class _Pointwise(PlannedImplementation):
    """Base of the directions: plain formats, a filter whose innermost channels are rows of C.

    filter_letters: of its channels, those that are summed over, then those of the output.
    """

    filter_letters = "io"

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.name = f"cpu_numba:pointwise:{isa.name}"

    def refused(self, op: Any, attr: Attributes) -> Refused | None:
        """Refuse other algorithms and windows of several pixels."""
        if refusal := refuse_algorithm(op, "direct") or super().refused(op, attr):
            return refusal
        g = Geometry.of(op)
        if g.kernel != ONES or g.stride != ONES or g.src != g.dst:
            got = f"kernel {g.kernel}, strides {g.stride}, src {g.src}, dst {g.dst}"
            return Refused("shape", f"each pixel of dst must be of one pixel of src; got {got}")
        return None

    def resolved(self, op: Any) -> Any:
        """Activations become plain; of the filter's channels, those of the output are innermost."""
        formats = dict.fromkeys((op.SRC, op.DST), f"nc{spatial_tag(op.src_role.ndims)}")
        formats[op.WEIGHTS] = self._weights_tag(op)
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        return op.resolve_any(**formats)

    def utilisation(self, op: Any) -> float:
        """The utilisation of tiles of output channels by pixels."""
        g = Geometry.of(op)
        rows = g.oc if self.filter_letters == "io" else g.ic
        return REACHED * utilisation(self.isa, rows, math.prod(g.dst))

    def _weights_tag(self, op: Any) -> str:
        """The tag of the filter. A's rows are contiguous, so their offsets need no registers."""
        ndims: int = op.src_role.ndims
        return "g" * int(op.weights_role.ndims - ndims) + self.filter_letters + spatial_tag(ndims)

    def _read_weights(self, plan: ProgramPlan, op: Any, g: Geometry) -> Tensor:
        """The filter in this direction's format as (1, G, OC, IC)."""
        tensor = plan.read(plan.argument("weights", op.weights), self._weights_tag(op))
        strides = weights_as_6d(tensor.desc, op.src_role.ndims).strides[:3]
        return tensor.seen_as(MemoryDesc((1, g.groups, g.oc, g.ic), strides=(0, *strides)))


class PointwiseForward(_Pointwise):
    """dst[n, g] = weights[g] * src[n, g]; weights become `iohw`."""

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        bias = None if op.bias is None else read_bias(plan, plan.argument("bias", op.bias), g)
        MatrixProduct(
            isa=self.isa, a=self._read_weights(plan, op, g), in_place=True,
            b=read_matrices(plan, plan.argument("src", op.src), g),
            c=write_matrices(plan, plan.argument("dst", op.dst), g, attr), bias=bias, attr=attr,
            operands=[read_operand(plan, operand, g) for operand in plan.operands(attr)],
        ).append_to(plan)  # fmt: skip


class PointwiseBackwardData(_Pointwise):
    """diff_src[n, g] = transposed weights[g] * diff_dst[n, g]; weights become `oihw`."""

    filter_letters = "oi"

    def plan(self, plan: ProgramPlan, op: Any, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        weights = self._read_weights(plan, op, g)
        MatrixProduct(
            isa=self.isa, a=weights.seen_as(transposed(weights.desc)), in_place=True,
            b=read_matrices(plan, plan.argument("diff_dst", op.diff_dst), g),
            c=write_matrices(plan, plan.argument("diff_src", op.diff_src), g, attr), attr=attr,
            operands=[read_operand(plan, operand, g) for operand in plan.operands(attr)],
        ).append_to(plan)  # fmt: skip
