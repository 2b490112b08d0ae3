"""Nests: tensors of any layout as rectangular loop nests with one stride per loop and tensor.

A blocked layout splits a dim into loops: with blocks of 16, element i lies in block i // 16 at
place i % 16, so 20 elements are a loop of one whole block, with 16 inside, and a rest of 4. Several
tensors are split wherever one of them is, so that each has one stride per loop. One nest or a few
cover the tensors of an element-wise operation, whatever their layouts; a dim in which a tensor is
broadcast has stride 0. The second half of this file walks a nest inside a task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dnncore.backend import BuildError, MemoryDesc
from dnncore.planning.loops import is_one_loop, merged
from dnncore_cpu_numba.codegen.call_schema import Many, Record, Table
from dnncore_cpu_numba.codegen.pointers import load_i64, store_i64
from dnncore_cpu_numba.codegen.task import device

_LINE = 16  # elements of a cache line, mostly
MAX_LOOPS = 64  # of a nest; 12 dims and the blocks of several tensors need fewer
NEST = Record(
    "nest",
    ("loops tensors", "count"),
    ("numbers", Many("bytes"), "each loop's extent, then each loop's stride for each tensor"),
)


@dataclass(frozen=True)
class Loop:
    """`extent` steps; `strides` in elements, one per tensor."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """Loops from outermost to innermost; `offsets` in elements from each tensor's buffer."""

    offsets: tuple[int, ...]
    loops: tuple[Loop, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(loop.extent for loop in self.loops)

    def without(self, loops: int) -> Nest:
        """The same nest without its innermost loops."""
        return Nest(self.offsets, self.loops[: len(self.loops) - loops])

    def table(self, itemsizes: Sequence[int]) -> Table:
        """The `NEST` that `seek` and `advance` read. Raises `BuildError`."""
        if len(self.loops) > MAX_LOOPS:
            raise BuildError(f"nests have at most {MAX_LOOPS} loops; got {len(self.loops)}")
        strides = [
            s * n for loop in self.loops for s, n in zip(loop.strides, itemsizes, strict=True)
        ]
        extents = [loop.extent for loop in self.loops]
        sizes = {"loops": len(extents), "tensors": len(itemsizes)}
        return Table(NEST.table([sizes | {"numbers": [*extents, *strides]}]))

    def ordered(self, lead: int = 0) -> Nest:
        """The same elements with neighbouring loops joined, in the memory order of a tensor."""
        loops = sorted(self.loops, key=lambda loop: -loop.strides[lead])
        return Nest(self.offsets, merged((loop for loop in loops if loop.extent > 1), _joined))

    def rows(self, longest: int) -> Iterator[Nest]:
        """Nests whose innermost loop, the row, has at most `longest` steps: this one or two."""
        nest = self._with_loops(1)
        yield from nest.split(len(nest.loops) - 1, longest)

    def tiles(self, largest: int) -> Iterator[Nest]:
        """Nests whose two innermost loops, rows and columns, have at most `largest` steps."""
        nest = self._with_loops(2)
        for part in nest.split(len(nest.loops) - 1, largest):
            yield from part.split(len(part.loops) - 2, largest // part.loops[-1].extent)

    def _with_loops(self, least: int) -> Nest:
        still = Loop(1, (0,) * len(self.offsets))
        return Nest(self.offsets, (still,) * (least - len(self.loops)) + self.loops)

    def split(self, place: int, longest: int) -> Iterator[Nest]:
        """Nests whose loop at `place` has at most `longest` steps, the rest around it."""
        loop = self.loops[place]
        before, after = self.loops[:place], self.loops[place + 1 :]
        if loop.extent <= longest:
            yield self
            return
        length = _even_length(loop.extent, longest)
        whole, rest = divmod(loop.extent, length)
        steps = tuple(length * stride for stride in loop.strides)
        yield Nest(self.offsets, (*before, Loop(whole, steps), Loop(length, loop.strides), *after))
        if rest:
            moved = tuple(o + whole * s for o, s in zip(self.offsets, steps, strict=True))
            yield Nest(moved, (*before, Loop(rest, loop.strides), *after))


def _even_length(extent: int, longest: int) -> int:
    """The length of equal pieces that are not much shorter than `longest`; if there is none, it."""
    least = -(-extent // longest)
    if least <= longest:
        lengths = [extent // count for count in range(least, 2 * least) if extent % count == 0]
    else:  # the same lengths, found with fewer divisions
        lengths = [n for n in range(extent // (2 * least) + 1, longest + 1) if extent % n == 0]
    return max(lengths, key=lambda n: (n % _LINE == 0, n), default=longest)


def nests(
    dims: Sequence[int], descs: Sequence[MemoryDesc], without: Sequence[int] = ()
) -> list[Nest]:
    """Cover the logical elements of `dims`; a tensor's dim of size 1 is broadcast to them.

    A dim that divides the one of `dims` has an element for several neighbours.

    without: dims of which only the first place is covered.
    """
    ranges = [(0, min(n, 1) if dim in without else n) for dim, n in enumerate(dims)]
    return _cross(ranges, dims, descs)


def padding(desc: MemoryDesc) -> list[Nest]:
    """Cover the elements that pad the dims of `desc` to whole blocks, each once."""
    found = []
    for dim, (size, padded) in enumerate(zip(desc.dims, desc.padded_dims, strict=True)):
        if size < padded:
            ranges = [(0, n) for n in desc.dims[:dim]]
            ranges += [(size, padded), *((0, n) for n in desc.padded_dims[dim + 1 :])]
            found += _cross(ranges, desc.dims, (desc,))
    return found


def _cross(
    ranges: Sequence[tuple[int, int]], dims: Sequence[int], descs: Sequence[MemoryDesc]
) -> list[Nest]:
    """All combinations of the pieces of each dim."""
    if any(start >= stop for start, stop in ranges):
        return []
    pieces = [list(_pieces(dim, dims[dim], *r, descs)) for dim, r in enumerate(ranges)]
    found = []
    for combination in itertools.product(*pieces):
        offsets = [desc.offset0 for desc in descs]
        loops: list[Loop] = []
        for piece in combination:
            offsets = [a + b for a, b in zip(offsets, piece.offsets, strict=True)]
            loops += piece.loops
        found.append(Nest(tuple(offsets), tuple(loops)))
    return found


def _pieces(
    dim: int, size: int, start: int, stop: int, descs: Sequence[MemoryDesc]
) -> Iterator[Nest]:
    """Cut [start, stop) of one dim where any tensor's blocks begin."""

    def offsets(place: int) -> tuple[int, ...]:
        return tuple(_offset(desc, dim, place, size) for desc in descs)

    steps = _block_steps(dim, size, descs)
    if any(a % b for a, b in itertools.pairwise(steps)):
        # Blocks that do not nest, such as 16 and 24, repeat together after their common multiple.
        period = math.lcm(*steps)
        for place in range(start, min(stop, start + period)):
            loop = Loop(-(-(stop - place) // period), offsets(period))
            yield Nest(offsets(place), (loop,))
        return
    place = start
    while place < stop:
        level = next(i for i, s in enumerate(steps) if place % s == 0 and place + s <= stop)
        end = min(stop, place - place % steps[level - 1] + steps[level - 1]) if level else stop
        count = (end - place) // steps[level]
        extents = [count, *(a // b for a, b in itertools.pairwise(steps[level:]))]
        loops = [Loop(n, offsets(s)) for n, s in zip(extents, steps[level:], strict=True)]
        yield Nest(offsets(place), tuple(loops))
        place += count * steps[level]


def _block_steps(dim: int, size: int, descs: Sequence[MemoryDesc]) -> list[int]:
    """Elements of a dim after which some tensor starts a block, largest first, down to 1."""
    steps = {1}
    for desc in descs:
        steps.add(_group(desc, dim, size))
        step = 1
        for blocked, block in reversed(desc.inner_blocks):
            if blocked == dim:
                step *= block
                steps.add(step)
    return sorted(steps, reverse=True)


def _group(desc: MemoryDesc, dim: int, size: int) -> int:
    """How many neighbouring places of a dim share an element of the tensor, if not all do."""
    own = desc.dims[dim]
    divides = 1 < own < size and size % own == 0 and desc.padded_dims[dim] == own
    return size // own if divides else 1


def _offset(desc: MemoryDesc, dim: int, place: int, size: int) -> int:
    """The offset of a place along one dim; 0 if the tensor is broadcast along it."""
    if desc.dims[dim] == 1 and size > 1:
        return 0
    place //= _group(desc, dim, size)
    inside, step = 0, 1
    for blocked, block in reversed(desc.inner_blocks):
        if blocked == dim:
            place, within = divmod(place, block)
            inside += within * step
        step *= block
    return inside + place * desc.strides[dim]


def _joined(outer: Loop, inner: Loop) -> Loop | None:
    """The two loops as one, if they are one in every tensor."""
    if not is_one_loop(outer.strides, inner.strides, inner.extent):
        return None
    return Loop(outer.extent * inner.extent, inner.strides)


# -- inside a task ---------------------------------------------------------------------------------


@device
def seek(table, index, position, starts, tensors, width):
    """Go to the index-th step of a nest.

    position: room for a place per loop. starts: each tensor's address before the first step, an
    int64 each. tensors: `width` int64 per tensor; its address at this step is put into the first.
    """
    loops, count = table.loops, table.tensors
    for t in range(count):
        store_i64(tensors, width * t, load_i64(starts, t))
    for back in range(loops):
        loop = loops - 1 - back
        extent = table.numbers[loop]
        place = index % extent
        index //= extent
        store_i64(position, loop, place)
        _move(table, loops, loop, count, place, tensors, width)


@device
def advance(table, position, tensors, width):
    """Go to the next step; after the last one comes the first."""
    loops, count = table.loops, table.tensors
    for back in range(loops):
        loop = loops - 1 - back
        extent = table.numbers[loop]
        place = load_i64(position, loop) + 1
        steps = 1
        if place == extent:
            place = 0
            steps = 1 - extent
        store_i64(position, loop, place)
        _move(table, loops, loop, count, steps, tensors, width)
        if steps == 1:
            return


@device
def _move(table, loops, loop, count, steps, tensors, width):
    strides = loops + loop * count
    for t in range(count):
        address = load_i64(tensors, width * t) + steps * table.numbers[strides + t]
        store_i64(tensors, width * t, address)
