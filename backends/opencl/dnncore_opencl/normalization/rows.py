"""Layer and group normalization by rows: one launch computes statistics and results.

On GPUs the work-items of a row hold it in registers, so src is read once. Only the gradients of
scale and shift need further launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dnncore import backend as core
from dnncore.backend import MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Grid, Shares
from dnncore_opencl.codegen.layout import Digit
from dnncore_opencl.codegen.vectors import HALVES, write
from dnncore_opencl.normalization.plan import STATISTICS, Plan, channel_sums
from dnncore_opencl.rows.rows import (
    FLOAT_BYTES,
    GROUP,
    LARGEST_GROUP,
    MOST_HELD,
    Rows,
    Tensors,
    parts_of,
    row_launch,
    scale_arguments,
)
from dnncore_opencl.rows.statistics import Tensor
from dnncore_opencl.runtime.launch import Launch, padded, template
from dnncore_opencl.runtime.schema import Scratch

VECTORS = ("scale", "shift")
MOST_SUMMED = 64  # floats of a tensor whose terms a work-item adds to gradients of scale and shift
WORDS = 36864  # registers per compute unit for these terms and sums
THREADS = 640  # most work-items per compute unit that add them
GROUP_FORWARD, GROUP_BACKWARD = 256, 512  # work-items of a set of channels
HELD_FORWARD, HELD_BACKWARD = 104, 28  # most words of a tensor that each of them holds
SECTOR = 32  # bytes of a channel's neighbours that are read together at no loss
LEAST_SET = 1024  # vectors
CACHED = 192 * 1024  # bytes of a set that every multiprocessor keeps in the cache it shares
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
        src, dims = own["src"].desc, plan.views.in_set
        if not src.inner_blocks:  # so that contiguous elements are neighbours
            dims = tuple(sorted(dims, key=lambda dim: -src.strides[dim]))
        self.rows = Rows.of(plan.engine, self.tensors, dims, in_halves=True)
        self.parts = 1  # of the row of each worker, of which one is held
        self.is_set = False
        if plan.engine.is_cpu:
            self.shares, self.held = Shares(), 0
        else:
            in_halves = op.result.data_type in HALVES
            held = 1 if self.is_forward else 2
            is_layer = isinstance(op, core.LayerNormalizationBackward)
            sums = is_layer and (plan.has("diff_scale") or plan.has("diff_shift"))
            self.shares, self.held = self.rows.held_by_groups(
                plan.engine, held, in_halves=in_halves, most=MOST_SUMMED if sums else MOST_HELD
            )
            self.is_set = self._is_set(plan)
            if self.is_set:
                self._share_set()

    def _is_set(self, plan: Plan) -> bool:
        """Whether rows are sets of several channels in vectors, and more than a group can hold."""
        vectors = self.rows.length // self.rows.lanes
        return plan.views.groups > 0 and self.rows.lanes > 1 and vectors >= LEAST_SET

    def _share_set(self) -> None:
        """Choose groups that leave room for another one, and hold what fits in their registers."""
        rows = self.rows
        limit = GROUP_FORWARD if self.is_forward else GROUP_BACKWARD
        limit = min(limit, self.plan.engine.device.limits["max_work_group"])
        vectors = -(-rows.length // rows.lanes)
        words = HELD_FORWARD if self.is_forward else HELD_BACKWARD
        itemsize = self.tensors.descs[0].itemsize
        self.shares = Shares(limit, 1)
        self.held, self.parts = parts_of(-(-vectors // limit), rows.lanes * itemsize, words)

    @property
    def is_same(self) -> bool:
        """Whether the vectors of a worker have the same channels of a set."""
        if not (self.is_set and self.held and len(self.rows.chains[0]) > 1):
            return False
        span, lanes = self.plan.views.dims[2], self.rows.lanes
        is_inner = self.rows.chains[0][-1] == Digit(span, 1) and span % lanes == 0
        return is_inner and self.shares.workers % (span // lanes) == 0

    @property
    def is_leaving(self) -> bool:
        """Whether workers leave the sums of the channels of a set."""
        is_wanted = self.plan.has("diff_scale") or self.plan.has("diff_shift")
        return not self.is_forward and is_wanted and self.is_same

    @property
    def efficiency(self) -> float:
        """The share of the bandwidth: low where rows are few, long or not contiguous."""
        engine, rows = self.plan.engine, self.rows
        units = engine.device.limits["compute_units"]
        if engine.is_cpu:
            is_simple = all(len(chain) <= 1 for chain in rows.chains)
            return 0.5 if rows.lanes > 1 and is_simple and rows.nest.size >= units else 0.05
        is_enough = rows.nest.size * self.shares.workers >= 256 * units
        if self.is_set:
            itemsize, span = self.tensors.descs[0].itemsize, rows.chains[0][-1].size
            is_cached = self.held and (self.parts == 1 or rows.length * itemsize <= CACHED)
            is_wide = span * itemsize >= SECTOR
            return 0.88 if is_cached and is_wide and rows.nest.size >= units else 0.3
        if self.shares.workers == LARGEST_GROUP:
            return 0.45  # one group fills a multiprocessor, so it waits between reading and writing
        return 0.95 if self.held and is_enough else 0.3

    def launches(self) -> list[Launch]:
        """Return the launch."""
        plan, op = self.plan, self.plan.op
        parameters, defines = plan.parameters(self.buffers, op.count)
        kernel, grid = "rows_forward" if self.is_forward else "rows_backward", None
        if self.is_same:
            defines["SAME"] = ""
        if self.count:
            kernel = "rows_gradients"
            grid = Grid.of_groups(self.streams, self.shares.workers, self.shares.span)
            grid = replace(grid, items=self.rows.nest.size, count=self.count)
            parameters.buffer("left", "float", Scratch())
            pointer = "left + (at)"
            defines |= {
                "STREAMS": parameters.size(self.streams),
                "GROUPS": parameters.size(self.streams // self.shares.span),
                "START": parameters.size(self.start),
                "LEAVE(at, sums)": write(plan.engine, "f32", self.rows.lanes, pointer, "sums"),
            }
        elif self.is_leaving:
            parameters.buffer("left", "float", Scratch())
            vectors = plan.views.dims[2] // self.rows.lanes
            pointer = "left + (at)"
            defines |= {
                "LEAVES": str(vectors),
                "START": parameters.size(self.start),
                "CHANNELS": parameters.size(math.prod(plan.views.dims[:3])),
                "LEAVE(at, sums)": write(plan.engine, "f32", self.rows.lanes, pointer, "sums"),
            }
        launch = row_launch(
            plan.engine, kernel,
            self.tensors, self.rows, parameters, self.shares, self.held, defines,
            factor=scale_arguments(op, plan.attr, parameters, plan.attributes_place),
            is_exact=bool(plan.attr.scales), grid=grid, parts=self.parts,
            texts=(template("sets" if self.is_forward else "row_gradient"),),
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
        itemsize = self.tensors.descs[0].itemsize
        words = self.held * rows.lanes * (2 + 2 * itemsize // FLOAT_BYTES)
        threads = min(THREADS, padded(WORDS // words - GROUP + 1, GROUP))
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
        rows.start = plan.sum_parts(rows.streams // rows.shares.span, [rows.rows.length])
    elif rows.is_leaving:
        plan.steps.append(rows.launches)
        images, *groups = plan.views.dims[:3]
        rows.start = plan.sum_parts(images, groups)
    else:
        channel_sums(plan)  # first, because diff_src may be diff_dst's memory
        plan.steps.append(rows.launches)
    return rows.efficiency
