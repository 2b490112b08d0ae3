"""Winograd's convolution F(4x4, 3x3), forward and backward by data: 36 products instead of 144.

dst is cut into tiles of 4x4 pixels, each of which depends on 6x6 pixels of src. Tiles and filters
are transformed (`convolution/winograd/transforms.py`), multiplied position by
position, which is a matrix product of tiles by channels for each of 36 positions, and transformed
back. Backward by data is the same from diff_dst to diff_src with flipped filters.

Rounding errors are `error_factor` times those of direct sums, and nothing is exact. Results that
are not finite are summed up directly (`direct_task.py`). So they are finite wherever direct sums
are, unless a transformed filter overflows, which takes taps above 1.6e38. NaN and infinity of src
do not spread over a tile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnncore.backend import (
    Accepted,
    Attributes,
    Convolution,
    ConvolutionForward,
    MemoryDesc,
    Refused,
)
from dnncore.planning.toom_cook import F43, TAPS, error_factor
from dnncore_cpu_numba.convolution.brgemm import Brgemm
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import Image, as_5d
from dnncore_cpu_numba.convolution.winograd.blocks import WinogradLoop
from dnncore_cpu_numba.convolution.winograd.transforms import POSITIONS
from dnncore_cpu_numba.convolution.winograd.weights import WinogradFilter
from dnncore_cpu_numba.elementwise.epilogue import call_rows
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Matrix
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

# Measured on 2 cores, as are the multiplications and additions in the time of a byte that is
# transformed, or read of a filter from a third-level cache or from memory.
SHORT_DEPTH = 32  # channels in whose time a microkernel starts and ends
CACHED_FILTER = 16 << 20  # bytes
TRANSFORM_FLOPS, CACHED_FLOPS, MEMORY_FLOPS = 11, 4, 13


class Winograd(Brgemm):
    """Forward and backward by data."""

    NAME = "cpu_numba:winograd:{isa.name}"
    HAS_KNOBS = False
    ALGORITHM = "winograd"

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Plan; the result is not exact."""
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, Refused):
            return answer
        _, oc, ic, *_ = op.grouped_weights
        depth = ic if isinstance(op, ConvolutionForward) else oc
        return replace(answer, exact=False, error_factor=error_factor(F43, F43, depth))

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse all but dense 3x3 windows with stride 1 of one group."""
        if refused := super().refused(op, attr):
            return refused
        groups, _, _, *kernel = op.grouped_weights
        for what, got, wanted in (
            ("kernel", tuple(kernel), (TAPS, TAPS)), ("strides", op.strides, (1, 1)),
            ("dilations", op.dilations, (0, 0)), ("groups", groups, 1),
        ):  # fmt: skip
            if got != wanted:
                return Refused("shape", f"{what} must be {wanted}; got {got}")
        weights = op.weights_role
        if weights.format_kind == "opaque" and weights != self.weights_format(op):
            return Refused("format", f"weights must have strides; got {weights.tag}")
        return None

    def filter(self, op: Convolution) -> WinogradFilter:
        """The format of the transformed filter."""
        return WinogradFilter("backward_data" if Geometry.of(op).backward else "forward", self.isa)

    def weights_format(self, op: Convolution) -> MemoryDesc:
        """The transformed filter."""
        return self.filter(op).desc(op.weights_role)

    def utilisation(self, op: Convolution) -> float:
        """The direct algorithm's work over this one's, traffic counted in the time of flops."""
        loop = WinogradLoop.of(self.isa, Geometry.of(op).as_forward(), 1)
        depth, columns, lanes = loop.g.ic, loop.g.oc, self.isa.lanes
        share = utilisation(self.isa, loop.tiles, columns) * depth / (depth + SHORT_DEPTH)
        work = 2 * POSITIONS * loop.tiles * depth * columns / share
        vectors = -(-depth // lanes) + -(-columns // lanes)
        work += 4 * POSITIONS * loop.tiles * vectors * lanes * TRANSFORM_FLOPS
        filter_bytes = self.weights_format(op).nbytes
        cached = filter_bytes <= CACHED_FILTER
        work += filter_bytes * (CACHED_FLOPS if cached else loop.blocks * MEMORY_FLOPS)
        return float(max(op.flops, 1.0) / work)

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        g = Geometry.of(op)
        src = self._read(plan, plan.tensors[g.gathered], g.depth)
        weights = self._transformed(plan, op)
        chain, operands = self._epilogue(plan, op, attr, g.columns)
        dst, edge = self._write_image(plan, plan.tensors[op.result_name], g.columns, attr)
        loop = WinogradLoop.of(self.isa, g.as_forward(), plan.num_threads)
        room = plan.scratch(MemoryDesc((loop.shares * loop.share_bytes // 4,))).address

        def step() -> Step:
            calls = [Matrix(Table(row)) for row in call_rows(chain)]
            return loop.step(src, weights, dst, room, edge, chain, [*operands, *calls])

        plan.add(step)

    def _transformed(self, plan: ProgramPlan, op: Convolution) -> Param:
        """The address of the transformed filter."""
        weights = plan.tensors["weights"]
        if weights.desc.format_kind == "opaque":
            return weights.address
        room = plan.scratch(self.weights_format(op))
        self.filter(op).append_to(plan, weights, room)
        return room.address

    def _read(self, plan: ProgramPlan, tensor: Tensor, channels: int) -> Image:
        """An image whose channels can be loaded as vectors."""
        tensor = as_5d(tensor)
        image = Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, channels) is None:
            blocked = f"aBcde{self.isa.lanes}b"
            image = Image.chosen(plan.read(tensor, tensor.desc.with_format(blocked)))
        return image
