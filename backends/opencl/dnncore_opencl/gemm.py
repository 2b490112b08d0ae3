"""Matrix products over strided operands: what convolution, inner product and matmul are made of.

    c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]

The batch z has up to three digits, n and k have up to four: a convolution's n is (image, depth,
height, width) and its k (channel, depth, height, width of the kernel). Each operand has a stride
per digit, so no operand is ever copied into matrix form; a `Window` tells where b, an image, ends.

Two families compute this. `simd` is for CPUs: one work-item a group, its tile in registers, no
local memory. `tiled` is for GPUs: 16 x 16 work-items share tiles in local memory. Where m x n is
too small to keep a device busy, k is cut into parts whose sums are added in order, so that results
do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    Operation,
    PostOp,
    Refused,
)
from dnncore_opencl.digits import extended, int4
from dnncore_opencl.epilogue import Operand, epilogue
from dnncore_opencl.program import Arg, Launch, LaunchProgram, Scratch, Source, padded, template

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine

MAX_ELEMENTS = 2**31 - 2**16  # kernels count elements in 32-bit integers; the rest is for tiles


@dataclass(frozen=True)
class Strides:
    """An operand's strides, in elements, per digit; 0 where it does not depend on one."""

    batch: tuple[int, ...] = ()
    m: int = 0
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """An operand: the place of its memory, its first element and its strides."""

    index: int
    offset: int
    strides: Strides
    end: int = 0  # elements of its buffer


@dataclass(frozen=True)
class Window:
    """Where b is an image: coordinate = at + n * its digit of n + k * its digit of k, per dim.

    Elements at a coordinate below 0 or not below `size` are 0. One entry per spatial dim.
    """

    at: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Gemm:
    """One product: sizes, operands, and the steps that its result goes through."""

    batch: tuple[int, ...]
    m: int
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Matrix
    b: Matrix
    c: Matrix
    window: Window | None = None
    post_ops: tuple[PostOp, ...] = ()
    operands: tuple[Matrix, ...] = ()

    @property
    def batches(self) -> int:
        """Products in the batch."""
        return math.prod(self.batch)

    @property
    def columns(self) -> int:
        """Values of n."""
        return math.prod(self.n)

    @property
    def depth(self) -> int:
        """Values of k."""
        return math.prod(self.k)

    @property
    def size(self) -> int:
        """Elements of c."""
        return self.batches * self.m * self.columns


@dataclass(frozen=True)
class Plan:
    """The launches of a product and the bytes of scratchpad that they share."""

    launches: tuple[Launch, ...]
    scratchpad: int = 0


MAX_ROWS = 256  # x 32 columns of sums: 32 KB beside the panel's 16, in the second-level cache
PANEL_DEPTH = 128  # x 32 columns: the panel fills a third of a 48 KB first-level cache
TILE_ROWS = {16: (8, 12, 4, 1), 8: (4, 6, 2, 1), 4: (4, 6, 2, 1)}  # in registers, by vector
TASKS_PER_CORE = 4  # blocks, so that cores of different speed end together


