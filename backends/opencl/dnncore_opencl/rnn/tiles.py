"""Tiles of the kernels of recurrent cells (`rnn_tile.cl`), chosen by measurements on an H200."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.devices.nvidia import is_nvidia

__all__ = ["ARRIVALS_APART", "KNOBS", "LEAST_STEPS", "STRIP", "Tile", "persistent_tile"]

STRIP = 4  # neighbouring floats that a work-item of a GPU reads at once

CPU_UNITS = 8
CPU_ROWS = 4

GPU_UNITS = 8  # the floats of a sector of memory
GPU_ROWS = ((1, 1), (4, 4), (32, 8), (math.inf, 16))
"""Pairs of the most images of a batch, and the rows of a tile for it."""

OF_ONE_GATE = ((1, 1, 1), (16, 2, 4), (math.inf, 4, 8))
"""Triples of the most images of a batch, and the units of a work-item and rows of a tile for it."""

# Persistent kernels:
LEAST_STEPS = 4  # of cells; the first and often the last step have launches of their own
MOST_WORK = 1_050_000  # multiply-adds of a step per compute unit; with more, launches are faster
ITEMS = 256  # work-items of a work-group; so each may have 255 registers on NVIDIA's GPUs
KEPT_WEIGHTS = 128  # of a work-item, in registers
KEPT_NUMBERS = 150  # weights and sums of a work-item; with more, it has half the images
MOST_ROWS = 8  # images at once
LEAST_SLICES = 4  # also of short sums
UNITS_OF_ITEM = {1: 2, 2: 2, 3: 2, 4: 1}  # by gates
ARRIVALS_APART = 32  # the floats of a line of the cache

KNOBS = (
    Knob("each", 0, (0, 1, 2, 4), "units of a work-item; 0: chosen by a rule"),
    Knob("rows", 0, (0, 1, 2, 4, 8, 16), "images of a work-group; 0: chosen by a rule"),
    Knob("slices", 0, (0, 8, 16, 32, 64), "work-items that share a sum; 0: chosen by a rule"),
    Knob("persistent", "auto", ("auto", "no", "yes"), "one launch for most steps; auto: by a rule"),
)
"""Parameters of a tile on a GPU, which a program may choose."""


@dataclass(frozen=True)
class Tile:
    """The tile of a work-group.

    units: work-items side by side. each: units of a work-item. rows: images. slices: work-items
    that share a sum.

    The other fields are of persistent kernels. turns: how many strips of a sum a work-item adds; it
    keeps their weights. strip: the length of a strip. bands: the parts of the batch that different
    work-groups compute.
    """

    units: int
    each: int
    rows: int
    slices: int
    turns: int = 0
    strip: int = STRIP
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

    def groups(self, width: int) -> int:
        """Return the number of work-groups for all units of one image."""
        return -(-width // (self.units * self.each))

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

    There are as many bands as the registers for weights permit, because a work-group with more
    units and fewer images reads less. width: units; depth: of the sums; values: of knobs.
    """
    wish, most = values.get("persistent", "auto"), _groups_at_once(engine)
    work = batch * width * depth * gates
    if wish == "no" or (wish == "auto" and work > MOST_WORK * most):
        return f"a launch per step is faster for {work} multiply-adds"
    given = _given(values)
    each = given.get("each", UNITS_OF_ITEM[gates])
    slices = max(depth // strip, LEAST_SLICES)  # more would be idle
    bands = max(min(-(-batch // MOST_ROWS), most), 1)
    while True:
        units = next(
            units
            for units in (2**n for n in itertools.count())
            if -(-width // (units * each)) * bands <= most and ITEMS // units <= slices
        )
        tile = Tile(units, each, 1, max(ITEMS // units, 1), strip=strip)
        tile = replace(tile, **given | {"rows": 1})
        tile = replace(tile, turns=-(-depth // (tile.slices * strip)))
        kept = tile.turns * strip * gates * tile.each
        if kept <= KEPT_WEIGHTS or bands == 1:
            break
        bands //= 2
    groups = tile.groups(width)
    if groups > most:
        return f"{groups} work-groups must run at once; the device promises this for {most}"
    if kept > KEPT_WEIGHTS:
        return f"a work-item would keep {kept} weights; it has registers for {KEPT_WEIGHTS}"
    rows = MOST_ROWS if kept + MOST_ROWS * gates * tile.each <= KEPT_NUMBERS else MOST_ROWS // 2
    while rows > 1 and -(-2 * batch // rows) <= most // groups:
        rows //= 2
    tile = replace(tile, rows=given.get("rows", rows))
    tile = replace(tile, bands=max(min(-(-batch // tile.rows), most // groups), 1))
    refused = tile.refusal(engine, gates)
    return refused.reason if refused else tile


def _groups_at_once(engine: Any) -> int:
    """Return how many work-groups of any kernel are certain to run at the same time."""
    return int(engine.device.limits["compute_units"]) if is_nvidia(engine) else 1


def _given(values: Mapping[str, KnobValue]) -> dict[str, int]:
    """Return the fields of tiles that a program chose."""
    return {name: int(value) for name, value in values.items() if value and name != "persistent"}
