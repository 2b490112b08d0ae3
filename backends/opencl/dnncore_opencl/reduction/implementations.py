"""Reduction of some dims of a tensor to one, in the stages that `rows/staged.py` plans."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Boxes
from dnncore_opencl.codegen.layout import Nest, Parameters, decode, offset_text
from dnncore_opencl.codegen.vectors import (
    CPU_LANES,
    TYPES,
    WITH_F64,
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
from dnncore_opencl.rows.staged import Stage, Staged, with_a_loop
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch

SUM_OF_TWO = core.Reduction("sum", src=MemoryDesc((2,)), dst=MemoryDesc((1,)))
EXACT = ("max", "min", "sum")


class Reduction(Implementation[core.Reduction]):
    """All algorithms, with post-ops."""

    name = "opencl:staged"
    data_types = WITH_F64
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


class Stages(Staged):
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
        self.terms = with_a_loop(Nest.of([op.src], 0, reduced))
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
    def side(self) -> int:
        """How many elements of dst are computed at once. On a CPU the last vector may overlap."""
        if self.along or not self.kept.loops:
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
    def lanes(self) -> int:
        """How many neighbouring terms are combined at once."""
        if not self.along:
            return 1
        *outer, inner = self.terms.loops
        guarded = inner.dim in self.terms.guarded
        limits = (self.terms.shape[inner.dim], self.terms.padded[inner.dim], inner.size)
        steps = [loop.strides[0] for loop in outer] + [loop.strides[1] for loop in self.kept.loops]
        offsets = [self.op.src.offset0, *(1 if step is None else step for step in steps)]
        smallest = smallest_float([self.op.src])
        lanes = most_lanes(self.engine, limits if guarded else (), offsets, smallest)
        return min(lanes, 1 << inner.size.bit_length() - 1)

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
        wide = max(self.side, self.lanes) > 1
        if self.engine.is_cpu:
            return 0.4 if wide else 0.05
        return 0.7 if wide or not self.along else 0.4

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
        text = decode("rest", self.names("vector"), self.sizes, parameters)
        if self.kept.loops:
            size, at = self.kept.loops[-1].size, f"vector * {self.side}"
            if size % self.side:
                at = f"min({at}, {parameters.size(size - self.side)})"
            text += f"const INDEX {self.names()[-1]} = {at}; "
        src = self._offset(1, self.op.src, parameters) if reads_src else "LEFT_AT(element)"
        exists, inside = self.kept.conditions(self.names(), parameters)
        text += f"const INDEX src_at = {src}; "
        return {"KEPT": text, "EXISTS": exists, "INSIDE": inside}

    def _offset(self, place: int, desc: MemoryDesc, parameters: Parameters) -> str:
        text = parameters.index(desc.offset0)
        for loop, name in zip(self.kept.loops, self.names(), strict=True):
            text += offset_text(loop.chains[place], name, parameters)
        return text

    def _result(self, parameters: Parameters) -> dict[str, str]:
        """Return DST_AT and POST_OPS; also PAD if dst has padding along the reduced dims."""
        op, side = self.op, self.side
        text = ""
        for i, desc in enumerate(self.results[1:]):
            lanes = side if self.kept.loops and self.kept.loops[-1].strides[2 + i] else 1
            at = f"operand{i} + {self._offset(2 + i, desc, parameters)}"
            kind, value = value_type(desc.data_type), read(self.engine, desc.data_type, lanes, at)
            if self.is_wide:
                kind, value = "double", f"convert_{vector('double', lanes)}({value})"
            text += f"const {vector(kind, side)} value{i} = {value}; "
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
    """Return the sums of diff_dst's channels, the gradient of a bias; None if `op` has none."""
    descs = {argument.name: desc for argument, desc in op.tensors()}
    if "diff_bias" not in descs:
        return None
    names, dst, bias = list(descs), descs["diff_dst"], descs["diff_bias"]
    places = names.index("diff_dst"), names.index("diff_bias")
    dims = [size if dim == 1 else 1 for dim, size in enumerate(dst.dims)]
    sums = SUM_OF_TWO.with_descs(src=dst, dst=bias.reshape(dims))
    return Stages(engine, sums, Attributes(), places, scratchpad_start)


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
