"""Parts of the forward and the backward plan: tensors as rows of f32, products, sums, copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from dnncore.backend import RNN, KnobValue, MemoryDesc, RNNForward
from dnncore_opencl.copies.apart import copied
from dnncore_opencl.copies.staging import ROW_MAJOR, redirected
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.gemm.families import FAMILIES
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.product import Gemm, Strides, matrix
from dnncore_opencl.gemm.split_k import FLOAT
from dnncore_opencl.gemm.tuned import tuned
from dnncore_opencl.rnn.integers import STATES, Numbers
from dnncore_opencl.rnn.steps import Cells, Part, Step, launches_of
from dnncore_opencl.rnn.tiles import ARRIVALS_APART, LEAST_STEPS, STRIP, Tile, persistent_tile
from dnncore_opencl.rows.statistics import Output, Statistics, Tensor
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Scratch

__all__ = ["Layers"]

LINE = 32  # floats; parts of the scratchpad begin at lines
SCRATCH = 1000  # the place of the scratchpad in products; memories have smaller places
Work = Callable[[int], tuple[Callable[[], Sequence[Launch]], int]]
"""Returns a function that makes launches, and the bytes that they need after the given byte."""


class Layers:
    """The plan of all layers. Tensors are row-major f32; others are copied.

    transposed: tensors whose copies have the last dim third, before gates.
    numbers: of cells of integers. knobs: values of `KNOBS`.
    """

    def __init__(
        self, engine: Any, op: RNN, transposed: Sequence[str] = (),
        numbers: Numbers | None = None, knobs: Mapping[str, KnobValue] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.knobs = knobs
        self.engine, self.op, self.sizes, self.dims = engine, op, op.sizes, op.dims
        self.numbers = numbers
        self.columns = self.sizes.gates * self.sizes.dhc
        self.rows = self.sizes.steps * self.sizes.batch
        self.parts = op.parts
        self.row = self.parts["h"].stop
        self.copies = 0
        self._top = 0
        self._is_finished = False
        self._cells: dict[tuple[str, str, int], Cells] = {}
        self._plans: dict[Any, Plan] = {}
        self._rooms: dict[str, Part] = {}
        self._works: list[Work] = []
        self._after: list[Callable[[], Sequence[Launch]]] = []
        self._tensors: dict[str, Part] = {}
        for place, (argument, desc) in enumerate(op.tensors(op.workspace_desc())):
            self._take(place, argument, desc, is_transposed=argument.name in transposed)
        if numbers:
            self._round_first_state(numbers)

    @cached_property
    def persistent(self) -> Tile | str:
        """The tile of a persistent kernel for the steps, or why there is none."""
        op, sizes = self.op, self.sizes
        if self.engine.is_cpu:
            return "a CPU has no persistent kernels"
        if op.weights_projection is not None or (op.is_gru and not op.is_lbr):
            return "each step of this cell has two products"
        if sizes.steps < LEAST_STEPS:
            return f"it needs at least {LEAST_STEPS} steps; got {sizes.steps}"
        width, batch = sizes.dhc, sizes.batch
        if isinstance(op, RNNForward):
            gates, depth = sizes.gates, sizes.dic
            strip = 1 if any(n % STRIP for n in (depth, self.row, self.parts["h"].start)) else STRIP
        else:
            gates, depth = 1, self.columns
            strip = 1 if depth % STRIP else STRIP
        return persistent_tile(self.engine, gates, batch, width, depth, strip, self.knobs)

    def _take(self, place: int, argument: Any, desc: MemoryDesc, *, is_transposed: bool) -> None:
        wanted = MemoryDesc(desc.dims).with_format(tag_of(desc, is_transposed=is_transposed))
        name, is_out = argument.name, argument.direction == "out"
        numbers = self.numbers if name in STATES else None
        is_f32 = desc.data_type == "f32" and not (numbers and is_out)
        if is_f32 and desc.strides == wanted.strides and desc.is_plain:
            self._tensors[name] = Part(Arg(place), desc.offset0, 1)
            return
        self.copies += 1
        start = self.room(name, desc.nelems).start
        wanted = wanted.with_offset0(start)
        self._tensors[name] = Part(Scratch(), start, 1)
        if is_out:
            stored = numbers.stored if numbers else partial(copied, self.engine)
            self._after.append(lambda: stored(wanted, desc, Scratch(), Arg(place)))
        elif numbers and desc.data_type == numbers.own:
            self.add(lambda: numbers.differences(desc, wanted, Arg(place)))
        else:
            self.add(lambda: copied(self.engine, desc, wanted, Arg(place), Scratch()))

    def _round_first_state(self, numbers: Numbers) -> None:
        """Convert h before the first step to differences of integers."""
        sizes = self.sizes
        count = sizes.layers * sizes.directions * sizes.batch * sizes.dic
        given, desc = self._tensors.get("src_iter"), self.op.src_iter
        is_done = desc is not None and desc.data_type == numbers.own
        if not count or is_done or (given is None and not numbers.of_zero):
            return
        room = self.room("first states", count)
        self._tensors["src_iter"] = room
        whole = MemoryDesc((count,)).with_offset0(room.start)
        if given is None:
            self._fill(room, count, numbers.of_zero)
            return
        integers = self.room("integers of states", -(-count // FLOAT))
        q = MemoryDesc((count,), numbers.own).with_offset0(integers.start * FLOAT)
        src = MemoryDesc((count,)).with_offset0(given.start)
        self.add(lambda: numbers.integers(src, q, given.buffer))
        self.add(lambda: numbers.differences(q, whole, Scratch()))

    # -- tensors ------------------------------------------------------------------------------

    def tensor(self, name: str, step: int) -> Part | None:
        """Return a tensor as rows; None if it is absent."""
        part = self._tensors.get(name)
        return part and Part(part.buffer, part.start, step)

    def given(self, name: str, step: int) -> Part:
        """Return a required tensor as rows."""
        part = self._tensors[name]
        return Part(part.buffer, part.start, step)

    def part(self, name: str, layer: int, side: int, step: int) -> Part:
        """Return the rows of one layer and direction of a required tensor of all."""
        part = self.optional(name, layer, side, step)
        assert part is not None
        return part

    def optional(self, name: str, layer: int, side: int, step: int) -> Part | None:
        """Return the rows of one layer and direction of a tensor of all; None if it is absent."""
        part = self.tensor(name, step)
        count = math.prod(self.dims[name.removeprefix("diff_")][2:])
        start = (layer * self.sizes.directions + side) * count
        return part and Part(part.buffer, part.start + start, step)

    def room(self, name: str, rows: int, step: int = 1) -> Part:
        """Return the rows of the scratchpad with this name. Layers may share them."""
        if name not in self._rooms:
            assert not self._is_finished, name
            self._rooms[name] = Part(Scratch(), self._top, 1)
            self._top += -(-rows * step // LINE) * LINE
        return Part(Scratch(), self._rooms[name].start, step)

    def zeros(self, count: int) -> Part:
        """Return a row of zeros, which stands for each row. Products with infinity are NaN."""
        is_new = "zeros" not in self._rooms
        room = self.room("zeros", count)
        if is_new:
            self.copy(room, None, count)
        return replace(room, step=0)

    def saved(self, layer: int, side: int) -> Part | None:
        """Return the workspace's rows of all steps; None without a workspace."""
        place = (layer * self.sizes.directions + side) * self.rows
        workspace = self.tensor("workspace", self.row)
        return workspace and workspace.at(place)

    def hidden(self, layer: int, side: int) -> Part:
        """Return h' of all steps in the workspace."""
        saved = self.saved(layer, side)
        assert saved is not None
        return saved.at(0, self.parts["h"].start)

    def times(self, side: int) -> list[int]:
        """Return the steps in the order of a direction."""
        steps = list(range(self.sizes.steps))
        return steps[::-1] if self.op.is_reversed(side) else steps

    # -- work ---------------------------------------------------------------------------------

    def add(self, make: Callable[[], Sequence[Launch]]) -> None:
        """Append launches, which are made when the program is built."""
        self._works.append(lambda _: (make, 0))

    def steps(self, make: Callable[[], Sequence[Step]]) -> None:
        """Append the launches of steps."""
        if isinstance(tile := self.persistent, str):
            self.add(lambda: launches_of(make(), None, None))
            return
        count = ARRIVALS_APART * tile.bands
        is_new = "arrivals" not in self._rooms
        arrivals = self.room("arrivals", count)
        if is_new:
            self.copy(arrivals, None, count)
        self.add(lambda: launches_of(make(), tile, arrivals))

    def cells(self, kernel: str, cell: str, gates: int) -> Cells:
        """Return a kernel for steps."""
        key = kernel, cell, gates
        if key not in self._cells:
            op, batch, work = self.op, self.sizes.batch, self.op.flops / 2
            self._cells[key] = Cells(
                self.engine, *key, batch, op.activation, op.alpha, work, self.numbers, self.knobs
            )
        return self._cells[key]

    def product(
        self, sizes: tuple[int, int, tuple[int, ...]], a: tuple[Part, Strides],
        b: tuple[Part, Strides], c: Part,
    ) -> None:  # fmt: skip
        """Append c[m, n] = sum over k of a[m, k] b[k, n]. sizes: m, n, k."""
        m, n, k = sizes
        results = _operand(c, Strides(m=c.step, n=(1,)), m, (n,), ())
        gemm = Gemm(
            m=m, n=(n,), k=k, a=_operand(*a, m, (), k), b=_operand(*b, 1, (n,), k), c=results
        )
        if gemm.size:
            self._works.append(lambda start: self._planned(gemm, start))

    def _planned(self, gemm: Gemm, start: int) -> tuple[Callable[[], Sequence[Launch]], int]:
        """Return the work of a product. Equal ones at other places need the same bytes."""
        key = gemm.m, gemm.n, gemm.k, *(own.strides for own in (gemm.a, gemm.b, gemm.c))
        key += tuple(own.offset % LINE for own in (gemm.a, gemm.b, gemm.c))
        if key not in self._plans:
            self._plans[key] = _plan(self.engine, gemm, start)

        def make() -> Sequence[Launch]:
            launches = _plan(self.engine, gemm, start).launches
            return [redirected(one, {SCRATCH: Scratch()}) for one in launches]

        return make, self._plans[key].scratchpad

    def sums(self, terms: Part, rows: int, columns: int, target: Part, *, along: int) -> None:
        """Append sums over rows (along 0) or columns (along 1)."""
        dims = (1, columns) if along == 0 else (rows, 1)
        source = Tensor(_matrix(terms, rows, columns), terms.buffer)
        result = Tensor(_matrix(Part(target.buffer, target.start, dims[1]), *dims), target.buffer)

        def work(start: int) -> tuple[Callable[[], Sequence[Launch]], int]:
            outputs = [Output(result, "total_a")]
            own = Statistics(self.engine, [source], outputs, [along], ["v0"], {}, start)
            return own.launches, own.scratchpad_bytes

        self._works.append(work)

    def copy(self, target: Part | None, source: Part | None, count: int) -> None:
        """Append a copy of neighbouring elements, or zeros if there is no source."""
        if target is None or not count:
            return
        if source is None:
            self._fill(target, count, 0.0)
            return
        src, dst = (MemoryDesc((count,)).with_offset0(part.start) for part in (source, target))
        self.add(lambda: copied(self.engine, src, dst, source.buffer, target.buffer))

    def _fill(self, target: Part, count: int, value: float) -> None:
        """Append a fill of neighbouring elements."""

        def make() -> Sequence[Launch]:
            work = Pass(self.engine, [MemoryDesc((count,)).with_offset0(target.start)], 0)
            work.start(f"{value!r}f")
            return [redirected(one, {0: target.buffer}) for one in work.launches()]

        self.add(make)

    def finished(self) -> tuple[Callable[[], list[Launch]], int]:
        """Return the function that makes all launches, and the bytes of the scratchpad."""
        self._is_finished = True
        start = max(self._top, LINE) * FLOAT
        planned = [work(start) for work in self._works]
        makes = [*(make for make, _ in planned), *self._after]
        needs = max((need for _, need in planned), default=0)
        return lambda: [one for make in makes for one in make()], start + needs


