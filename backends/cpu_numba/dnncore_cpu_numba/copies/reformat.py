"""Copies of whole tensors into any layout and data type. dst has the dims of src."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, Loop, Nest, advance, nests, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE, SHORTEST_ROW, STREAM_BYTES
from dnncore_cpu_numba.codegen.pointers import stack
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.copies.copy_kernel import COPY_CALL, ROWS, SHAPES, SIDE, CopyKernel
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, walked

DST, SRC = 0, 1
_LONGEST = 256  # most elements of a tile's side; 256 KB of f32 fit into a second-level cache
_TILE = 1 << 14  # most elements of a tile of rows: small enough that each thread has a tile
_PAGES = 16  # most rows of a tile that may be on different pages
_LONG_ROW = 1024  # elements; in rows of this length, the prefetch distance along the row
_STEPS_AHEAD = 32  # prefetch distance in rows or planes; measured: 1.6 times as fast on 51 MB
_NEAR = 32 << 10  # most bytes of rows that are copied side by side; they stay in a cache
_GRAIN = 16384  # least elements of a part: a core copies them in the time of a launch
_STILL = Loop(1, (0, 0))
TENSORS = Record("tensors of a copy", ("dst src", "address"))


def copy_steps(dst: Tensor, src: Tensor, *, flipped: bool = False) -> list[Step]:
    """Return the steps of dst = src. The padding of dst is undefined. flipped: as in `CopyKernel`.

    The dims of src may be larger. Elements outside the dims of dst are not copied.
    """
    return copies_of_nests(nests(dst.desc.dims, (dst.desc, src.desc)), dst, src, flipped=flipped)


def copies_of_nests(
    parts: Sequence[Nest], dst: Tensor, src: Tensor, *, flipped: bool = False
) -> list[Step]:
    """Return the steps that copy the elements of nests of dst and src.

    Nothing is copied where the elements are the same memory, and keep their type and order.
    """
    return [
        _transposed(tile, dst, src, flipped=flipped) or _rows(tile, dst, src, flipped=flipped)
        for nest in parts
        for tile in _tiled(nest.ordered())
    ]


@task(Record(
    "copies of tiles",
    ("nest", Pointer(NEST)),
    ("kernel streamed", "address", "`COPY_CALL`; the second one if dst is so aligned"),
    ("alignment", "bytes", "of dst for the second kernel"),
    ("starts", TENSORS),
    ("same", "flag", "whether the elements keep their type and order"),
    ("shape", Many("address"), "of `SHAPES`"),
))  # fmt: skip
def _copy(params, begin, end):
    """Copy the tiles of a nest."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        dst, src = tensors.dst, tensors.src
        streams = params.streamed != 0 and dst % params.alignment == 0
        kernel = params.streamed if streams else params.kernel
        if src != dst or params.same == 0:
            COPY_CALL.call(kernel, src=src, dst=dst, shape=params.shape)
        advance(params.nest, position, tensors, 1)


_SIDE = Record(
    "tiles of rows",
    ("nest", Pointer(NEST)),
    ("kernel", "address", "`COPY_CALL`"),
    ("starts", TENSORS),
    ("same", "flag", "whether the elements keep their type"),
    ("shape", ROWS),
)


