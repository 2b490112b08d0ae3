"""Launches of steps of cells: products of the state, and the cells (`rnn_tile.cl`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from dnncore.backend import KnobValue
from dnncore_opencl.codegen.vectors import TYPES, vector
from dnncore_opencl.devices.nvidia import is_nvidia
from dnncore_opencl.rnn.integers import Numbers
from dnncore_opencl.rnn.tiles import ARRIVALS_APART, STRIP, Tile
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import FLOAT, INT, LONG, Buffer, Schema, Scratch

__all__ = ["Cells", "Part", "Parts", "Step", "launches_of"]

KINDS = {"relu": 0, "logistic": 1, "tanh": 2}


@dataclass(frozen=True)
class Part:
    """Rows of f32. start: the first element in the buffer; step: from row to row, at least 1."""

    buffer: Any  # an `Arg` or `Scratch`, or a `Constant` of factors
    start: int
    step: int

    def at(self, row: int, column: int = 0) -> Part:
        """Return the rows from a row on, without the first columns."""
        return replace(self, start=self.start + row * self.step + column)


Parts: TypeAlias = dict[str, Part | None]
"""Tensors of a kernel by name; those that are None or missing are absent."""

ABSENT = Part(Scratch(), 0, 0)
CELLS = ("RNN", "LSTM", "LBR", "GRU", "GATES_OF_GRU", "STATE_OF_GRU", "RESET_OF_GRU", "STATE",
         "PROJECTION")  # fmt: skip
"""Cells and parts of cells, whose places are numbers in the kernels."""

SIZES = ("batch", "width", "depth", "gate_step", "cell", "kind", "adds")
NAMES = {
    "rnn_forward": (
        ("weights", "source", "z", "bias", "peephole", "attention", "h", "c"),
        ("new_c", "row", "middle", "state", "last", "out"),
    ),
    "rnn_backward": (
        ("weights", "source", "above", "own", "row", "h", "c", "dc", "peephole", "attention"),
        ("new_own", "new_dc", "z", "zq", "old_h", "more", "middle", "pulls"),
    ),
}
"""Kernel -> the tensors that it reads and that it writes."""


@dataclass(frozen=True)
class Cells:
    """A kernel for cells. cell: one of `CELLS`; gates: products of each unit.

    activation, alpha: of a vanilla RNN. work: multiply-adds of all steps. numbers: of cells of
    integers. knobs: values of `KNOBS`.
    """

    engine: Any
    kernel: str
    cell: str
    gates: int
    batch: int
    activation: str
    alpha: float
    work: float
    numbers: Numbers | None
    knobs: Mapping[str, KnobValue]

    @cached_property
    def tile(self) -> Tile:
        """The tile of a launch of one step."""
        return Tile.of(self.engine, self.gates, self.batch, self.knobs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors that the kernel reads and writes."""
        reads, writes = NAMES[self.kernel]
        return (*reads, *writes, *(("factors",) if self.numbers else ()))

    @cached_property
    def schema(self) -> Schema:
        """The parameters of a launch of one step."""
        _, writes = NAMES[self.kernel]
        kinds = {name: "float" if name in writes else "const float" for name in self.names}
        buffers = {name: Buffer(kind) for name, kind in kinds.items()}
        starts = {f"{name}_at": LONG for name in self.names}
        steps = {f"{name}_step": INT for name in self.names}
        sizes = dict.fromkeys(SIZES, INT)
        rounding = {"scale": FLOAT, "shift": FLOAT} if self.numbers else {}
        return Schema(**buffers, **starts, **steps, **sizes, alpha=FLOAT, **rounding)

    def source(self, tile: Tile, strip: int) -> Source:
        """Return the source. Without turns, it is that of a launch of one step."""
        key = tile, strip
        if key not in self._sources:
            self._sources[key] = self._made(tile, strip)
        return self._sources[key]

    @cached_property
    def _sources(self) -> dict[tuple[Tile, int], Source]:
        return {}

    def _made(self, tile: Tile, strip: int) -> Source:
        defines: dict[str, str | int | float] = {name: n for n, name in enumerate(CELLS)}
        defines |= {
            "GATES": self.gates, "UNITS": tile.units, "EACH": tile.each, "ROWS": tile.rows,
            "SLICES": tile.slices, "STRIP": strip,
        }  # fmt: skip
        if tile.slices == 1:
            defines["UNITS_TYPE"] = vector("float", tile.units)
            defines["LOAD_UNITS(p)"] = f"vload{tile.units}(0, p)"
        else:
            defines["PARTS"] = tile.parts(self.gates)
        if self.numbers:
            defines["INTEGER"] = f"convert_{TYPES[self.numbers.own]}_sat_rte"
        schema, snippets = self.schema, ["rnn_tile"]
        if tile.turns:
            defines |= {"PERSISTENT": 1, "TURNS": tile.turns, "ARRIVALS_APART": ARRIVALS_APART}
            moves = {f"{name}_move": LONG for name in self.names}
            schema |= Schema(**moves, arrivals=Buffer("uint"), arrivals_at=LONG, steps=INT)
            fence = "fence_nvidia" if is_nvidia(self.engine) else "fence"
            snippets = [fence, "wait_for_groups", *snippets]
        return Source(self.kernel, schema, defines, tuple(map(template, snippets)))


