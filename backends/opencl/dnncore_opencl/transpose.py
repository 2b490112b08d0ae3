"""A pass between a tensor that is contiguous along one loop and one that is so along another."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from dnncore_opencl.grid import Boxes, Grid
from dnncore_opencl.layout import Nest
from dnncore_opencl.pointwise import Pass
from dnncore_opencl.vectors import TYPES

TILE = 32  # elements each way: 4 KiB of floats, a line of 128 bytes each way
DEPTH = 8  # lines that a GPU's work-group moves at once


class TransposedPass(Pass):
    """A pass with one operand, first in bind order; `is_fit` tells whether it transposes."""

    template = "transpose"

    def loops(self) -> Nest:
        """Return the loops, those along which the tensors are contiguous last."""
        nest = super().loops()
        along = self._along(nest)
        assert along is not None, "asked for although not fit"
        *outer, inner = nest.loops
        reads = outer.pop(along)
        return replace(nest, loops=(*outer, reads, inner))

    @property
    def is_fit(self) -> bool:
        """Whether the operand is contiguous along another loop than the result."""
        return self.descs[0].nelems > 0 and self._along(super().loops()) is not None

    def _along(self, nest: Nest) -> int | None:
        """The place of the loop along which the operand is contiguous, unless the result is too."""
        if not nest.loops or nest.loops[-1].strides[self.result] != 1:
            return None
        found = (i for i, loop in enumerate(nest.loops[:-1]) if loop.strides[0] == 1)
        return next(found, None)

    @cached_property
    def boxes(self) -> Boxes:
        """Square tiles."""
        return Boxes(self.nest, TILE, TILE)

    @cached_property
    def grid(self) -> Grid:
        """A group for each tile, or many tiles for each work-item."""
        items = self.boxes.items
        on_cpu = self.engine.is_cpu
        return Grid.of(self.engine, items) if on_cpu else Grid.of_groups(items, TILE * DEPTH)

    def defines(self) -> dict[str, str]:
        """Add the tile and who fills it."""
        exists, inside = self.conditions
        element = TYPES[self.descs[0].data_type]
        memory = ("", 1, 1, TILE, "") if self.engine.is_cpu else _LOCAL
        names = ("MEMORY", "SIDE", "DEPTH", "PITCH", "BARRIER")
        return super().defines() | {
            "LOAD": f"{exists} && {inside} ? *({self.pointers[0]}) : ({element})0",
            "ELEMENT": element,
            "TILE": str(TILE),
            **{name: str(value) for name, value in zip(names, memory, strict=True)},
        }

    def load(self, place: int, lanes: int) -> str:
        """Read the operand from the tile."""
        return "tile[AT(r, t)]" if place == 0 else super().load(place, lanes)


_LOCAL = ("__local", TILE, DEPTH, TILE + 1, "barrier(CLK_LOCAL_MEM_FENCE)")
"""A pitch of one more than the tile's side spares local memory conflicts of banks."""
