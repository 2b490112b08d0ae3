"""Launches of one step of cells: the product of the state and its cell (`rnn_tile.cl`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.codegen.vectors import TYPES, vector
from dnncore_opencl.devices.nvidia import is_nvidia
from dnncore_opencl.rnn.integers import Numbers
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import FLOAT, INT, LONG, Buffer, Schema, Scratch

__all__ = [
    "ARRIVALS_APART",
    "KNOBS",
    "LEAST_STEPS",
    "STRIP",
    "Cells",
    "Part",
    "Parts",
    "Step",
    "Tile",
    "launches_of",
    "persistent_tile",
]

GPU_UNITS = 8  # the floats of a sector of memory
GPU_ROWS = ((1, 1), (4, 4), (32, 8), (math.inf, 16))
"""Pairs of the most rows of a batch, and the rows of a tile for it."""

OF_ONE_GATE = ((1, 1, 1), (16, 2, 4), (math.inf, 4, 8))
"""Triples of the most rows of a batch, and the units of a work-item and rows of a tile for it."""

STRIP = 4  # neighbouring floats that a work-item of a GPU reads at once
PERSISTENT_WORK = 1_050_000  # multiply-adds of a step, per compute unit; more take longer
LEAST_STEPS = 4  # of cells with a persistent kernel; the first and the last have their own launch
PERSISTENT_ITEMS = 256  # work-items of a work-group
LEAST_SLICES = 4
PERSISTENT_EACH = {1: 2, 2: 2, 3: 2, 4: 1}
"""Gates, and the units of a work-item of a persistent kernel."""

PERSISTENT_ROWS = 8  # the most images at once
ARRIVALS_APART = 32  # the floats of a line of the cache
KEPT_WEIGHTS = 128  # of a work-item; it has 255 registers
PERSISTENT_REGISTERS = 150  # for weights and sums; with more, a work-item has half the images
POWERS = tuple(2**power for power in range(31))

CPU_UNITS = 8
CPU_ROWS = 4
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


KNOBS = (
    Knob("each", 0, (0, 1, 2, 4), "units of a work-item; 0: chosen by a rule"),
    Knob("rows", 0, (0, 1, 2, 4, 8, 16), "images of a work-group; 0: chosen by a rule"),
    Knob("slices", 0, (0, 8, 16, 32, 64), "work-items that share a sum; 0: chosen by a rule"),
    Knob("persistent", "auto", ("auto", "no", "yes"), "one launch for all steps"),
)
"""Parameters of a tile on a GPU, which a program may choose."""


@dataclass(frozen=True)
class Tile:
    """The tile of a work-group: work-items side by side, units of each, rows and slices.

    turns: strips of the sums whose weights a work-item of a persistent kernel keeps; 0 otherwise.
    bands: of images, which work-groups of a persistent kernel compute apart.
    """

    units: int
    each: int
    rows: int
    slices: int
    turns: int = 0
    bands: int = 1

    @classmethod
    def of(cls, engine: Any, gates: int, batch: int, values: Mapping[str, KnobValue]) -> Tile:
        """Return a tile whose sums fit in registers, and which gives a GPU enough work-groups.

        values: of knobs; those that are missing or 0 are chosen here.
        """
        if engine.is_cpu:
            return cls(CPU_UNITS, 1, CPU_ROWS, 1)
        given = _given(values)
        each, rows = 1, next(rows for most, rows in GPU_ROWS if batch <= most)
        if gates == 1:
            each, rows = next(found for most, *found in OF_ONE_GATE if batch <= most)
        elif gates == 4 and rows == GPU_ROWS[-1][1]:
            each = 2
        each, rows = given.get("each", each), given.get("rows", rows)
        slices = 32 if gates == 1 or gates * each * rows <= 16 else 16
        tile = replace(cls(GPU_UNITS, each, rows, slices), **given)
        is_large = each > 1 and "each" not in given and tile.refusal(engine, gates) is not None
        return replace(tile, each=1) if is_large else tile

    def refusal(self, engine: Any, gates: int) -> Refused | None:
        """Return why a device cannot have a tile, or None."""
        limits = engine.device.limits
        for what, needed, most in (
            ("work-items", self.units * self.slices, limits["max_work_group"]),
            ("bytes of local memory", 4 * self.slices * self.sums(gates), limits["local_memory"]),
        ):
            if needed > most:
                return Refused(
                    "attribute", f"its tile needs {needed} {what}; the device has {most}"
                )
        return None

    def sums(self, gates: int) -> int:
        """Return the number of sums of a work-group."""
        return self.rows * gates * self.each * self.units

    def parts(self, gates: int) -> int:
        """Return the number of work-items that add the slices of one sum."""
        most = min(self.units * self.slices // self.sums(gates), self.slices)
        return 1 << max(most.bit_length() - 1, 0)


def persistent_tile(
    engine: Any, gates: int, batch: int, width: int, depth: int, strip: int,
    values: Mapping[str, KnobValue],
) -> Tile | str:  # fmt: skip
    """Return the tile of a persistent kernel, or why there is none.

    Work-groups compute all units of bands of images, with as few images in a band as registers for
    the weights permit. strip: neighbouring floats that a work-item reads at once. values: of knobs.
    """
    wish, most = values.get("persistent", "auto"), _groups_at_once(engine)
    work = batch * width * depth * gates
    if wish == "no" or (wish == "auto" and work > PERSISTENT_WORK * most):
        return f"a launch per step is faster for {work} multiply-adds"
    given = _given(values)
    each = given.get("each", PERSISTENT_EACH[gates])
    slices = max(depth // strip, LEAST_SLICES)  # more would be idle
    bands = min(-(-batch // PERSISTENT_ROWS), most)
    while True:
        units = next(
            n
            for n in POWERS
            if -(-width // (n * each)) * bands <= most and PERSISTENT_ITEMS // n <= slices
        )
        tile = Tile(units, each, 1, max(PERSISTENT_ITEMS // units, 1))
        tile = replace(tile, **given | {"rows": 1})
        tile = replace(tile, turns=-(-depth // (tile.slices * strip)))
        kept = tile.turns * strip * gates * tile.each
        if kept <= KEPT_WEIGHTS or bands == 1:
            break
        bands //= 2
    groups = -(-width // (tile.units * tile.each))
    if groups > most:
        return f"{groups} work-groups must run at once; the device promises this for {most}"
    if kept > KEPT_WEIGHTS:
        return f"a work-item would keep {kept} weights; it has registers for {KEPT_WEIGHTS}"
    rows = PERSISTENT_ROWS
    if kept + rows * gates * tile.each > PERSISTENT_REGISTERS:
        rows //= 2
    rows = min(rows, next(n for n in POWERS if n * bands >= batch))
    tile = replace(tile, rows=given.get("rows", rows))
    tile = replace(tile, bands=min(-(-batch // tile.rows), most // groups))
    refused = tile.refusal(engine, gates)
    return refused.reason if refused else tile


def _groups_at_once(engine: Any) -> int:
    """Return how many work-groups of any kernel are certain to run at the same time."""
    return int(engine.device.limits["compute_units"]) if is_nvidia(engine) else 1


def _given(values: Mapping[str, KnobValue]) -> dict[str, int]:
    """Return the fields of tiles that a program chose."""
    return {name: int(value) for name, value in values.items() if value and name != "persistent"}


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
        groups = -(-self.width // (tile.units * tile.each)), -(-self.cells.batch // tile.rows)
        local = 1 if tile.slices == 1 else tile.units * tile.slices
        size = groups[0] * local, groups[1]
        return Launch(source, self._arguments(), size, (local, 1), self.cells.work)

    def persistent(
        self, last: Step, count: int, moves: Mapping[str, int], arrivals: Part
    ) -> Launch | None:
        """Return one launch for `count` steps, of which this is the first; None if impossible."""
        cells, source = self.cells, self.given["source"]
        if any(n % self.strip for n in (moves["source"], source.step)):
            return None
        tile = persistent_tile(
            cells.engine, cells.gates, cells.batch, self.width, self.depth, self.strip, cells.knobs
        )
        if isinstance(tile, str):
            return None
        local = tile.units * tile.slices
        arguments = self._arguments() | {f"{name}_move": move for name, move in moves.items()}
        arguments |= {"arrivals": arrivals.buffer, "arrivals_at": arrivals.start, "steps": count}
        if "last" in last.given:
            final = last.given["last"]
            arguments |= {"last": final.buffer, "last_at": final.start, "last_step": final.step}
        size = -(-self.width // (tile.units * tile.each)) * local, tile.bands
        kernel = cells.source(tile, self.strip)
        return Launch(kernel, arguments, size, (local, 1), cells.work, is_persistent=True)

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


def launches_of(steps: Sequence[Step], arrivals: Part | None) -> list[Launch]:
    """Return the launches of steps: one for several that differ only by equal moves of tensors.

    arrivals: of work-groups of persistent kernels, 0 before; None for a launch per step.
    """
    launches: list[Launch] = []
    start = 0
    while start < len(steps):
        stop, moves = _run(steps, start) if arrivals else (start + 1, None)
        first, count = steps[start], stop - start
        launch = None
        if moves is not None and arrivals is not None and count >= LEAST_STEPS - 2:
            launch = first.persistent(steps[stop - 1], count, moves, arrivals)
        launches += [launch] if launch else [step.launch() for step in steps[start:stop]]
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
