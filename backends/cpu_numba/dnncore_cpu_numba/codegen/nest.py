"""Nests: tensors of any layout as rectangular loop nests with one stride per loop and tensor.

A blocked layout splits a dim into loops. With blocks of 16, element i is in block i // 16 at place
i % 16. 20 elements are then a loop of one whole block with 16 elements, and a remainder of 4. If
one tensor is split at a place, all tensors are, so that each has one stride per loop. One or a few
nests cover the tensors of an element-wise operation in any layouts. Along a dim in which a tensor
is broadcast, its stride is 0. The second half of this file iterates over a nest inside a task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dnncore.backend import BuildError, MemoryDesc
from dnncore.planning.loops import is_one_loop, merged
from dnncore_cpu_numba.codegen.call_schema import Many, Record, Table
from dnncore_cpu_numba.codegen.pointers import load_i64, store_i64
from dnncore_cpu_numba.codegen.task import device

_LINE = 16  # elements of a cache line for four-byte types
MAX_LOOPS = 64  # most loops of a nest; 12 dims with blocks of several tensors need fewer
NEST = Record(
    "nest",
    ("loops tensors", "count"),
    ("numbers", Many("bytes"), "each loop's extent, then each loop's stride for each tensor"),
)


@dataclass(frozen=True)
class Loop:
    """A loop of `extent` steps. strides: one per tensor, in elements."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """Loops, the outermost first. offsets: of the first element in each tensor, in elements."""

    offsets: tuple[int, ...]
    loops: tuple[Loop, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(loop.extent for loop in self.loops)

    def without(self, loops: int) -> Nest:
        """Return the nest without its `loops` innermost loops."""
        return Nest(self.offsets, self.loops[: len(self.loops) - loops])

    def table(self, itemsizes: Sequence[int]) -> Table:
        """Return the `NEST` that `seek` and `advance` read. Raises `BuildError`."""
        if len(self.loops) > MAX_LOOPS:
            raise BuildError(f"nests have at most {MAX_LOOPS} loops; got {len(self.loops)}")
        strides = [
            s * n for loop in self.loops for s, n in zip(loop.strides, itemsizes, strict=True)
        ]
        extents = [loop.extent for loop in self.loops]
        sizes = {"loops": len(extents), "tensors": len(itemsizes)}
        return Table(NEST.table([sizes | {"numbers": [*extents, *strides]}]))

    def ordered(self, lead: int = 0) -> Nest:
        """Return a nest in the memory order of tensor `lead`, with neighbouring loops joined."""
        loops = sorted(self.loops, key=lambda loop: -loop.strides[lead])
        return Nest(self.offsets, merged((loop for loop in loops if loop.extent > 1), _joined))

    def rows(self, longest: int) -> Iterator[Nest]:
        """Yield one or two nests whose innermost loop, the row, has at most `longest` steps."""
        nest = self._with_loops(1)
        yield from nest.split(len(nest.loops) - 1, longest)

    def tiles(self, largest: int) -> Iterator[Nest]:
        """Yield nests whose two innermost loops together have at most `largest` steps."""
        nest = self._with_loops(2)
        for part in nest.split(len(nest.loops) - 1, largest):
            yield from part.split(len(part.loops) - 2, largest // part.loops[-1].extent)

    def _with_loops(self, least: int) -> Nest:
        still = Loop(1, (0,) * len(self.offsets))
        return Nest(self.offsets, (still,) * (least - len(self.loops)) + self.loops)

    def split(self, place: int, longest: int) -> Iterator[Nest]:
        """Yield nests in which the loop at `place` is split into loops of at most `longest`."""
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
    """Return the length of equal pieces not much shorter than `longest`, else `longest`."""
    least = -(-extent // longest)
    if least <= longest:
        lengths = [extent // count for count in range(least, 2 * least) if extent % count == 0]
    else:  # finds the same lengths with fewer divisions
        lengths = [n for n in range(extent // (2 * least) + 1, longest + 1) if extent % n == 0]
    return max(lengths, key=lambda n: (n % _LINE == 0, n), default=longest)


@dataclass(frozen=True)
class Shift:
    """Where the elements of a nest begin in each tensor along one dim: at its place `starts`."""

    dim: int
    starts: tuple[int, ...]


def nests(
    dims: Sequence[int],
    descs: Sequence[MemoryDesc],
    without: Sequence[int] = (),
    shift: Shift | None = None,
) -> list[Nest]:
    """Return nests that cover the logical elements of `dims`.

    A tensor's dim of size 1 is broadcast. If a tensor's dim divides the dim of `dims`, each of its
    elements serves several neighbouring places.

    without: dims of which only place 0 is covered. shift: for parts of larger tensors.
    """
    ranges = [(0, min(n, 1) if dim in without else n) for dim, n in enumerate(dims)]
    return _cross(ranges, dims, descs, shift)


def places(desc: MemoryDesc, dim: int, indices: Iterable[int]) -> list[int]:
    """Return the offsets of places along one dim, in elements."""
    size = desc.dims[dim]
    return [_offset(desc, dim, int(index), size) for index in indices]


def padding(desc: MemoryDesc) -> list[Nest]:
    """Return nests that cover each padding element of `desc` once."""
    found = []
    for dim, (size, padded) in enumerate(zip(desc.dims, desc.padded_dims, strict=True)):
        if size < padded:
            ranges = [(0, n) for n in desc.dims[:dim]]
            ranges += [(size, padded), *((0, n) for n in desc.padded_dims[dim + 1 :])]
            found += _cross(ranges, desc.dims, (desc,))
    return found


def _cross(
    ranges: Sequence[tuple[int, int]],
    dims: Sequence[int],
    descs: Sequence[MemoryDesc],
    shift: Shift | None = None,
) -> list[Nest]:
    """Return nests of all combinations of the pieces of the dims."""
    if any(start >= stop for start, stop in ranges):
        return []
    pieces = [
        list(_shifted(dim, dims[dim], shift.starts, descs))
        if shift and dim == shift.dim
        else list(_pieces(dim, dims[dim], *r, descs))
        for dim, r in enumerate(ranges)
    ]
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
    """Divide [start, stop) of one dim at the block boundaries of all tensors."""

    def offsets(place: int) -> tuple[int, ...]:
        return tuple(_offset(desc, dim, place, size) for desc in descs)

    steps = _block_steps(dim, size, descs)
    if any(a % b for a, b in itertools.pairwise(steps)):
        # Blocks that do not nest, such as 16 and 24, repeat after their least common multiple.
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


def _shifted(
    dim: int, size: int, starts: Sequence[int], descs: Sequence[MemoryDesc]
) -> Iterator[Nest]:
    """Divide `size` places of one dim, which begin at another place of each tensor.

    The pieces end at the boundaries of the tensors' innermost blocks. Their pattern is repeated
    after the least common multiple of all blocks.
    """
    blocks = [[block for blocked, block in desc.inner_blocks if blocked == dim] for desc in descs]
    period = math.lcm(*(math.prod(own) for own in blocks))
    if all(start % math.prod(own) == 0 for start, own in zip(starts, blocks, strict=True)):
        moved = [_offset(d, dim, start, size) for d, start in zip(descs, starts, strict=True)]
        for piece in _pieces(dim, size, 0, size, descs):
            yield Nest(tuple(map(int.__add__, piece.offsets, moved)), piece.loops)
        return

    def offsets(place: int) -> tuple[int, ...]:
        places = zip(descs, starts, strict=True)
        return tuple(_offset(desc, dim, start + place, size) for desc, start in places)

    def strides(place: int, step: int) -> tuple[int, ...]:
        return tuple(map(int.__sub__, offsets(place + step), offsets(place)))

    cuts = {
        cut
        for start, own in zip(starts, blocks, strict=True)
        if own
        for cut in range(-start % own[-1], min(size, period), own[-1])
    }
    ends = sorted({0, *cuts, period})
    for begin, end in itertools.pairwise(ends):
        whole = max(0, size - end + period) // period
        inner = Loop(end - begin, strides(begin, 1 if end > begin + 1 else 0))
        if whole:
            yield Nest(offsets(begin), (Loop(whole, strides(begin, period)), inner))
        last = begin + whole * period
        if last < size:
            yield Nest(offsets(last), (Loop(size - last, inner.strides),))


def _block_steps(dim: int, size: int, descs: Sequence[MemoryDesc]) -> list[int]:
    """Return the block sizes of all tensors along a dim in elements, in descending order to 1."""
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
    """Return the number of neighbouring places that share an element; 1 for a broadcast dim."""
    own = desc.dims[dim]
    divides = 1 < own < size and size % own == 0 and desc.padded_dims[dim] == own
    return size // own if divides else 1


def _offset(desc: MemoryDesc, dim: int, place: int, size: int) -> int:
    """Return the offset of a place along one dim; 0 if the tensor is broadcast along it."""
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
    """Return two loops joined to one, None if this is not possible in every tensor."""
    if not is_one_loop(outer.strides, inner.strides, inner.extent):
        return None
    return Loop(outer.extent * inner.extent, inner.strides)


# -- inside a task ---------------------------------------------------------------------------------


@device
def seek(table, index, position, starts, tensors, width):
    """Go to step number `index` of a nest.

    position: memory for one place per loop. starts: the address of each tensor at step 0, as int64.
    tensors: `width` int64 per tensor; the first one receives the tensor's address at this step.
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
    """Go to the next step. The last step is followed by the first."""
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
