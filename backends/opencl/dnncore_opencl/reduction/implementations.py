"""Reduction of some dims of a tensor to one, in one stage or two.

The terms of an element of dst are divided into boxes. If dst has too few elements to keep the
device busy, several work-items compute a part of the boxes each. A second kernel combines their
results in order, so results do not depend on timing. Vectors are along the reduced dims if terms
are contiguous, otherwise along dst. On GPUs a work-group shares an element whose terms are
contiguous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Boxes, Shares, power_of_two
from dnncore_opencl.codegen.layout import Digit, Loop, Nest, Parameters, decode, offset_text
from dnncore_opencl.codegen.vectors import (
    COMPUTED,
    CPU_LANES,
    TYPES,
    conversions,
    is_wide,
    most_lanes,
    read,
    smallest_float,
    value_type,
    vector,
    with_lanes,
    write,
)
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, chain, refuse_algorithm
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING, rounded_vector, seed
from dnncore_opencl.elementwise.random import functions as random_functions
from dnncore_opencl.reduction.algorithms import ALGORITHMS, reduction_defines
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch

BOX = 4096  # terms per box; separate sums of boxes lose fewer digits
LONE_BOX = 64  # terms per GPU work-item if terms are not contiguous
CPU_TASKS = 4  # work-items per core, so that cores end together
GPU_TASKS = 8  # per multiprocessor
TASK = 128  # work-items per task if terms are contiguous
GROUP = 64  # work-items if terms are contiguous and few
LARGEST_GROUP = 256
FEWEST = 4  # workers per row: more were up to 20 % slower, fewer with long vectors 10 % slower
LINE = 8  # contiguous elements that are read together by workers shared across elements
ACROSS = 32  # neighbouring work-items across elements
TERMS_EACH = 16  # loads per worker that justify its part in combining
SUM_OF_TWO = core.Reduction("sum", src=MemoryDesc((2,)), dst=MemoryDesc((1,)))
EXACT = ("max", "min", "sum")


class Reduction(Implementation[core.Reduction]):
    """All algorithms, with post-ops."""

    name = "opencl:staged"
    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True

    def accept(
        self, op: core.Reduction, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks."""
        op = op.resolve_any(dst=op.dst.with_format(None)) if op.dst.is_any else op
        refused = refuse_common(op, attr, engine) or refuse_algorithm(op.algorithm, ALGORITHMS)
        if refused:
            return refused
        stages = Stages(engine, op, attr)
        return Accepted(
            op,
            lambda: LaunchProgram(engine, stages.launches()),
            efficiency=stages.efficiency,
            scratchpad_bytes=stages.scratchpad_bytes,
            exact=op.algorithm in EXACT,
            notes=("compiles",),
        )


