"""The two families of kernels for matrix products, and how each covers a product with work-groups.

`simd` is for CPUs: one work-item a group, its tile in registers, no barrier. `tiled` is for GPUs:
16 x 16 work-items share tiles in local memory. Where m x n is too small to keep a device busy, k is
cut into parts whose sums are added in order, so that results do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from dnncore.backend import Refused
from dnncore_opencl.digits import extended, int4
from dnncore_opencl.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm import Gemm, Matrix, Strides
from dnncore_opencl.pocl import miscompiles_barriers
from dnncore_opencl.program import Arg, Launch, Scratch, Source, padded, template

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine

MAX_ROWS = 256  # x 32 columns of sums: 32 KB beside the panel's 16, in the second-level cache
PANEL_DEPTH = 128  # x 32 columns: the panel fills a third of a 48 KB first-level cache
TILE_ROWS = {16: (8, 12, 4, 1), 8: (4, 6, 2, 1), 4: (4, 6, 2, 1)}  # in registers, by vector
TASKS_PER_CORE = 4  # groups, so that cores of different speed end together

SIDE = 16  # work-items along each side of a GPU's group
TILE_DEPTH = 16
TILES = ((8, 8), (4, 8), (4, 4))  # rows x columns of a work-item, the fastest first

REDUCE_GROUP = 64
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Plan:
    """The launches of a product and the bytes of scratchpad that they share."""

    launches: tuple[Launch, ...]
    scratchpad: int = 0


@dataclass(frozen=True)
class Cover:
    """How work-groups cover a batch of products.

    groups: along n, for each product of the batch, and along m. items: work-items of a group.
    rows: of c per group, where the kernel asks. least_part: the fewest values of k that are worth
    a group of their own; parts are multiples of it. snippets: code that the kernel needs.
    """

    kernel: str
    defines: Mapping[str, str | int]
    groups: tuple[int, int]
    items: int
    least_part: int
    rows: int = 0
    snippets: tuple[str, ...] = ()


class Family(Protocol):
    """A family of kernels, made for a device."""

    name: ClassVar[str]
    efficiency: ClassVar[Mapping[str, float]]
    units: int

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Self:
        """The family for an engine's device."""

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """Tell why it does not run on a device, None if it does."""

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Tell why it cannot make a product, None if it can."""

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the kernel for a product that has elements."""


@dataclass(frozen=True)
class Simd:
    """The CPU family, on `units` cores whose registers hold `vector` floats."""

    name: ClassVar[str] = "simd"
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.5, "gpu": 0.005, "accelerator": 0.005}

    units: int
    vector: int

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Simd:
        """The family for an engine's device."""
        device = engine.native.device
        width = device.native_vector_width_float
        return cls(device.max_compute_units, 16 if width >= 16 else 8 if width >= 8 else 4)

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:  # noqa: ARG003
        """Return None: it runs everywhere."""
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Return None: it makes all."""
        return None

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the tile that wastes the fewest rows, and groups enough for all cores."""
        columns = 2 * self.vector
        tile = min(TILE_ROWS[self.vector], key=lambda rows: (padded(gemm.m, rows), -rows))
        n_blocks = math.ceil(gemm.columns / columns)
        wanted = math.ceil(TASKS_PER_CORE * self.units / (n_blocks * gemm.batches))
        rows = min(padded(math.ceil(gemm.m / wanted), tile), MAX_ROWS // tile * tile)
        defines = {
            "VECTOR": self.vector,
            "TILE_ROWS": tile,
            "DEPTH": PANEL_DEPTH,
            "MAX_ROWS": MAX_ROWS,
            "EACH_ROW(DO)": " ".join(f"DO({row})" for row in range(tile)),
        }
        groups = (n_blocks * gemm.batches, math.ceil(gemm.m / rows))
        return Cover("gemm_simd", defines, groups, 1, PANEL_DEPTH, rows)


@dataclass(frozen=True)
class Tiled:
    """The GPU family, on `units` multiprocessors.

    On CPUs, where it is but a second opinion, it takes the tiles that compile quickest.
    """

    name: ClassVar[str] = "tiled"
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.01, "gpu": 0.35, "accelerator": 0.35}

    units: int
    tiles: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Tiled:
        """The family for an engine's device."""
        return cls(engine.native.device.max_compute_units, TILES[-1:] if engine.is_cpu else TILES)

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """Work-groups must be large, and barriers must work."""
        items = engine.device.limits["max_work_group"]
        if items < SIDE**2:
            return Refused("device", f"work-groups must have {SIDE**2} items; got {items}")
        if miscompiles_barriers(engine.native.device):
            version = engine.device.version
            return Refused("device", f"this driver miscompiles barriers in loops: {version}")
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Return None: it makes all."""
        return None

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the fastest tile of which rows fill more than half and groups fill the device."""
        for tile in self.tiles:
            rows, columns = tile[0] * SIDE, tile[1] * SIDE
            n_blocks = math.ceil(gemm.columns / columns)
            groups = (n_blocks * gemm.batches, math.ceil(gemm.m / rows))
            if math.prod(groups) >= self.units and gemm.m > rows // 2:
                break
        defines = {
            "SIDE": SIDE,
            "TILE_M": tile[0],
            "TILE_N": tile[1],
            "DEPTH": TILE_DEPTH,
            "A_ALONG_K": int(gemm.a.strides.m != 1),
            "B_ALONG_K": int(_is_along_k(gemm)),
        }
        return Cover("gemm_tiled", defines, groups, SIDE**2, 8 * TILE_DEPTH)


FAMILIES: tuple[type[Family], ...] = (Simd, Tiled)


