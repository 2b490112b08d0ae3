"""The family of NVIDIA's tensor cores, from compute capability 8.0 on.

f32 is computed as three products of TF32 numbers, each number being the sum of two. The tensor
cores truncate their sums, so these are short, and added up by the vector units: the error is below
that of f32 arithmetic. Where a result is not finite, its tile is computed anew by fma.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from dnncore.backend import Refused
from dnncore_opencl.family import Family, Plan
from dnncore_opencl.gemm import Gemm
from dnncore_opencl.gemm_reduce import FLOAT, MANY_ITEMS, part_size, partial, reduction
from dnncore_opencl.mma_launch import LOCAL_MEMORY, Arithmetic, Product, Tile
from dnncore_opencl.mma_view import Unfit, View, view

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine

SPLIT_TF32 = Arithmetic("tf32", 4, "m16n8k8", is_split=True)
ROUNDED_TF32 = Arithmetic("tf32", 4, "m16n8k8")
HALVES = {name: Arithmetic(name, 2, "m16n8k16") for name in ("f16", "bf16")}
COARSE = ("tf32", "bf16", "f16", "any")  # fpmath that allows f32 to be rounded to TF32's 11 bits

TILES = (
    Tile(128, 64, 64, 32),
    Tile(128, 128, 64, 32),
    Tile(64, 128, 32, 64),
    Tile(64, 64, 32, 32),
    Tile(256, 128, 64, 64),
    Tile(128, 256, 64, 64),
    Tile(128, 128, 64, 64),
)
LEAST_CAPABILITY = (8, 0)  # TF32, bf16 and copies that do not wait
LEAST_STAGES = 8  # of a part of k
MOST_ROUNDS = 8  # of all groups that run at once, that parts are made for

# What the rule knows, measured on an H200. Other GPUs differ, but what is quickest less so.
RATES = {"split": 60e12 / 132, "tf32": 160e12 / 132, "halves": 345e12 / 132}  # of a multiprocessor
SPEED = {  # of a tile, relative: of operands of 4 bytes, of 2 bytes
    (128, 64): (1.0, 0.54),
    (128, 128): (0.97, 0.67),
    (64, 128): (0.97, 0.54),
    (64, 64): (0.93, 0.41),
    (256, 128): (0.95, 1.0),
    (128, 256): (0.9, 0.98),
}
# Seconds in which groups that begin together find their places and write what they have made.
WAVE = 5e-6
LAUNCH = 5e-6  # seconds
BANDWIDTH = 4e12  # bytes per second
TABLES = 4096  # bytes of local memory at most, beside tiles
TILES_NEED = min(tile.local_bytes for tile in TILES) + TABLES
FEW_WAVES = 4  # beyond which it matters little that the last one is not full


@dataclass(frozen=True)
class Mma(Family):
    """The family, on `units` multiprocessors.

    tiles: those it may choose from. parts: into which k is cut; 0 for a rule. instructions: the
    file in `kernels/` that has the tensor cores' instructions. local_memory: bytes that a group may
    have.
    """

    name: ClassVar[str] = "mma"
    channels_last: ClassVar[bool] = True
    data_types: ClassVar[tuple[str, ...]] = ("f32", "f16", "bf16")
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 1e-3, "gpu": 1.2, "accelerator": 1.0}

    units: int
    tiles: tuple[Tile, ...] = TILES
    parts: int = 0
    instructions: str = "mma_ptx"
    local_memory: int = LOCAL_MEMORY

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Self:
        """The family for an engine's device."""
        units = engine.native.device.max_compute_units
        return cls(units, local_memory=engine.device.limits["local_memory"])

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """The device must have tensor cores that take f32 operands."""
        capability = engine.device.limits.get("compute_capability")
        if capability is None:
            needs = "needs tensor cores of NVIDIA's compute capability 8.0"
            return Refused("device", f"{needs}; got {engine.device.name}")
        if capability < LEAST_CAPABILITY:
            got = ".".join(map(str, capability))
            return Refused(
                "device", f"needs compute capability 8.0; {engine.device.name} has {got}"
            )
        has, needs = engine.device.limits["local_memory"], TILES_NEED
        if has < needs:
            return Refused("device", f"needs {needs} bytes of local memory for a group; got {has}")
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Operands must be dense in some dim, and aligned to 16 bytes."""
        if gemm.fpmath == "ieee" and gemm.a.data_type == "f32":
            return Refused(
                "attribute", "fpmath ieee wants f32 arithmetic; computes by tensor cores"
            )
        try:
            if gemm.depth:
                view(gemm, _arithmetic(gemm).per_chunk)
        except Unfit as obstacle:
            return Refused("format", str(obstacle))
        return None

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Return one launch, two where k is cut into parts, or the sum of none where k is empty."""
        first, items = start // FLOAT, self.units * MANY_ITEMS
        if not gemm.depth:
            return Plan((reduction(gemm, 0, first, items),), FLOAT)
        arithmetic = _arithmetic(gemm)
        v, pieces = view(gemm, arithmetic.per_chunk), _pieces(gemm, first)
        products = [
            Product(v, arithmetic, tile, self.instructions, self.local_memory)
            for tile in self.tiles
        ]
        choices = (
            (product, part)
            for product in products
            for part in (self._parts(product) if pieces else (product.stages,))
        )
        product, part = min(choices, key=lambda choice: self._seconds(*choice))
        if pieces is None or part == product.stages:
            return Plan((product.launch(),))
        parts = math.ceil(product.stages / part)
        return Plan(
            (
                replace(product, view=pieces).launch(part, parts),
                reduction(gemm, parts, first, items),
            ),
            parts * part_size(gemm) * FLOAT,
        )

    def _parts(self, product: Product) -> Iterator[int]:
        """Stages of parts: all, and those that make whole rounds of the groups that run at once."""
        stages, groups = product.stages, product.tile.groups(product.view)
        if self.parts:
            yield math.ceil(stages / min(self.parts, stages))
            return
        yield stages
        for rounds in range(1, MOST_ROUNDS + 1):
            parts = min(rounds * self.units * product.resident // groups, stages // LEAST_STAGES)
            if parts > 1:
                yield math.ceil(stages / parts)

    def _seconds(self, product: Product, part: int) -> float:
        """Estimate the time of a product: waves of groups, and the sum of parts."""
        if product.spills or product.tile.local_bytes + TABLES > self.local_memory:
            return math.inf
        tile, parts = product.tile, math.ceil(product.stages / part)
        groups = tile.groups(product.view) * parts
        waves = groups / (self.units * product.resident)
        waves = math.ceil(waves) if waves < FEW_WAVES else waves
        together = min(product.resident, math.ceil(groups / self.units))
        seconds = waves * (together * part * _stage_seconds(product) + WAVE)
        if parts == 1:
            return seconds
        return seconds + LAUNCH + 2 * parts * product.view.gemm.size * FLOAT / BANDWIDTH


def _arithmetic(gemm: Gemm) -> Arithmetic:
    """How products of the operands' type are computed."""
    if gemm.a.data_type in HALVES:
        return HALVES[gemm.a.data_type]
    return ROUNDED_TF32 if gemm.fpmath in COARSE else SPLIT_TF32


def _pieces(gemm: Gemm, first: int) -> View | None:
    """The product whose parts lie in the scratchpad; None where they cannot be made there."""
    try:
        return view(partial(gemm, first), _arithmetic(gemm).per_chunk)
    except Unfit:
        return None


def _stage_seconds(product: Product) -> float:
    """The time in which a multiprocessor multiplies a stage of a tile."""
    tile, arithmetic = product.tile, product.arithmetic
    is_half = arithmetic.element_bytes == 2
    kind = "halves" if is_half else "split" if arithmetic.is_split else "tf32"
    speed = SPEED.get((tile.rows, tile.columns), (1.0, 1.0))[is_half]
    depth = tile.chunks * arithmetic.per_chunk
    return 2 * tile.rows * tile.columns * depth / (RATES[kind] * speed)
