"""A pass between two tensors that are contiguous along different loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from dnncore_opencl.codegen.grid import Boxes, Grid
from dnncore_opencl.codegen.layout import Loop, Nest
from dnncore_opencl.codegen.vectors import TYPES, load, most_lanes, value, vector
from dnncore_opencl.elementwise.implementation import Pass

CPU_TILE = 32  # elements per side: a tile of floats has 4 KiB, a side is a line of 128 bytes
GPU_TILE = 64  # elements per side: 32 reached 0.65 of the speed of a copy, 64 reaches 0.99
MOST_BYTES = 4 * GPU_TILE**2  # of a tile: with bank padding it fits in the 32 KiB of every GPU
SHORTEST_SIDE = 8  # elements; if a loop is shorter than a tile's side, the other side is longer
MOST_WORKERS = 512


class TransposedPass(Pass):
    """A pass with one operand, first in bind order. `is_fit`: whether the pass transposes."""

    @property
    def template(self) -> str:  # type: ignore[override]
        """The kernel: one work-group per tile in local memory, or one work-item per tile."""
        return "transpose" if self.engine.is_cpu else "transpose_tiled"

    def loops(self) -> Nest:
        """Return the loops. The two loops along which the tensors are contiguous are last."""
        nest = super().loops()
        along = self._along(nest)
        assert along is not None, "asked for although not fit"
        *outer, inner = nest.loops
        reads = outer.pop(along)
        return replace(nest, loops=(*outer, reads, inner))

    @property
    def is_fit(self) -> bool:
        """Whether operand and result are contiguous along different loops."""
        return self.descs[0].nelems > 0 and self._along(super().loops()) is not None

    def _along(self, nest: Nest) -> int | None:
        """The loop along which the operand, but not the result, is contiguous; else None."""
        if not nest.loops or nest.loops[-1].strides[self.result] != 1:
            return None
        found = (i for i, loop in enumerate(nest.loops[:-1]) if loop.strides[0] == 1)
        return next(found, None)

    @cached_property
    def boxes(self) -> Boxes:
        """The tiles: square, but longer in one direction if a loop is short."""
        if self.engine.is_cpu:
            return Boxes(self.nest, CPU_TILE, CPU_TILE)
        reads, writes = (_side(loop.size) for loop in self.nest.loops[-2:])
        area = min(GPU_TILE**2, MOST_BYTES // self.descs[0].itemsize)
        if writes < GPU_TILE:
            reads = area // writes
        else:
            writes = area // reads
        return Boxes(self.nest, reads, writes, constant=True)

    @property
    def workers(self) -> int:
        """Work-items of a group."""
        return int(min(MOST_WORKERS, self.engine.device.limits["max_work_group"]))

    @cached_property
    def lanes(self) -> int:
        """Elements of the result per write. Steps in f64 take one at a time."""
        if self.parameters.is_wide:
            return 1
        return self._lanes(self.nest.loops[-1], range(1, len(self.descs)))

    @cached_property
    def read_lanes(self) -> int:
        """Elements of the operand per read."""
        return self._lanes(self.nest.loops[-2], range(1))

    def _lanes(self, along: Loop, places: Sequence[int]) -> int:
        """Elements of `along` that are contiguous, or the same, in the tensors at `places`."""
        if self.engine.is_cpu or any(along.strides[place] not in (0, 1) for place in places):
            return 1
        sizes = [along.size]
        if along.dim in self.nest.guarded:
            sizes += [self.nest.shape[along.dim], self.nest.padded[along.dim]]
        others = [loop for loop in self.nest.loops if loop is not along]
        return most_lanes(self.engine, sizes, self.vector_steps(along, others, places))

    @cached_property
    def grid(self) -> Grid:
        """One work-group per tile, or several tiles per work-item."""
        items = self.boxes.items
        on_cpu = self.engine.is_cpu
        return Grid.of(self.engine, items) if on_cpu else Grid.of_groups(items, self.workers)

    def defines(self) -> dict[str, str]:
        """Return the defines of a pass, of the tile and of its filling."""
        exists, inside = self.conditions
        element = TYPES[self.descs[0].data_type]
        return super().defines() | {
            "EXISTS": f"({exists} && {inside})",
            "LOAD": load(self.engine, element, self.read_lanes, self.pointers[0]),
            "ELEMENT": element,
            "READ": vector(element, self.read_lanes),
            "IN": str(self.read_lanes),
            "TILE_R": str(self.boxes.rows),
            "TILE_T": str(self.boxes.run),
            "WORKERS": str(self.workers),
        }

    def load(self, place: int, lanes: int) -> str:
        """Return the expression that reads the operand from the tile."""
        if place:
            return super().load(place, lanes)
        cells = ", ".join(f"tile[AT(r, t + {lane})]" for lane in range(lanes))
        data_type = self.descs[0].data_type
        bits = f"({vector(TYPES[data_type], lanes)})({cells})"
        return bits if self.is_raw(place) else value(data_type, lanes, bits)


def _side(size: int) -> int:
    """Return a tile's side along a loop of `size` iterations, a power of two."""
    return min(max(1 << (size - 1).bit_length(), SHORTEST_SIDE), GPU_TILE)
