"""Copies of f32 by tables of places, for targets whose shape differs from the source's.

Such targets are images with borders, packed weights and column matrices. In all layouts of dnncore,
the place of an element is a sum of one term per dim. A copy is therefore a list of axes. An axis
has a table of places for the source and one for the target. An axis can also enumerate the taps or
the pixels of a window. Indices outside the source become zero: borders and the padding of blocked
formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.copies.gather_task import ACROSS, ALONG, SCATTERED, copy
from dnncore_cpu_numba.copies.intrinsics import WIDTH
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

Places = np.ndarray[Any, Any]
LONGEST_AXIS = 1 << 16  # most indices of joined axes: half a megabyte of places
GRAIN = 4096  # least elements of a thread's part


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a copy: the places of indices 0, 1, ... in source and target, in elements.

    source: the places of the indices `start`, `start + 1`, ... Other indices write zeros.
    """

    source: Places
    target: Places
    start: int = 0

    @property
    def steps(self) -> tuple[int, int]:
        """The distance of the first two places in source and target."""
        return _first_step(self.source), _first_step(self.target)

    @property
    def stretch(self) -> int:
        """The length of runs of indices with even spacing in source and target."""
        both = math.gcd(_stretch(self.source, self.start), _stretch(self.target))
        return both or len(self.target)

    @property
    def target_stretch(self) -> int:
        """`stretch` for the target alone."""
        return _stretch(self.target) or len(self.target)

    def joined(self, inner: Axis) -> Axis:
        """Return one axis that runs through `inner` for each index of this axis."""
        return Axis(
            np.add.outer(self.source, inner.source).ravel(),
            np.add.outer(self.target, inner.target).ravel(),
            self.start * len(inner.target),
        )

    def split(self) -> list[Axis]:
        """Split an axis of equal, evenly spaced stretches: over stretches, and within a stretch.

        Otherwise returns this axis alone.
        """
        size, stretch = len(self.target), self.stretch
        whole = self.start == 0 and len(self.source) == size
        if not whole or stretch == size or size % stretch or stretch % WIDTH:
            return [self]
        outer = Axis(self.source[::stretch], self.target[::stretch])
        inner = (values[:stretch] - values[0] for values in (self.source, self.target))
        return [outer, Axis(*inner)]

    def continues(self, inner: Axis, side: str) -> bool:
        """Whether one step of this axis continues `inner`, in source or target."""
        own, other = getattr(self, side), getattr(inner, side)
        whole = inner.start == 0 and len(inner.source) == len(inner.target)
        return (
            whole
            and 1 < len(own) * len(other) <= LONGEST_AXIS
            and not (_stretch(own) or _stretch(other))
            and _first_step(own) == len(other) * _first_step(other)
        )


LONE = Axis(np.zeros(1, np.int64), np.zeros(1, np.int64))


def _first_step(values: Places) -> int:
    return int(values[1] - values[0]) if len(values) > 1 else 1


def _stretch(values: Places, start: int = 0) -> int:
    """Return the greatest common divisor of the indices where the spacing changes, 0 if none."""
    breaks = np.flatnonzero(np.diff(values) != _first_step(values)) + start + 1
    return math.gcd(*breaks.tolist())


def places(desc: MemoryDesc, dim: int) -> Places:
    """Return the offset of each index of a dim with padding, in elements, without offset0."""
    index = np.arange(desc.padded_dims[dim])
    step = math.prod(size for _, size in desc.inner_blocks)
    whole = math.prod(size for d, size in desc.inner_blocks if d == dim)
    result = index // whole * desc.strides[dim]
    for d, size in desc.inner_blocks:
        step //= size
        if d == dim:
            whole //= size
            result += index // whole % size * step
    return result.astype(np.int64)