@dataclass(frozen=True)
class Step:
    """One step of cells. width: units; depth: of the sums; adds: whether to add to the result."""

    cells: Cells
    width: int
    depth: int
    gate_step: int
    parts: Parts
    adds: int = 0

    def __post_init__(self) -> None:
        assert self.parts.keys() <= {*self.cells.names}, self.parts

    @cached_property
    def given(self) -> dict[str, Part]:
        """All tensors of the kernel."""
        return {name: self.parts.get(name) or ABSENT for name in self.cells.names}

    @property
    def strip(self) -> int:
        """The neighbouring floats of the source that can be read at once."""
        source = self.given["source"]
        return 1 if any(n % STRIP for n in (self.depth, source.start, source.step)) else STRIP

    def moves(self, after: Step) -> dict[str, int] | None:
        """Return how many elements each tensor moves until the next step.

        Returns None if the steps differ in more. Only the last step may write `last`.
        """
        mine, theirs = replace(self, parts={}), replace(after, parts={})
        before, later = self.given, {**after.given, "last": self.given.get("last", ABSENT)}
        if mine != theirs or before.get("last", ABSENT) != ABSENT:
            return None
        if any(replace(part, start=0) != replace(later[n], start=0) for n, part in before.items()):
            return None
        return {name: later[name].start - part.start for name, part in before.items()}

    def launch(self) -> Launch:
        """Return the launch of this step."""
        tile = self.cells.tile
        source = self.cells.source(tile, self.strip if tile.slices > 1 else 1)
        local = 1 if tile.slices == 1 else tile.units * tile.slices
        size = tile.groups(self.width) * local, -(-self.cells.batch // tile.rows)
        return Launch(source, self._arguments(), size, (local, 1), self.cells.work)

    def persistent(
        self, tile: Tile, last: Step, moves: Mapping[str, int], count: int, arrivals: Part
    ) -> Launch:
        """Return one launch for `count` steps, of which this is the first."""
        cells, local = self.cells, tile.units * tile.slices
        arguments = self._arguments() | {f"{name}_move": move for name, move in moves.items()}
        arguments |= {"arrivals": arrivals.buffer, "arrivals_at": arrivals.start, "steps": count}
        if "last" in last.given:
            final = last.given["last"]
            arguments |= {"last": final.buffer, "last_at": final.start, "last_step": final.step}
        groups, source = tile.groups(self.width), cells.source(tile, tile.strip)
        size, local_size = (groups * local, tile.bands), (local, 1)
        is_persistent = groups > 1  # a single work-group waits for no other
        return Launch(source, arguments, size, local_size, cells.work, is_persistent=is_persistent)

    def _arguments(self) -> dict[str, Any]:
        cells, given = self.cells, self.given
        arguments: dict[str, Any] = {name: part.buffer for name, part in given.items()}
        arguments |= {f"{name}_at": part.start for name, part in given.items()}
        arguments |= {f"{name}_step": part.step for name, part in given.items()}
        arguments |= {
            "batch": cells.batch, "width": self.width, "depth": self.depth,
            "gate_step": self.gate_step, "cell": CELLS.index(cells.cell),
            "kind": KINDS[cells.activation], "adds": self.adds, "alpha": cells.alpha,
        }  # fmt: skip
        if cells.numbers:
            arguments |= {"scale": cells.numbers.given.scale, "shift": cells.numbers.given.shift}
        return arguments


def launches_of(steps: Sequence[Step], tile: Tile | None, arrivals: Part | None) -> list[Launch]:
    """Return the launches of steps: one for several that differ only by equal moves of tensors.

    tile: of a persistent kernel; None for a launch per step. arrivals: the numbers of arrivals of
    its work-groups, which are 0.
    """
    if tile is None or arrivals is None:
        return [step.launch() for step in steps]
    launches: list[Launch] = []
    start = 0
    while start < len(steps):
        first = steps[start]
        stop, moves = _run(steps, start)
        if moves is None or any(n % tile.strip for n in (first.strip, moves["source"])):
            launches += [step.launch() for step in steps[start:stop]]
        else:
            last = steps[stop - 1]
            launches.append(first.persistent(tile, last, moves, stop - start, arrivals))
        start = stop
    return launches


def _run(steps: Sequence[Step], start: int) -> tuple[int, dict[str, int] | None]:
    """Return where a run of steps with equal moves ends, and the moves."""
    moves: dict[str, int] | None = None
    for stop in range(start + 1, len(steps)):
        found = steps[stop - 1].moves(steps[stop])
        if found is None or (moves is not None and found != moves):
            return stop, moves
        moves = found
    return len(steps), moves
