"""Normalizations in stages: statistics or sums (`rows/statistics.py`), then an element-wise pass.

Training reads src twice, and gradients read src and diff_dst twice, or three times if the sums of
sets and of channels differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dnncore.backend import (
    Attributes,
    MemoryDesc,
)
from dnncore_opencl.codegen.layout import Parameters, elements
from dnncore_opencl.codegen.vectors import GPU_BYTES, TYPES
from dnncore_opencl.elementwise.algorithms import Step
from dnncore_opencl.normalization.application import Application
from dnncore_opencl.normalization.views import WHOLE, ApartViews, Views
from dnncore_opencl.rows.statistics import FLOAT_BYTES, Output, Statistics, Tensor
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Scratch

STATISTICS = ("mean", "variance")
LINE = 32  # floats; parts of the scratchpad begin at lines


@dataclass
class Plan:
    """The launches of one operation.

    named: its tensors in the common shape. applied: the same for the last pass, which runs in src's
    dims if blocks or padding of a tensor cross groups. Then statistics are computed from copies.
    uncopied: the tensors that may be copied. room: the floats of the scratchpad used so far. steps:
    functions that make the launches, because `accept` only plans.
    """

    engine: Any
    op: Any
    attr: Attributes
    views: Views
    named: dict[str, Tensor]
    applied: dict[str, Tensor]
    operands: list[Tensor]
    scalars: dict[str, tuple[MemoryDesc, int]]
    workspace: MemoryDesc | None
    uncopied: dict[str, Tensor] = field(default_factory=dict)
    room: int = 0
    steps: list[Callable[[], list[Launch]]] = field(default_factory=list)

    def parameters(
        self, buffers: Mapping[str, Tensor], length: int
    ) -> tuple[Parameters, dict[str, str]]:
        """Return the buffers and definitions of a kernel of rows. length: elements of a row."""
        op = self.op
        parameters = Parameters(max(elements(tensor.desc) for tensor in buffers.values()))
        written = {op.result_name, *(STATISTICS if op.result_name == "dst" else ())}
        for name, tensor in buffers.items():
            const = "" if name in written else "const "
            parameters.buffer(name, const + TYPES[tensor.desc.data_type], tensor.buffer)
        return parameters, {
            **({} if op.has_mean else {"RMS": ""}),
            **({"HAS_SCALE": ""} if "scale" in buffers else {}),
            **({"HAS_SHIFT": ""} if "shift" in buffers else {}),
            **({"KEEPS": ""} if "variance" in buffers else {}),
            "SHARE": parameters.real(1.0 / op.count),
            "EPSILON": parameters.real(op.epsilon),
            "PADDED_LENGTH": parameters.size(length),
        }

    @classmethod
    def of(cls, op: Any, attr: Attributes, engine: Any, workspace: MemoryDesc | None) -> Plan:
        """Collect the tensors. Raises `DescriptorError` for statistics with blocks."""
        tensors = [(argument.name, desc) for argument, desc in op.tensors(workspace)]
        others = [(argument.name, desc) for argument, desc in attr.arguments(op)]
        views = Views(op)
        wholes = [desc for name, desc in tensors if name in WHOLE]
        wholes += [desc for name, desc in others if name.startswith("post_op_")]
        is_apart = not all(map(views.has_whole, wholes))
        applied_views = ApartViews(op) if is_apart else views
        plan = cls(engine, op, attr, views, {}, {}, [], {}, workspace)
        for place, (name, desc) in enumerate(tensors):
            own = Tensor(applied_views.of(name, desc), Arg(place))
            plan.applied[name] = own
            if is_apart and name in WHOLE:
                plan.uncopied[name] = own
            else:
                plan.named[name] = Tensor(views.of(name, desc), Arg(place))
        for place, (name, desc) in enumerate(others, len(tensors)):
            if name.startswith("post_op_"):
                plan.operands.append(Tensor(applied_views.of("dst", desc), Arg(place)))
            else:
                plan.scalars[name] = (desc, place)
        if "src_scales" in plan.scalars:
            desc, place = plan.scalars["src_scales"]
            one = MemoryDesc((1,) * len(views.dims), desc.data_type)
            plan.named["src_scales"] = Tensor(one, Arg(place))
        return plan

    @property
    def attributes_place(self) -> int:
        """The place of the first argument of an attribute."""
        return len(self.op.tensors(self.workspace))

    @property
    def _applied_views(self) -> Views:
        return ApartViews(self.op) if self.uncopied else self.views

    def has(self, name: str) -> bool:
        """Whether the operation has a tensor, or the scratchpad has it now."""
        return name in self.applied

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
            start = self._take(math.prod(self.op.statistics_dims))
            for views, tensors in ((self.views, self.named), (self._applied_views, self.applied)):
                tensors[name] = Tensor(views.statistic_like(start), Scratch())
        return self.named[name]

    @property
    def has_inner_channels(self) -> bool:
        """Whether a GPU computes sets of several channels that are contiguous.

        Then rows of a set are short, but those of all channels are not.
        """
        result = self.applied[self.op.result_name].desc
        if self.engine.is_cpu or not self.views.groups or self.uncopied or not result.nelems:
            return False
        is_plain = not result.inner_blocks and math.prod(result.dims[3:]) > 1
        return is_plain and result.dims[2] > 1 and result.strides[2] == 1

    def of_channels(self) -> Tensor:
        """Reserve a number per channel of each image, in the scratchpad."""
        images, groups, span, *pixels = self.views.dims
        desc = MemoryDesc((images, groups, span, *(1 for _ in pixels)))
        return Tensor(desc.with_offset0(self._take(desc.nelems)), Scratch())

    def spread(self, names: Sequence[str]) -> None:
        """Add a pass that copies numbers of sets to all of their channels.

        Only if vectors of channels cross sets; then the passes over all elements need such copies.
        """
        result = self.applied[self.op.result_name].desc
        if not self.has_inner_channels or result.dims[2] % (GPU_BYTES // result.itemsize) == 0:
            return
        own = {name: self.applied[name] for name in names if self.has(name)}
        if not own:
            return
        copies = {name: self.of_channels() for name in own}
        self.applied |= copies
        self.named |= copies

        def launches() -> list[Launch]:
            first, *others = own
            outputs = {name: copies[name] for name in others}
            work = Application(self.engine, own, copies[first], [], outputs)
            work.then(Step(f"realLANES x = {work.value(first)};", keeps_zero=False))
            for name in others:
                work.then(Step(f"const realLANES {name} = {work.value(name)};"))
            return work.launches()

        self.steps.append(launches)

    def of_sets(self) -> Tensor:
        """Reserve a number per set, in the scratchpad."""
        start = self._take(math.prod(self.op.statistics_dims))
        return Tensor(self.views.statistic_like(start), Scratch())

    def _copy(self, name: str) -> None:
        """Add a pass that copies a tensor to the scratchpad, in f32 and row-major."""
        own = self.applied[name]
        desc = MemoryDesc(own.desc.dims, "f32").with_offset0(self._take(own.desc.nelems))

        def launches() -> list[Launch]:
            work = Application(self.engine, {name: own}, Tensor(desc, Scratch()), [], {})
            work.then(Step("realLANES x = v0;"))
            return work.launches()

        self.steps.append(launches)
        self.named[name] = Tensor(self.views.of(name, desc), Scratch())

    def reduce(
        self, names: Sequence[str], outputs: Sequence[Output], reduced: Sequence[int],
        terms: Sequence[str] = (), **numbers: float,
    ) -> None:  # fmt: skip
        """Add the launches of statistics of these tensors."""
        for name in names:
            if name in self.uncopied and name not in self.named:
                self._copy(name)
        sources = [self.named[name] for name in names if name in self.named]
        self.combine(sources, outputs, reduced, terms, **numbers)

    def combine(
        self, sources: Sequence[Tensor], outputs: Sequence[Output], reduced: Sequence[int],
        terms: Sequence[str] = (), **numbers: float,
    ) -> None:  # fmt: skip
        """Add the launches of statistics of tensors with buffers."""
        start = self.room * FLOAT_BYTES
        own = Statistics(self.engine, sources, outputs, reduced, terms, numbers, start)
        self._take(-(-own.scratchpad_bytes // FLOAT_BYTES))
        self.steps.append(own.launches)

    def sum_parts(self, parts: int, vector: Sequence[int]) -> int:
        """Reserve sums of `parts` parts for the gradients of shift and scale, and add the launches
        that combine them. vector: their dims. Returns the place of the first sum: all parts of
        shift, then those of scale.
        """
        dims = [1] * len(self.views.dims)
        for place, size in zip(self.views.vector_dims, vector, strict=True):
            dims[place] = size
        dims[0] = parts
        desc = MemoryDesc(dims)
        start = self._take(2 * desc.nelems)
        pairs = [
            (Tensor(desc.with_offset0(start + i * desc.nelems), Scratch()), self.named[name])
            for i, name in enumerate(("diff_shift", "diff_scale"))
            if name in self.named
        ]
        self.add_up(pairs, [d for d in range(len(dims)) if d not in self.views.vector_dims])
        return start

    def add_up(self, pairs: Sequence[tuple[Tensor, Tensor]], reduced: Sequence[int]) -> None:
        """Add the launches of the sums of one or two tensors. pairs: tensors and their sums."""
        outputs = [Output(tensor, f"total_{'ab'[i]}") for i, (_, tensor) in enumerate(pairs)]
        terms = [f"v{i}" for i in range(len(pairs))]
        self.combine([part for part, _ in pairs], outputs, reduced, terms)

    def apply(self, inputs: Sequence[str], result: str, outputs: Sequence[str]) -> Application:
        """Return the pass over all elements, without its steps."""
        own = {name: self.applied[name] for name in inputs if self.has(name)}
        extra = {name: self.applied[name] for name in outputs if self.has(name)}
        work = Application(self.engine, own, self.applied[result], self.operands, extra)
        work.bind(self.attr, result, self.scalars)
        return work


def forward(plan: Plan) -> None:
    """Compute the statistics unless they are given, then the result."""
    if not plan.op.use_global_stats:
        _moments(plan)
    plan.spread(["mean", "variance"])
    plan.steps.append(partial(_normalize, plan))


def _normalize(plan: Plan) -> list[Launch]:
    """Return the pass that computes the result."""
    op, has = plan.op, plan.has
    inputs = ("src", "mean", "variance", "scale", "shift", "src1")
    work = plan.apply(inputs, "dst", ("workspace",))
    numbers = work.parameters
    x = work.value("src")
    x = f"({x} - {work.value('mean')})" if op.has_mean else x
    factor = f"(1.0f / sqrt({work.value('variance')} + {numbers.real(op.epsilon)}))"
    factor += f" * {work.value('scale')}" if has("scale") else ""
    shift = f" + {work.value('shift')}" if has("shift") else ""
    work.then(Step(f"realLANES x = {x} * ({factor}){shift};", keeps_zero=False))
    if getattr(op, "fuse_relu", False):
        if has("src1"):
            work.then(Step(f"x = x + {work.value('src1')};"))
        if has("workspace"):
            # Oclgrind computes 1 - ((x <= 0.0f) & 1) of vectors wrongly.
            mask = "x <= 0.0f ? (realLANES)(0.0f) : (realLANES)(1.0f)"
            work.then(Step(f"const realLANES workspace = {mask};"))
        work.then(Step("x = x <= 0.0f ? (realLANES)(0.0f) : x;"))
    work.post_ops(plan.attr)
    return work.launches()


def _moments(plan: Plan) -> None:
    op = plan.op
    variance, count = plan.statistic("variance"), max(op.count, 1)
    if op.has_mean and plan.has_inner_channels:
        _moments_of_channels(plan, variance)
    elif op.has_mean:
        outputs = [Output(plan.statistic("mean"), "average")]
        outputs.append(Output(variance, "deviations / fmax(total, 1.0f)"))
        plan.reduce(["src", "src_scales"], outputs, plan.views.in_set)
    else:
        x = "v0 * v1" if "src_scales" in plan.named else "v0"
        outputs = [Output(variance, "total_a / ELEMENTS_OF_SET")]
        numbers = {"ELEMENTS_OF_SET": float(count)}
        names = ["src", "src_scales"]
        plan.reduce(names, outputs, plan.views.in_set, [f"({x}) * ({x})"], **numbers)


def _moments_of_channels(plan: Plan, variance: Tensor) -> None:
    """Add the statistics of each channel of each image, then those of sets of channels."""
    pixels = math.prod(plan.views.dims[3:])
    means, within = plan.of_channels(), plan.of_channels()
    between = plan.of_sets()
    outputs = [Output(means, "average"), Output(within, "deviations")]
    plan.reduce(["src", "src_scales"], outputs, plan.views.in_set[1:])
    outputs = [Output(plan.statistic("mean"), "average"), Output(between, "deviations")]
    plan.combine([means], outputs, plan.views.in_set)
    outputs = [Output(variance, "total_a / ELEMENTS_OF_SET")]
    share = pixels / plan.views.dims[2]  # of a channel in the deviations between channels
    numbers = {"SHARE": share, "ELEMENTS_OF_SET": float(max(plan.op.count, 1))}
    plan.combine([within, between], outputs, plan.views.in_set, ["v0 + v1 * SHARE"], **numbers)


def backward(plan: Plan) -> None:
    """Compute the sums that are needed, then the gradient of src."""
    op, named = plan.op, plan.named
    of_set = not op.use_global_stats
    wanted = [name for name in ("diff_shift", "diff_scale") if name in named]
    is_batch = plan.views.in_set == plan.views.in_channel
    plan.spread(["mean", "variance"])
    if is_batch and (of_set or wanted):
        for name in ("diff_shift", "diff_scale"):
            if of_set:
                plan.statistic(name)
        _sums(plan, named.get("diff_shift"), named.get("diff_scale"), plan.views.in_set)
        if of_set:
            plan.applied |= {"sum_a": named["diff_shift"], "sum_b": named["diff_scale"]}
    elif plan.has_inner_channels and (of_set or wanted):
        _sums_of_channels(plan, of_set=of_set)
    elif not is_batch:
        if of_set:
            sums = plan.statistic("sum_a"), plan.statistic("sum_b")
            _sums(plan, *sums, plan.views.in_set, is_scaled=plan.has("scale"))
        channel_sums(plan)
    plan.spread(["sum_a", "sum_b"])
    plan.steps.append(partial(_differentiate, plan))


def _sums_of_channels(plan: Plan, *, of_set: bool) -> None:
    """Add the sums of each channel of each image, then those of sets and of channels."""
    sums = {"diff_shift": plan.of_channels(), "diff_scale": plan.of_channels()}
    _sums(plan, sums["diff_shift"], sums["diff_scale"], plan.views.in_set[1:])
    if of_set:
        scale, terms = [], ["v0", "v1"]
        if plan.has("scale"):
            scale, terms = [plan.named["scale"]], ["v0 * v2", "v1 * v2"]
        outputs = [Output(plan.statistic(f"sum_{x}"), f"total_{x}") for x in "ab"]
        plan.combine([*sums.values(), *scale], outputs, plan.views.in_set, terms)
    pairs = [(own, plan.named[name]) for name, own in sums.items() if name in plan.named]
    if pairs:
        plan.add_up(pairs, plan.views.in_channel)


def _differentiate(plan: Plan) -> list[Launch]:
    """Return the pass that computes the gradient of src, and a pass for the gradient of src1 if
    their padding differs.
    """
    op, has = plan.op, plan.has
    of_set, is_batch = not op.use_global_stats, plan.views.in_set == plan.views.in_channel
    inputs = ["src", "diff_dst", "mean", "variance", "scale", "workspace"]
    added = plan.applied.get("diff_src1")
    is_apart = added and added.desc.padded_dims != plan.applied["diff_src"].desc.padded_dims
    work = plan.apply([*inputs, *(("sum_a", "sum_b") if of_set else ())], "diff_src",
                      () if is_apart else ("diff_src1",))  # fmt: skip
    mean, epsilon = op.has_mean, work.parameters.real(op.epsilon)
    work.then(Step(f"const realLANES factor = 1.0f / sqrt({work.value('variance')} + {epsilon});"))
    work.then(Step(f"const realLANES diff_src1 = {_gradient(plan, work)};"))
    scale = f" * {work.value('scale')}" if has("scale") else ""
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
    if not is_apart:
        return work.launches()
    alone = plan.apply(["diff_dst", "workspace"], "diff_src1", ())
    alone.then(Step(f"realLANES x = {_gradient(plan, alone)};", keeps_zero=False))
    return [*work.launches(), *alone.launches()]


def _gradient(plan: Plan, work: Application) -> str:
    """Return the expression of the gradient of dst where the fused relu did not set it to 0."""
    diff = work.value("diff_dst")
    if plan.has("workspace"):
        diff = f"{work.value('workspace')} == 0.0f ? (realLANES)(0.0f) : {diff}"
    return diff


def channel_sums(plan: Plan) -> None:
    """Add the gradients of scale and shift that are wanted."""
    shift, scale = plan.named.get("diff_shift"), plan.named.get("diff_scale")
    if shift or scale:
        _sums(plan, shift, scale, plan.views.in_channel)


def _sums(
    plan: Plan, first: Tensor | None, second: Tensor | None, reduced: Sequence[int],
    *, is_scaled: bool = False,
) -> None:  # fmt: skip
    """Add the sums of diff_dst (`first`) and of diff_dst * x (`second`), times scale."""
    names = ["src", "diff_dst", "mean", "variance", "workspace", *(["scale"] if is_scaled else [])]
    names = [name for name in names if plan.has(name)]
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