def gather_tensor_step(
    source: Tensor,
    target: Tensor,
    starts: Sequence[int] | None = None,
    *,
    expand: bool = False,
    order: Sequence[int] | None = None,
) -> Step:
    """Return a step that copies a tensor into another layout: target[i] = source[i - start].

    The target's dims may be larger, which leaves a border of zeros, or smaller, which cuts the
    source off.
    expand: the source is repeated along dims of size 1.
    order: for each index of dim 1 of the target, the index in the source.
    """
    axes = []
    for dim, start in enumerate(starts or [0] * target.desc.ndims):
        size, wanted = source.desc.dims[dim], target.desc.dims[dim]
        read = places(source.desc, dim)
        if order is not None and dim == 1:
            read = read[list(order)]
        read = read[: min(size, max(0, wanted - start))]
        if expand and size == 1:
            read = np.repeat(read, wanted)
        axes.append(Axis(read, places(target.desc, dim), start))
    return gather_step(source.address, target.address, axes)


def gather_step(source: Param, target: Param, axes: Sequence[Axis]) -> Step:
    """Return a step that copies float32 along axes. source, target: the addresses of place 0."""
    *outer, middle, inner = axes = _ordered(axes)
    mode, unit = _mode(middle, inner)
    values = {
        "source": source, "target": target, "mode": mode, "unit": unit,
        "step_from": inner.steps[0], "step_to": inner.steps[1], "middle_stretch": middle.stretch,
        "middle_step_to": middle.steps[1], "outer_axes": len(outer),
        "inner": _values(inner), "middle": _values(middle),
        "outer": [_values(axis) for axis in reversed(outer)],
    }  # fmt: skip
    size = max(1, len(inner.target))
    rows = math.prod(len(axis.target) for axis in axes) // size
    return Step(copy, values, rows, grain=max(1, GRAIN // size))


def _values(axis: Axis) -> dict[str, Any]:
    """Return the values of the axis's `AXIS` record."""
    source, target = (Table(np.ascontiguousarray(side)) for side in (axis.source, axis.target))
    return {
        "source": source, "target": target, "extent": len(axis.target),
        "start": axis.start, "stop": axis.start + len(axis.source),
    }  # fmt: skip


def _mode(middle: Axis, inner: Axis) -> tuple[int, int]:
    """Return the mode of the task, and the size of a unit of the inner axis."""
    from_step, to_step = inner.steps
    across = from_step != 1 == to_step and middle.steps[0] == 1 and middle.stretch >= WIDTH
    if across and inner.target_stretch >= WIDTH:
        return ACROSS, inner.target_stretch
    if inner.stretch >= min(WIDTH, len(inner.target)):
        return ALONG, max(1, inner.stretch)
    return SCATTERED, max(1, len(inner.target))


def _ordered(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes in loop order.

    The two innermost axes are the densest ones in target and source. The longer of them is last.
    Both are joined with the axes that continue them.
    """

    def density(values: Places) -> int:
        return -int(np.abs(np.diff(values)).min()) if len(values) > 1 else -(1 << 62)

    rest = [part for axis in axes for part in axis.split()]
    inner = max(rest, key=lambda axis: density(axis.target))
    middle = max(rest, key=lambda axis: density(axis.source))
    rest.remove(inner)
    if middle is inner:  # densest in both: join it first, then select the middle from the rest
        inner = _join(rest, inner, "target")
        middle = max(rest, key=lambda axis: density(axis.source), default=LONE)
    if middle is not LONE:
        rest.remove(middle)
    inner = _join(rest, inner, "target")
    middle = _join(rest, middle, "source")
    if len(inner.target) < WIDTH // 2 < len(middle.target):
        inner, middle = middle, inner
    return [*sorted(rest, key=lambda axis: density(axis.target)), middle, inner]


def _join(axes: list[Axis], axis: Axis, side: str) -> Axis:
    """Join an axis with the axes of a list that continue it, and remove them from the list."""
    while outer := next((other for other in axes if other.continues(axis, side)), None):
        axes.remove(outer)
        axis = outer.joined(axis)
    return axis