def plan(family: Family, gemm: Gemm, start: int = 0) -> Plan:
    """Return one launch, or two where k is cut into parts.

    start: the bytes at the beginning of the scratchpad that are taken.
    """
    cover = family.cover(gemm)
    part = _part(gemm, cover, family.units)
    parts = math.ceil(gemm.depth / part) if gemm.depth else 1
    whole = _epilogue(gemm)
    first = start // FLOAT
    if parts == 1:
        return Plan((_product(gemm, cover, whole, Arg(gemm.c.index), gemm.c, part, 0),))
    launches = (
        _product(gemm, cover, _NO_STEPS, Scratch(), _partial(gemm, first), part, gemm.size),
        _reduction(gemm, whole, parts, first),
    )
    return Plan(launches, parts * gemm.size * FLOAT)


def _part(gemm: Gemm, cover: Cover, units: int) -> int:
    """The length of the parts into which k is cut: all of it unless groups are too few."""
    groups = math.prod(cover.groups)
    parts = min(units // groups, gemm.depth // cover.least_part)
    if parts < 2:
        return max(gemm.depth, 1)
    return padded(math.ceil(gemm.depth / parts), cover.least_part)


def _product(
    gemm: Gemm,
    cover: Cover,
    steps: Epilogue,
    target: Arg | Scratch,
    c: Matrix,
    part: int,
    c_part: int,
) -> Launch:
    """Multiply into `target`, each part of k `c_part` elements after the one before."""
    defines = {**cover.defines, **({"WINDOW": 1} if gemm.window else {})}
    source = Source(cover.kernel, defines, (*_snippets(steps), *cover.snippets))
    parts = math.ceil(gemm.depth / part) if gemm.depth else 1
    size = (cover.groups[0] * parts * cover.items, cover.groups[1])
    args = (
        Arg(gemm.a.index),
        Arg(gemm.b.index),
        target,
        np.int32(cover.rows),
        np.int32(gemm.a.end),
        np.int32(gemm.b.end),
        *_sizes(gemm),
        *_a_args(gemm.a),
        *_b_args(gemm.b),
        *_c_args(c),
        np.int32(c_part),
        np.int32(part),
        *_window_args(gemm),
        *steps.args,
    )
    return Launch(source, cover.kernel, args, size, (cover.items, 1))


def _reduction(gemm: Gemm, steps: Epilogue, parts: int, first: int) -> Launch:
    """Add the parts in order, the first of which begins at `first`, and finish the result."""
    source = Source("gemm_reduce", {}, _snippets(steps))
    target = Arg(gemm.c.index)
    counts = (np.int32(first), np.int32(parts))
    args = (Scratch(), target, *counts, *_sizes(gemm), *_c_args(gemm.c), *steps.args)
    return Launch(source, "gemm_reduce", args, (padded(gemm.size, REDUCE_GROUP),), (REDUCE_GROUP,))


def _partial(gemm: Gemm, first: int) -> Matrix:
    """The scratchpad's layout of one part: row-major, the first one from `first` on."""
    rows = gemm.m * gemm.columns
    n = tuple(math.prod(gemm.n[i + 1 :]) for i in range(len(gemm.n)))
    batch = tuple(rows * math.prod(gemm.batch[i + 1 :]) for i in range(len(gemm.batch)))
    return Matrix(-1, first, Strides(batch=batch, m=gemm.columns, n=n))


def _snippets(steps: Epilogue) -> tuple[str, ...]:
    return steps.code, template("digits"), template("gemm")


COORDINATES = 8  # of an element of c: three digits of the batch, m, four digits of n

_NO_STEPS = epilogue((), (), COORDINATES)


def _epilogue(gemm: Gemm) -> Epilogue:
    operands = []
    for matrix in gemm.operands:
        batch, n = extended(matrix.strides.batch, 3), extended(matrix.strides.n, 4)
        strides = (*batch, matrix.strides.m, *n)
        operands.append(Operand(matrix.index, matrix.offset, strides))
    return epilogue(gemm.post_ops, operands, COORDINATES)


# The arguments of GEMM_PARAMS in `kernels/gemm.cl`, by group.


def _sizes(gemm: Gemm) -> tuple[Any, ...]:
    batch = (*extended(gemm.batch, 3, 1), 0)
    return int4(batch), np.int32(gemm.m), int4(gemm.n, 1), int4(gemm.k, 1)


def _a_args(a: Matrix) -> tuple[Any, ...]:
    return _batch(a), np.int32(a.strides.m), int4(a.strides.k)


def _b_args(b: Matrix) -> tuple[Any, ...]:
    return _batch(b), int4(b.strides.k), int4(b.strides.n)


def _c_args(c: Matrix) -> tuple[Any, ...]:
    return _batch(c), np.int32(c.strides.m), int4(c.strides.n)


def _window_args(gemm: Gemm) -> tuple[Any, ...]:
    window = gemm.window
    if window is None:
        return ()
    return int4(window.at), int4(window.n), int4(window.k), int4(window.size, 1)


def _batch(matrix: Matrix) -> Any:
    """The batch's strides, then the offset of the first element."""
    return int4((*extended(matrix.strides.batch, 3), matrix.offset))


def _is_along_k(gemm: Gemm) -> bool:
    """Whether b's neighbours in memory are neighbours along k rather than n."""
    n = [s for s, size in zip(gemm.b.strides.n, gemm.n, strict=True) if size > 1]
    k = [s for s, size in zip(gemm.b.strides.k, gemm.k, strict=True) if size > 1]
    return min(k, default=1 << 31) < min(n, default=1 << 31)
