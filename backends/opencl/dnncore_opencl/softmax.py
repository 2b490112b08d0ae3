"""Softmax and log-softmax along any axis, and their gradients, in two families.

`opencl:simd` gives each row to one work-item, or several rows where these lie side by side;
`opencl:tiled` gives each row to a work-group.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_opencl.algorithms import chain, with_lanes
from dnncore_opencl.grid import Grid
from dnncore_opencl.layout import Digits, Nest, Parameters, decode, digits, offset_text
from dnncore_opencl.pointwise import refuse_layouts
from dnncore_opencl.program import Arg, Launch, LaunchProgram, Source, template
from dnncore_opencl.vectors import TYPES, load, most_lanes, store, vector

SMALLEST_GROUP = 32  # work-items that a GPU runs as one
LARGEST_GROUP = 256
MOST_HELD = 8  # vectors of a work-item in registers, 32 floats


@dataclass(frozen=True)
class Tensors:
    """The tensors in bind order, by name: those of the operation, result last, then operands."""

    named: Mapping[str, MemoryDesc]
    result: int

    @classmethod
    def of(cls, op: Any, attr: Attributes) -> Tensors:
        """Collect them; operands are called post0, post1, ...."""
        named = {argument.name: desc for argument, desc in op.tensors()}
        operands = {f"post{i}": desc for i, (_, desc) in enumerate(attr.operands())}
        return cls(named | operands, len(named) - 1)

    @property
    def descs(self) -> list[MemoryDesc]:
        """All descriptors."""
        return list(self.named.values())

    def may_be_vectors(self, strides: Sequence[int | None]) -> bool:
        """Whether steps of these strides, one per tensor, meet neighbours; operands may repeat."""
        own, operands = strides[: self.result + 1], strides[self.result + 1 :]
        return all(s == 1 for s in own) and all(s in (0, 1) for s in operands)


@dataclass(frozen=True)
class Rows:
    """A problem as rows along an axis.

    nest: the loops over rows. chains: the digits of each tensor along the axis. lanes: elements of
    a row that are taken at once; side_by_side: rows that are.
    """

    nest: Nest
    chains: tuple[Digits, ...]
    lanes: int
    side_by_side: int

    @classmethod
    def of(cls, engine: Any, tensors: Tensors, axis: int, *, shared: bool) -> Rows:
        """Look for vectors along the axis, then, if rows are not shared by workers, across it."""
        descs, result = tensors.descs, tensors.descs[tensors.result]
        others = [dim for dim in range(result.ndims) if dim != axis]
        nest = Nest.of(descs, tensors.result, others)
        chains = tuple(
            () if desc.dims[axis] == 1 < result.dims[axis] else digits(desc, axis) for desc in descs
        )
        offsets = [desc.offset0 for desc in descs]
        steps = [s or 0 for loop in nest.loops for s in loop.strides]
        if all(chain[0].stride == 1 for chain in chains if chain):
            blocks = [chain[0].size for chain in chains if len(chain) > 1]
            jumps = [digit.stride for chain in chains for digit in chain[1:]]
            lanes = most_lanes(engine, blocks, [*offsets, *steps, *jumps])
            return cls(nest, chains, min(lanes, 1 << result.dims[axis].bit_length() - 1), 1)
        inner = nest.loops[-1] if nest.loops else None
        if shared or inner is None or not tensors.may_be_vectors(inner.strides):
            return cls(nest, chains, 1, 1)
        limits = [nest.shape[inner.dim], nest.padded[inner.dim]]
        guarded = inner.dim in nest.guarded
        jumps = [digit.stride for chain in chains for digit in chain]
        outer = [s or 0 for loop in nest.loops[:-1] for s in loop.strides]
        counts = [inner.size, *(limits if guarded else ())]
        lanes = most_lanes(engine, counts, [*offsets, *outer, *jumps])
        loops = (*nest.loops[:-1], inner.in_vectors(lanes))
        return cls(replace(nest, loops=loops), chains, 1, lanes)

    def repeats(self, place: int) -> bool:
        """Whether all elements of a vector meet the same one of the tensor at `place`."""
        if self.side_by_side > 1:
            return self.nest.loops[-1].strides[place] == 0
        return not self.chains[place]


class Softmax(Implementation):
    """What both families share."""

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        first = next(desc for _, desc in op.tensors())
        op = op.resolve_any(**{argument.name: first for argument, _ in op.tensors()})
        refused = refuse_layouts(op)
        if refused:
            return refused
        claim = self.efficiency(op, engine, digits(op.result, op.axis)[0].stride == 1)
        return Accepted(op, lambda: self._build(op, attr, engine), efficiency=claim)

    @abstractmethod
    def efficiency(self, op: Any, engine: Any, along: bool) -> float:
        """Claim a share of the bandwidth; `along`: whether a row's elements are neighbours."""

    @abstractmethod
    def share(self, vectors: int) -> tuple[int, int]:
        """How many work-items share a row of so many vectors, and how many each can hold."""

    def _build(self, op: Any, attr: Attributes, engine: Any) -> Executable:
        if not op.result.nelems:
            return LaunchProgram(engine, [])
        tensors = Tensors.of(op, attr)
        rows = Rows.of(engine, tensors, op.axis, shared=isinstance(self, Tiled))
        parameters = Parameters(max(desc.nbytes // desc.itemsize for desc in tensors.descs))
        workers, held = self.share(-(-op.result.dims[op.axis] // rows.lanes))
        items = rows.nest.size
        grid = Grid.of(engine, items) if workers == 1 else Grid.of_groups(items, workers)
        defines = {
            **({"LOG": ""} if op.algorithm == "log" else {}),
            "WORKERS": str(workers),
            "HELD": str(held),
            "LENGTH": parameters.size(op.result.dims[op.axis]),
            "PADDED_LENGTH": parameters.size(op.result.padded_dims[op.axis]),
            **_tensors(rows, tensors, parameters),
            **_vectors(engine, rows),
            **_post_ops(engine, rows, tensors, attr, parameters),
            **grid.defines(parameters),
            **parameters.defines,
        }
        arguments = [*map(Arg, range(len(tensors.named))), *parameters.values]
        kernel = "softmax_forward" if op.result_name == "dst" else "softmax_backward"
        source = Source(kernel, defines, (template("rows"),))
        return LaunchProgram(engine, [Launch(source, kernel, arguments, grid.size, grid.group)])


class Simd(Softmax):
    """One work-item for a row or several: no local memory, no barrier."""

    name = "opencl:simd"

    def efficiency(self, op: Any, engine: Any, along: bool) -> float:
        """On a GPU, for short rows and for rows that are neighbours."""
        if engine.is_cpu:
            return 0.35 if along else 0.08
        short = op.result.dims[op.axis] <= SMALLEST_GROUP
        return (0.2 if short else 0.1) if along else 0.3

    def share(self, vectors: int) -> tuple[int, int]:
        """One, which reads its row again from the cache."""
        return 1, 0


class Tiled(Softmax):
    """One work-group for a row, combining its shares in local memory."""

    name = "opencl:tiled"

    def efficiency(self, op: Any, engine: Any, along: bool) -> float:
        """On a GPU, for long rows of neighbours."""
        if engine.is_cpu or not along:
            return 0.05
        length = op.result.dims[op.axis]
        return 0.9 if length >= 512 else 0.4 if length > SMALLEST_GROUP else 0.03

    def share(self, vectors: int) -> tuple[int, int]:
        """As few as can hold the row, in a power of two."""
        workers = 1 << (-(-vectors // MOST_HELD) - 1).bit_length()
        workers = min(max(workers, SMALLEST_GROUP), LARGEST_GROUP)
        held = -(-vectors // workers)
        return workers, held if held <= MOST_HELD else 0


def _tensors(rows: Rows, tensors: Tensors, parameters: Parameters) -> dict[str, str]:
    """BUFFERS, DECODE, EXISTS, INSIDE, and NAME_AT(j), the offset of a row's element j."""
    loops = rows.nest.loops
    names = [f"l{i}" for i in range(len(loops))]
    text = decode("rest", names, [loop.size for loop in loops], parameters)
    defines, buffers = {}, []
    for place, (name, desc) in enumerate(tensors.named.items()):
        offset = parameters.index(desc.offset0)
        for loop, variable in zip(loops, names, strict=True):
            offset += offset_text(loop.chains[place], variable, parameters)
        text += f"const INDEX {name}_row = {offset}; "
        along = offset_text(rows.chains[place], "(j)", parameters)
        defines[f"{name.upper()}_AT(j)"] = f"({name}_row{along})"
        const = "" if place == tensors.result else "const "
        buffers.append(f"__global {const}{TYPES[desc.data_type]} *{name}")
    exists, inside = rows.nest.conditions(names, parameters)
    return defines | {
        "BUFFERS": ", ".join(buffers),
        "DECODE": text,
        "EXISTS": exists,
        "INSIDE": inside,
    }


def _post_ops(
    engine: Any, rows: Rows, tensors: Tensors, attr: Attributes, parameters: Parameters
) -> dict[str, str]:
    """FINISH_WIDE and FINISH, what becomes of a vector x or a single ROW x before it is stored."""
    result = list(tensors.named)[tensors.result]
    widths = {"_WIDE": rows.lanes * rows.side_by_side, "": rows.side_by_side}
    defines = {"READS_DST": ""} if attr.reads_dst else {}
    for suffix, width in widths.items():
        operands = []
        for place, (name, desc) in enumerate(tensors.named.items()):
            if place > tensors.result:
                kind, at = TYPES[desc.data_type], f"{name} + {name.upper()}_AT(j)"
                own = 1 if rows.repeats(place) else width
                operands.append(f"({vector(kind, width)})({load(engine, kind, own, at)})")
        old = f"LOAD{suffix}({result} + {result.upper()}_AT(j))"
        steps = chain(attr.post_ops, operands, old, parameters.real)
        defines[f"FINISH{suffix}"] = with_lanes(" ".join(step.text for step in steps), width)
    return defines


def _vectors(engine: Any, rows: Rows) -> dict[str, str]:
    """The types of a vector and of a single element, and how they are read and written."""
    wide = rows.lanes * rows.side_by_side
    return {
        "LANES": str(rows.lanes),
        "WIDE": vector("float", wide),
        "ROW": vector("float", rows.side_by_side),
        "LOAD_WIDE(pointer)": load(engine, "float", wide, "pointer"),
        "LOAD(pointer)": load(engine, "float", rows.side_by_side, "pointer"),
        "STORE_WIDE(pointer, value)": store(engine, "float", wide, "pointer", "value"),
        "STORE(pointer, value)": store(engine, "float", rows.side_by_side, "pointer", "value"),
    }


FORWARD = (Simd(), Tiled())
BACKWARD = (Simd(), Tiled())
