"""Normalizations in stages: statistics or sums (`rows/statistics.py`), then one element-wise pass.

Training reads src twice, and gradients read src and diff_dst twice, or three times if the sums of
sets and of channels differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnncore import backend as core
from dnncore.backend import (
    Accepted,
    Attributes,
    DescriptorError,
    Implementation,
    MemoryDesc,
    Refused,
)
from dnncore_opencl.codegen.vectors import COMPUTED
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, Step
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.normalization.application import Application
from dnncore_opencl.normalization.views import Views
from dnncore_opencl.rows.statistics import FLOAT_BYTES, Output, Statistics, Tensor
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch

WHOLE = ("src", "src1", "dst", "workspace", "diff_dst", "diff_src", "diff_src1")
VECTORS = ("scale", "shift", "diff_scale", "diff_shift")
LINE = 32  # floats; parts of the scratchpad begin at lines


@dataclass
class Plan:
    """The launches of one operation.

    named: its tensors in the common shape. room: the floats of the scratchpad used so far.
    """

    engine: Any
    op: Any
    attr: Attributes
    views: Views
    named: dict[str, Tensor]
    operands: list[Tensor]
    scalars: dict[str, tuple[MemoryDesc, int]]
    room: int = 0
    launches: list[Launch] = field(default_factory=list)

    @classmethod
    def of(cls, op: Any, attr: Attributes, engine: Any, workspace: MemoryDesc | None) -> Plan:
        """Collect the tensors. Raises `DescriptorError` for layouts without the common shape."""
        views = Views(op)
        tensors = op.tensors(workspace)
        named = {}
        for place, (argument, desc) in enumerate(tensors):
            name = argument.name
            view = views.channel if name in VECTORS else views.statistic
            view = views.whole if name in WHOLE else view
            named[name] = Tensor(view(desc), Arg(place))
        operands, scalars = [], {}
        for place, (argument, desc) in enumerate(attr.arguments(op), len(tensors)):
            if argument.name.startswith("post_op_"):
                operands.append(Tensor(views.whole(desc), Arg(place)))
            else:
                scalars[argument.name] = (desc, place)
        if "src_scales" in scalars:
            desc, place = scalars["src_scales"]
            one = MemoryDesc((1,) * len(views.dims), desc.data_type)
            named["src_scales"] = Tensor(one, Arg(place))
        return cls(engine, op, attr, views, named, operands, scalars)

    @property
    def scratchpad_bytes(self) -> int:
        """The bytes of the scratchpad."""
        return self.room * FLOAT_BYTES

    def _take(self, floats: int) -> int:
        """Reserve a part of the scratchpad; return its first element."""
        start = self.room
        self.room += -(-floats // LINE) * LINE
        return start

    def statistic(self, name: str) -> Tensor:
        """Return an argument, or a part of the scratchpad with a number per set."""
        if name not in self.named:
            desc = self.views.statistic_like(0)
            start = self._take(desc.nelems)
            self.named[name] = Tensor(desc.with_offset0(start), Scratch())
        return self.named[name]

    def reduce(
        self, names: Sequence[str], outputs: Sequence[Output], reduced: Sequence[int],
        terms: Sequence[str] = (), **numbers: float,
    ) -> None:  # fmt: skip
        """Add the launches of statistics of these tensors."""
        sources = [self.named[name] for name in names if name in self.named]
        start = self.room * FLOAT_BYTES
        own = Statistics(self.engine, sources, outputs, reduced, terms, numbers, start)
        self._take(-(-own.scratchpad_bytes // FLOAT_BYTES))
        self.launches += own.launches()

    def apply(
        self, inputs: Sequence[str], result: str, outputs: Sequence[str]
    ) -> Application:
        """Return the pass over all elements, without its steps."""
        own = {name: self.named[name] for name in inputs if name in self.named}
        extra = {name: self.named[name] for name in outputs if name in self.named}
        work = Application(self.engine, own, self.named[result], self.operands, extra)
        work.bind(self.attr, result, self.scalars)
        return work


def forward(plan: Plan) -> None:
    """Compute the statistics unless they are given, then the result."""
    op, named = plan.op, plan.named
    if not op.use_global_stats:
        _moments(plan)
    inputs = ("src", "mean", "variance", "scale", "shift", "src1")
    work = plan.apply(inputs, "dst", ("workspace",))
    numbers = work.parameters
    x = work.value("src")
    x = f"({x} - {work.value('mean')})" if op.has_mean else x
    factor = f"(1.0f / sqrt({work.value('variance')} + {numbers.real(op.epsilon)}))"
    factor += f" * {work.value('scale')}" if "scale" in named else ""
    shift = f" + {work.value('shift')}" if "shift" in named else ""
    work.then(Step(f"realLANES x = {x} * ({factor}){shift};", keeps_zero=False))
    if getattr(op, "fuse_relu", False):
        if "src1" in named:
            work.then(Step(f"x = x + {work.value('src1')};"))
        if "workspace" in named:
            work.then(Step("const intLANES workspace = 1 - ((x <= 0.0f) & 1);"))
        work.then(Step("x = x <= 0.0f ? (realLANES)(0.0f) : x;"))
    work.post_ops(plan.attr)
    plan.launches += work.launches()


def _moments(plan: Plan) -> None:
    op = plan.op
    variance, count = plan.statistic("variance"), max(op.count, 1)
    if op.has_mean:
        outputs = [Output(plan.statistic("mean"), "average")]
        outputs.append(Output(variance, "deviations / fmax(total, 1.0f)"))
        plan.reduce(["src", "src_scales"], outputs, plan.views.in_set)
    else:
        x = "v0 * v1" if "src_scales" in plan.named else "v0"
        outputs = [Output(variance, "total_a / ELEMENTS_OF_SET")]
        numbers = {"ELEMENTS_OF_SET": float(count)}
        names = ["src", "src_scales"]
        plan.reduce(names, outputs, plan.views.in_set, [f"({x}) * ({x})"], **numbers)


def backward(plan: Plan) -> None:
    """Compute the sums that are needed, then the gradient of src."""
    op, named = plan.op, plan.named
    inputs = ["src", "diff_dst", "mean", "variance", "scale", "workspace"]
    of_set = not op.use_global_stats
    wanted = [name for name in ("diff_shift", "diff_scale") if name in named]
    is_batch = plan.views.in_set == plan.views.in_channel
    if is_batch and (of_set or wanted):
        for name in ("diff_shift", "diff_scale"):
            if of_set:
                plan.statistic(name)
        _sums(plan, named.get("diff_shift"), named.get("diff_scale"), plan.views.in_set)
        named |= {"sum_a": named["diff_shift"], "sum_b": named["diff_scale"]} if of_set else {}
    elif not is_batch:
        if of_set:
            sums = plan.statistic("sum_a"), plan.statistic("sum_b")
            _sums(plan, *sums, plan.views.in_set, is_scaled="scale" in named)
        if wanted:
            channel = named.get("diff_shift"), named.get("diff_scale")
            _sums(plan, *channel, plan.views.in_channel)
    work = plan.apply([*inputs, *(("sum_a", "sum_b") if of_set else ())], "diff_src",
                      ("diff_src1",))  # fmt: skip
    mean, epsilon = op.has_mean, work.parameters.real(op.epsilon)
    work.then(Step(f"const realLANES factor = 1.0f / sqrt({work.value('variance')} + {epsilon});"))
    diff = work.value("diff_dst")
    if "workspace" in named:
        diff = f"{work.value('workspace')} == 0.0f ? (realLANES)(0.0f) : {diff}"
    work.then(Step(f"const realLANES diff_src1 = {diff};"))
    scale = f" * {work.value('scale')}" if "scale" in named else ""
    inner, outer = (scale, "") if not is_batch else ("", scale)
    text = f"diff_src1{inner}"
    if of_set:
        count = work.parameters.real(1.0 / max(op.count, 1))
        x = f"{work.value('src')} - {work.value('mean')}" if mean else work.value("src")
        taken = f"({x}) * factor * {work.value('sum_b')}"
        taken = f"{work.value('sum_a')} + {taken}" if mean else taken
        text += f" - ({taken}) * {count}"
    work.then(Step(f"realLANES x = ({text}) * (factor{outer});", keeps_zero=False))
    work.post_ops(plan.attr)
    plan.launches += work.launches()


def _sums(
    plan: Plan, first: Tensor | None, second: Tensor | None, reduced: Sequence[int],
    *, is_scaled: bool = False,
) -> None:  # fmt: skip
    """Add the sums of diff_dst (`first`) and of diff_dst * x (`second`), times scale."""
    named = plan.named
    names = ["src", "diff_dst", "mean", "variance", "workspace", *(["scale"] if is_scaled else [])]
    names = [name for name in names if name in named]
    v = {name: f"v{place}" for place, name in enumerate(names)}
    diff = v["diff_dst"]
    if "workspace" in v:
        diff = f"({v['workspace']} == 0.0f ? (KIND)(0.0f) : {diff})"
    diff = f"{diff} * {v['scale']}" if is_scaled else diff
    x = f"({v['src']} - {v['mean']})" if "mean" in v else v["src"]
    of_x = f"{diff} * ({x} * (1.0f / sqrt({v['variance']} + EPSILON)))"
    terms = [(first, diff), (second, of_x)]
    kept = [(tensor, term) for tensor, term in terms if tensor is not None]
    outputs = [Output(t, f"total_{'ab'[i]}") for i, (t, _) in enumerate(kept)]
    plan.reduce(names, outputs, reduced, [t for _, t in kept], EPSILON=plan.op.epsilon)


class Normalization(Implementation[Any]):
    """All normalizations in one direction."""

    name = "opencl:staged"
    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, "scales", ROUNDING)
    takes_repeats = True

    def __init__(self, launches: Any, like: Mapping[str, str]) -> None:
        self.launches = launches
        self.like = like

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept layouts of strides and blocks that do not cross groups, with post-ops."""
        op = op.resolve_any(**{name: getattr(op, other) for name, other in self.like.items()})
        vectors = {name: None for name in ("diff_scale", "diff_shift") if hasattr(op, name)}
        for name in vectors:
            desc = getattr(op, name)
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
            self.launches(plan)
        except DescriptorError as error:
            return Refused("format", str(error))
        return Accepted(
            op,
            lambda: LaunchProgram(engine, plan.launches),
            efficiency=0.4 if engine.is_cpu else 0.85,
            scratchpad_bytes=plan.scratchpad_bytes,
            workspace=workspace,
            exact=False,
            notes=("compiles",),
        )


FORWARD = (Normalization(forward, {"dst": "src"}),)
BACKWARD = (
    Normalization(backward, {"diff_dst": "src", "diff_src": "src"}),
)  # fmt: skip
BATCH_BACKWARD = (
    Normalization(backward, {"diff_dst": "src", "diff_src": "src", "diff_src1": "src"}),
)