@task(Record(
    "copies side by side", ("count", "count", "of sources"), ("sides", Many(_SIDE))
))  # fmt: skip
def _copy_side_by_side(params, begin, end):
    """Copy the same tiles of all sources, tile by tile."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    for tile in range(begin, end):
        for i in range(params.count):
            side = params.sides[i]
            seek(side.nest, tile, position, side.starts, tensors, 1)
            dst, src = tensors.dst, tensors.src
            if src != dst or side.same == 0:
                COPY_CALL.call(side.kernel, src=src, dst=dst, shape=side.shape)


def copies_side_by_side(
    parts: Sequence[Sequence[Nest]], dst: Tensor, sources: Sequence[Tensor]
) -> list[Step] | None:
    """Return the steps that copy short rows of sources to neighbouring places of dst's rows.

    parts: the nests of each source. If lines of dst have elements of several sources, copying one
    source after the other would read and write each line several times. So the sources are copied
    together, a few rows at a time, which stay in a cache. None unless all sources are of this kind.
    """
    itemsize = dst.desc.itemsize
    sides: list[list[Nest]] = []
    for own in parts:
        nest = own[0].ordered() if len(own) == 1 else Nest((), ())
        if len(nest.loops) != 2 or nest.loops[1].strides != (1, 1):
            return None
        rows, columns = nest.loops
        row, step = columns.extent * itemsize, rows.strides[DST] * itemsize
        if row >= SHORTEST_ROW or row % LINE == step % LINE == 0:  # rows of whole lines
            return None
        sides.append(list(nest.split(0, max(1, _NEAR // step))))
    counts = {tuple(tile.without(1).size for tile in side) for side in sides}
    if len(sides) < 2 or len(counts) > 1:
        return None
    return [_side_by_side(tiles, dst, sources) for tiles in zip(*sides, strict=True)]


def _side_by_side(tiles: Sequence[Nest], dst: Tensor, sources: Sequence[Tensor]) -> Step:
    values = []
    for tile, src in zip(tiles, sources, strict=True):
        *outer, rows, columns = tile.loops
        types = src.desc.data_type, dst.desc.data_type
        walk = Nest(tile.offsets, tuple(outer) or (_STILL,))
        values.append(
            walked(walk, {"dst": dst, "src": src})
            | {
                "kernel": CopyKernel("rows", *types, fetches=True).address,
                "same": types[0] == types[1],
                "shape": _shape(columns, rows, _STILL, dst, src),
            }
        )
    count, elements = walk.size, sum(tile.size for tile in tiles)
    grain = -(-_GRAIN * count // max(1, elements))
    return Step(_copy_side_by_side, {"count": len(values), "sides": values}, count, grain=grain)


def _step(
    kind: Literal["rows", "transposed"], part: Nest, outer: Nest, dst: Tensor, src: Tensor,
    shape: Mapping[str, Any], *, aligned: bool, flipped: bool, long: bool = False,
) -> Step:  # fmt: skip
    """Return a step of tiles.

    aligned: all vectors of dst's tiles are aligned cache lines if the first address is aligned.
    long: each row of dst has several whole lines.
    """
    types = src.desc.data_type, dst.desc.data_type
    kernel, streamed = CopyKernel(kind, *types, flipped=flipped), 0
    if (aligned or long) and dst.desc.nbytes + src.desc.nbytes >= STREAM_BYTES:
        streamed = CopyKernel(
            kind, *types, streamed=True, ragged=not aligned, flipped=flipped, fetches=True
        ).address
    values = walked(outer, {"dst": dst, "src": src}) | {
        "kernel": kernel.address, "streamed": streamed,
        "alignment": LINE if aligned else dst.desc.itemsize,
        "same": types[0] == types[1] and not flipped, "shape": SHAPES[kind].pack(shape),
    }  # fmt: skip
    grain = -(-_GRAIN * outer.size // max(1, part.size))
    return Step(_copy, values, outer.size, grain=grain)


# -- rows ------------------------------------------------------------------------------------------


def _rows(nest: Nest, dst: Tensor, src: Tensor, *, flipped: bool) -> Step:
    """Return a step that copies along the innermost loop, without transposing."""
    itemsize, loops = dst.desc.itemsize, list(nest.loops)
    columns, rows, planes = (loops.pop() for _ in range(3))
    strides = [loop.strides[DST] for loop in (rows, planes, *loops)]
    row, dense = columns.extent * itemsize, columns.strides == (1, 1)
    aligned = dense and row % LINE == 0 and all(n * itemsize % LINE == 0 for n in strides)
    outer = Nest(nest.offsets, tuple(loops))
    return _step(
        "rows", nest, outer, dst, src, _shape(columns, rows, planes, dst, src),
        aligned=aligned, flipped=flipped, long=dense and row >= SHORTEST_ROW,
    )  # fmt: skip


def _shape(columns: Loop, rows: Loop, planes: Loop, dst: Tensor, src: Tensor) -> dict[str, int]:
    """Return the values of `ROWS`."""
    sizes = dst.desc.itemsize, src.desc.itemsize
    shape = {"ahead": _ahead(columns, rows, planes) * sizes[SRC]}
    for name, loop in {"column": columns, "row": rows, "plane": planes}.items():
        shape[f"{name}s"] = loop.extent
        shape[f"src_{name}"] = loop.strides[SRC] * sizes[SRC]
        shape[f"dst_{name}"] = loop.strides[DST] * sizes[DST]
    return shape


def _ahead(columns: Loop, rows: Loop, planes: Loop) -> int:
    """Return the prefetch distance in elements of src. It is along the longest loop."""
    if columns.extent >= _LONG_ROW:
        return _LONG_ROW
    return _STEPS_AHEAD * max(rows, planes, key=lambda loop: loop.extent).strides[SRC]


def _rows_cut(nest: Nest) -> Iterator[Nest]:
    """Yield nests of tiles of planes of rows. Rows are close in dst, and planes close in src."""
    if len(nest.loops) < 3:
        for part in nest.tiles(_TILE):
            yield Nest(part.offsets, (*part.loops[:-2], _STILL, *part.loops[-2:]))
        return
    *outer, rows, columns = nest.loops
    near = min(outer, key=lambda loop: loop.strides[SRC])
    outer.remove(near)
    lines = max(1, _TILE // columns.extent)
    high = min(rows.extent, _PAGES, lines)
    for part in Nest(nest.offsets, (*outer, near, rows, columns)).split(len(outer) + 1, high):
        *around, tile, last = part.loops[len(outer) :]
        planes, *others = around
        loops = (*outer, *others, planes, tile, last)
        yield from Nest(part.offsets, loops).split(len(loops) - 3, max(1, lines // high))


# -- transposed ------------------------------------------------------------------------------------


def _tiled(nest: Nest) -> Iterator[Nest]:
    """Split the loops along which dst and src are contiguous to the size of tiles."""
    for part in _cut(nest, DST):
        yield from _cut(part, SRC)


def _cut(nest: Nest, tensor: int) -> Iterator[Nest]:
    """Split the contiguous loop of a tensor or, if it is not whole blocks, the next loop."""
    place = _contiguous(nest.loops, tensor)
    if place is None:
        yield from _rows_cut(nest)
        return
    extent = nest.loops[place].extent
    nexts = [i for i, loop in enumerate(nest.loops) if loop.strides[tensor] == extent]
    if extent % SIDE and nexts:
        yield from nest.split(nexts[0], SIDE * max(1, _LONGEST // SIDE // extent))
    else:
        yield from nest.split(place, _LONGEST)


def _transposed(nest: Nest, dst: Tensor, src: Tensor, *, flipped: bool) -> Step | None:
    """Return a step that transposes, None if dst and src are contiguous along the same loop."""
    if None in [_contiguous(nest.loops, tensor) for tensor in (DST, SRC)]:
        return None
    a, j = _chains(nest.loops)
    tables = [_places(a, SRC, src.desc.itemsize), _places(j, DST, dst.desc.itemsize)]
    outer = Nest(nest.offsets, tuple(loop for loop in nest.loops if loop not in (*a, *j)))
    bytes_of_vector = SIDE * dst.desc.itemsize
    strides = [loop.strides[DST] * dst.desc.itemsize for loop in (*outer.loops, *j)]
    aligned = len(tables[0]) % SIDE == 0 and all(s % bytes_of_vector == 0 for s in strides)
    rows, columns = tables
    shape = {"a": len(rows), "j": len(columns), "rows": Table(rows), "columns": Table(columns)}
    return _step(
        "transposed", nest, outer, dst, src, shape, aligned=aligned, flipped=flipped
    )  # fmt: skip


def _contiguous(loops: Sequence[Loop], tensor: int) -> int | None:
    """Return the index of the loop with stride 1 in this tensor only, None if there is none."""
    for place, loop in enumerate(loops):
        if loop.strides[tensor] == 1 and loop.strides[1 - tensor] != 1:
            return place
    return None


def _chains(loops: Sequence[Loop]) -> list[list[Loop]]:
    """Return the loops of both sides of a tile, along dst and along src, the outermost first.

    A side is the contiguous loop of a tensor and the loops that continue it. Both sides are
    extended to whole blocks first, then to long sides.
    """
    chains = [[loops[cast(int, _contiguous(loops, tensor))]] for tensor in (DST, SRC)]
    for least in (SIDE, _LONGEST):
        for tensor in (DST, SRC):
            while following := _following(loops, chains, tensor, least):
                chains[tensor].insert(0, following)
    return chains


def _following(
    loops: Sequence[Loop], chains: Sequence[Sequence[Loop]], tensor: int, least: int
) -> Loop | None:
    """Return the loop that continues a tensor's chain.

    None if the chain has whole blocks and `least` elements, or if there is no such loop.
    """
    size = math.prod(loop.extent for loop in chains[tensor])
    if size % SIDE == 0 and size >= least:
        return None
    for loop in loops:
        taken = any(loop in chain for chain in chains)
        if loop.strides[tensor] == size and not taken and size * loop.extent <= 4 * _LONGEST:
            return loop
    return None


def _places(chain: Sequence[Loop], tensor: int, itemsize: int) -> np.ndarray:
    """Return the offset of each step of a chain in a tensor, in bytes."""
    steps = itertools.product(*(range(loop.extent) for loop in chain))
    strides = [itemsize * loop.strides[tensor] for loop in chain]
    return np.array([sum(map(int.__mul__, step, strides)) for step in steps], np.int64)
