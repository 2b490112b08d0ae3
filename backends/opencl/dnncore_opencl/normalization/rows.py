"""Layer and group normalization by rows: one launch computes statistics and results.

On GPUs the work-items of a row hold it in registers, so src is read once. Only the gradients of
scale and shift need further launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnncore import backend as core
from dnncore.backend import MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Grid, Shares
from dnncore_opencl.codegen.vectors import HALVES, write
from dnncore_opencl.normalization.plan import STATISTICS, Plan, channel_sums
from dnncore_opencl.rows.rows import LARGEST_GROUP, Rows, Tensors, row_launch, scale_arguments
from dnncore_opencl.rows.statistics import Tensor
from dnncore_opencl.runtime.launch import Launch, padded, template
from dnncore_opencl.runtime.schema import Scratch

VECTORS = ("scale", "shift")
THREADS = 384  # work-items per compute unit that add gradients of scale and shift
SHORT = 640  # the same for rows that a warp or less computes
WARP = 32
FEWEST_ROWS = 4  # per group, so that the sums of groups are few


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
        self.count = self.streams = self.start = 0  # rows per group, groups, and their sums
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
        if self.shares.workers == LARGEST_GROUP:
            return 0.45  # one group fills a multiprocessor, so it waits between reading and writing
        return 0.95 if self.held and is_enough else 0.3

    def launches(self) -> list[Launch]:
        """Return the launch."""
        plan, op = self.plan, self.plan.op
        parameters, defines = plan.parameters(self.buffers, op.count)
        kernel, grid = "rows_forward" if self.is_forward else "rows_backward", None
        if self.count:
            kernel = "rows_gradients"
            grid = Grid.of_groups(self.streams, self.shares.workers, self.shares.span)
            grid = replace(grid, items=self.rows.nest.size, count=self.count)
            parameters.buffer("left", "float", Scratch())
            pointer = "left + (at)"
            defines |= {
                "STREAMS": parameters.size(self.streams),
                "START": parameters.size(self.start),
                "LEAVE(at, sums)": write(plan.engine, "f32", self.rows.lanes, pointer, "sums"),
            }
        launch = row_launch(
            plan.engine, kernel,
            self.tensors, self.rows, parameters, self.shares, self.held, defines,
            factor=scale_arguments(op, plan.attr, parameters, plan.attributes_place),
            is_exact=bool(plan.attr.scales), grid=grid,
            texts=() if self.is_forward else (template("row_gradient"),),
        )  # fmt: skip
        return [launch]

    def divide(self) -> bool:
        """Divide the rows among groups that also add the gradients of scale and shift.

        Returns whether this is possible and needs much less memory than the rows.
        """
        rows, workers, span = self.rows, self.shares.workers, self.shares.span
        is_layer = isinstance(self.plan.op, core.LayerNormalizationBackward)
        is_whole = rows.side_by_side == 1 and rows.length % rows.lanes == 0
        if not (is_layer and is_whole and self.held and not self.shares.across):
            return False
        units = self.plan.engine.device.limits["compute_units"]
        threads = SHORT if workers <= WARP else THREADS
        streams = max(1, units * threads // (workers * span)) * span
        count = -(-rows.nest.size // streams)
        if count < FEWEST_ROWS:
            return False
        self.count = count
        self.streams = padded(-(-rows.nest.size // count), span)
        return True


def refusal(plan: Plan) -> Refused | None:
    """Refuse problems without rows."""
    op = plan.op
    if isinstance(op, core.BatchNormalizationForward | core.BatchNormalizationBackward):
        return Refused("shape", "computes rows of one image; channels of a batch have several")
    if op.use_global_stats:
        return Refused("shape", "computes mean and variance of rows; use_global_stats gives them")
    if plan.uncopied:
        return Refused("format", "needs blocks within groups")
    result = plan.named[op.result_name].desc
    if not op.source.nelems or _has_padding(result, plan.views.in_set):
        return Refused("shape", "needs rows with elements and without padding")
    inner = plan.views.in_set[1:]
    for tensor in (*plan.named.values(), *plan.operands):
        if _has_padding(tensor.desc, [d for d in inner if tensor.desc.dims[d] == result.dims[d]]):
            return Refused("format", f"needs images without padding; got {tensor.desc}")
    return None


def _has_padding(desc: MemoryDesc, dims: Sequence[int]) -> bool:
    return any(desc.padded_dims[dim] > desc.dims[dim] for dim in dims)


def launches(plan: Plan) -> float:
    """Add the launches; return the efficiency."""
    rows = RowPlan(plan)
    if rows.is_forward:
        plan.steps.append(rows.launches)
    elif (plan.has("diff_scale") or plan.has("diff_shift")) and rows.divide():
        plan.steps.append(rows.launches)
        rows.start = plan.sum_parts(rows.streams, [rows.rows.length])
    else:
        channel_sums(plan)  # first, because diff_src may be diff_dst's memory
        plan.steps.append(rows.launches)
    return rows.efficiency