@dataclass(frozen=True)
class Stage:
    """One launch: the boxes of each element's terms, in `parts` for work-items or work-groups.

    lanes: terms that are combined at once. shares: the work-items of an element's part.
    """

    boxes: Boxes
    lanes: int
    shares: Shares
    parts: int

    @property
    def boxes_per_part(self) -> int:
        """Boxes per part. The last part may have fewer."""
        return -(-self.boxes.items // self.parts)


class Stages:
    """The launches of one reduction.

    places: of src and dst in bind order. Operands of post-ops follow them. scratchpad_start: bytes
    at the beginning of the scratchpad that are already used.
    """

    def __init__(
        self,
        engine: Any,
        op: core.Reduction,
        attr: Attributes,
        places: tuple[int, int] = (0, 1),
        scratchpad_start: int = 0,
    ) -> None:
        self.engine = engine
        self.op = op
        self.attr = attr
        self.places = places
        self.is_wide = is_wide(op)
        self.parts = MemoryDesc((1,), "f64" if self.is_wide else "f32")  # for the next stage
        self.scratchpad_start = scratchpad_start // self.parts.itemsize
        reduced = op.reduced_dims
        kept = [dim for dim in range(op.src.ndims) if dim not in reduced]
        self.results = [op.dst, *(desc for _, desc in attr.operands())]
        row_major = [MemoryDesc(op.dst.dims)] if attr.words else []  # its offsets are places
        self.kept = Nest.of([op.dst, op.src, *self.results[1:], *row_major], 0, kept)
        self.terms = _with_a_loop(Nest.of([op.src], 0, reduced))
        self.padding = Nest.of([op.dst], 0, reduced)  # of dst along the reduced dims

    def launches(self) -> list[Launch]:
        """Return one launch or two; none if dst has no element."""
        if not self.op.dst.nelems:
            return []
        if self.first.parts == 1:
            return [self._launch(self.first, reads_src=True, writes_dst=True)]
        return [
            self._launch(self.first, reads_src=True, writes_dst=False),
            self._launch(self.second, reads_src=False, writes_dst=True),
        ]

    # -- the plan -----------------------------------------------------------------------------

    @cached_property
    def _along(self) -> bool:
        """Whether terms are contiguous."""
        return self.terms.loops[-1].strides[0] == 1

    @cached_property
    def side(self) -> int:
        """How many elements of dst are computed at once. On a CPU the last vector may overlap."""
        if self._along or not self.kept.loops:
            return 1
        *outer, inner = self.kept.loops
        dst, src, *operands = inner.strides[: 1 + len(self.results)]
        if (dst, src) != (1, 1) or any(stride not in (0, 1) for stride in operands):
            return 1
        limits = (self.kept.shape[inner.dim], self.kept.padded[inner.dim], inner.size)
        if self.engine.is_cpu and inner.dim not in self.kept.guarded and not self.attr.reads_dst:
            return min(CPU_LANES, 1 << inner.size.bit_length() - 1)
        steps = [self.scratchpad_start, *(desc.offset0 for desc in (self.op.src, *self.results))]
        steps += [step or 0 for loop in outer for step in loop.strides]
        steps += [loop.strides[0] or 0 for loop in self.terms.loops]
        return most_lanes(self.engine, limits, steps, smallest_float([self.op.src]))

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the loops over dst. The innermost counts vectors."""
        *outer, inner = [1, *(loop.size for loop in self.kept.loops)]
        return [*outer, -(-inner // self.side)][-len(self.kept.loops) or 1 :]

    @cached_property
    def elements(self) -> int:
        """The number of vectors of dst."""
        return math.prod(self.sizes)

    @cached_property
    def first(self) -> Stage:
        """The stage over the terms."""
        lanes = self._lanes()
        shares = self._shares(min(self.terms.loops[-1].size, BOX) // lanes, along=self._along)
        in_rows = self._along or self.engine.is_cpu
        boxes = _boxes(self.terms, BOX if in_rows else LONE_BOX * shares.workers)
        units = self.engine.device.limits["compute_units"]
        tasks = units * (CPU_TASKS if self.engine.is_cpu else GPU_TASKS)
        if shares.across:  # so that the second stage reads less
            tasks //= 2
        if not self.engine.is_cpu and shares.workers == 1:
            tasks *= LARGEST_GROUP
        elif not self.engine.is_cpu:
            tasks *= shares.span if shares.across else max(1, TASK // shares.workers)
        parts = min(boxes.items, -(-tasks // self.elements))
        return Stage(boxes, lanes, shares, -(-boxes.items // -(-boxes.items // parts)))

    @cached_property
    def second(self) -> Stage:
        """The stage over the parts' results: vectors of dst, part by part."""
        parts = self.first.parts
        loop = Loop(0, 1, parts, ((Digit(parts, self.elements * self.side),),))
        nest = Nest((parts,), (parts,), (loop,), (), ())
        return Stage(_boxes(nest, BOX), 1, self._shares(parts, along=False, span=LINE), 1)

    def _lanes(self) -> int:
        if not self._along:
            return 1
        *outer, inner = self.terms.loops
        guarded = inner.dim in self.terms.guarded
        limits = (self.terms.shape[inner.dim], self.terms.padded[inner.dim], inner.size)
        steps = [loop.strides[0] for loop in outer] + [loop.strides[1] for loop in self.kept.loops]
        offsets = [self.op.src.offset0, *(1 if step is None else step for step in steps)]
        smallest = smallest_float([self.op.src])
        lanes = most_lanes(self.engine, limits if guarded else (), offsets, smallest)
        return min(lanes, 1 << inner.size.bit_length() - 1)

    def _shares(self, vectors: int, *, along: bool, span: int = ACROSS) -> Shares:
        """Share elements with `vectors` vectors of terms each among work-items.

        along: whether terms are contiguous. Otherwise `span` elements are read side by side.
        """
        if self.engine.is_cpu:
            return Shares()
        workers = power_of_two(-(-vectors // TERMS_EACH))
        if along:
            workers = min(max(workers, min(FEWEST, power_of_two(vectors))), LARGEST_GROUP)
            return Shares(workers, max(1, GROUP // workers))
        span = min(span, power_of_two(self.elements))
        return Shares(min(workers, LARGEST_GROUP // span), span, across=True)

    @property
    def scratchpad_bytes(self) -> int:
        """The bytes of the parts' results; 0 for one part."""
        parts = self.first.parts if self.op.dst.nelems else 1
        return parts * self.elements * self.side * self.parts.itemsize if parts > 1 else 0

    @property
    def efficiency(self) -> float:
        """The share of the bandwidth, with and without vectors."""
        if not self.op.dst.nelems:
            return 1.0
        wide = max(self.side, self._lanes()) > 1
        if self.engine.is_cpu:
            return 0.4 if wide else 0.05
        return 0.7 if wide or not self._along else 0.4

    # -- the text -----------------------------------------------------------------------------

    def _launch(self, stage: Stage, *, reads_src: bool, writes_dst: bool) -> Launch:
        """Return a launch. The scratchpad holds the vectors of the first stage, part by part."""
        sizes = [desc.nbytes // desc.itemsize for desc in (self.op.src, *self.results)]
        left = self.scratchpad_start + self.scratchpad_bytes // self.parts.itemsize
        parameters = Parameters(max(*sizes, left), is_wide=self.is_wide)
        from_place, to_place = self.places
        parameters.buffer("src", "const SRC", Arg(from_place) if reads_src else Scratch())
        parameters.buffer("dst", "DST", Arg(to_place) if writes_dst else Scratch())
        results = self.results if writes_dst else ()
        for i, desc in enumerate(results[1:]):
            place = Arg(max(self.places) + 1 + i)
            parameters.buffer(f"operand{i}", f"const {TYPES[desc.data_type]}", place)
        if writes_dst:
            seed(self.attr, parameters, max(self.places) + len(self.results))
        items = self.elements * stage.parts
        grid = stage.shares.grid(self.engine, items)
        src = self.op.src if reads_src else self.parts
        dst = self.op.dst if writes_dst else self.parts
        defines = {
            **reduction_defines(self.op, parameters, terms=reads_src),
            **self._kept(parameters, reads_src=reads_src),
            **(self._result(parameters) if writes_dst else {}),
            **_terms(stage.boxes, parameters),
            **self._types(stage.lanes, src.data_type, dst.data_type),
            **stage.shares.defines,
            "ELEMENTS": parameters.size(self.elements),
            "LEFT_AT(item)": f"{parameters.index(self.scratchpad_start)} + (item) * {self.side}",
            "BOXES": parameters.size(stage.boxes.items if self.op.src.nelems else 0),
            "BOXES_PER_PART": parameters.size(stage.boxes_per_part),
            **grid.defines(parameters),
        }
        types = [desc.data_type for desc in (src, dst, *results)]
        halves = conversions(self.engine, types, (1, self.side, stage.lanes * self.side))
        drawn = random_functions(self.attr, (self.side,))
        snippets = (*halves, *drawn, *stage.shares.snippets(self.engine, is_wide=self.is_wide))
        return grid.launch("reduction", parameters, defines, snippets)

    def _kept(self, parameters: Parameters, *, reads_src: bool) -> dict[str, str]:
        """Return KEPT, which computes src's offset from `rest`, EXISTS and INSIDE."""
        text = decode("rest", self._names("vector"), self.sizes, parameters)
        if self.kept.loops:
            size, at = self.kept.loops[-1].size, f"vector * {self.side}"
            if size % self.side:
                at = f"min({at}, {parameters.size(size - self.side)})"
            text += f"const INDEX {self._names()[-1]} = {at}; "
        src = self._offset(1, self.op.src, parameters) if reads_src else "LEFT_AT(element)"
        exists, inside = self.kept.conditions(self._names(), parameters)
        text += f"const INDEX src_at = {src}; "
        return {"KEPT": text, "EXISTS": exists, "INSIDE": inside}

    def _names(self, last: str = "") -> list[str]:
        """Return the variables of the loops over dst."""
        names = [f"k{i}" for i in range(len(self.kept.loops))]
        return [*names[:-1], last] if names and last else names

    def _offset(self, place: int, desc: MemoryDesc, parameters: Parameters) -> str:
        text = parameters.index(desc.offset0)
        for loop, name in zip(self.kept.loops, self._names(), strict=True):
            text += offset_text(loop.chains[place], name, parameters)
        return text

    def _result(self, parameters: Parameters) -> dict[str, str]:
        """Return DST_AT and POST_OPS; also PAD if dst has padding along the reduced dims."""
        op, side = self.op, self.side
        text = ""
        for i, desc in enumerate(self.results[1:]):
            lanes = side if self.kept.loops and self.kept.loops[-1].strides[2 + i] else 1
            at = f"operand{i} + {self._offset(2 + i, desc, parameters)}"
            value = read(self.engine, desc.data_type, lanes, at)
            text += f"const {vector(value_type(desc.data_type), side)} value{i} = {value}; "
        values = [f"value{i}" for i in range(len(self.results) - 1)]
        steps = chain(self.attr.post_ops, values, "old", parameters)
        text += " ".join(f"{{ {step.text} }}" for step in steps)
        step = self.kept.loops[-1].strides[-1] if self.kept.loops else 0
        text += rounded_vector(
            self.attr,
            op.dst.data_type,
            side,
            self._offset(-1, MemoryDesc(op.dst.dims), parameters),
            parameters.index(step or 0),
        )
        defines = {
            "DST_AT": self._offset(0, op.dst, parameters),
            "POST_OPS": with_lanes(text, side, is_wide=self.is_wide),
            **({"READS_DST": ""} if self.attr.reads_dst else {}),
        }
        return defines | (self._padding(parameters) if self.padding.loops else {})

    def _padding(self, parameters: Parameters) -> dict[str, str]:
        loops = self.padding.loops
        names = [f"l{i}" for i in range(len(loops))]
        text = decode("rest", names, [loop.size for loop in loops], parameters)
        steps = (
            offset_text(loop.chains[0], name, parameters)
            for loop, name in zip(loops, names, strict=True)
        )
        return {
            "PADDING": parameters.size(self.padding.size),
            "PAD": f"{text}const INDEX pad_at = 0{''.join(steps)};",
        }

    def _types(self, lanes: int, src: str, dst: str) -> dict[str, str]:
        """Return the types: ROW for one term of SIDE elements, WIDE for LANES terms."""
        wide, side, engine = lanes * self.side, self.side, self.engine
        return {
            "SRC": TYPES[src],
            "DST": TYPES[dst],
            "SIDE": str(side),
            "LANES": str(lanes),
            "ROW": vector(value_type(self.parts.data_type), side),
            "WIDE": vector(value_type(self.parts.data_type), wide),
            "LOAD(pointer)": read(engine, src, side, "pointer"),
            "LOAD_WIDE(pointer)": read(engine, src, wide, "pointer"),
            "LOAD_DST(pointer)": read(engine, dst, side, "pointer"),
            "STORE(pointer, value)": write(engine, dst, side, "pointer", "value"),
        }


def bias_sums(engine: Any, op: core.Operation, scratchpad_start: int) -> Stages | None:
    """Return the sums of diff_dst's channels, the gradient of a bias; None if `op` has none.

    diff_dst may have no elements, although `Reduction` refuses such tensors.
    """
    descs = {argument.name: desc for argument, desc in op.tensors()}
    if "diff_bias" not in descs:
        return None
    names, dst, bias = list(descs), descs["diff_dst"], descs["diff_bias"]
    places = names.index("diff_dst"), names.index("diff_bias")
    dims = [size if dim == 1 else 1 for dim, size in enumerate(dst.dims)]
    sums = SUM_OF_TWO.with_descs(src=dst, dst=bias.reshape(dims))
    return Stages(engine, sums, Attributes(), places, scratchpad_start)


def _with_a_loop(nest: Nest) -> Nest:
    """Return the nest, with a loop of one iteration if it has none."""
    return nest if nest.loops else replace(nest, loops=(Loop(0, 1, 1, ((Digit(1, 0),),)),))


def _boxes(nest: Nest, size: int) -> Boxes:
    """Return boxes of about `size` terms."""
    return Boxes(nest, max(1, size // nest.loops[-1].size), size)


def _terms(boxes: Boxes, parameters: Parameters) -> dict[str, str]:
    """Return BOX, which computes a box's bounds and offset from `rest`, TERM_AT and IS_TERM."""
    _, inside = boxes.nest.conditions(boxes.variables, parameters)
    start = f"src_at{boxes.outer_offset(0, parameters)}"
    return {
        "BOX": f"{boxes.decode(parameters)}const INDEX box_at = {start};",
        "TERM_AT": f"box_at{boxes.inner_offset(0, parameters)}",
        "IS_TERM": inside,
    }


TABLE = (Reduction(),)
