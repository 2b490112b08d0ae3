"""Plans of statistics of sets: which rows are reduced at once, and in how many parts.

If the innermost dim of x in memory belongs to the sets, a row is reduced to one outcome. Otherwise
a row updates the outcomes of neighbouring sets. The number of parts depends only on the problem, so
results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests
from dnncore_cpu_numba.copies.fill_task import fill_step
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.rows import tasks
from dnncore_cpu_numba.rows.tasks import MOST, MOST_COLUMNS, TENSORS
from dnncore_cpu_numba.runtime.program import Param, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

NAMES = tuple(TENSORS.fields)
NUMBERS = 3  # of an outcome
_PARTS = 64  # least work items if there is enough work
_PART = 1 << 15  # least elements of a part if there are several
_GRAIN = 4096  # least elements of a thread's part


@dataclass(frozen=True)
class _Piece:
    """Rows of sets. outer: over sets, or over rows of sets. places: over the rows of a set."""

    outer: Nest
    places: Nest
    row: Loop
    along: bool

    @property
    def parts(self) -> int:
        """The number of parts of a set."""
        steps = self.places.size
        work = self.outer.size * steps * self.row.extent // _PART
        parts = max(1, min(steps, -(-_PARTS // self.outer.size), work))
        return -(-steps // -(-steps // parts))


class Statistics:
    """The plan for sets of elements of `dims`.

    sets: the dims of the statistics, with 1 for the dims that belong to a set, or a divisor of the
        dim if neighbouring places share a statistic.
    tensors: the tensors of `TENSORS` except target; a dim of size 1 is broadcast.
    """

    def __init__(
        self, dims: Sequence[int], sets: Sequence[int], tensors: Mapping[str, MemoryDesc]
    ) -> None:
        self.sets = tuple(sets)
        still = MemoryDesc((1,) * len(dims), "f32")
        # A `Tensor` has its offset in the address.
        self.descs = [tensors.get(name, still).with_offset0(0) for name in NAMES[1:]]
        target = MemoryDesc(self.sets, "f64")
        self.pieces = [
            piece for nest in nests(dims, [target, *self.descs]) for piece in _pieces(nest)
        ]
        self.slots = max(1, sum(piece.parts for piece in self.pieces))

    @property
    def count(self) -> int:
        """The number of sets."""
        return math.prod(self.sets)

    @property
    def part_bytes(self) -> int:
        """Bytes of the outcomes of a part."""
        return NUMBERS * 8 * self.count

    @property
    def nbytes(self) -> int:
        """Bytes of all outcomes."""
        return self.slots * self.part_bytes

    def steps(
        self, room: Scratch, tensors: Mapping[str, Tensor], kinds: Mapping[bool, Any]
    ) -> Iterator[Step]:
        """Yield the steps that write the outcomes of all parts.

        kinds: whether a row is in a set -> the task.
        """
        if len(self.pieces) != 1:
            yield fill_step(Tensor(room, MemoryDesc((self.nbytes,), "u8")))
        slot = 0
        sizes = [8, *(desc.itemsize for desc in self.descs)]
        addresses = [tensors[name].address if name in tensors else 0 for name in NAMES[1:]]
        for piece in self.pieces:
            target = moved(room, slot * self.part_bytes)
            starts = dict(zip(NAMES, [target, *addresses], strict=True))
            offsets = zip(starts.items(), sizes, piece.outer.offsets, strict=True)
            per_part = -(-piece.places.size // piece.parts)
            values = {
                "results": piece.outer.table(sizes), "places": piece.places.table(sizes),
                "steps": piece.places.size, "parts": piece.parts, "per_part": per_part,
                "count": piece.row.extent, "part_bytes": self.part_bytes, "plane": 8 * self.count,
                "strides": piece.row.strides, "sizes": sizes,
                "kernels": [0, *(conversion(desc.data_type, "f32") for desc in self.descs)],
                "starts": {
                    name: moved(start, size * offset) if start else 0
                    for (name, start), size, offset in offsets
                },
            }  # fmt: skip
            items = piece.outer.size * piece.parts
            grain = -(-_GRAIN // (per_part * piece.row.extent))
            yield Step(kinds[piece.along], values, items, grain=grain)
            slot += piece.parts

    def combined(self, room: Scratch, is_sum: bool, epsilon: float, *targets: Param) -> Step:
        """Return the step that combines the parts. targets: of `COMBINE`."""
        first, second, third = (*targets, 0)[:3]
        values = {
            "source": room, "parts": self.slots, "part_bytes": self.part_bytes,
            "plane": 8 * self.count, "is_sum": is_sum, "first": first, "second": second,
            "third": third, "epsilon": epsilon,
        }  # fmt: skip
        return Step(tasks.combine, values, self.count, grain=256)


def _pieces(nest: Nest) -> Iterator[_Piece]:
    loops = [loop for loop in nest.loops if loop.extent > 1]
    inside = [loop for loop in loops if loop.strides[0] == 0]
    beside = [loop for loop in loops if loop.strides[0] != 0]
    none = (0,) * len(nest.offsets)
    places = Nest(none, tuple(inside)).ordered(1)
    results = Nest(nest.offsets, tuple(beside)).ordered(1)

    def step(found: Nest) -> float:
        return found.loops[-1].strides[1] if found.loops else math.inf

    if step(places) <= step(results):
        for part in places.rows(MOST):
            moved_to = tuple(a + b for a, b in zip(results.offsets, part.offsets, strict=True))
            outer = Nest(moved_to, results.loops)
            yield _Piece(outer, Nest(none, part.without(1).loops), part.loops[-1], True)
    else:
        for part in results.rows(MOST_COLUMNS):
            yield _Piece(part.without(1), places, part.loops[-1], False)