def tag_of(desc: MemoryDesc, *, is_transposed: bool) -> str:
    """Return the format of a tensor's copy."""
    tag = ROW_MAJOR[: desc.ndims]
    return tag[:2] + tag[3:] + tag[2] if is_transposed else tag


def _matrix(part: Part, rows: int, columns: int) -> MemoryDesc:
    """Return the descriptor of rows, from the start of the buffer."""
    strides = (max(part.step, 1), 1)
    return MemoryDesc((rows, columns), "f32", strides=strides).with_offset0(part.start)


def _operand(part: Part, strides: Strides, m: int, n: tuple[int, ...], k: tuple[int, ...]) -> Any:
    """Return an operand of a product."""
    steps = (strides.m, *strides.n, *strides.k)
    sizes = (m, *n, *k)
    pairs = [(size, step) for size, step in zip(sizes, steps, strict=False) if step]
    desc = MemoryDesc(
        tuple(size for size, _ in pairs), "f32", strides=tuple(step for _, step in pairs)
    ).with_offset0(part.start)
    index = part.buffer.index if isinstance(part.buffer, Arg) else SCRATCH
    return matrix(index, desc, strides)


def _plan(engine: Any, gemm: Gemm, start: int) -> Plan:
    """Return the plan of a product by the fastest family that computes it."""
    families = [family.of(engine) for family in FAMILIES if family.refusal(engine) is None]
    able = [family for family in families if family.refusal_of(gemm) is None]
    best = max(able, key=lambda family: family.efficiency[engine.device_type])
    return tuned(best, gemm, engine).plan(gemm, start)
