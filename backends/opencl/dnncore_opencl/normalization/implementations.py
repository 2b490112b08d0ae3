"""The implementations of normalizations, best first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from dnncore.backend import (
    Accepted,
    Attributes,
    DescriptorError,
    Implementation,
    Refused,
)
from dnncore_opencl.codegen.vectors import COMPUTED
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.normalization import channels, rows
from dnncore_opencl.normalization.plan import Plan, backward, forward
from dnncore_opencl.runtime.program import LaunchProgram


class Normalization(Implementation[Any]):
    """Normalizations in one direction. like: which tensor's format replaces `any`."""

    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, "scales", ROUNDING)
    takes_repeats = True

    def __init__(self, like: Mapping[str, str]) -> None:
        self.like = like

    def refuse(self, plan: Plan) -> Refused | None:
        """Refuse problems that the variant does not support."""
        return None

    @abstractmethod
    def launches(self, plan: Plan) -> float:
        """Add the launches to the plan; return the efficiency."""

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops; statistics without blocks."""
        op = op.resolve_any(**{name: getattr(op, other) for name, other in self.like.items()})
        for name in ("diff_scale", "diff_shift"):
            desc = getattr(op, name, None)
            if desc is not None and desc.is_any:
                op = op.with_descs(**{name: desc.with_format(None)})
        workspace = op.workspace_desc(hint)
        if workspace is None and op.workspace_desc():
            return Refused("attribute", "the hint keeps no workspace")
        refused = refuse_common(op, attr, engine)
        if refused:
            return refused
        try:
            plan = Plan.of(op, attr, engine, workspace)
        except DescriptorError as error:
            return Refused("format", str(error))
        refused = self.refuse(plan)
        if refused:
            return refused
        efficiency = self.launches(plan)
        return Accepted(
            op,
            lambda: LaunchProgram(engine, [one for step in plan.steps for one in step()]),
            efficiency=efficiency,
            scratchpad_bytes=plan.scratchpad_bytes,
            workspace=workspace,
            exact=False,
            notes=("compiles",),
        )


class InStages(Normalization):
    """Statistics or sums in one or two stages, then a pass over all elements."""

    name = "opencl:staged"

    def launches(self, plan: Plan) -> float:
        """Add statistics and the pass."""
        (forward if plan.op.result_name == "dst" else backward)(plan)
        return 0.4 if plan.engine.is_cpu else 0.85


class ByRows(Normalization):
    """One launch over rows, of layer and group normalization."""

    name = "opencl:rows"

    def refuse(self, plan: Plan) -> Refused | None:
        """Refuse problems without rows."""
        return rows.refusal(plan)

    def launches(self, plan: Plan) -> float:
        """Add the launch over rows."""
        return rows.launches(plan)


class ByChannels(Normalization):
    """One launch over sets of channels, of group normalization."""

    name = "opencl:channels"

    def refuse(self, plan: Plan) -> Refused | None:
        """Refuse problems without such sets."""
        return channels.refusal(plan)

    def launches(self, plan: Plan) -> float:
        """Add the launch."""
        return channels.launches(plan)


SRC = {"dst": "src"}
DIFF = {"diff_dst": "src", "diff_src": "src"}

FORWARD = (ByChannels(SRC), ByRows(SRC), InStages(SRC))
BACKWARD = (ByChannels(DIFF), ByRows(DIFF), InStages(DIFF))
BATCH_FORWARD = (InStages(SRC),)
BATCH_BACKWARD = (InStages(DIFF | {"diff_src1": "src"}),)
