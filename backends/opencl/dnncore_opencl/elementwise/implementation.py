"""One pass over tensors: each element of the result is an expression of the elements at its place.

Eltwise, binary, sum and reorder are this pass with different expressions. A `Nest` makes loops for
all layouts; for equal dense layouts it is one flat loop of whole vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, OpT, Refused
from dnncore_opencl.codegen.grid import Boxes, Grid
from dnncore_opencl.codegen.layout import Loop, Nest, Parameters
from dnncore_opencl.codegen.vectors import (
    COMPUTED,
    INTEGERS,
    TYPES,
    conversions,
    load,
    most_lanes,
    quick_functions,
    quick_options,
    read,
    store,
    value_type,
    vector,
    with_lanes,
    write,
)
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, Step, chain, refuse_post_ops
from dnncore_opencl.runtime.launch import Launch, template
from dnncore_opencl.runtime.program import LaunchProgram


class Pass:
    """The code and the launch of one pass.

    descs: the tensors in bind order. result: the place of the result among them. The steps compute
    `x` from `v0`, `v1`, ..., the tensors' elements; that of the result is its old value. `x` is
    stored.
    """

    template = "elementwise"

    def __init__(self, engine: Any, descs: Sequence[MemoryDesc], result: int) -> None:
        self.engine = engine
        self.descs = tuple(descs)
        self.result = result
        self.steps: list[str] = []
        self.keeps_zero = True
        self.quick: dict[str, str] = {}  # functions that need not be exact
        self.options: tuple[str, ...] = ()  # of the compiler
        self.copies_bits = False  # values of all types are then what lies in memory
        self.keeps_integers = False  # those of integers are
        self.snippets: list[str] = []  # the templates of functions, one for each number of lanes
        tensors = {f"b{place}": desc for place, desc in enumerate(descs)}
        self.parameters = Parameters.of(tensors, {f"b{result}"})

    def then(self, *steps: Step) -> None:
        """Add steps behind the start."""
        self.steps += [step.text for step in steps]
        self.keeps_zero = self.keeps_zero and all(step.keeps_zero for step in steps)

    def start(self, value: str, data_type: str = "f32") -> None:
        """Declare x, a value of a data type, by an expression."""
        self.then(Step(f"{self.value_type(data_type)}LANES x = {value};"))

    def value_type(self, data_type: str) -> str:
        """The type of values of a data type."""
        return TYPES[data_type] if self.is_raw(data_type) else value_type(data_type)

    def is_raw(self, data_type: str) -> bool:
        """Whether values of a data type are what lies in memory."""
        return self.copies_bits or (self.keeps_integers and data_type in INTEGERS)

    def post_ops(self, attr: Attributes) -> None:
        """Add the chain; the operands of its steps are the last of the tensors."""
        self.quick = quick_functions(self.engine, self.descs[self.result].data_type, attr)
        scalars = [x for x in self.parameters.arguments.values() if isinstance(x, float)]
        self.options = quick_options(self.engine, self.descs, attr, scalars)
        last = len(self.descs)
        operands = [f"v{place}" for place in range(last - len(attr.operands()), last)]
        self.then(*chain(attr.post_ops, operands, f"v{self.result}", self.parameters.real))

    def launches(self) -> list[Launch]:
        """Plan the launch; where there is no element there is none."""
        return [self.launch()] if self.descs[self.result].nelems else []

    # -- the plan -----------------------------------------------------------------------------

    @cached_property
    def nest(self) -> Nest:
        """The loops. All steps must be added before its first use."""
        return self.loops()

    def loops(self) -> Nest:
        """Return the loops, in the result's order."""
        result = self.descs[self.result]
        alike = all(
            (d.dims, d.padded_dims) == (result.dims, result.padded_dims) for d in self.descs
        )
        return Nest.of(self.descs, self.result, mask_padding=not (alike and self.keeps_zero))

    @cached_property
    def boxes(self) -> Boxes:
        """The work-items' shares."""
        return Boxes.of(self.engine, self.nest, run=self.lanes)

    @cached_property
    def lanes(self) -> int:
        """Elements that are computed at once. All elements of a vector are padding, or none."""
        if not self.nest.loops:
            return 1
        inner = self.nest.loops[-1]
        if any(stride not in (0, 1) for stride in inner.strides):
            return 1
        limits = (self.nest.shape[inner.dim], self.nest.padded[inner.dim], inner.size)
        guarded = inner.dim in self.nest.guarded
        steps = self.vector_steps(inner, self.nest.loops[:-1], range(len(self.descs)))
        itemsize = self.descs[self.result].itemsize  # wider writes cost more than narrower reads
        lanes = most_lanes(self.engine, limits if guarded else (), steps, itemsize)
        return min(lanes, 1 << inner.size.bit_length() - 1)

    def vector_steps(self, along: Loop, others: Iterable[Loop], places: Iterable[int]) -> list[int]:
        """Terms of the offsets of vectors along a loop, in the tensors at `places`.

        A step that is not constant counts as 1.
        """
        others = tuple(others)
        steps = []
        for place in places:
            if along.strides[place] == 1:
                strides = (loop.strides[place] for loop in others)
                steps += [self.descs[place].offset0, *(1 if s is None else s for s in strides)]
        return steps

    @cached_property
    def grid(self) -> Grid:
        """The launch."""
        return Grid.of(self.engine, self.boxes.items)

    def launch(self) -> Launch:
        """Return the kernel launch; there must be an element."""
        defines = self.defines() | self.grid.defines(self.parameters) | self.quick
        widths = sorted({1, self.lanes})
        snippets = [with_lanes(template(name), n) for name in self.snippets for n in widths]
        descs = (desc.data_type for desc in self.descs)
        types = [data_type for data_type in descs if not self.is_raw(data_type)]
        snippets += (*conversions(self.engine, types, widths), template("fp64"))
        return self.grid.launch(self.template, self.parameters, defines, snippets, self.options)

    # -- the text -----------------------------------------------------------------------------

    def defines(self) -> dict[str, str]:
        """What the template needs, beside the launch's and the parameters' defines."""
        return {
            "DECODE": self._decode(),
            "STEP": self.step(1),
            "WIDE_STEP": self.step(self.lanes),
            "LANES": str(self.lanes),
            **({"ONE_VECTOR": ""} if self.boxes.is_single(self.lanes) else {}),
        }

    def _decode(self) -> str:
        text = self.boxes.decode(self.parameters)
        for place, desc in enumerate(self.descs):
            offset = self.parameters.index(desc.offset0)
            offset += self.boxes.outer_offset(place, self.parameters)
            text += f"const INDEX o{place} = {offset}; "
        return text

    @cached_property
    def pointers(self) -> list[str]:
        """Where each tensor's element of `r` and `t` is."""
        inner = (self.boxes.inner_offset(i, self.parameters) for i in range(len(self.descs)))
        return [f"b{place} + o{place}{offset}" for place, offset in enumerate(inner)]

    @cached_property
    def conditions(self) -> tuple[str, str]:
        """Whether there is such an element, and whether it is not padding."""
        return self.nest.conditions(self.boxes.variables, self.parameters)

    def step(self, lanes: int) -> str:
        """Return statements for `lanes` elements from `t` on; they do not read padding."""
        exists, inside = self.conditions
        masked = inside != "1"
        body = " ".join(self.steps)
        text = f"const int inside = {inside}; " if masked else ""
        for place, desc in enumerate(self.descs):
            if re.search(rf"\bv{place}\b", body):
                kind = vector(self.value_type(desc.data_type), lanes)
                value = self.load(place, lanes)
                value = f"inside ? {value} : ({kind})(0)" if masked else value
                text += f"const {kind} v{place} = {value}; "
        kind = vector(self.value_type(self.descs[self.result].data_type), lanes)
        zeroed = masked and not self.keeps_zero
        stored = f"inside ? x : ({kind})(0)" if zeroed else "x"
        exists = f"if ({exists}) " if exists != "1" else ""
        return with_lanes(f"{exists}{{ {text}{body} {self._store(lanes, stored)} }}", lanes)

    def load(self, place: int, lanes: int) -> str:
        """Return the expression that reads a tensor's elements, as values."""
        loops = self.nest.loops
        lanes = 1 if not loops or loops[-1].strides[place] == 0 else lanes
        data_type, pointer = self.descs[place].data_type, self.pointers[place]
        if self.is_raw(data_type):
            return load(self.engine, TYPES[data_type], lanes, pointer)
        return read(self.engine, data_type, lanes, pointer)

    def _store(self, lanes: int, value: str) -> str:
        data_type, pointer = self.descs[self.result].data_type, self.pointers[self.result]
        if self.is_raw(data_type):
            return store(self.engine, TYPES[data_type], lanes, pointer, value) + ";"
        return write(self.engine, data_type, lanes, pointer, value) + ";"


