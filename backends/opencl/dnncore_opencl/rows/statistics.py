"""Statistics of sets of elements: averages and variances, or sums of products of several tensors.

The elements of a set lie along the reduced dims. All tensors have one logical shape, in which they
may be broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnncore.backend import MemoryDesc
from dnncore_opencl.codegen.layout import Nest, Parameters, decode, elements, offset_text
from dnncore_opencl.codegen.vectors import (
    CPU_LANES,
    TYPES,
    conversions,
    most_lanes,
    read,
    smallest_float,
    vector,
    write,
)
from dnncore_opencl.rows import staged
from dnncore_opencl.rows.staged import Stage, Staged, with_a_loop
from dnncore_opencl.runtime.launch import Launch, template
from dnncore_opencl.runtime.schema import Arg, Scratch

HELD, CPU_HELD = 4, 8  # vectors per work-item that are read before the first is used
LONE_BOX = 32  # terms of sums, if these are not contiguous; half of what other reductions take
FLOAT_BYTES = 4
MOMENTS = ("average", "deviations", "total")


@dataclass(frozen=True)
class Tensor:
    """A tensor in the common shape, and its buffer."""

    desc: MemoryDesc
    buffer: Arg | Scratch


@dataclass(frozen=True)
class Output:
    """Where a statistic is stored, and its expression.

    Moments give `average`, `deviations` (the sum of squared ones) and `total` (the number of
    elements); sums give `total_a` and `total_b`.
    """

    tensor: Tensor
    value: str


class Statistics(Staged):
    """The launches of one or two statistics per set.

    sources: the tensors; the first one has all dims. In `terms`, their elements are
    v0, v1, .... terms: the expressions of one or two sums, in which KIND is the type of values;
    none for the moments of v0, or of v0 * v1 if there are two sources. numbers: further names in
    expressions. scratchpad_start: bytes at the beginning of the
    scratchpad that are already used.
    """

    gpu_tasks = 4  # of a work-item that reads several vectors at once

    def __init__(
        self,
        engine: Any,
        sources: Sequence[Tensor],
        outputs: Sequence[Output],
        reduced: Iterable[int],
        terms: Sequence[str] = (),
        numbers: Mapping[str, float] | None = None,
        scratchpad_start: int = 0,
    ) -> None:
        self.engine = engine
        self.sources = list(sources)
        self.outputs = list(outputs)
        self.expressions = list(terms)
        self.numbers = dict(numbers or {})
        self.start = scratchpad_start // FLOAT_BYTES
        self.lone_box = LONE_BOX if terms else staged.LONE_BOX
        dims = sorted(reduced)
        descs = [source.desc for source in sources]
        others = [dim for dim in range(descs[0].ndims) if dim not in dims]
        results = [output.tensor.desc for output in outputs]
        self.kept = Nest.of([*results, *descs], 0, others)
        self.terms = with_a_loop(Nest.of(descs, 0, dims), len(descs))

    def launches(self) -> list[Launch]:
        """Return one launch or two; none if there are no sets."""
        if not self.outputs[0].tensor.desc.nelems:
            return []
        if self.first.parts == 1:
            return [self._first(is_last=True)]
        return [self._first(is_last=False), self._second()]

    # -- the plan -----------------------------------------------------------------------------

    @cached_property
    def side(self) -> int:
        """How many neighbouring sets are computed at once. On a CPU the last vector may overlap."""
        if self.along or not self.kept.loops:
            return 1
        *outer, inner = self.kept.loops
        count = len(self.outputs)
        own, inputs = inner.strides[:count], inner.strides[count:]
        is_vector = all(s == 1 for s in own) and inputs[0] == 1 and all(s in (0, 1) for s in inputs)
        if not is_vector:
            return 1
        if self.engine.is_cpu and inner.dim not in self.kept.guarded:
            return min(CPU_LANES, 1 << inner.size.bit_length() - 1)
        limits = [inner.size]
        if inner.dim in self.kept.guarded:
            limits += [self.kept.shape[inner.dim], self.kept.padded[inner.dim]]
        descs = [output.tensor.desc for output in self.outputs]
        descs += [source.desc for source in self.sources]
        steps: list[int | None] = [self.start]
        for place, desc in enumerate(descs):
            if inner.strides[place] == 1:
                steps += [desc.offset0, *(loop.strides[place] for loop in outer)]
                if place >= count:
                    steps += [loop.strides[place - count] for loop in self.terms.loops]
        sizes = (1 if step is None else step for step in steps)
        return most_lanes(self.engine, limits, sizes, self._smallest)

    @cached_property
    def lanes(self) -> int:
        """How many neighbouring elements of a set are combined at once."""
        *outer, inner = self.terms.loops
        if inner.strides[0] != 1 or any(s not in (0, 1) for s in inner.strides):
            return 1
        guarded = inner.dim in self.terms.guarded
        limits = (self.terms.shape[inner.dim], self.terms.padded[inner.dim], inner.size)
        steps = []
        for place, source in enumerate(self.sources):
            if inner.strides[place] == 1:
                kept = (loop.strides[len(self.outputs) + place] for loop in self.kept.loops)
                others = [*(loop.strides[place] for loop in outer), *kept]
                steps += [source.desc.offset0, *(1 if s is None else s for s in others)]
        lanes = most_lanes(self.engine, limits if guarded else (), steps, self._smallest)
        return min(lanes, 1 << inner.size.bit_length() - 1)

    @property
    def _smallest(self) -> int:
        return smallest_float([source.desc for source in self.sources])

    @property
    def _left(self) -> int:
        """The numbers that the first stage leaves for each part of a set."""
        return len(self.expressions) or len(MOMENTS)

    @property
    def scratchpad_bytes(self) -> int:
        """The bytes of the parts' results; 0 for one part."""
        if not self.outputs[0].tensor.desc.nelems or self.first.parts == 1:
            return 0
        return self._left * self.first.parts * self.elements * self.side * FLOAT_BYTES

    # -- the text -----------------------------------------------------------------------------

    def _parameters(self) -> Parameters:
        tensors = [*self.sources, *(output.tensor for output in self.outputs)]
        left = self.start + self.scratchpad_bytes // FLOAT_BYTES
        return Parameters(max(left, *(elements(tensor.desc) for tensor in tensors)))

    def _first(self, *, is_last: bool) -> Launch:
        parameters, stage = self._parameters(), self.first
        for i, source in enumerate(self.sources):
            kind = f"const {TYPES[source.desc.data_type]}"
            parameters.buffer(f"s{i}", kind, source.buffer)
        defines = {
            "ELEMENTS": parameters.size(self.elements),
            "BOXES": parameters.size(stage.boxes.items if self.sources[0].desc.nelems else 0),
            "BOXES_PER_PART": parameters.size(stage.boxes_per_part),
        }
        keep = self._store(parameters) if is_last else self._leave(parameters, stage)
        numbers = {name: parameters.real(value) for name, value in self.numbers.items()}
        defines |= self._set(parameters, reads=True) | self._boxes(parameters, stage) | numbers
        wide, row = (self._loads(n) for n in (stage.lanes, 1))
        if self.expressions:
            defines |= {"ADD_WIDE": self._adds(wide, "WIDE"), "ADD_ROW": self._adds(row, "ROW")}
        else:
            defines |= {"LOAD_WIDE": f"({' * '.join(wide)})", "LOAD_ROW": f"({' * '.join(row)})"}
            if defines["IS_TERM"] == "1":
                defines["HELD"] = str(CPU_HELD if self.engine.is_cpu else HELD)
        kernel = "sums" if self.expressions else "moments"
        items = self.elements * stage.parts
        return self._launch(kernel, parameters, stage, items, defines | {"KEEP": keep})

    def _second(self) -> Launch:
        parameters, stage, parts = self._parameters(), self.second, self.first.parts
        parameters.buffer("left", "const float", Scratch())
        array = parameters.size(self.elements * self.side * parts)
        at = f"{parameters.index(self.start)} + ((part) * {parameters.size(self.elements)}"
        at += f" + element) * {self.side}"
        defines = {
            "PARTS": parameters.size(parts),
            "LEFT(k, part)": read(self.engine, "f32", self.side, f"left + {at} + k * {array}"),
            "LEFT_COUNT(part)": f"left[{at} + 2 * {array}]",
            **({} if self.expressions else {"MOMENTS": ""}),
        }
        defines["KEEP"] = self._store(parameters)
        defines |= self._set(parameters, reads=False)
        return self._launch("parts", parameters, stage, self.elements, defines)

    def _launch(
        self, kernel: str, parameters: Parameters, stage: Stage, items: int,
        defines: Mapping[str, str],
    ) -> Launch:  # fmt: skip
        grid = stage.shares.grid(self.engine, items)
        types = [source.desc.data_type for source in self.sources]
        types += [output.tensor.desc.data_type for output in self.outputs]
        widths = (1, self.side, stage.lanes * self.side)
        snippets = (
            *conversions(self.engine, types, widths),
            *stage.shares.snippets(self.engine),
            template("sets"),
        )
        defines = {
            **defines,
            **({"HAS_TWO": ""} if len(self.expressions) > 1 else {}),
            "LANES": str(stage.lanes),
            "ROW": vector("float", self.side),
            "WIDE": vector("float", self.side * stage.lanes),
            **stage.shares.defines,
            **grid.defines(parameters),
        }
        return grid.launch(kernel, parameters, defines, snippets)

    def _set(self, parameters: Parameters, *, reads: bool) -> dict[str, str]:
        """Return SET, which decodes a set from `rest` and reads what its elements share."""
        text = decode("rest", self.names("vector"), self.sizes, parameters)
        if self.kept.loops:
            size, at = self.kept.loops[-1].size, f"vector * {self.side}"
            if size % self.side:
                at = f"min({at}, {parameters.size(size - self.side)})"
            text += f"const INDEX {self.names()[-1]} = {at}; "
        exists, _ = self.kept.conditions(self.names(), parameters)
        defines, values = {"SET": text, "EXISTS": exists}, ""
        if not reads:
            return defines
        for i, source in enumerate(self.sources):
            at = self._kept_offset(len(self.outputs) + i, source.desc, parameters)
            values += f"const INDEX s{i}_at = {at}; "
            if self._is_shared(i):
                lanes = self._side_of(i)
                value = read(self.engine, source.desc.data_type, lanes, f"s{i} + s{i}_at")
                values += f"const {vector('float', self.side)} v{i} = exists ? {value} : 0.0f; "
        return defines | {"SHARED_VALUES": values}

    def _is_shared(self, place: int) -> bool:
        """Whether all elements of a set use the same element of a source."""
        return all(loop.strides[place] == 0 for loop in self.terms.loops)

    def _side_of(self, place: int) -> int:
        """The neighbouring elements of a source that a vector of sets uses."""
        loops = self.kept.loops
        return self.side if loops and loops[-1].strides[len(self.outputs) + place] else 1

    def _kept_offset(self, place: int, desc: MemoryDesc, parameters: Parameters) -> str:
        text = parameters.index(desc.offset0)
        for loop, name in zip(self.kept.loops, self.names(), strict=True):
            text += offset_text(loop.chains[place], name, parameters)
        return text

    def _boxes(self, parameters: Parameters, stage: Stage) -> dict[str, str]:
        boxes, text = stage.boxes, stage.boxes.decode(parameters)
        for i in range(len(self.sources)):
            text += f"const INDEX s{i}_box = s{i}_at{boxes.outer_offset(i, parameters)}; "
        conditions = boxes.nest.conditions(boxes.variables, parameters)
        wanted = [condition for condition in conditions if condition != "1"]
        self._inner = [boxes.inner_offset(i, parameters) for i in range(len(self.sources))]
        return {"BOX": text, "IS_TERM": " && ".join(wanted) or "1"}

    def _loads(self, lanes: int) -> list[str]:
        """Return the expressions of the sources' elements at `t`; of shared ones, their names."""
        loads = []
        for i, source in enumerate(self.sources):
            if self._is_shared(i):
                loads.append(f"v{i}")
                continue
            own = lanes if self.terms.loops[-1].strides[i] == 1 else 1
            pointer = f"s{i} + s{i}_box{self._inner[i]}"
            own *= self._side_of(i)
            loads.append(read(self.engine, source.desc.data_type, own, pointer))
        return loads

    def _adds(self, loads: Sequence[str], kind: str) -> str:
        """Return the statements that add the terms of an element or a vector to `a` and `b`."""
        text = ""
        for i, load in enumerate(loads):
            if not self._is_shared(i):
                text += f"const {kind} v{i} = {load}; "
        sums = zip("ab", self.expressions, strict=False)
        text += " ".join(f"{name} += {term};" for name, term in sums)
        return text.replace("KIND", kind)

    def _leave(self, parameters: Parameters, stage: Stage) -> str:
        """Return the statements that leave an item's results for the second stage."""
        parameters.buffer("left", "float", Scratch())
        array = parameters.size(self.elements * self.side * stage.parts)
        at = f"left + {parameters.index(self.start)} + item * {self.side}"
        values = ["total_a", "total_b"][: len(self.expressions)]
        values = values or list(MOMENTS)
        stores = (
            write(self.engine, "f32", self.side, f"{at} + {k} * {array}", value)
            for k, value in enumerate(values)
        )
        return " ".join(f"{store};" for store in stores)

    def _store(self, parameters: Parameters) -> str:
        """Return the statements that store the outputs."""
        text = ""
        for place, output in enumerate(self.outputs):
            desc = output.tensor.desc
            parameters.buffer(f"d{place}", TYPES[desc.data_type], output.tensor.buffer)
            at = f"d{place} + {self._kept_offset(place, desc, parameters)}"
            text += write(self.engine, desc.data_type, self.side, at, output.value) + "; "
        return text
