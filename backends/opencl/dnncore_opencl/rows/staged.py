"""The plan of statistics in one stage or two: each result is combined from terms.

The terms of a result are divided into boxes. If there are too few results to keep the device busy,
several work-items compute a part of the boxes each. A second kernel combines their results in
order, so results do not depend on timing. Vectors are along the terms if these are contiguous,
otherwise along the results. On GPUs a work-group shares a result whose terms are contiguous.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dnncore_opencl.codegen.grid import Boxes, Shares, power_of_two
from dnncore_opencl.codegen.layout import Digit, Loop, Nest

BOX = 4096  # terms per box; separate sums of boxes lose fewer digits
LONE_BOX = 64  # terms per GPU work-item if terms are not contiguous
CPU_TASKS = 4  # work-items per core, so that cores end together
GPU_TASKS = 8  # per multiprocessor
TASK = 128  # work-items per task if terms are contiguous
GROUP = 64  # work-items if terms are contiguous and few
LARGEST_GROUP = 256
FEWEST = 4  # workers per row: more were up to 20 % slower, fewer with long vectors 10 % slower
LINE = 8  # contiguous elements that are read together by workers shared across elements
ACROSS = 32  # neighbouring work-items across elements
TERMS_EACH = 16  # loads per worker that justify its part in combining


@dataclass(frozen=True)
class Stage:
    """One launch: the boxes of each result's terms, in `parts` for work-items or work-groups.

    lanes: terms that are combined at once. shares: the work-items of a result's part.
    """

    boxes: Boxes
    lanes: int
    shares: Shares
    parts: int

    @property
    def boxes_per_part(self) -> int:
        """Boxes per part. The last part may have fewer."""
        return -(-self.boxes.items // self.parts)


class Staged:
    """The division of work.

    kept: the loops over results. terms: the loops over the terms of a result.
    """

    engine: Any
    kept: Nest
    terms: Nest
    gpu_tasks = GPU_TASKS
    lone_box = LONE_BOX

    @property
    @abstractmethod
    def side(self) -> int:
        """How many neighbouring results are computed at once."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """How many neighbouring terms are combined at once."""

    @property
    def along(self) -> bool:
        """Whether terms are contiguous."""
        return self.terms.loops[-1].strides[0] == 1

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the loops over results. The innermost counts vectors."""
        *outer, inner = [1, *(loop.size for loop in self.kept.loops)]
        return [*outer, -(-inner // self.side)][-len(self.kept.loops) or 1 :]

    @cached_property
    def elements(self) -> int:
        """The number of vectors of results."""
        return math.prod(self.sizes)

    @cached_property
    def first(self) -> Stage:
        """The stage over the terms."""
        lanes = self.lanes
        shares = self._shares(min(self.terms.loops[-1].size, BOX) // lanes, along=self.along)
        in_rows = self.along or self.engine.is_cpu
        boxes = _boxes(self.terms, BOX if in_rows else self.lone_box * shares.workers)
        units = self.engine.device.limits["compute_units"]
        tasks = units * (CPU_TASKS if self.engine.is_cpu else self.gpu_tasks)
        if shares.across:  # so that the second stage reads less
            tasks //= 2
        if not self.engine.is_cpu and shares.workers == 1:
            tasks *= LARGEST_GROUP
        elif not self.engine.is_cpu:
            tasks *= shares.span if shares.across else max(1, TASK // shares.workers)
        parts = min(boxes.items, -(-tasks // self.elements))
        return Stage(boxes, lanes, shares, -(-boxes.items // -(-boxes.items // parts)))

    @cached_property
    def second(self) -> Stage:
        """The stage over the parts' results: vectors of results, part by part."""
        parts = self.first.parts
        loop = Loop(0, 1, parts, ((Digit(parts, self.elements * self.side),),))
        nest = Nest((parts,), (parts,), (loop,), (), ())
        return Stage(_boxes(nest, BOX), 1, self._shares(parts, along=False, span=LINE), 1)

    def _shares(self, vectors: int, *, along: bool, span: int = ACROSS) -> Shares:
        """Share results with `vectors` vectors of terms each among work-items.

        along: whether terms are contiguous. Otherwise `span` results are read side by side.
        """
        if self.engine.is_cpu:
            return Shares()
        workers = power_of_two(-(-vectors // TERMS_EACH))
        if along:
            workers = min(max(workers, min(FEWEST, power_of_two(vectors))), LARGEST_GROUP)
            return Shares(workers, max(1, GROUP // workers))
        span = min(span, power_of_two(self.elements))
        return Shares(min(workers, LARGEST_GROUP // span), span, across=True)

    def names(self, last: str = "") -> list[str]:
        """Return the variables of the loops over results. last: instead of the innermost one."""
        names = [f"k{i}" for i in range(len(self.kept.loops))]
        return [*names[:-1], last] if names and last else names


def with_a_loop(nest: Nest, tensors: int = 1) -> Nest:
    """Return the nest of some tensors, with a loop of one iteration if it has none."""
    if nest.loops:
        return nest
    return replace(nest, loops=(Loop(0, 1, 1, ((Digit(1, 0),),) * tensors),))


def _boxes(nest: Nest, size: int) -> Boxes:
    """Return boxes of about `size` terms."""
    return Boxes(nest, max(1, size // nest.loops[-1].size), size)
