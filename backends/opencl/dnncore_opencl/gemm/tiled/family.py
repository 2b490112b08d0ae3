"""The family for GPUs: a work-group shares tiles of a product's operands in local memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.codegen.vectors import F8, PACKED, WITH_F64, half_template
from dnncore_opencl.devices.pocl import miscompiles_barriers
from dnncore_opencl.gemm.elements import Elements
from dnncore_opencl.gemm.family import DECOMPRESSION, Family, Plan
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.gemm.split_k import MANY_ITEMS, part_lengths, part_size, plan
from dnncore_opencl.gemm.tiled.launch import MAX_ITEMS, MAX_LOCAL, TiledTile, launch
from dnncore_opencl.gemm.tiled.view import TiledProduct
from dnncore_opencl.gemm.tuned import PARTS, tile_knob, with_knobs
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import Launch, padded

TILES = (
    TiledTile(128, 128),
    TiledTile(128, 64),
    TiledTile(64, 128),
    TiledTile(64, 64),
    TiledTile(128, 32, lanes_across=4),
    TiledTile(32, 128),
)
KNOBS = (
    tile_knob("rows", (32, 64, 128), "rows of the result of a work-group"),
    tile_knob("columns", (32, 64, 128), "columns of the result of a work-group"),
    tile_knob("depth", (8, 16, 32), "terms of the sums in local memory at a time"),
    tile_knob("item_rows", (4, 8), "rows of the result of a work-item"),
    tile_knob("item_columns", (4, 8), "columns of the result of a work-item"),
    PARTS,
)
ELEMENTS = Elements()
QUICKLY_COMPILED = (TiledTile(64, 64, depth=16, item_rows=4, item_columns=4),)


@dataclass(frozen=True)
class Tiled(Family):
    """The GPU family, on `units` multiprocessors.

    tiles: the tiles to choose from. parts: the parts of k; 0 lets a rule choose. elements: accesses
    to tensors. room: the limit of local memory per work-group, in bytes.
    """

    name: ClassVar[str] = "tiled"
    channels_last: ClassVar[bool] = True
    decodes: ClassVar[bool] = True
    data_types: ClassVar[tuple[str, ...]] = (*WITH_F64, *F8, *PACKED)
    attributes: ClassVar[tuple[str, ...]] = DECOMPRESSION
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.01, "gpu": 0.6, "accelerator": 0.6}

    units: int
    tiles: tuple[TiledTile, ...] = TILES
    parts: int = 0
    elements: Elements = ELEMENTS
    room: int = MAX_LOCAL

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Self:
        """Return the family for an engine's device."""
        units = engine.native.device.max_compute_units
        tiles = QUICKLY_COMPILED if engine.is_cpu else TILES
        room = engine.device.limits["local_memory"]
        return cls(units, tiles, elements=Elements(half_template(engine)), room=room)

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """Refuse devices with small work-groups or without working barriers."""
        items = engine.device.limits["max_work_group"]
        if items < MAX_ITEMS:
            return Refused("device", f"work-groups must have {MAX_ITEMS} items; got {items}")
        if miscompiles_barriers(engine.native.device):
            version = engine.device.version
            return Refused("device", f"this driver miscompiles barriers in loops: {version}")
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Refuse products if no tile fits in local memory, which f64 tiles may exceed."""
        if any(tile.local_bytes(gemm.sum_bytes) <= self.room for tile in self.tiles):
            return None
        least = min(tile.local_bytes(gemm.sum_bytes) for tile in self.tiles)
        reason = f"tiles must fit into {self.room} bytes of local memory; got {least}"
        return Refused("resources", reason)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The fields of tiles, and the number of parts of k."""
        return KNOBS

    def with_knobs(self, values: Mapping[str, KnobValue]) -> Self | Refused:
        """Refuse tiles that break a rule."""
        return with_knobs(self, values)

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Return one launch, or two if k is split."""
        tile, part = self.choose(TiledProduct.of(gemm))
        parts = math.ceil(max(gemm.depth, 1) / part)
        c_part = part_size(gemm) if parts > 1 else 0

        def product(made: Gemm) -> Launch:
            return launch(TiledProduct.of(made), tile, part, c_part, self.elements)

        return plan(gemm, parts, start, self.units * MANY_ITEMS, product)

    def choose(self, product: TiledProduct) -> tuple[TiledTile, int]:
        """Return the tile and the length of the parts of k with the least estimated time."""
        sizes = (product.batch, product.rows.sizes, product.columns.sizes, product.k.sizes)
        key = (*map(math.prod, sizes), product.sum_bytes)
        if key not in self._chosen:
            self._chosen[key] = self._choice(product)
        return self._chosen[key]

    @cached_property
    def _chosen(self) -> dict[tuple[int, ...], tuple[TiledTile, int]]:
        """Cache of choices, because a gradient with strides has many products of equal sizes."""
        return {}

    def _choice(self, product: TiledProduct) -> tuple[TiledTile, int]:
        size = product.sum_bytes
        tiles = [tile for tile in self.tiles if tile.local_bytes(size) <= self.room]
        choices = ((tile, part) for tile in tiles for part in self._parts(product, tile))
        return min(choices, key=lambda choice: self._cost(product, *choice))

    def _parts(self, product: TiledProduct, tile: TiledTile) -> Iterator[int]:
        """Yield the candidates for the length of parts of k."""
        depth, groups = product.depth, tile.groups(product)
        if self.parts:
            return iter((padded(math.ceil(max(depth, 1) / self.parts), tile.depth),))
        return part_lengths(depth, groups, self.units, LEAST_PART, tile.depth)

    def _cost(self, product: TiledProduct, tile: TiledTile, part: int) -> float:
        """Estimate the time of a product, in multiply-adds of one multiprocessor."""
        parts = math.ceil(product.depth / part) if product.depth else 1
        groups = math.ceil(tile.groups(product) * parts / self.units)
        together = BUSY_ITEMS // tile.items
        whole, rest = divmod(groups, together)
        alike = whole * together + (rest / _rate(rest / together) if rest else 0)
        work = alike * tile.rows * tile.columns * (min(part, product.depth) + OVERHEAD)
        work /= SPEED.get((tile.rows, tile.columns), SLOWEST)
        if parts == 1:
            return work
        return work + SUM_LAUNCH + SUM_FLOAT * (2 * parts + 1) * product.size / self.units


# Constants of the rule, measured on an H200.
LEAST_PART = 64  # values of k that are worth a work-group of their own
BUSY_ITEMS = 512  # work-items with which a multiprocessor runs at full speed
SLACK = 0.43  # relative speed with a fraction `busy` of these: busy * (1 + SLACK) / (busy + SLACK)
OVERHEAD = 32  # time of a work-group's index arithmetic, in values of k
SUM_LAUNCH = 800_000  # multiply-adds of a multiprocessor in the time of a launch
SUM_FLOAT = 20  # multiply-adds of a multiprocessor in the time in which memory moves a number
SPEED = {(128, 128): 1.0, (128, 64): 0.95, (64, 128): 0.955, (64, 64): 0.88, (32, 128): 0.86}
SLOWEST = 0.8  # relative speed of tiles that are not in SPEED


def _rate(busy: float) -> float:
    """Return the relative speed of a multiprocessor with a fraction of `BUSY_ITEMS`."""
    return busy * (1 + SLACK) / (busy + SLACK)
