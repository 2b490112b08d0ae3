"""One pass over tensors: a result element is an expression of the elements at the same place.

Eltwise, binary, sum and reorder are passes with different expressions. A `Nest` provides loops for
all layouts. For equal dense layouts it is one flat loop over whole vectors.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, OpT, Refused
from dnncore_opencl.codegen.grid import Boxes, Grid
from dnncore_opencl.codegen.layout import Loop, Nest, Parameters, Spread
from dnncore_opencl.codegen.vectors import (
    COMPUTED,
    INTEGERS,
    PACKED,
    TYPES,
    bits,
    conversions,
    is_wide,
    most_lanes,
    quick_functions,
    quick_options,
    read_bits,
    reciprocal,
    refuse_doubles,
    value,
    value_type,
    vector,
    with_lanes,
    write_bits,
)
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, Step, chain, refuse_post_ops
from dnncore_opencl.elementwise.epilogue import CONTRACT
from dnncore_opencl.elementwise.random import MASK, RANDOM, dropped, is_kept, is_random, rounded
from dnncore_opencl.runtime.launch import Launch, template
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg

QUANTIZED = ("scales", "zero_points")


class Pass:
    """The code and the launch of one pass.

    descs: the tensors in bind order. result: the place of the result in `descs`. The steps compute
    `x` from the tensors' elements `v0`, `v1`, ...; the result's is its old value. `x` is stored.
    """

    template = "elementwise"

    def __init__(self, engine: Any, descs: Sequence[MemoryDesc], result: int) -> None:
        self.engine = engine
        self.tensors = tuple(descs)
        self.descs: tuple[MemoryDesc | Spread, ...] = self.tensors
        self.result = result
        self.steps: list[str] = []
        self.keeps_zero = True
        self.quick: dict[str, str] = {}  # functions that need not be exact
        self.options: tuple[str, ...] = ()  # compiler options
        self.copies_bits = False  # values of all types are bits from memory, without conversion
        self.keeps_integers = False  # the same for values of integer types
        self.stored = "x"
        self.old = f"v{result}"  # the result's old value
        self.is_exact = False  # whether each operation is rounded
        self.attr = Attributes()
        self.names: dict[str, int] = {}  # the places of tensors and of their scales
        self.row_major: int | None = None  # of a tensor without memory; its offsets are places
        self.snippets: list[str] = []  # templates of functions, rendered for each number of lanes
        tensors = {f"b{place}": desc for place, desc in enumerate(descs)}
        self.parameters = Parameters.of(tensors, {f"b{result}"})

    def take(self, op: core.Operation, attr: Attributes) -> None:
        """Add the arguments of scales, zero points, dropout and rounding.

        `descs` are all or the last tensors of the operation, then the operands.
        """
        self.attr = attr
        self.is_exact = bool(attr.scales or attr.zero_points)
        self.parameters.is_wide = is_wide(op)
        self.names = {argument.name: place for place, (argument, _) in enumerate(op.tensors())}
        first = self.result + 1
        for place, (argument, desc) in enumerate(attr.arguments(op), first):
            name = argument.name
            if name in (MASK, *(f"{own}_{kind}" for own in self.names for kind in QUANTIZED)):
                self._add(name, desc, place, is_written=name == MASK)
            elif place >= len(self.descs):
                self.parameters.buffer(name, f"const {TYPES[desc.data_type]}", Arg(place))
        if is_random(attr):
            self._number()

    def take_mask(self, attr: Attributes, arguments: Mapping[int, tuple[str, MemoryDesc]]) -> None:
        """Write only the mask of dropout. arguments: dropout's names and descs, by place."""
        self.attr = attr
        self.copies_bits = True
        for place, (name, desc) in arguments.items():
            self.parameters.buffer(name, f"const {TYPES[desc.data_type]}", Arg(place))
        self._number()
        self.then(Step(f"{self.kind(self.result)} x = {is_kept(attr, 'PLACE')};", keeps_zero=False))

    def _number(self) -> None:
        """Add a tensor without memory whose offsets are the row-major places of elements."""
        self.row_major = len(self.descs)
        self.descs += (MemoryDesc(self.descs[self.result].dims, "u8"),)

    def _add(self, name: str, desc: MemoryDesc, place: int, *, is_written: bool) -> None:
        tensor, _, kind = name.partition("_")
        groups = getattr(self.attr, kind)[tensor].groups if kind in QUANTIZED else ()
        self.names[name] = number = len(self.descs)
        self.descs += (Spread.of(desc, groups) if groups else desc,)
        const = "" if is_written else "const "
        self.parameters.buffer(f"b{number}", const + TYPES[desc.data_type], Arg(place))

    def difference(self, name: str) -> str:
        """Return the exact difference of an input's element and its zero point."""
        value, zero_point = f"v{self.names[name]}", self.quantity(name, "zero_points")
        return f"convert_longLANES({value}) - convert_longLANES({zero_point})"

    @property
    def _result_name(self) -> str:
        return next((name for name, place in self.names.items() if place == self.result), "")

    def quantity(self, name: str, kind: str) -> str:
        """Return the expression of a scale or a zero point of a tensor; "" if it has none."""
        place = self.names.get(f"{name}_{kind}")
        return "" if place is None else f"v{place}"

    def dequantized(self, name: str) -> str:
        """Return an input's element as a float, with its zero point and scale applied."""
        place = self.names[name]
        value, is_moved = f"v{place}", f"{name}_zero_points" in self.names
        if is_moved:
            value = f"convert_floatLANES({self.difference(name)})"
        scale = self.quantity(name, "scales")
        return f"{value} * {scale}" if scale else value

    def then(self, *steps: Step) -> None:
        """Append steps."""
        self.steps += [step.text for step in steps]
        self.keeps_zero = self.keeps_zero and all(step.keeps_zero for step in steps)

    def start(self, value: str, kind: str = "real") -> None:
        """Declare x with an initial value."""
        self.then(Step(f"{kind}LANES x = {value};"))

    def kind(self, place: int) -> str:
        """Return the type of values of the tensor at a place."""
        data_type = self.descs[place].data_type
        return TYPES[data_type] if self.is_raw(place) else value_type(data_type)

    def is_raw(self, place: int) -> bool:
        """Whether values of the tensor at a place are bits from memory, without conversion."""
        return (
            self.copies_bits
            or (self.keeps_integers and self.descs[place].data_type in INTEGERS)
            or place in self._exact_places
        )

    @property
    def _exact_places(self) -> set[int]:
        """The places of inputs' zero points, which are subtracted exactly, and of these inputs."""
        found = set()
        for name, place in self.names.items():
            tensor = name.removesuffix("_zero_points")
            if tensor != name and self.names[tensor] != self.result:
                found |= {place, self.names[tensor]}
        return found

    def post_ops(self, attr: Attributes) -> None:
        """Append dropout, the chain, and the steps before the result is stored.

        The operands of the chain's steps follow the result in bind order.
        """
        self.quick = quick_functions(self.engine, self.descs[self.result].data_type, attr)
        scalars = [x for x in self.parameters.arguments.values() if isinstance(x, float)]
        self.options = quick_options(self.engine, self.tensors, attr, scalars)
        first = self.result + 1
        operands = [f"v{place}" for place in range(first, first + len(attr.operands()))]
        if attr.dropout:
            self.then(Step(dropped(attr, "PLACE"), keeps_zero=False))
        self.then(*chain(attr.post_ops, operands, self.old, self.parameters))
        scale, zero_point = (self.quantity(self._result_name, kind) for kind in QUANTIZED)
        if scale:
            factor = reciprocal(scale, is_wide=self.parameters.is_wide)
            self.then(Step(f"x = x * {factor};", keeps_zero=False))  # a negative scale gives -0
        if zero_point:
            self.then(Step(f"x = x + {zero_point};", keeps_zero=False))
        if attr.rounding == "stochastic":
            data_type = self.descs[self.result].data_type
            self.then(Step(rounded(data_type, "PLACE"), keeps_zero=False))

    def launches(self) -> list[Launch]:
        """Return the launch; none if the result has no element.

        If two result elements share a byte, there are two launches.
        """
        result = self.descs[self.result]
        if not result.nelems:
            return []
        if result.data_type not in PACKED:
            return [self.launch()]
        first = self.launch()
        return [first, replace(first, arguments={**first.arguments, self._parity: 1})]

    @cached_property
    def _parity(self) -> str:
        """The parameter that selects the elements to write: those at even or at odd places."""
        return self.parameters.size(0)

    # -- the plan -----------------------------------------------------------------------------

    @cached_property
    def nest(self) -> Nest:
        """The loops. All steps must be added before the first use."""
        return self.loops()

    def loops(self) -> Nest:
        """Return the loops, in the order of the result."""
        result = self.descs[self.result]
        alike = all(
            (d.dims, d.padded_dims) == (result.dims, result.padded_dims) for d in self.descs
        )
        return Nest.of(self.descs, self.result, mask_padding=not (alike and self.keeps_zero))

    @cached_property
    def boxes(self) -> Boxes:
        """The boxes of work-items."""
        return Boxes.of(self.engine, self.nest, run=self.lanes)

    @cached_property
    def lanes(self) -> int:
        """Elements computed at once. A vector contains either only padding or none."""
        is_packed = any(desc.data_type in PACKED for desc in self.descs)
        is_single = is_packed or self.row_major is not None or self.parameters.is_wide
        if not self.nest.loops or is_single:
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
        """Return the terms of the offsets of vectors along a loop, in the tensors at `places`.

        A stride that is not constant counts as 1.
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
        """The grid of the launch."""
        return Grid.of(self.engine, self.boxes.items)

    def launch(self) -> Launch:
        """Return the kernel launch. The result must have elements."""
        defines = self.defines() | self.grid.defines(self.parameters) | self.quick
        widths = sorted({1, self.lanes})
        snippets = [with_lanes(template(name), n) for name in self.snippets for n in widths]
        places = range(len(self.descs))
        types = [self.descs[place].data_type for place in places if not self.is_raw(place)]
        snippets += (*conversions(self.engine, types, widths), template("fp64"))
        if any(desc.data_type in PACKED for desc in self.descs):
            snippets.append(template("nibbles"))
        if is_random(self.attr):
            snippets.append(template("philox"))
        if self.attr.words:
            snippets += [with_lanes(template("reciprocal"), n) for n in widths]
        if self.is_exact:
            snippets.append(f"{CONTRACT} OFF")
        return self.grid.launch(
            self.template, self.parameters, defines, snippets, self.options, is_exact=self.is_exact
        )

    # -- the text -----------------------------------------------------------------------------

    def defines(self) -> dict[str, str]:
        """Return the defines of the template, without those of the grid and the parameters."""
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
    def offsets(self) -> list[str]:
        """The offset of each tensor's element at `r` and `t`."""
        inner = (self.boxes.inner_offset(i, self.parameters) for i in range(len(self.descs)))
        return [f"o{place}{offset}" for place, offset in enumerate(inner)]

    @property
    def pointers(self) -> list[str]:
        """The pointers to these elements."""
        return [f"b{place} + {offset}" for place, offset in enumerate(self.offsets)]

    @cached_property
    def conditions(self) -> tuple[str, str]:
        """Conditions: the element exists, and it is not padding."""
        return self.nest.conditions(self.boxes.variables, self.parameters)

    def step(self, lanes: int) -> str:
        """Return statements for `lanes` elements from `t` on. They do not read padding."""
        exists, inside = self.conditions
        masked = inside != "1"
        body = " ".join(self.steps)
        text = f"const int inside = {inside}; " if masked else ""
        if self.row_major is not None:
            text += f"const long PLACE = {self.offsets[self.row_major]}; "
        for place in range(len(self.descs)):
            if self.uses(place):
                kind = vector(self.kind(place), lanes)
                value = self.load(place, lanes)
                value = f"inside ? {value} : ({kind})(0)" if masked else value
                text += f"const {kind} v{place} = {value}; "
        kind = vector(self.kind(self.result), lanes)
        zeroed = masked and not self.keeps_zero
        stored = f"inside ? {self.stored} : ({kind})(0)" if zeroed else self.stored
        exists = f"if ({exists}) " if exists != "1" else ""
        mask = self.names.get(MASK)
        if mask is not None:
            kept = "inside ? is_kept_here : 0" if masked else "is_kept_here"
            body += f" *({self.pointers[mask]}) = {kept};"
        text = f"{exists}{{ {text}{body} {self._store(lanes, stored)} }}"
        return with_lanes(text, lanes, is_wide=self.parameters.is_wide)

    def uses(self, place: int) -> bool:
        """Whether the steps read the tensor at a place."""
        return any(re.search(rf"\bv{place}\b", step) for step in self.steps)

    def load(self, place: int, lanes: int) -> str:
        """Return the expression that reads a tensor's elements as values."""
        bits = self.load_bits(place, lanes)
        return bits if self.is_raw(place) else value(self.descs[place].data_type, lanes, bits)

    def load_bits(self, place: int, lanes: int) -> str:
        """Return the expression that reads a tensor's elements as stored in memory."""
        loops = self.nest.loops
        lanes = 1 if not loops or loops[-1].strides[place] == 0 else lanes
        data_type, pointer = self.descs[place].data_type, self.pointers[place]
        if data_type in PACKED:
            return f"load_{data_type}(b{place}, {self.offsets[place]})"
        return read_bits(self.engine, data_type, lanes, pointer, is_raw=self.is_raw(place))

    def _store(self, lanes: int, value: str) -> str:
        place = self.result
        data_type, pointer = self.descs[place].data_type, self.pointers[place]
        stored = value if self.is_raw(place) else bits(data_type, lanes, value)
        if data_type in PACKED:
            return f"store_{data_type}(b{place}, {self.offsets[place]}, {stored}, {self._parity});"
        raw = self.is_raw(place)
        return write_bits(self.engine, data_type, lanes, pointer, stored, is_raw=raw) + ";"


