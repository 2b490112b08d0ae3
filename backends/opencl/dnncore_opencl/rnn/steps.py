"""Launches of one step of cells: the product of the state and its cell (`rnn_tile.cl`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.codegen.vectors import TYPES, vector
from dnncore_opencl.rnn.integers import Numbers
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import FLOAT, INT, LONG, Arg, Buffer, Schema, Scratch

__all__ = ["KNOBS", "Cells", "Part", "Parts", "Tile"]

GPU_UNITS = 8  # the floats of a sector of memory
GPU_ROWS = ((1, 1), (4, 4), (32, 8), (math.inf, 16))
"""Pairs of the most rows of a batch, and the rows of a tile for it."""

STRIP = 4  # neighbouring floats that a work-item of a GPU reads at once
CPU_UNITS = 8
CPU_ROWS = 4
KINDS = {"relu": 0, "logistic": 1, "tanh": 2}


@dataclass(frozen=True)
class Part:
    """Rows of f32. start: the first element in the buffer; step: from row to row, at least 1."""

    buffer: Arg | Scratch
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
)
"""Parameters of a tile on a GPU, which a program may choose."""


@dataclass(frozen=True)
class Tile:
    """The tile of a work-group: work-items side by side, units of each, rows and slices."""

    units: int
    each: int
    rows: int
    slices: int

    @classmethod
    def of(cls, engine: Any, gates: int, batch: int, values: Mapping[str, KnobValue]) -> Tile:
        """Return a tile whose sums fit in registers, and which gives a GPU enough work-groups.

        values: of knobs; those that are missing or 0 are chosen here.
        """
        if engine.is_cpu:
            return cls(CPU_UNITS, 1, CPU_ROWS, 1)
        given = {name: int(value) for name, value in values.items() if value}
        each = given.get("each", 1)
        rows = given.get("rows") or next(rows for most, rows in GPU_ROWS if batch <= most)
        slices = given.get("slices") or (32 if gates * each * rows <= 16 else 16)
        return cls(GPU_UNITS, each, rows, slices)

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


@dataclass(frozen=True)
class Cells:
    """A kernel for cells. cell: one of `CELLS`; gates: products of each unit.

    activation, alpha: of a vanilla RNN. work: multiply-adds of all steps. numbers: of cells of
    integers. tile: of a work-group.
    """

    engine: Any
    kernel: str
    cell: str
    gates: int
    batch: int
    activation: str
    alpha: float
    work: float
    tile: Tile
    numbers: Numbers | None = None

    @cached_property
    def _schema(self) -> Schema:
        reads, writes = NAMES[self.kernel]
        names = (*reads, *writes)
        buffers = {name: Buffer("const float" if name in reads else "float") for name in names}
        starts = {f"{name}_at": LONG for name in names}
        steps = {f"{name}_step": INT for name in names}
        sizes = dict.fromkeys(SIZES, INT)
        rounding = {"scale": FLOAT, "shift": FLOAT} if self.numbers else {}
        return Schema(**buffers, **starts, **steps, **sizes, alpha=FLOAT, **rounding)

    @cached_property
    def _sources(self) -> dict[int, Source]:
        """The sources by the size of strips."""
        tile = self.tile
        units = {"UNITS_TYPE": vector("float", tile.units)}
        units |= {"LOAD_UNITS(p)": f"vload{tile.units}(0, p)"}
        cells = {name: place for place, name in enumerate(CELLS)}
        sizes = {
            "GATES": self.gates, "UNITS": tile.units, "EACH": tile.each, "ROWS": tile.rows,
            "SLICES": tile.slices,
        }  # fmt: skip
        defines: dict[str, str | int | float] = {
            **cells,
            **sizes,
            **(units if tile.slices == 1 else {}),
        }
        if self.numbers:
            defines["INTEGER"] = f"convert_{TYPES[self.numbers.own]}_sat_rte"
        snippets = (template("rnn_tile"),)
        return {
            strip: Source(self.kernel, self._schema, {**defines, "STRIP": strip}, snippets)
            for strip in (1, STRIP)
        }

    def launch(self, width: int, depth: int, gate_step: int, parts: Parts, adds: int = 0) -> Launch:
        """Return the launch of a step. width: units; depth: of the sums; adds: to the result."""
        reads, writes = NAMES[self.kernel]
        assert parts.keys() <= {*reads, *writes}, parts
        given = {name: parts.get(name) or ABSENT for name in (*reads, *writes)}
        arguments: dict[str, Any] = {name: part.buffer for name, part in given.items()}
        arguments |= {f"{name}_at": part.start for name, part in given.items()}
        arguments |= {f"{name}_step": part.step for name, part in given.items()}
        arguments |= {
            "batch": self.batch, "width": width, "depth": depth, "gate_step": gate_step,
            "cell": CELLS.index(self.cell), "kind": KINDS[self.activation], "adds": adds,
            "alpha": self.alpha,
        }  # fmt: skip
        if self.numbers:
            arguments |= {"scale": self.numbers.given.scale, "shift": self.numbers.given.shift}
        source, tile = given["source"], self.tile
        aligned = not any(n % STRIP for n in (depth, source.start, source.step))
        strip = STRIP if aligned and tile.slices > 1 else 1
        groups = -(-width // (tile.units * tile.each)), -(-self.batch // tile.rows)
        local = 1 if tile.slices == 1 else tile.units * tile.slices
        return Launch(
            self._sources[strip], arguments, (groups[0] * local, groups[1]), (local, 1), self.work
        )
