"""Softmax and log-softmax along any axis, and their gradients, in two families.

In `opencl:simd` a work-item computes one row, or several adjacent rows. In `opencl:tiled` a
work-group computes one or more rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Shares, power_of_two
from dnncore_opencl.codegen.layout import Digits, Nest, Parameters, decode, digits, offset_text
from dnncore_opencl.codegen.vectors import (
    HALVES,
    TO_FLOAT,
    TYPES,
    WITH_F64,
    conversions,
    is_wide,
    most_lanes,
    quick_functions,
    quick_options,
    read,
    read_bits,
    reciprocal,
    value,
    value_type,
    vector,
    with_lanes,
    write,
)
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, chain
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import (
    MASK,
    RANDOM,
    dropped,
    functions,
    is_random,
    rounded_vector,
)
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg

GROUP = 128  # work-items, unless rows need more
LARGEST_GROUP = 1024  # work-items, if the device permits; half of it if two tensors are held
LINE = 8  # workers that together read a line of 128 bytes in vectors
ACROSS = 32  # neighbouring work-items across rows: a line of floats
RUN = 256  # vectors per partial sum of a long row; a worker adds partial sums to its total
MOST_HELD = 32  # floats of a tensor that a work-item keeps in registers


@dataclass(frozen=True)
class Tensors:
    """The tensors by name: the operation's, with the result last, then operands.

    lse: the statistics, if wanted.
    """

    named: Mapping[str, MemoryDesc]
    result: int
    attr: Attributes
    lse: MemoryDesc | None

    @classmethod
    def of(cls, op: core.Softmax, attr: Attributes) -> Tensors:
        """Collect the tensors. Operands are named post0, post1, ...."""
        named = {argument.name: desc for argument, desc in op.tensors()}
        lse = named.pop("lse", None)
        operands = {f"post{i}": desc for i, (_, desc) in enumerate(attr.operands())}
        return cls(named | operands, len(named) - 1, attr, lse)

    @property
    def bound(self) -> dict[str, MemoryDesc]:
        """The tensors in bind order."""
        named = list(self.named.items())
        kept = [] if self.lse is None else [("lse", self.lse)]
        return dict([*named[: self.result + 1], *kept, *named[self.result + 1 :]])

    @property
    def descs(self) -> list[MemoryDesc]:
        """All descriptors, with that of the statistics.

        With random numbers, also a row-major one without memory for places.
        """
        descs = list(self.named.values())
        descs += [] if self.lse is None else [self.lse]
        places = [MemoryDesc(descs[self.result].dims)] if is_random(self.attr) else []
        return [*descs, *places]

    def may_be_vectors(self, strides: Sequence[int | None]) -> bool:
        """Whether these strides, one per tensor, permit vectors. Operands may be broadcast."""
        own, operands = strides[: self.result + 1], strides[self.result + 1 : len(self.named)]
        if None in strides[len(self.named) :]:
            return False
        return all(s == 1 for s in own) and all(s in (0, 1) for s in operands)


@dataclass(frozen=True)
class Rows:
    """A problem as rows along an axis.

    nest: the loops over rows. chains: the digits of each tensor along the axis. lanes: elements of
    a row that are computed at once. side_by_side: adjacent rows that are computed at once.
    """

    nest: Nest
    chains: tuple[Digits, ...]
    lanes: int
    side_by_side: int

    @classmethod
    def of(cls, engine: Any, tensors: Tensors, axis: int) -> Rows:
        """Choose vectors along the axis or, if this is impossible, across rows."""
        descs, result = tensors.descs, tensors.descs[tensors.result]
        others = [dim for dim in range(result.ndims) if dim != axis]
        nest = Nest.of(descs, tensors.result, others)
        chains = tuple(
            () if desc.dims[axis] == 1 < result.dims[axis] else digits(desc, axis) for desc in descs
        )
        offsets = [desc.offset0 for desc in descs]
        steps = [s or 0 for loop in nest.loops for s in loop.strides]
        if tensors.attr.dropout or result.data_type == "f64":
            return cls(nest, chains, 1, 1)
        if all(chain[-1].stride == 1 for chain in chains[: len(tensors.named)] if chain):
            blocks = [chain[-1].size for chain in chains if len(chain) > 1]
            jumps = [digit.stride for chain in chains for digit in chain[:-1]]
            lanes = most_lanes(engine, blocks, [*offsets, *steps, *jumps])
            return cls(nest, chains, min(lanes, 1 << result.dims[axis].bit_length() - 1), 1)
        inner = nest.loops[-1] if nest.loops else None
        if inner is None or not tensors.may_be_vectors(inner.strides):
            return cls(nest, chains, 1, 1)
        limits = [nest.shape[inner.dim], nest.padded[inner.dim]]
        guarded = inner.dim in nest.guarded
        jumps = [digit.stride for chain in chains for digit in chain]
        outer = [s or 0 for loop in nest.loops[:-1] for s in loop.strides]
        counts = [inner.size, *(limits if guarded else ())]
        lanes = most_lanes(engine, counts, [*offsets, *outer, *jumps])
        loops = (*nest.loops[:-1], inner.in_vectors(lanes))
        return cls(replace(nest, loops=loops), chains, 1, lanes)

    @property
    def step(self) -> int:
        """The distance of adjacent elements of a vector, in row-major places."""
        if self.side_by_side > 1:
            return (self.nest.loops[-1].strides[-1] or 0) // self.side_by_side
        return self.chains[-1][-1].stride

    def repeats(self, place: int) -> bool:
        """Whether all elements of a vector use the same element of the tensor at `place`."""
        if self.side_by_side > 1:
            return self.nest.loops[-1].strides[place] == 0
        return not self.chains[place]


class Softmax(Implementation[core.Softmax]):
    """The base of both families.

    element_work: work of one element in multiply-adds, for the `work` of the launch.
    """

    element_work: float = math.inf
    data_types = WITH_F64
    attributes = (*POST_OP_WORDS, "scales", *RANDOM)
    takes_repeats = True

    def accept(
        self, op: core.Softmax, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        first = next(desc for _, desc in op.tensors())
        formats = {a.name: first for a, _ in op.tensors() if a.name != "lse"}
        if isinstance(op, core.SoftmaxForward) and op.lse is not None:
            formats["lse"] = MemoryDesc(op.lse.dims)
        op = op.resolve_any(**formats)
        refused = refuse_common(op, attr, engine)
        if refused:
            return refused
        claim = self.efficiency(op, engine, digits(op.result, op.axis)[-1].stride == 1)
        build = partial(self._build, op, attr, engine)
        return Accepted(op, build, efficiency=claim, notes=("compiles",))

    @abstractmethod
    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """Return the share of the bandwidth. along: whether a row's elements are contiguous."""

    @abstractmethod
    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Return the division of rows among work-items, and the vectors that each worker holds."""

    def _build(self, op: core.Softmax, attr: Attributes, engine: Any) -> Executable:
        if not op.result.nelems:
            return LaunchProgram(engine, [])
        tensors = Tensors.of(op, attr)
        rows = Rows.of(engine, tensors, op.axis)
        parameters = Parameters.of(tensors.bound, {op.result_name, "lse"})
        parameters.is_wide = is_wide(op)
        shares, held = self.shares(op, engine, rows)
        grid = shares.grid(engine, rows.nest.size)
        vectors = op.result.dims[op.axis] // rows.lanes
        quick = {} if tensors.lse else quick_functions(engine, op.result.data_type, attr)
        defines = {
            **({"LOG": ""} if op.algorithm == "log" else {}),
            **shares.defines,
            "HELD": str(held),
            **({"RUN": str(RUN)} if vectors > 4 * RUN * shares.workers else {}),
            **{
                f"EXACT_{name.upper()}": ""
                for name in ("src", "dst")
                if name in tensors.named
                and tensors.named[name].data_type in ("f32", "f64")
                and (name != "src" or name not in attr.scales)
            },
            **({} if quick else {"HOLDS_EXP": ""}),  # fast exponentials cost less than registers
            **quick,
            "LENGTH": parameters.size(op.result.dims[op.axis]),
            "PADDED_LENGTH": parameters.size(op.result.padded_dims[op.axis]),
            **_tensors(rows, tensors, parameters),
            **_vectors(engine, rows, tensors, _scales(op, attr, parameters)),
            **_post_ops(engine, rows, tensors, attr, parameters),
            **_statistics(rows, tensors, parameters),
            **grid.defines(parameters),
        }
        kernel = "softmax_forward" if op.result_name == "dst" else "softmax_backward"
        scales = [own.data_type for own in attr.scales.values()]
        types = [*(desc.data_type for desc in tensors.descs), *scales]
        widths = (1, rows.side_by_side, rows.lanes * rows.side_by_side)
        halves = conversions(engine, types, widths)
        drawn = functions(attr, widths)
        if "dst" in attr.scales and not drawn:
            drawn = (with_lanes(template("reciprocal"), 1),)
        snippets = (
            *halves,
            *drawn,
            *shares.snippets(engine, is_wide=is_wide(op)),
            template("rows"),
        )
        options = () if tensors.lse else quick_options(engine, tensors.named.values(), attr)
        work = op.result.nelems * self.element_work
        # A contracted step could make a scaled x larger than the maximum, and exp infinite.
        launch = grid.launch(
            kernel, parameters, defines, snippets, options, work, is_exact=bool(attr.scales)
        )
        return LaunchProgram(engine, [launch])


class RowPerItem(Softmax):
    """One work-item computes a row or several: no local memory, no barrier."""

    name = "opencl:simd"

    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """Low on a GPU, where a work-item rereads its row from memory."""
        if engine.is_cpu:
            return 0.35 if along else 0.08
        return 0.1

    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Return one worker per row, which rereads its row from the cache."""
        return Shares(), 0