class Passes(Implementation[OpT]):
    """An operation that consists of passes. Subclasses define the formats that replace `any`.

    Efficiencies were measured on tensors larger than all caches.
    """

    takes_repeats = True

    name = "opencl:pointwise"
    data_types: tuple[str, ...] = COMPUTED
    attributes: tuple[str, ...] = (*POST_OP_WORDS, *RANDOM)
    like: ClassVar[Mapping[str, str]] = {}  # what may be `any`, and whose format it takes

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout of strides and blocks."""
        op = op.resolve_any(**{name: getattr(op, other) for name, other in self.like.items()})
        refused = refuse_common(op, attr, engine) or self.refuse(op, attr, engine)
        if refused:
            return refused
        return Accepted(
            op,
            lambda: LaunchProgram(engine, self.launches(op, attr, engine)),
            efficiency=self.efficiency(engine, [desc for _, desc in op.tensors()]),
            scratchpad_bytes=self.scratchpad_bytes(op),
            notes=("compiles",),
        )

    @abstractmethod
    def launches(self, op: OpT, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Plan the passes."""

    def scratchpad_bytes(self, op: OpT) -> int:
        """Return the bytes of scratchpad that several passes share."""
        return 0

    def efficiency(self, engine: Any, descs: Sequence[MemoryDesc]) -> float:
        """Return the share of the bandwidth: nearly all if all tensors have one dense order."""
        result = descs[-1]
        whole = [desc for desc in descs if desc.dims == result.dims]
        if all(desc.is_dense and desc.strides == result.strides for desc in whole):
            return 0.65 if engine.is_cpu else 0.95
        return 0.15 if engine.is_cpu else 0.25

    def refuse(self, op: OpT, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse problems that the operation does not support."""
        return None


class Elementwise(Passes[OpT]):
    """An operation of one pass. Subclasses define x."""

    pass_type: ClassVar[type[Pass]] = Pass

    @abstractmethod
    def compute(self, op: OpT, attr: Attributes, work: Pass) -> None:
        """Add the steps of the operation and of post-ops."""

    def launches(self, op: OpT, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Plan one pass over all tensors."""
        descs = [desc for _, desc in op.tensors()]
        operands = [desc for _, desc in attr.operands()]
        work = self.pass_type(engine, [*descs, *operands], len(descs) - 1)
        work.take(op, attr)
        self.compute(op, attr, work)
        return work.launches()


def refuse_common(op: core.Operation, attr: Attributes, engine: Any) -> Refused | None:
    """Refuse formats without strides, unknown post-ops, and f64 on devices without it."""
    for argument, desc in op.tensors():
        if desc.format_kind != "blocked":
            return Refused("format", f"{argument.name} has the format {desc.tag!r}, not strides")
    return refuse_post_ops(attr) or refuse_doubles(engine, op)
