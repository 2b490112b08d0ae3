"""Winograd convolution F(4x4, 3x3), forward and backward by data: 36 products instead of 144.

dst is divided into tiles of 4x4 pixels, which depend on 6x6 pixels of src. Tiles and weights are
transformed (`convolution/winograd/transforms.py`), multiplied position by position, and transformed
back. For each of the 36 positions, the multiplication is a matrix product of tiles by channels.
Backward by data is the same computation from diff_dst to diff_src with flipped weights.

Rounding errors are `error_factor` times the errors of direct sums. No result is exact. Results that
are not finite are replaced by direct sums (`direct_task.py`). Results are therefore finite if
direct sums are, unless transformed weights overflow, which requires taps above 1.6e38. NaN and
infinity in src do not spread over a tile.
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

# Measured on 2 cores.
SHORT_DEPTH = 32  # start and end of a microkernel take the time of this number of channels
CACHED_FILTER = 16 << 20  # bytes of weights that stay in a third-level cache
# Multiplications and additions in the time of one byte: transformed; of weights read from a
# third-level cache; of weights read from memory.
TRANSFORM_FLOPS, CACHED_FLOPS, MEMORY_FLOPS = 11, 4, 13


class Winograd(Brgemm):
    """Forward and backward by data."""

    NAME = "cpu_numba:winograd:{isa.name}"
    HAS_KNOBS = False
    ALGORITHM = "winograd"

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Plan. The result is not exact."""
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
        """Return the format of the transformed weights."""
        return WinogradFilter("backward_data" if Geometry.of(op).backward else "forward", self.isa)

    def weights_format(self, op: Convolution) -> MemoryDesc:
        """Return the descriptor of the transformed weights."""
        return self.filter(op).desc(op.weights_role)

    def utilisation(self, op: Convolution) -> float:
        """Return the work of the direct algorithm divided by the work of this one.

        The work is in multiplications and additions. Memory traffic is counted as the number of
        them that take the same time.
        """
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
        """Return the address of the transformed weights."""
        weights = plan.tensors["weights"]
        if weights.desc.format_kind == "opaque":
            return weights.address
        room = plan.scratch(self.weights_format(op))
        self.filter(op).append_to(plan, weights, room)
        return room.address

    def _read(self, plan: ProgramPlan, tensor: Tensor, channels: int) -> Image:
        """Return the tensor, or a copy, as an image whose channels can be loaded as vectors."""
        tensor = as_5d(tensor)
        image = Image.of(tensor)
        if image is None or image.vector_step(self.isa.lanes, channels) is None:
            blocked = f"aBcde{self.isa.lanes}b"
            image = Image.chosen(plan.read(tensor, tensor.desc.with_format(blocked)))
        return image