class RowPerGroup(Softmax):
    """Rows in registers. One or several work-items, which combine their results, share a row."""

    name = "opencl:tiled"
    element_work = 32

    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """On GPUs nearly as fast as a copy."""
        return 0.05 if engine.is_cpu else 0.9

    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Choose the fewest workers, a power of two, that hold the row and read whole lines."""
        largest = min(LARGEST_GROUP, engine.device.limits["max_work_group"])
        share = MOST_HELD // (rows.lanes * rows.side_by_side)
        if op.result_name != "dst":  # two tensors are held
            largest, share = largest // 2, share // 2
        across = rows.lanes == 1 and any(chain and chain[-1].stride != 1 for chain in rows.chains)
        if across:  # the address of each element is held too
            share //= 2
        share = max(1, share)  # 16 adjacent rows already fill a worker's share
        vectors = -(-op.result.dims[op.axis] // rows.lanes)
        workers = power_of_two(-(-vectors // share))
        if across:
            line = ACROSS // rows.side_by_side
            workers = min(workers, largest // line)
            span = max(line, GROUP // workers)
        else:
            workers = min(max(workers, min(LINE, power_of_two(vectors))), largest)
            span = max(1, GROUP // workers)
        held = -(-vectors // workers)
        fits = held * rows.lanes * rows.side_by_side <= MOST_HELD
        holds_two = op.result_name != "dst" and op.result.data_type in HALVES
        if holds_two and workers == LARGEST_GROUP // 2:
            fits = False  # one group would fill a multiprocessor; rereading was 20 % faster
        return Shares(workers, span, across), held if fits else 0


def _tensors(rows: Rows, tensors: Tensors, parameters: Parameters) -> dict[str, str]:
    """Return DECODE, EXISTS, INSIDE, and NAME_AT(j), the offset of element j of a row."""
    loops = rows.nest.loops
    names = [f"l{i}" for i in range(len(loops))]
    text = decode("rest", names, [loop.size for loop in loops], parameters)
    defines = {}
    names_of = [*tensors.named, *(["lse"] if tensors.lse else []), "place"]
    named = dict(zip(names_of, tensors.descs, strict=False))
    for place, (name, desc) in enumerate(named.items()):
        offset = parameters.index(desc.offset0)
        for loop, variable in zip(loops, names, strict=True):
            offset += offset_text(loop.chains[place], variable, parameters)
        text += f"const INDEX {name}_row = {offset}; "
        along = offset_text(rows.chains[place], "(j)", parameters)
        defines[f"{name.upper()}_AT(j)"] = f"({name}_row{along})"
    exists, inside = rows.nest.conditions(names, parameters)
    return defines | {"DECODE": text, "EXISTS": exists, "INSIDE": inside}


def _statistics(rows: Rows, tensors: Tensors, parameters: Parameters) -> dict[str, str]:
    """Return KEEP(value), which stores the statistics of a row or of adjacent rows."""
    if tensors.lse is None:
        return {}
    if rows.side_by_side == 1:
        return {"KEEP(value)": "lse[lse_row] = (float)(value);"}
    stride = rows.nest.loops[-1].strides[len(tensors.named)] or 0
    step = parameters.index(stride // rows.side_by_side)
    return {
        "KEEP(value)": "const ROW kept = value; "
        f"for (int i = 0; i < {rows.side_by_side}; ++i) "
        f"lse[lse_row + i * {step}] = ((const float *)&kept)[i];"
    }


def _post_ops(
    engine: Any, rows: Rows, tensors: Tensors, attr: Attributes, parameters: Parameters
) -> dict[str, str]:
    """Return FINISH_WIDE and FINISH, the steps of a vector or a ROW x before it is stored."""
    result = list(tensors.named)[tensors.result].upper()
    widths = {"_WIDE": rows.lanes * rows.side_by_side, "": rows.side_by_side}
    defines = {"READS_DST": ""} if attr.reads_dst else {}
    for suffix, width in widths.items():
        operands: list[str] = []
        for place, (name, desc) in enumerate(tensors.named.items()):
            if place > tensors.result:
                own = 1 if rows.repeats(place) else width
                bits = read(engine, desc.data_type, own, f"{name} + {name.upper()}_AT(j)")
                operands.append(f"({vector(value_type(desc.data_type), width)})({bits})")
        steps = chain(attr.post_ops, operands, f"{result}{suffix}(j)", parameters)
        text = ""
        if attr.dropout:
            mask = f"{MASK}[{result}_AT(j)] = is_kept_here;" if attr.dropout.has_mask else ""
            text = f"{dropped(attr, 'PLACE_AT(j)')} {mask} "
        text += " ".join(step.text for step in steps)
        if "dst" in attr.scales:
            scale = TO_FLOAT[attr.scales["dst"].data_type].format("dst_scales[0]")
            factor = reciprocal(scale, is_wide=parameters.is_wide).replace("LANES", "")
            text += f" x = x * {factor};"
        step = rows.step if is_random(attr) else 0
        data_type = tensors.named[result.lower()].data_type
        text += rounded_vector(attr, data_type, width, "PLACE_AT(j)", parameters.index(step))
        defines[f"FINISH{suffix}"] = with_lanes(text, width, is_wide=parameters.is_wide)
    mask = f"; {MASK}[{result}_AT(j)] = 0" if attr.dropout and attr.dropout.has_mask else ""
    return {**defines, "STORE_PADDING(j)": f"STORE(j, 0.0f){mask}"}


def _scales(op: core.Softmax, attr: Attributes, parameters: Parameters) -> str:
    """Add the arguments of one element to the parameters; return src's factor, if any."""
    for place, (argument, desc) in enumerate(attr.arguments(op), len(op.tensors())):
        if not argument.name.startswith("post_op_"):
            const = "" if argument.direction == "out" else "const "
            parameters.buffer(argument.name, const + TYPES[desc.data_type], Arg(place))
    if "src" not in attr.scales:
        return ""
    return TO_FLOAT[attr.scales["src"].data_type].format("src_scales[0]")


