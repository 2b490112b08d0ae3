"""The family for NVIDIA's tensor cores, from compute capability 8.0 on.

Each f32 number is split into two TF32 numbers, so a product of f32 is computed by three products
of TF32. Tensor cores truncate their sums. Therefore they sum only few terms, and the vector units
add these sums. The error is below that of f32 arithmetic. If a result is not finite, or small
because of tiny factors, its tile is computed again with fma.

On compute capability 9.0, f16 and bf16 use wide tiles, which four warps multiply together. Their
instructions are not in the PTX of OpenCL C (`runtime/ptx.py`). If a driver cannot build them, other
tiles are used.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.codegen.vectors import BYTES
from dnncore_opencl.elementwise.epilogue import NO_SCALING
from dnncore_opencl.gemm.family import QUANTIZATION, Family, Plan
from dnncore_opencl.gemm.mma.launch import (
    INSTEAD,
    LOCAL_MEMORY,
    Arithmetic,
    MmaProduct,
    MmaTile,
)
from dnncore_opencl.gemm.mma.view import MmaView, Unfit, view
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.gemm.split_k import FLOAT, MANY_ITEMS, part_lengths, partial, plan, reduction
from dnncore_opencl.gemm.tuned import PARTS, tile_knob, with_knobs
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import Launch

SPLIT_TF32 = Arithmetic("tf32", 4, "m16n8k8", is_split=True)
ROUNDED_TF32 = Arithmetic("tf32", 4, "m16n8k8")
HALVES = {
    name: Arithmetic(name, 2, "m16n8k16", wide=f"m64n{{}}k16.f32.{name}.{name}")
    for name in ("f16", "bf16")
}
INTEGERS = Arithmetic("s8", 1, "m16n8k32", wide="m64n{}k32.s32.{}.{}")
COARSE = ("tf32", "bf16", "f16", "any")  # fpmath that allows f32 to be rounded to TF32's 11 bits


class Speed(NamedTuple):
    """FLOP/s of a multiprocessor: with as many work-groups as it can run at once, and with one."""

    together: float
    alone: float


@dataclass(frozen=True)
class Pace:
    """Times of products in seconds, measured on an H200.

    begin: a launch without its work-groups. latency: a group without its products; it computes its
    place, waits for its first tiles and writes its result. issue: the part of the latency that
    concurrent groups spend one after the other. table: the wait of a stage for a table of lines,
    unless other groups fill the time. speeds: of the tiles that are used.
    """

    begin: float
    latency: float
    issue: float
    table: float
    speeds: Mapping[MmaTile, Speed]


# Fitted to 490 and 820 products of convolutions. Choices take on average 2 % longer than the best.
# Other GPUs have other times, but the best choices differ less.
HALF_PACE = Pace(
    2.2e-6,
    3.8e-6,
    1.0e-6,
    0.42e-6,
    {
        MmaTile(128, 64, 64, 32): Speed(2.73e12, 2.22e12),
        MmaTile(64, 128, 32, 64): Speed(2.89e12, 2.71e12),
        MmaTile(64, 64, 32, 32): Speed(2.55e12, 2.37e12),
        MmaTile(128, 128, 64, 64): Speed(3.19e12, 3.11e12),
        MmaTile(128, 128, 64, 32): Speed(3.28e12, 3.28e12),
        MmaTile(256, 128, 64, 64): Speed(3.48e12, 3.48e12),
        MmaTile(128, 256, 64, 64): Speed(3.60e12, 3.60e12),
        MmaTile(64, 256, 64, 64, stages=2): Speed(2.95e12, 2.75e12),
        MmaTile(256, 64, 64, 64, stages=2): Speed(2.63e12, 1.75e12),
        MmaTile(256, 64, 64, 64, chunks=4, stages=4): Speed(2.06e12, 1.80e12),
        # Measured on an H100 with matrix products.
        MmaTile(128, 256, 64, 256, stages=4, wide=True): Speed(5.25e12, 5.25e12),
        MmaTile(256, 128, 64, 128, stages=4, wide=True): Speed(5.02e12, 5.02e12),
        MmaTile(128, 128, 64, 128, wide=True): Speed(4.42e12, 3.81e12),
        MmaTile(256, 64, 128, 64, wide=True): Speed(3.45e12, 3.45e12),
        MmaTile(128, 64, 64, 64, wide=True): Speed(3.26e12, 2.88e12),
        MmaTile(64, 128, 64, 128, wide=True): Speed(3.94e12, 3.01e12),
        MmaTile(64, 128, 64, 64, wide=True): Speed(3.68e12, 3.41e12),
        MmaTile(64, 64, 64, 64, wide=True): Speed(2.89e12, 2.47e12),
    },
)
SPLIT_PACE = Pace(
    0.9e-6,
    5.3e-6,
    0.4e-6,
    0.0,
    {
        MmaTile(128, 64, 64, 32): Speed(0.477e12, 0.417e12),
        MmaTile(64, 128, 32, 64): Speed(0.477e12, 0.417e12),
        MmaTile(64, 64, 32, 32): Speed(0.424e12, 0.348e12),
        MmaTile(128, 128, 64, 32): Speed(0.523e12, 0.523e12),
        MmaTile(256, 64, 64, 32): Speed(0.508e12, 0.508e12),
        MmaTile(128, 64, 64, 32, chunks=4, stages=4): Speed(0.439e12, 0.379e12),
    },
)
ROUNDED = 2.7  # speed relative to split operands
ROUNDED_PACE = replace(
    SPLIT_PACE,
    speeds={
        tile: Speed(speed.together * ROUNDED, speed.alone * ROUNDED)
        for tile, speed in SPLIT_PACE.speeds.items()
    },
)
INTEGER = 1.8  # speed relative to halves
INTEGER_PACE = replace(
    HALF_PACE,
    speeds={
        tile: Speed(speed.together * INTEGER, speed.alone * INTEGER)
        for tile, speed in HALF_PACE.speeds.items()
    },
)
UNKNOWN = Speed(1e12, 1e12)  # for a tile that only a tuning table names
TILES = tuple(dict.fromkeys((*HALF_PACE.speeds, *SPLIT_PACE.speeds)))
LEAST_CAPABILITY = (8, 0)  # for TF32, bf16 and asynchronous copies
WIDE_CAPABILITY = (9, 0)  # the only capability with the instructions of wide tiles
FEWEST_TERMS = 8  # of split operands, whose product is off by 9 / 2^24 at most; a sum's term by 1
LEAST_STAGES = 8  # stages per part of k

REDUCTION = 2.3e-6  # seconds of the launch that adds parts, without its traffic
BANDWIDTH = 4e12  # bytes per second
TABLES = 4096  # bytes of local memory at most for tables, in addition to the tiles of `TILES`
TILES_NEED = min(tile.local_bytes for tile in TILES) + TABLES
KNOBS = (
    tile_knob("rows", (64, 128, 256), "rows of the result of a work-group"),
    tile_knob("columns", (64, 128, 256), "columns of the result of a work-group"),
    tile_knob("warp_rows", (32, 64), "rows of the result of a warp"),
    tile_knob("warp_columns", (32, 64), "columns of the result of a warp"),
    tile_knob("chunks", (4, 8), "16-byte pieces of each row in a stage of local memory"),
    tile_knob("stages", (2, 3, 4), "stages in local memory at once"),
    PARTS,
)
FEW_ROUNDS = 4  # with more rounds of work-groups, a partly filled last round matters little


@dataclass(frozen=True)
class Mma(Family):
    """The family, on `units` multiprocessors.

    tiles: the tiles to choose from. parts: the parts of k; 0 lets a rule choose. instructions: the
    template with the tensor cores' instructions. local_memory: the limit per work-group in bytes.
    """

    name: ClassVar[str] = "mma"
    channels_last: ClassVar[bool] = True
    bytes_along_k: ClassVar[bool] = True
    data_types: ClassVar[tuple[str, ...]] = ("f32", "f16", "bf16", "s32", *BYTES)
    attributes: ClassVar[tuple[str, ...]] = QUANTIZATION
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 1e-3, "gpu": 1.1, "accelerator": 1.0}

    units: int
    tiles: tuple[MmaTile, ...] = TILES
    parts: int = 0
    instructions: str = "mma_ptx"
    local_memory: int = LOCAL_MEMORY

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Self:
        """Return the family for an engine's device."""
        units, limits = engine.native.device.max_compute_units, engine.device.limits
        has_wide = limits.get("compute_capability") == WIDE_CAPABILITY
        tiles = tuple(tile for tile in TILES if has_wide or not tile.wide)
        return cls(units, tiles, local_memory=limits["local_memory"])

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """Refuse devices without tensor cores for f32 operands."""
        capability = engine.device.limits.get("compute_capability")
        if capability is None:
            needs = "needs tensor cores of NVIDIA's compute capability 8.0"
            return Refused("device", f"{needs}; got {engine.device.name}")
        if capability < LEAST_CAPABILITY:
            got = ".".join(map(str, capability))
            return Refused(
                "device", f"needs compute capability 8.0; {engine.device.name} has {got}"
            )
        has = engine.device.limits["local_memory"]
        if has < TILES_NEED:
            return Refused(
                "device", f"needs {TILES_NEED} bytes of local memory for a group; got {has}"
            )
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Refuse operands without a dense dim or 16-byte alignment, and short split sums."""
        refused = _type_refusal(gemm)
        if refused:
            return refused
        if gemm.fpmath == "ieee" and gemm.a.data_type == "f32":
            return Refused(
                "attribute", "fpmath ieee wants f32 arithmetic; computes by tensor cores"
            )
        if 0 < gemm.depth < FEWEST_TERMS and _arithmetic(gemm).is_split:
            least = f"sums of {FEWEST_TERMS} terms at least, for f32 rounds fewer less"
            return Refused("shape", f"needs {least}; got {gemm.depth}")
        if not self._tiles(_arithmetic(gemm)):
            got = f"got {gemm.a.data_type} and {self.tiles[0]}"
            return Refused("attribute", f"four warps multiply {', '.join(HALVES)} together; {got}")
        return _format_refusal(gemm) if gemm.depth else None

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The fields of tiles, and the number of parts of k."""
        return KNOBS

    def with_knobs(self, values: Mapping[str, KnobValue]) -> Self | Refused:
        """Refuse tiles that break a rule or need more local memory than the device has."""
        chosen = with_knobs(self, values)
        if isinstance(chosen, Refused):
            return chosen
        fitting = [t for t in chosen.tiles if t.local_bytes + TABLES <= self.local_memory]
        if not fitting:
            least = min(tile.local_bytes for tile in chosen.tiles) + TABLES
            return Refused(
                "resources", f"needs {least} bytes of local memory; got {self.local_memory}"
            )
        return replace(chosen, tiles=tuple(fitting))

    @classmethod
    def notes(cls, data_type: str, fpmath: str) -> tuple[str, ...]:
        """Return the notes. f32 is rounded to TF32 if `fpmath` allows it."""
        rounds = data_type == "f32" and fpmath in COARSE
        return ("matrix_unit", "reduced_precision") if rounds else ("matrix_unit",)

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Return one launch, or two if k is split. If k is empty, the launch sums no parts."""
        items = self.units * MANY_ITEMS
        if not gemm.depth:
            return Plan(lambda: (reduction(gemm, 0, start // FLOAT, items),), FLOAT)
        arithmetic = _arithmetic(gemm)
        v = view(gemm, arithmetic.per_chunk)
        tile, part, parts = self._chosen(v, may_split=not gemm.is_integer)
        if parts > 1 and _format_refusal(partial(gemm, start // FLOAT)):
            tile, part, parts = self._chosen(v, may_split=False)

        def launch(made: Gemm) -> Launch:
            own = view(made, arithmetic.per_chunk)
            return self._product(own, tile).launch(part, parts)

        return plan(gemm, parts, start, items, launch)

    def _product(self, v: MmaView, tile: MmaTile) -> MmaProduct:
        return MmaProduct(v, _arithmetic(v.gemm), tile, self.instructions, self.local_memory)

    def _chosen(self, v: MmaView, *, may_split: bool) -> tuple[MmaTile, int, int]:
        """Return the fastest choice: tile, stages per part of k, and number of parts."""
        key = (_arithmetic(v.gemm), v.extents, may_split)
        if key not in self._choices:
            self._choices[key] = self._choice(v, may_split=may_split)
        return self._choices[key]

    @cached_property
    def _choices(self) -> dict[Hashable, tuple[MmaTile, int, int]]:
        """Cache of choices, because a gradient with strides has many products of equal sizes."""
        return {}

    def _choice(self, v: MmaView, *, may_split: bool) -> tuple[MmaTile, int, int]:
        tiles = self._tiles(_arithmetic(v.gemm)) or (INSTEAD,)
        choices = (
            (product, part)
            for product in (self._product(v, tile) for tile in tiles)
            for part in (self._parts(product) if may_split else (product.stages,))
        )
        product, part = min(choices, key=lambda choice: self._seconds(*choice))
        return product.tile, part, math.ceil(product.stages / part)

    def _parts(self, product: MmaProduct) -> Iterator[int]:
        """Yield the candidates for the stages per part of k."""
        stages, groups = product.stages, product.tile.groups(product.view)
        if self.parts:
            return iter((math.ceil(stages / min(self.parts, stages)),))
        return part_lengths(stages, groups, self.units * product.resident, LEAST_STAGES)

    def _tiles(self, arithmetic: Arithmetic) -> Sequence[MmaTile]:
        """Return the tiles of known speed; if there are none, all that support the arithmetic."""
        known = [tile for tile in self.tiles if tile in _pace(arithmetic).speeds]
        return known or [tile for tile in self.tiles if not tile.wide or arithmetic.wide]

    def _seconds(self, product: MmaProduct, part: int) -> float:
        """Estimate the time of a product: rounds of concurrent work-groups, then adding parts."""
        tile, pace = product.tile, _pace(product.arithmetic)
        if product.spills or product.local_bytes > self.local_memory:
            return math.inf
        speed = pace.speeds.get(tile, UNKNOWN)
        flops = 2 * tile.rows * tile.columns * product.depth * part
        stalls = pace.table * part if product.has_tables else 0.0

        def seconds(groups: int) -> float:
            """The time of work-groups that run at once on a multiprocessor."""
            shared = groups * (pace.issue + flops / speed.together)
            alone = pace.latency + flops / speed.alone + stalls
            return max(shared, alone) if groups else 0.0

        parts, at_once = math.ceil(product.stages / part), product.resident
        groups = tile.groups(product.view) * parts / self.units
        if groups > FEW_ROUNDS * at_once:
            total = groups / at_once * seconds(at_once)
        else:
            rounds, rest = divmod(math.ceil(groups), at_once)
            total = rounds * seconds(at_once) + seconds(rest)
        if parts > 1:
            total += REDUCTION + 2 * parts * product.view.gemm.size * FLOAT / BANDWIDTH
        return pace.begin + total


def _arithmetic(gemm: Gemm) -> Arithmetic:
    """Return how products of the operands' type are computed."""
    if gemm.a.data_type in BYTES:
        return INTEGERS
    if gemm.a.data_type in HALVES:
        return HALVES[gemm.a.data_type]
    return ROUNDED_TF32 if gemm.fpmath in COARSE else SPLIT_TF32


