"""Sums of channels, and results from a few numbers of each channel: plans of tiles.

Here, the elements of a channel share a mean; other channels may share it, too. Tiles follow the
order of memory. The number of parts depends only on the problem, so results do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests
from dnncore_cpu_numba.codegen.nontemporal import suits_rows
from dnncore_cpu_numba.copies.fill_task import fill_step
from dnncore_cpu_numba.rows import channels_tasks as tasks
from dnncore_cpu_numba.rows.apply_kernel import NUMBERS, ApplyKernel
from dnncore_cpu_numba.rows.sums_kernel import SOURCES, SumsKernel
from dnncore_cpu_numba.runtime.program import Param, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, is_streamed, moved

_LANES = 8  # a folded row has a multiple of these
_LONG = 512  # least elements of a row that is a tile
_MOST_ROWS = 32  # of columns whose sums are f32, times the fold
_TILE = 1 << 15  # most elements of a tile
_PARTS = 64  # least work items if there is enough work
_PART = 1 << 15  # least elements of a part if there are several
_GRAIN = 4096  # least elements of a thread's part
_WORDS = 3 * 8  # bytes of an outcome

TENSORS = tuple(tasks.TENSORS.fields)
OPERANDS = tuple(tasks.OPERANDS.fields)
Kernels = tuple[NativeKernel, NativeKernel | None]
"""The kernel that computes sums, and the kernel that computes deviations, if there is one."""


@dataclass(frozen=True)
class _Tile:
    """The two innermost loops of a nest are a tile. step: between the channels of rows."""

    nest: Nest
    along: bool
    fold: int
    step: int = 0

    @property
    def rows(self) -> Loop:
        """The loop over rows."""
        return self.nest.loops[-2]

    @property
    def columns(self) -> Loop:
        """The loop over the elements of a row."""
        return self.nest.loops[-1]

    @property
    def channels(self) -> int:
        """The number of channels."""
        if self.along:
            return self.rows.extent if self.step else 1
        return self.columns.extent

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.rows.extent * self.columns.extent


def _tiles(nest: Nest, lead: int, dense: Sequence[int], arrays: Sequence[int]) -> Iterator[_Tile]:
    """Yield the tiles of a nest in the memory order of tensor `lead`.

    dense: tensors whose rows must be contiguous. arrays: of channels. Raises `_Unsuitable`.
    """
    ordered = nest.ordered(lead)
    ordered = Nest(ordered.offsets, ordered.loops or (Loop(1, (0,) * len(nest.offsets)),))
    row = ordered.loops[-1]
    along = not any(row.strides[t] for t in arrays)
    if row.extent > 1 and any(row.strides[t] != 1 for t in dense):
        raise _Unsuitable
    if not along and any(row.strides[t] != 1 for t in arrays):
        raise _Unsuitable
    for part in ordered.rows(tasks.MOST_ROW if along else tasks.MOST_COLUMNS):
        yield from _with_rows(part, along, dense, arrays)


def _with_rows(
    part: Nest, along: bool, dense: Sequence[int], arrays: Sequence[int]
) -> Iterator[_Tile]:
    row, none = part.loops[-1], Loop(1, (0,) * len(part.offsets))
    beside = part.loops[-2] if len(part.loops) > 1 else none
    steps = {beside.strides[t] for t in arrays}
    fold, most = 1, 1
    if along and row.extent < _LONG and (steps == {0} or steps == {1}):
        most = min(tasks.MOST_COLUMNS, _TILE // row.extent)
    elif not along and steps == {0}:
        if row.extent < tasks.FOLDED and all(beside.strides[t] == row.extent for t in dense):
            even = _LANES // math.gcd(_LANES, row.extent)
            fold = even * -(-tasks.FOLDED // (even * row.extent))
        most = min(_MOST_ROWS * fold, max(8, _TILE // row.extent))
    if most == 1:
        yield _Tile(Nest(part.offsets, (*part.loops[:-1], none, row)), along, 1)
        return
    loops = part.loops if len(part.loops) > 1 else (none, *part.loops)
    for one in Nest(part.offsets, loops).split(len(loops) - 2, most):
        yield _Tile(one, along, min(fold, one.loops[-2].extent), min(steps) if along else 0)


class _Unsuitable(Exception):
    """The layouts have no contiguous rows in common."""


class ChannelSums:
    """The plan of sums over the elements of each channel.

    channels: the dims of the sums; 1 where a channel has all places. tensors: x, diff, mask, y.
    numbers: layouts of numbers that elements have, which kernels write and read; without sums.
    """

    def __init__(
        self, dims: Sequence[int], channels: Sequence[int], tensors: Mapping[str, MemoryDesc],
        numbers: Sequence[MemoryDesc] = (),
    ) -> None:  # fmt: skip
        self.channels, self.is_direct = tuple(channels), bool(numbers)
        still = MemoryDesc((1,) * len(dims), "f32")
        first = numbers or [MemoryDesc(self.channels, kind) for kind in ("f64", "f32")]
        others = [tensors.get(name, still) for name in TENSORS[2:]]
        self.descs = [desc.with_offset0(0) for desc in (*first, *others)]
        self.present = [place for place, name in enumerate(TENSORS) if name in tensors]
        dense, arrays = ([0, 1], []) if numbers else ([], [0])
        self.tiles = [
            tile
            for nest in nests(dims, self.descs)
            for tile in _tiles(nest, 2, [*dense, *self.present], arrays)
        ]
        self.slots = max(1, sum(_parts(tile) for tile in self.tiles))

    @classmethod
    def planned(cls, *args: Any) -> ChannelSums | None:
        """Return the plan, or None if the types or layouts do not suit."""
        if any(desc.data_type not in SOURCES for desc in args[2].values()):
            return None
        try:
            return cls(*args)
        except _Unsuitable:
            return None

    @property
    def count(self) -> int:
        """The number of channels."""
        return math.prod(self.channels)

    @property
    def nbytes(self) -> int:
        """Bytes of all outcomes."""
        return 0 if self.is_direct else self.slots * _WORDS * self.count

    def steps(
        self, room: Param, tensors: Mapping[str, Tensor], mean: Param,
        kernels: Callable[[bool], Kernels] | None = None,
    ) -> Iterator[Step]:  # fmt: skip
        """Yield the steps that write the outcomes of all parts.

        room: of the outcomes, or the address of numbers of elements. mean: the address of the means
        for sums; 0 for moments. kernels: others than `SumsKernel`, by `along`.
        """
        if self.nbytes and len(self.tiles) != 1:
            yield fill_step(Tensor(room, MemoryDesc((self.nbytes,), "u8")))
        slot, part_bytes = 0, 0 if self.is_direct else _WORDS * self.count
        sizes = [desc.itemsize for desc in self.descs]
        if "y" in tensors:
            sizes[TENSORS.index("y")] = tensors["y"].desc.itemsize
        addresses = [tensors[n].address if n in tensors else 0 for n in TENSORS[2:]]
        for tile in self.tiles:
            results, places = _divided(tile)
            parts = _parts(tile)
            per_part = -(-places.size // parts)
            starts = [moved(room, slot * part_bytes), mean, *addresses]
            rows = list(zip(TENSORS, tile.rows.strides, sizes, strict=True))[2:]
            used = kernels(tile.along) if kernels else self._kernels(tile.along, mean)
            values = {
                "results": results.table(sizes), "places": places.table(sizes),
                "steps": places.size, "parts": parts, "per_part": per_part,
                "part_bytes": part_bytes, "plane": 8 * self.count, "along": tile.along,
                "rows": tile.rows.extent, "columns": tile.columns.extent, "fold": tile.fold,
                "channels": tile.channels,
                **{f"{name}_row": stride * size for name, stride, size in rows},
                "first": used[0].address, "second": used[1].address if used[1] else 0,
                "has_second": not kernels, "is_direct": self.is_direct,
                "starts": {
                    name: moved(start, size * offset) if start else 0
                    for name, start, size, offset in zip(
                        TENSORS, starts, sizes, tile.nest.offsets, strict=True)
                },
            }  # fmt: skip
            grain = -(-_GRAIN // (per_part * tile.size))
            yield Step(tasks.sums, values, results.size * parts, grain=grain)
            slot += parts

    def _kernels(self, along: bool, mean: Param) -> Kernels:
        x, diff = (self.descs[TENSORS.index(name)].data_type for name in ("x", "diff"))
        if mean == 0:
            return SumsKernel("plain", along, x), SumsKernel("deviations", along, x)
        masked = TENSORS.index("mask") in self.present
        return SumsKernel("products", along, x, diff, masked=masked), None

    def combined(
        self, room: Scratch, is_sum: bool, epsilon: float, *targets: Param, members: int = 1
    ) -> Step:
        """Return the step that combines the parts. targets: of `COMBINE`."""
        first, second, third = (*targets, 0, 0)[:3]
        values = {
            "source": room, "parts": self.slots, "part_bytes": _WORDS * self.count,
            "members": members, "plane": 8 * self.count, "is_sum": is_sum, "first": first,
            "second": second, "third": third, "epsilon": epsilon,
        }  # fmt: skip
        return Step(tasks.combine, values, self.count // members, grain=256)


def _divided(tile: _Tile) -> tuple[Nest, Nest]:
    """Return the loops outside the tile: over channels, and over the places of a channel."""
    none = (0,) * len(tile.nest.offsets)
    outside = tile.nest.loops[:-2]
    return (
        Nest(none, tuple(loop for loop in outside if loop.strides[0] != 0)).ordered(2),
        Nest(none, tuple(loop for loop in outside if loop.strides[0] == 0)).ordered(2),
    )


def _parts(tile: _Tile) -> int:
    """Return the number of parts of a channel."""
    results, places = _divided(tile)
    steps = places.size
    work = results.size * steps * tile.size // _PART
    parts = max(1, min(steps, -(-_PARTS // results.size), work))
    return -(-steps // -(-steps // parts))


class Application:
    """The plan of applying the numbers of channels to elements.

    tensors: of `OPERANDS`; dims of size 1 are broadcast.
    """

    def __init__(self, dims: Sequence[int], tensors: Mapping[str, MemoryDesc]) -> None:
        present = [place for place, name in enumerate(OPERANDS) if name in tensors]
        self.arrays = [place for place in present if OPERANDS[place] in NUMBERS]
        dense = [place for place in present if place not in self.arrays]
        still = MemoryDesc((1,) * len(dims), "f32")
        descs = [tensors.get(name, still).with_offset0(0) for name in OPERANDS]
        self.tiles = [
            tile for nest in nests(dims, descs) for tile in _tiles(nest, 0, dense, self.arrays)
        ]

    @classmethod
    def planned(cls, dims: Sequence[int], tensors: Mapping[str, MemoryDesc]) -> Application | None:
        """Return the plan, or None if the types or layouts do not suit."""
        if any(desc.data_type not in SOURCES for desc in tensors.values()):
            return None
        try:
            return cls(dims, tensors)
        except _Unsuitable:
            return None

    def steps(
        self, tensors: Mapping[str, Tensor], *, relu: bool = False, written: bool = False
    ) -> list[Step]:
        """Return the steps. The result may have another type than planned.

        relu, written: see `ApplyKernel`.
        """
        kinds = {name: tensor.desc.data_type for name, tensor in tensors.items()}
        sizes = [tensors[name].desc.itemsize if name in tensors else 4 for name in OPERANDS]
        mask: Literal["", "read", "written"] = "written" if written else "read"
        mask = mask if "mask" in tensors else ""
        steps: list[Step] = []
        for tile in self.tiles:
            size = tensors["y"].desc.itemsize
            row = size * tile.columns.extent * tile.fold
            streamed = is_streamed(tensors["y"]) and suits_rows(row, size)
            kernel = ApplyKernel(
                kinds["x"], kinds["y"], tile.along, kinds.get("other", ""), "share" in tensors,
                mask, relu, streamed,
            )  # fmt: skip
            rows = list(zip(OPERANDS, tile.rows.strides, sizes, strict=True))[:4]
            starts = zip(OPERANDS, sizes, tile.nest.offsets, strict=True)
            outside = tile.nest.without(2)
            values = {
                "nest": outside.table(sizes), "along": tile.along, "rows": tile.rows.extent,
                "columns": tile.columns.extent, "fold": tile.fold,
                **{f"{name}_row": stride * size for name, stride, size in rows},
                "step": 4 * tile.step,
                "kernel": kernel.address,
                "starts": {
                    name: moved(tensors[name].address, size * offset) if name in tensors else 0
                    for name, size, offset in starts
                },
            }  # fmt: skip
            steps.append(Step(tasks.apply, values, outside.size, grain=-(-_GRAIN // tile.size)))
        return steps