def _vectors(engine: Any, rows: Rows, tensors: Tensors, factor: str) -> dict[str, str]:
    """Return the types and accesses of vectors and elements.

    WIDE and ROW are the types of a vector and of a single element. For a tensor `src`, SRC_WIDE(j)
    and SRC(j) read them. SRC_BITS(j) is a vector as stored in memory, of type SRC_HELD;
    SRC_OF(bits) converts it. STORE_WIDE(j, value) and STORE(j, value) write the result. factor: of
    src; empty for 1.
    """
    wide = rows.lanes * rows.side_by_side
    kind = value_type(tensors.descs[tensors.result].data_type)
    defines = {
        "LANES": str(rows.lanes),
        "WIDE": vector(kind, wide),
        "ROW": vector(kind, rows.side_by_side),
    }
    for place, (name, desc) in enumerate(tensors.named.items()):
        pointer = f"{name} + {name.upper()}_AT(j)"
        scaled = f" * {factor}" if factor and name == "src" else ""
        if place <= tensors.result:
            defines[f"{name.upper()}_HELD"] = vector(TYPES[desc.data_type], wide)
            defines[f"{name.upper()}_BITS(j)"] = read_bits(engine, desc.data_type, wide, pointer)
            defines[f"{name.upper()}_OF(bits)"] = f"({value(desc.data_type, wide, 'bits')}{scaled})"
        for suffix, lanes in (("_WIDE", wide), ("", rows.side_by_side)):
            if place <= tensors.result:
                text = read(engine, desc.data_type, lanes, pointer)
                defines[f"{name.upper()}{suffix}(j)"] = f"({text}{scaled})"
            if place == tensors.result:
                text = write(engine, desc.data_type, lanes, pointer, "value")
                defines[f"STORE{suffix}(j, value)"] = text
    return defines


FORWARD = (RowPerItem(), RowPerGroup())
BACKWARD = (RowPerItem(), RowPerGroup())