def _pace(arithmetic: Arithmetic) -> Pace:
    """Return the times of products with this arithmetic."""
    if arithmetic.is_integer:
        return INTEGER_PACE
    if arithmetic.element_bytes == 2:
        return HALF_PACE
    return SPLIT_PACE if arithmetic.is_split else ROUNDED_PACE


def _type_refusal(gemm: Gemm) -> Refused | None:
    """Return why tensor cores cannot multiply these types, or apply these scales."""
    a, b, c = (matrix.data_type for matrix in (gemm.a, gemm.b, gemm.c))
    if {a, b} & set(BYTES):
        if not {a, b} <= set(BYTES):
            return Refused("type", f"multiplies integers by integers alone; got {a} and {b}")
        if not gemm.depth:
            return Refused("shape", "needs sums of integers of a term at least; got 0")
        if any(gemm.zero_points):
            return Refused("attribute", "has no zero points of src and weights")
        return None
    if gemm.scaling != NO_SCALING:
        return Refused("attribute", f"has scales and zero points of integers alone; got {a}")
    if a != b or c not in (a, "f32"):
        return Refused("type", f"multiplies one type, into it or f32; got {a}, {b} and {c}")
    return None


def _format_refusal(gemm: Gemm) -> Refused | None:
    """Return why tensor cores cannot read a product; None if they can."""
    try:
        view(gemm, _arithmetic(gemm).per_chunk)
    except Unfit as obstacle:
        return Refused("format", str(obstacle))
    return None
