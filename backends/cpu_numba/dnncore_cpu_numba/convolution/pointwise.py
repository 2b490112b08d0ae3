"""1x1 convolution on plain formats: matrix products in place.

If each window is one pixel, each image of dst is weights * src. dst has a row per output channel,
src a row per input channel, and both have a column per pixel. Pixels are contiguous in plain
formats. Vectors hold neighbouring pixels, so that neither tensor is copied. Backward by data uses
transposed weights.
"""

from __future__ import annotations

import math

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.convolution import channel_rows
from dnncore_cpu_numba.convolution.base import PlannedConvolution, weights_tag
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry, weights_as_6d
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, transposed
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.tensor import Tensor

REACHED = 0.95  # speed relative to tiles with data in cache; measured


class Pointwise(PlannedConvolution):
    """Forward and backward by data. Weights of format `any` become `iohw` or `oihw`."""

    NAME = "cpu_numba:pointwise:{isa.name}"

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse other algorithms and windows of several pixels."""
        if refusal := super().refused(op, attr):
            return refusal
        g = Geometry.of(op)
        if g.kernel != ONES or g.stride != ONES or g.src != g.dst:
            got = f"kernel {g.kernel}, strides {g.stride}, src {g.src}, dst {g.dst}"
            return Refused("shape", f"each pixel of dst must be of one pixel of src; got {got}")
        return None

    def weights_format(self, op: Convolution) -> str:
        """Return a format with output channels innermost.

        The rows of A are then contiguous and need no address registers.
        """
        return weights_tag(op, "oi" if Geometry.of(op).backward else "io")

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of output channels by pixels."""
        g = Geometry.of(op)
        return REACHED * utilisation(self.isa, g.columns, math.prod(g.dst))

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        MatrixProduct(
            isa=self.isa, a=self._read_weights(plan, op, g), in_place=True,
            b=channel_rows.read_matrices(plan, plan.tensors[g.gathered], g),
            c=channel_rows.write_matrices(plan, plan.tensors[op.result_name], g, attr),
            terms=channel_rows.read_terms(plan, op, attr, g),
        ).append_to(plan)  # fmt: skip

    def _read_weights(self, plan: ProgramPlan, op: Convolution, g: Geometry) -> Tensor:
        """Return the weights in this direction's format as (1, G, columns, depth)."""
        tensor = plan.read(plan.tensors["weights"], self.weights_format(op))
        strides = weights_as_6d(tensor, op.src_role.ndims).desc.strides[:3]
        tensor = tensor.seen_as(MemoryDesc((1, g.groups, g.oc, g.ic), strides=(0, *strides)))
        return transposed(tensor) if g.backward else tensor
