"""Layer and group normalization by rows: one launch computes statistics and results.

On GPUs the work-items of a row hold it in registers, so src is read once. Only the gradients of
scale and shift need further launches.
"""

from __future__ import annotations

from dnncore import backend as core
from dnncore.backend import MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Shares
from dnncore_opencl.codegen.layout import Parameters, elements
from dnncore_opencl.codegen.vectors import HALVES, TYPES
from dnncore_opencl.normalization.plan import Plan, channel_sums
from dnncore_opencl.rows.rows import Rows, Tensors, row_launch, scale_arguments
from dnncore_opencl.rows.statistics import Tensor
from dnncore_opencl.runtime.launch import Launch

VECTORS = ("scale", "shift")
STATISTICS = ("mean", "variance")


class RowPlan:
    """The launch of one operation over rows."""

    def __init__(self, plan: Plan) -> None:
        op = plan.op
        self.plan = plan
        self.is_forward = op.result_name == "dst"
        inputs = ("src", "scale", "shift") if self.is_forward else ("src", "diff_dst", "scale")
        own = {name: plan.named[name] for name in inputs if name in plan.named}
        self.result = len(own)
        own[op.result_name] = plan.named[op.result_name]
        own |= {f"post{i}": tensor for i, tensor in enumerate(plan.operands)}
        rows = {name: plan.named[name] for name in STATISTICS if name in plan.named}
        self.buffers: dict[str, Tensor] = own | rows
        self.tensors = Tensors(
            {name: tensor.desc for name, tensor in own.items()},
            self.result,
            plan.attr,
            {name: tensor.desc for name, tensor in rows.items()},
            VECTORS,
        )
        self.rows = Rows.of(plan.engine, self.tensors, plan.views.in_set)
        if plan.engine.is_cpu:
            self.shares, self.held = Shares(), 0
        else:
            in_halves = op.result.data_type in HALVES
            held = 1 if self.is_forward else 2
            self.shares, self.held = self.rows.held_by_groups(
                plan.engine, held, in_halves=in_halves
            )

    @property
    def efficiency(self) -> float:
        """The share of the bandwidth: low where rows are few, long or not contiguous."""
        engine, rows = self.plan.engine, self.rows
        units = engine.device.limits["compute_units"]
        if engine.is_cpu:
            is_simple = all(len(chain) <= 1 for chain in rows.chains)
            return 0.5 if rows.lanes > 1 and is_simple and rows.nest.size >= units else 0.05
        is_enough = rows.nest.size * self.shares.workers >= 256 * units
        return 0.95 if self.held and is_enough else 0.3

    def launches(self) -> list[Launch]:
        """Return the launch."""
        plan, op = self.plan, self.plan.op
        parameters = Parameters(max(elements(tensor.desc) for tensor in self.buffers.values()))
        written = {op.result_name, *(STATISTICS if self.is_forward else ())}
        for name, tensor in self.buffers.items():
            const = "" if name in written else "const "
            parameters.buffer(name, const + TYPES[tensor.desc.data_type], tensor.buffer)
        defines = {
            **({} if op.has_mean else {"RMS": ""}),
            **({"HAS_SCALE": ""} if "scale" in self.buffers else {}),
            **({"HAS_SHIFT": ""} if "shift" in self.buffers else {}),
            **({"KEEPS": ""} if "variance" in self.buffers else {}),
            "SHARE": parameters.real(1.0 / op.count),
            "EPSILON": parameters.real(op.epsilon),
            "PADDED_LENGTH": parameters.size(op.count),
        }
        launch = row_launch(
            plan.engine,
            "rows_forward" if self.is_forward else "rows_backward",
            self.tensors, self.rows, parameters, self.shares, self.held, defines,
            factor=scale_arguments(op, plan.attr, parameters, plan.attributes_place),
            is_exact=bool(plan.attr.scales),
        )  # fmt: skip
        return [launch]


def refusal(plan: Plan) -> Refused | None:
    """Refuse problems without rows."""
    op = plan.op
    if isinstance(op, core.BatchNormalizationForward | core.BatchNormalizationBackward):
        return Refused("shape", "computes rows of one image; channels of a batch have several")
    if op.use_global_stats:
        return Refused("shape", "computes mean and variance of rows; use_global_stats gives them")
    if plan.uncopied:
        return Refused("format", "needs blocks within groups")
    if not op.source.nelems or _has_padding(plan, plan.named[op.result_name].desc):
        return Refused("shape", "needs rows with elements and without padding")
    return None


def _has_padding(plan: Plan, desc: MemoryDesc) -> bool:
    return any(desc.padded_dims[dim] > desc.dims[dim] for dim in plan.views.in_set)


def launches(plan: Plan) -> float:
    """Add the launches; return the efficiency."""
    rows = RowPlan(plan)
    if not rows.is_forward:
        channel_sums(plan)  # first, because diff_src may be diff_dst's memory
    plan.steps.append(rows.launches)
    return rows.efficiency
