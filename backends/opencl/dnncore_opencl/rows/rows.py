"""Rows of elements along some dims, each computed by one work-item or by a group of them.

Vectors are along the rows or, if this is impossible, across adjacent rows. A row may be held in
registers, so that it is read once. Kernels include `rows.cl`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dnncore import backend as core
from dnncore.backend import Attributes, MemoryDesc
from dnncore_opencl.codegen.grid import Grid, Shares, power_of_two
from dnncore_opencl.codegen.layout import (
    Digit,
    Digits,
    Nest,
    Parameters,
    decode,
    digits,
    offset_text,
)
from dnncore_opencl.codegen.vectors import (
    TO_FLOAT,
    TYPES,
    conversions,
    most_lanes,
    read,
    read_bits,
    reciprocal,
    smallest_float,
    value,
    value_type,
    vector,
    with_lanes,
    write,
)
from dnncore_opencl.elementwise.algorithms import chain
from dnncore_opencl.elementwise.random import (
    MASK,
    dropped,
    functions,
    is_random,
    rounded_vector,
)
from dnncore_opencl.runtime.launch import Launch, template
from dnncore_opencl.runtime.schema import Arg

GROUP = 128  # work-items, unless rows need more
LARGEST_GROUP = 1024  # work-items, if the device permits; half of it if two tensors are held
LINE = 8  # workers that together read a line of 128 bytes in vectors
ACROSS = 32  # neighbouring work-items across rows: a line of floats
RUN = 256  # vectors per partial sum of a long row; a worker adds partial sums to its total
FLOAT_BYTES = 4
MOST_PARTS = 8
MOST_HELD = 32  # floats of a tensor that a work-item keeps in registers


@dataclass(frozen=True)
class Tensors:
    """The tensors by name: inputs, then the result, then operands of post-ops.

    result: the place of the result. per_row: tensors with one element per row. vectors: inputs that
    rows share, or of which neighbouring elements of a row share an element.
    """

    named: Mapping[str, MemoryDesc]
    result: int
    attr: Attributes
    per_row: Mapping[str, MemoryDesc] = field(default_factory=dict)
    vectors: tuple[str, ...] = ()

    @property
    def descs(self) -> list[MemoryDesc]:
        """All descriptors.

        With random numbers, also a row-major one without memory for places.
        """
        descs = [*self.named.values(), *self.per_row.values()]
        places = [MemoryDesc(descs[self.result].dims)] if is_random(self.attr) else []
        return [*descs, *places]

    def may_be_vectors(self, strides: Sequence[int | None], *, along: bool) -> bool:
        """Whether these strides, one per tensor, permit vectors along or across rows."""
        if None in strides:
            return False
        pairs = zip(self.named, strides, strict=False)
        return all(
            stride == 1
            or (stride == 0 and (name in self.vectors or (not along and place > self.result)))
            for place, (name, stride) in enumerate(pairs)
        )


@dataclass(frozen=True)
class Rows:
    """A problem as rows.

    nest: the loops over rows. chains: the digits of each tensor along a row of `length` elements.
    lanes: elements of a row that are computed at once. side_by_side: adjacent rows that are
    computed at once.
    """

    nest: Nest
    chains: tuple[Digits, ...]
    length: int
    lanes: int
    side_by_side: int

    @classmethod
    def of(
        cls, engine: Any, tensors: Tensors, dims: Sequence[int], *, in_halves: bool = False
    ) -> Rows:
        """Choose vectors along the rows, whose elements lie along `dims`, or across rows.

        in_halves: whether vectors of halves along rows are as many bytes as those of floats.
        """
        descs, result = tensors.descs, tensors.descs[tensors.result]
        nest = Nest.of(descs, tensors.result, [d for d in range(result.ndims) if d not in dims])
        chains = tuple(_chain(desc, result, dims) for desc in descs)
        length = math.prod(result.dims[dim] for dim in dims)
        if tensors.attr.dropout or result.data_type == "f64":
            return cls(nest, chains, length, 1, 1)
        named = chains[: len(tensors.named)]
        ends = [chain[-1].stride if chain else 1 for chain in named]
        if tensors.may_be_vectors(ends, along=True):
            wide = [place for place, chain in enumerate(named) if chain and chain[-1].stride]
            blocks = [chain[-1].size for chain in named if len(chain) > 1]
            steps = [descs[place].offset0 for place in wide]
            steps += [loop.strides[place] or 0 for loop in nest.loops for place in wide]
            steps += [digit.stride for place in wide for digit in chains[place][:-1]]
            smallest = smallest_float(list(tensors.named.values())) if in_halves else FLOAT_BYTES
            lanes = most_lanes(engine, blocks, steps, smallest)
            return cls(nest, chains, length, min(lanes, 1 << length.bit_length() - 1), 1)
        inner = nest.loops[-1] if nest.loops else None
        if inner is None or not tensors.may_be_vectors(inner.strides, along=False):
            return cls(nest, chains, length, 1, 1)
        limits = [nest.shape[inner.dim], nest.padded[inner.dim]]
        guarded = inner.dim in nest.guarded
        places = range(len(named))
        steps = [descs[place].offset0 for place in places]
        steps += [loop.strides[place] or 0 for loop in nest.loops[:-1] for place in places]
        steps += [digit.stride for chain in named for digit in chain]
        counts = [inner.size, *(limits if guarded else ())]
        lanes = most_lanes(engine, counts, steps)
        loops = (*nest.loops[:-1], inner.in_vectors(lanes))
        return cls(replace(nest, loops=loops), chains, length, 1, lanes)

    @property
    def step(self) -> int:
        """The distance of adjacent elements of a vector, in row-major places."""
        if self.side_by_side > 1:
            return (self.nest.loops[-1].strides[-1] or 0) // self.side_by_side
        chain = self.chains[-1]  # without digits for rows of one element
        return chain[-1].stride if chain else 0

    def repeats(self, place: int) -> bool:
        """Whether all elements of a vector use the same element of the tensor at `place`."""
        if self.side_by_side > 1:
            return self.nest.loops[-1].strides[place] == 0
        chain = self.chains[place]
        return not chain or not chain[-1].stride

    def held_by_groups(
        self, engine: Any, tensors: int, *, in_halves: bool, most: int = MOST_HELD
    ) -> tuple[Shares, int]:
        """Return the fewest workers, a power of two, that hold a row and read whole lines, and the
        vectors that each worker holds: 0 if the row is too long.

        tensors: how many are held, one or two. in_halves: whether the result has a half type. most:
        floats of a tensor that a worker keeps.
        """
        largest = min(LARGEST_GROUP, engine.device.limits["max_work_group"])
        share = most // (self.lanes * self.side_by_side)
        if tensors == 2:
            largest, share = largest // 2, share // 2
        across = self.lanes == 1 and any(chain and chain[-1].stride != 1 for chain in self.chains)
        if across:  # the address of each element is held too
            share //= 2
        share = max(1, share)  # 16 adjacent rows already fill a worker's share
        vectors = -(-self.length // self.lanes)
        workers = power_of_two(-(-vectors // share))
        if across:
            line = ACROSS // self.side_by_side
            workers = min(workers, largest // line)
            span = max(line, GROUP // workers)
        else:
            workers = min(max(workers, min(LINE, power_of_two(vectors))), largest)
            span = max(1, GROUP // workers)
        held = -(-vectors // workers)
        fits = held * self.lanes * self.side_by_side <= most
        if tensors == 2 and in_halves and workers == LARGEST_GROUP // 2:
            fits = False  # one group would fill a multiprocessor; rereading was 20 % faster
        return Shares(workers, span, across), held if fits else 0


def parts_of(vectors: int, nbytes: int, words: int) -> tuple[int, int]:
    """Return how many of a worker's vectors are held, and in how many parts of a row they come.

    nbytes: of a vector. words: most registers. Nothing is held of more than MOST_PARTS parts.
    """
    parts = -(-vectors * max(1, nbytes // FLOAT_BYTES) // words)
    return (-(-vectors // parts), parts) if parts <= MOST_PARTS else (0, 1)


def _chain(desc: MemoryDesc, result: MemoryDesc, dims: Sequence[int]) -> Digits:
    """Return the digits of the place in a row; none if a row uses one element.

    Neighbouring digits of several dims are joined if possible.
    """
    parts = [
        (Digit(result.dims[dim], 0),)
        if desc.dims[dim] == 1 < result.dims[dim]
        else digits(desc, dim)
        for dim in dims
    ]
    if len(parts) == 1:
        return () if desc.dims[dims[0]] == 1 < result.dims[dims[0]] else parts[0]
    joined: list[Digit] = []
    for digit in (digit for part in parts for digit in part if digit.size > 1):
        if joined and joined[-1].stride == digit.size * digit.stride:
            digit = Digit(joined.pop().size * digit.size, digit.stride)  # noqa: PLW2901
        joined.append(digit)
    return tuple(joined) if any(digit.stride for digit in joined) else ()


def row_launch(
    engine: Any, kernel: str, tensors: Tensors, rows: Rows, parameters: Parameters,
    shares: Shares, held: int, defines: Mapping[str, str], *, factor: str = "",
    parts: int = 1, grid: Grid | None = None, texts: Sequence[str] = (), **launch: Any,
) -> Launch:  # fmt: skip
    """Return the launch of a kernel that includes rows.cl.

    held: vectors that each worker keeps. parts: of so many vectors, in the row of each. defines:
    further ones. factor: of src; empty for 1. grid: None for one row per item. texts: snippets
    after rows.cl. launch: further arguments of `Grid.launch`.
    """
    grid = grid or shares.grid(engine, rows.nest.size)
    attr = tensors.attr
    is_long = rows.length // rows.lanes > 4 * RUN * shares.workers
    everything = {
        **shares.defines,
        "HELD": str(held),
        **({"PARTS": str(parts)} if held else {}),
        **({"RUN": str(RUN)} if is_long else {}),
        **defines,
        "LENGTH": parameters.size(rows.length),
        **_tensors(rows, tensors, parameters),
        **_vectors(engine, rows, tensors, factor),
        **_post_ops(engine, rows, tensors, attr, parameters),
        **_per_row(rows, tensors, parameters),
        **grid.defines(parameters),
    }
    types = [desc.data_type for desc in tensors.descs]
    types += [own.data_type for own in attr.scales.values()]
    widths = (1, rows.side_by_side, rows.lanes * rows.side_by_side)
    drawn = functions(attr, widths)
    if "dst" in attr.scales and not drawn:
        drawn = (with_lanes(template("reciprocal"), 1),)
    snippets = (
        *conversions(engine, types, widths),
        *drawn,
        *shares.snippets(engine, is_wide=parameters.is_wide),
        template("rows"),
        *texts,
    )
    return grid.launch(kernel, parameters, everything, snippets, **launch)


def _tensors(rows: Rows, tensors: Tensors, parameters: Parameters) -> dict[str, str]:
    """Return DECODE, EXISTS, INSIDE, and NAME_AT(j), the offset of element j of a row."""
    loops = rows.nest.loops
    names = [f"l{i}" for i in range(len(loops))]
    text = decode("rest", names, [loop.size for loop in loops], parameters)
    defines = {}
    names_of = [*tensors.named, *tensors.per_row, "place"]
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


def _per_row(rows: Rows, tensors: Tensors, parameters: Parameters) -> dict[str, str]:
    """Return KEEP_NAME(value), which stores an element per row, and TAKE_NAME, which reads it."""
    defines: dict[str, str] = {}
    for place, name in enumerate(tensors.per_row, len(tensors.named)):
        at, keep = f"{name}[{name}_row]", f"KEEP_{name.upper()}(value)"
        take = f"TAKE_{name.upper()}"
        if rows.side_by_side == 1:
            defines |= {keep: f"{at} = (float)(value);", take: at}
            continue
        stride = rows.nest.loops[-1].strides[place] or 0
        step = parameters.index(stride // rows.side_by_side)
        elements = [f"{name}[{name}_row + {i} * {step}]" for i in range(rows.side_by_side)]
        stores = (f"{element} = kept[{i}];" for i, element in enumerate(elements))
        text = f"const ROW all = value; const float *kept = (const float *)&all; {' '.join(stores)}"
        defines |= {keep: f"{{ {text} }}", take: f"(ROW)({', '.join(elements)})"}
    return defines


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


def scale_arguments(
    op: core.Operation, attr: Attributes, parameters: Parameters, first: int
) -> str:
    """Add the arguments of one element to the parameters; return src's factor, if any.

    first: the place of the first argument of an attribute.
    """
    for place, (argument, desc) in enumerate(attr.arguments(op), first):
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
        for suffix, width in (("_WIDE", wide), ("", rows.side_by_side)):
            lanes = 1 if place < tensors.result and rows.repeats(place) else width
            if place <= tensors.result:
                text = read(engine, desc.data_type, lanes, pointer)
                defines[f"{name.upper()}{suffix}(j)"] = f"({text}{scaled})"
            if place == tensors.result:
                text = write(engine, desc.data_type, lanes, pointer, "value")
                defines[f"STORE{suffix}(j, value)"] = text
    return defines