class Elementwise(Implementation[OpT]):
    """An operation that is one pass; a subclass defines the formats of `any`, and x.

    Efficiency was measured on tensors beyond all caches.
    """

    takes_repeats = True

    name = "opencl:pointwise"
    data_types: tuple[str, ...] = COMPUTED
    attributes = POST_OP_WORDS
    like: ClassVar[Mapping[str, str]] = {}  # what may be `any`, and whose format it takes
    pass_type: ClassVar[type[Pass]] = Pass

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout of strides and blocks."""
        op = op.resolve_any(**{name: getattr(op, other) for name, other in self.like.items()})
        refused = refuse_common(op, attr) or self.refuse(op, attr, engine)
        if refused:
            return refused
        return Accepted(
            op,
            lambda: LaunchProgram(engine, self.launches(op, attr, engine)),
            efficiency=self.efficiency(engine, [desc for _, desc in op.tensors()]),
            scratchpad_bytes=self.scratchpad_bytes(op),
            notes=("compiles",),
        )

    def compute(self, op: OpT, attr: Attributes, work: Pass) -> None:
        """Add the steps of the operation and of post-ops."""
        raise NotImplementedError

    def launches(self, op: OpT, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Plan one pass over all tensors."""
        descs = [desc for _, desc in op.tensors()]
        operands = [desc for _, desc in attr.operands()]
        work = self.pass_type(engine, [*descs, *operands], len(descs) - 1)
        self.compute(op, attr, work)
        return work.launches()

    def scratchpad_bytes(self, op: OpT) -> int:
        """The bytes that several passes share."""
        return 0

    def efficiency(self, engine: Any, descs: Sequence[MemoryDesc]) -> float:
        """The share of the bandwidth: nearly all of it where tensors lie in one dense order."""
        result = descs[-1]
        whole = [desc for desc in descs if desc.dims == result.dims]
        if all(desc.is_dense and desc.strides == result.strides for desc in whole):
            return 0.65 if engine.is_cpu else 0.95
        return 0.15 if engine.is_cpu else 0.25

    def refuse(self, op: OpT, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse what the operation cannot do."""
        return None


def refuse_common(op: core.Operation, attr: Attributes) -> Refused | None:
    """Refuse formats without strides, and unknown post-ops."""
    for argument, desc in op.tensors():
        if desc.format_kind != "blocked":
            return Refused("format", f"{argument.name} has the format {desc.tag!r}, not strides")
    return refuse_post_ops(attr)