@dataclass(frozen=True)
class Simd:
    """The CPU family, on `units` cores whose registers hold `vector` floats."""

    name = "simd"
    units: int
    vector: int

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Simd:
        """The family for an engine's device."""
        device = engine.native.device
        width = device.native_vector_width_float
        vector = 16 if width >= 16 else 8 if width >= 8 else 4
        return cls(device.max_compute_units, vector)

    def plan(self, gemm: Gemm) -> Plan:
        """Choose the tile that wastes the fewest rows, and blocks enough for all cores."""
        columns = 2 * self.vector
        tile = min(TILE_ROWS[self.vector], key=lambda rows: (padded(gemm.m, rows), -rows))
        column_blocks = math.ceil(gemm.columns / columns) * gemm.batches
        wanted = math.ceil(TASKS_PER_CORE * self.units / column_blocks)
        rows = padded(math.ceil(gemm.m / wanted), tile)
        rows = min(rows, MAX_ROWS // tile * tile)
        row_blocks = math.ceil(gemm.m / rows)
        part = _part(gemm, self.units, column_blocks * row_blocks, PANEL_DEPTH)
        source = _source(
            "gemm_simd",
            gemm,
            VECTOR=self.vector,
            TILE_ROWS=tile,
            DEPTH=PANEL_DEPTH,
            MAX_ROWS=MAX_ROWS,
            **{"EACH_ROW(DO)": " ".join(f"DO({row})" for row in range(tile))},
        )
        grid = (math.ceil(gemm.columns / columns), row_blocks)
        return _plan(gemm, source, "gemm_simd", rows, part, grid, (1, 1, 1))


SIDE = 16  # work-items along each side of a GPU's group
TILE_DEPTH = 16
TILES = ((8, 8), (4, 8), (4, 4))  # rows x columns of a work-item, the fastest first


@dataclass(frozen=True)
class Tiled:
    """The GPU family, on `units` multiprocessors.

    On CPUs, where it is but a second opinion, it takes the tiles that compile quickest.
    """

    name = "tiled"
    units: int
    tiles: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Tiled:
        """The family for an engine's device."""
        return cls(engine.native.device.max_compute_units, TILES[-1:] if engine.is_cpu else TILES)

    def plan(self, gemm: Gemm) -> Plan:
        """Take the largest tile that wastes no rows and whose groups fill the device."""
        tile, grid = self._tile(gemm)
        groups = math.prod(grid) * gemm.batches
        part = _part(gemm, self.units, groups, 8 * TILE_DEPTH)
        source = _source(
            "gemm_tiled",
            gemm,
            SIDE=SIDE,
            TILE_M=tile[0],
            TILE_N=tile[1],
            DEPTH=TILE_DEPTH,
            A_ALONG_K=int(gemm.a.strides.m != 1),
            B_ALONG_K=int(_is_along_k(gemm)),
        )
        items = SIDE * SIDE
        return _plan(gemm, source, "gemm_tiled", 0, part, (grid[0] * items, grid[1]), (items, 1, 1))

    def _tile(self, gemm: Gemm) -> tuple[tuple[int, int], tuple[int, int]]:
        for tile in self.tiles:
            rows, columns = tile[0] * SIDE, tile[1] * SIDE
            grid = (math.ceil(gemm.columns / columns), math.ceil(gemm.m / rows))
            if math.prod(grid) * gemm.batches >= self.units and gemm.m > rows // 2:
                break
        return tile, grid


FAMILIES = (Simd, Tiled)

EFFICIENCY = {("simd", "cpu"): 0.5, ("tiled", "cpu"): 0.01, ("simd", "gpu"): 0.005}
"""By family and type of device; an accelerator counts as a GPU."""


class GemmImplementation(Implementation):
    """One family's implementation of one operation; subclasses say what products it is made of."""

    operation: str

    def __init__(self, family: type[Simd | Tiled]) -> None:
        self.family = family
        self.name = f"opencl:{family.name}"

    def resolve(self, op: Any) -> Operation:
        """Replace each format `any`."""
        descs = [(a.name, desc) for a, desc in op.tensors()]
        return op.resolve_any(**{name: ROW_MAJOR[: desc.ndims] for name, desc in descs})

    def refuse(self, op: Any, attr: Attributes) -> Refused | None:
        """Refuse what the products cannot express; formats are resolved and plain."""
        return None

    def gemms(self, op: Any, attr: Attributes) -> Sequence[Gemm]:
        """Return the products that together compute the operation."""
        raise NotImplementedError

    def more_launches(self, op: Any, engine: OpenCLEngine) -> Sequence[Launch]:
        """Return launches beside the products."""
        return ()

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every plain layout that 32-bit integers can count through."""
        refused = _refuse_device(self.family, engine)
        if refused:
            return refused
        op = self.resolve(op)
        named = [(a.name, desc) for a, desc in op.tensors()] + attr.binary_srcs()
        for name, desc in named:
            refused = _refuse_layout(name, desc)
            if refused:
                return refused
        refused = self.refuse(op, attr)
        if refused:
            return refused
        family = self.family.of(engine)
        plans = [family.plan(gemm) for gemm in self.gemms(op, attr) if gemm.size]
        launches = [launch for plan in plans for launch in plan.launches]
        launches += self.more_launches(op, engine)
        return Accepted(
            op,
            build=lambda: LaunchProgram(engine, launches),
            efficiency=EFFICIENCY.get((family.name, engine.device_type), 0.3),
            scratchpad_bytes=max((plan.scratchpad for plan in plans), default=0),
        )


ROW_MAJOR = "abcdefghijkl"


def matrix(index: int, desc: MemoryDesc, strides: Strides, offset: int = 0) -> Matrix:
    """The operand at place `index`; `offset` moves its first element."""
    end = desc.nbytes // desc.itemsize
    return Matrix(index, desc.offset0 + offset, strides, end)


def broadcast_strides(desc: MemoryDesc) -> tuple[int, ...]:
    """A tensor's strides with 0 for its dims of size 1."""
    return tuple(0 if d == 1 else s for d, s in zip(desc.dims, desc.strides, strict=True))


def chain(
    op: Any,
    attr: Attributes,
    result_strides: Callable[[Sequence[int]], Strides],
    bias_strides: Callable[[Sequence[int]], Strides] | None = None,
) -> dict[str, Any]:
    """Return a product's fields `post_ops` and `operands`: the bias, then the attribute's chain.

    result_strides: turns strides per dim of the result into strides per digit, as bias_strides does
    for the bias, which is nothing but a first step.
    """
    places = {argument.name: i for i, (argument, _) in enumerate(op.tensors())}
    post_ops, operands = list(attr.post_ops), []
    bias = getattr(op, "bias", None)
    if bias is not None and bias_strides:
        post_ops.insert(0, PostOp.binary("add", bias))
        strides = bias_strides(broadcast_strides(bias))
        operands.append(matrix(places["bias"], bias, strides))
    for i, (_, desc) in enumerate(attr.binary_srcs()):
        strides = result_strides(broadcast_strides(desc))
        operands.append(matrix(len(places) + i, desc, strides))
    return {"post_ops": tuple(post_ops), "operands": tuple(operands)}


def _refuse_device(family: type[Simd | Tiled], engine: OpenCLEngine) -> Refused | None:
    items = engine.device.limits["max_work_group"]
    if family is Tiled and items < SIDE**2:
        return Refused("device", f"work-groups must have {SIDE**2} items; got {items}")
    return None


def _refuse_layout(name: str, desc: MemoryDesc) -> Refused | None:
    if not desc.is_plain:
        return Refused("format", f"{name} must be plain, without inner blocks; got {desc.tag}")
    elements = desc.nbytes // desc.itemsize
    if elements > MAX_ELEMENTS:
        return Refused("shape", f"{name} must span {MAX_ELEMENTS} elements at most; got {elements}")
    return None


def _part(gemm: Gemm, units: int, tasks: int, least: int) -> int:
    """The length of the parts into which k is cut: all of it unless tasks are too few."""
    parts = min(units // tasks, gemm.depth // least) if tasks < units else 1
    if parts < 2:
        return max(gemm.depth, 1)
    return padded(math.ceil(gemm.depth / parts), least)


def _plan(
    gemm: Gemm,
    source: Source,
    kernel: str,
    rows: int,
    part: int,
    grid: tuple[int, int],
    local_size: tuple[int, int, int],
) -> Plan:
    """One launch, or two where k is cut into parts."""
    parts = math.ceil(gemm.depth / part) if gemm.depth else 1
    size = (*grid, gemm.batches * parts)
    whole = _epilogue(gemm)
    if parts == 1:
        args = _args(gemm, Arg(gemm.c.index), gemm.c, 0, rows, part)
        return Plan((Launch(source, kernel, (*args, *whole.args), size, local_size),))
    raw = Source(source.template, source.defines, (_NO_STEPS.code, *_index_code()))
    args = _args(gemm, Scratch(), _partial(gemm), gemm.size, rows, part)
    first = Launch(raw, kernel, args, size, local_size)
    second = _reduction(gemm, whole, parts)
    return Plan((first, second), parts * gemm.size * 4)


def _reduction(gemm: Gemm, whole: Any, parts: int) -> Launch:
    """Adds the parts in order and finishes the result."""
    source = Source("gemm_reduce", {}, (whole.code, *_index_code()))
    args = (
        Scratch(),
        Arg(gemm.c.index),
        np.int32(parts),
        *_sizes(gemm),
        *_c_args(gemm.c),
        *whole.args,
    )
    size = (padded(gemm.columns, 64), gemm.m, gemm.batches)
    return Launch(source, "gemm_reduce", args, size, (64, 1, 1))


def _partial(gemm: Gemm) -> Matrix:
    """The scratchpad's layout of one part: row-major."""
    n = tuple(math.prod(gemm.n[i + 1 :]) for i in range(len(gemm.n)))
    rows = gemm.m * gemm.columns
    batch = tuple(rows * math.prod(gemm.batch[i + 1 :]) for i in range(len(gemm.batch)))
    return Matrix(-1, 0, Strides(batch=batch, m=gemm.columns, n=n))


def _source(name: str, gemm: Gemm, **defines: str | int) -> Source:
    if gemm.window:
        defines["WINDOW"] = 1
    return Source(name, defines, (_epilogue(gemm).code, *_index_code()))


def _index_code() -> tuple[str, ...]:
    return template("digits"), template("gemm")


def _epilogue(gemm: Gemm) -> Any:
    operands = [
        Operand(
            x.index,
            x.offset,
            (*extended(x.strides.batch, 3), x.strides.m, *extended(x.strides.n, 4)),
        )
        for x in gemm.operands
    ]
    return epilogue(gemm.post_ops, operands, 8)


_NO_STEPS = epilogue((), (), 8)


def _args(
    gemm: Gemm, target: Arg | Scratch, c: Matrix, c_part: int, rows: int, part: int
) -> tuple[Any, ...]:
    """The arguments of GEMM_PARAMS in `kernels/gemm.cl`."""
    a, b, window = gemm.a, gemm.b, gemm.window
    args: list[Any] = [Arg(a.index), Arg(b.index), target, np.int32(rows), np.int32(b.end)]
    args += _sizes(gemm)
    args += [_batch(a), np.int32(a.strides.m), int4(a.strides.k)]
    args += [_batch(b), int4(b.strides.k), int4(b.strides.n)]
    args += [*_c_args(c), np.int32(c_part), np.int32(part)]
    if window:
        args += [int4(window.at), int4(window.n), int4(window.k), int4(window.size, 1)]
    return tuple(args)


def _sizes(gemm: Gemm) -> tuple[Any, ...]:
    batch = (*extended(gemm.batch, 3, 1), 0)
    return int4(batch), np.int32(gemm.m), int4(gemm.n, 1), int4(gemm.k, 1)


def _c_args(c: Matrix) -> tuple[Any, ...]:
    return _batch(c), np.int32(c.strides.m), int4(c.strides.n)


def _batch(matrix: Matrix) -> Any:
    return int4((*extended(matrix.strides.batch, 3), matrix.offset))


def _is_along_k(gemm: Gemm) -> bool:
    """Whether b's neighbours in memory are neighbours along k rather than n."""
    n = [s for s, size in zip(gemm.b.strides.n, gemm.n, strict=True) if size > 1]
    k = [s for s, size in zip(gemm.b.strides.k, gemm.k, strict=True) if size > 1]
    return min(k, default=1 << 31) < min(n, default=1 << 31)
