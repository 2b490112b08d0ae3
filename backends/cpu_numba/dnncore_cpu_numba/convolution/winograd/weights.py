"""Transformed weights of Winograd convolution: the opaque format, its steps and its reorder.

    U[vector of columns][position][k][lane]

Forward, columns are output channels, and k runs over input channels. Backward by data, columns are
input channels, k runs over output channels, and the weights are flipped. The format's text is
`cpu_numba:winograd:4x3:DIRECTION:LANES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused, Reorder
from dnncore.planning.toom_cook import TAPS
from dnncore_cpu_numba.codegen.isa import AVAILABLE, Isa
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.convolution.winograd.task import transform_weights
from dnncore_cpu_numba.convolution.winograd.transforms import OUTPUTS, POSITIONS, WeightsTransform
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.tiling import Blocking
from dnncore_cpu_numba.runtime.program import Program, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

PREFIX = f"cpu_numba:winograd:{OUTPUTS}x{TAPS}"
BLOCKED = {"forward": "O{}i{}o", "backward_data": "I{}o{}i"}  # columns in vectors
READ_EFFICIENCY = 0.25  # part of the memory bandwidth that is reached; measured


@dataclass(frozen=True)
class WinogradFilter:
    """The format for a direction, which determines the channels that are columns.

    Weights are (OC, IC, 3, 3), with one group in front or without groups.
    """

    direction: str
    isa: Isa

    @classmethod
    def of(cls, desc: MemoryDesc) -> WinogradFilter | None:
        """Return the object of an opaque format, None if the format is not available here."""
        filters = (cls(direction, isa) for isa in AVAILABLE for direction in BLOCKED)
        return next((one for one in filters if one.tag == desc.tag), None)

    @property
    def tag(self) -> str:
        """The format's text."""
        return f"{PREFIX}:{self.direction}:{self.isa.lanes}"

    def desc(self, weights: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of the transformed weights."""
        columns, depth = self.channels(weights)
        nbytes = 4 * POSITIONS * depth * -(-columns // self.isa.lanes) * self.isa.lanes
        return MemoryDesc(weights.dims, weights.data_type, self.tag, nbytes=nbytes)

    def channels(self, weights: MemoryDesc) -> tuple[int, int]:
        """Return the numbers of columns and of k."""
        oc, ic = weights.dims[-4:-2]
        return (oc, ic) if self.direction == "forward" else (ic, oc)

    def append_to(self, plan: ProgramPlan, weights: Tensor, target: Tensor) -> None:
        """Append the steps that transform weights of any layout that is not opaque."""
        columns, depth = self.channels(weights.desc)
        grouped = "g" * (weights.desc.ndims > 4)
        lanes, lane_bytes = self.isa.lanes, 4 * self.isa.lanes
        tag = grouped + BLOCKED[self.direction].format("hw", lanes)
        taps = plan.read(weights, tag).address
        column = depth * lane_bytes
        row = TAPS * column
        if self.direction == "backward_data":
            taps, row, column = moved(taps, 2 * row + 2 * column), -row, -column

        def step() -> Step:
            values = {
                "kernel": WeightsTransform(self.isa).address, "src": taps, "row": row,
                "column": column, "depth": depth, "target": target.address,
                "lane_bytes": lane_bytes,
            }  # fmt: skip
            return Step(transform_weights, values, -(-columns // lanes))

        plan.add(step, weights.desc.nbytes + target.desc.nbytes)


class WinogradReorder(Implementation[Reorder]):
    """Transforms weights of any layout. There is no inverse reorder."""

    name = "cpu_numba:winograd"
    data_types = FLOATS

    def accept(self, op: Reorder, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept float weights if dst has a format of this file."""
        target = WinogradFilter.of(op.dst) if op.dst.format_kind == "opaque" else None
        if target is None or op.src.format_kind != "blocked":
            return Refused("format", f"makes {PREFIX} of strides; got {op.src.tag} to {op.dst.tag}")
        if op.src.data_type not in FLOATS:
            types = ", ".join(FLOATS)
            return Refused("type", f"transforms filters of {types}; got {op.src.data_type}")
        if op.dst != target.desc(op.src):
            return Refused("format", f"{op.dst.tag} of {op.src.dims}; got {op.dst.nbytes} bytes")
        if attr.post_ops:
            return Refused("attribute", f"no post-ops; got {len(attr.post_ops)}")
        plan = ProgramPlan(op, attr, Blocking(engine.num_threads))
        target.append_to(plan, plan.tensors["src"], plan.tensors["dst"])
        return Accepted(
            op,
            build=lambda: Program(plan.steps, plan.num_threads),
            efficiency=READ_EFFICIENCY,
            scratchpad_bytes=plan.nbytes,
            exact=False,
            notes=("compiles",),
        )
