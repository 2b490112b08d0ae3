"""Decompression: factors of products as f32, f64 or integers in the scratchpad.

Zero points and scales are applied. The step reads tables of places, one per dim and tensor.
Layouts may therefore be blocked, zero points and scales may belong to groups, and elements may
have 4 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.copies.gather import Places, places
from dnncore_cpu_numba.gemm.decompression_kernel import SIDES, DecompressionKernel
from dnncore_cpu_numba.gemm.decompression_task import decompress
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

GRAIN = 4096  # least elements of a thread's part


@dataclass(frozen=True)
class Values:
    """Zero points or scales of a tensor: the argument, and the group sizes along its dims."""

    tensor: Tensor
    groups: Sequence[int]

    def places(self, dim: int, size: int) -> Places:
        """Return the place of the value for each index of a dim."""
        if self.tensor.desc.dims[dim] == 1:
            return np.zeros(size, np.int64)
        return np.repeat(places(self.tensor.desc, dim), self.groups[dim])[:size]


def decompressed(
    plan: ProgramPlan, tensor: Tensor, target: str, zero: Values | None = None,
    scale: Values | None = None, repeats: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """Append a step that computes (tensor - zero points) * scales as another type.

    Returns the result, which is in the scratchpad. It has the dim order of the tensor. repeats: the
    number of copies of each element along each dim, 1 by default.
    """
    desc = tensor.desc
    order = desc.order_tag if desc.is_plain else None
    source = Values(tensor, repeats or (1,) * desc.ndims)
    dims = tuple(map(int.__mul__, desc.dims, source.groups))
    room = plan.scratch(MemoryDesc(dims, target, order))
    read = desc.nbytes + sum(own.tensor.desc.nbytes for own in (zero, scale) if own)
    plan.add(lambda: _step(source, room, zero, scale), read + room.desc.nbytes)
    return room


def _step(source: Values, room: Tensor, zero: Values | None, scale: Values | None) -> Step:
    tensor, dims = source.tensor, room.desc.dims

    def axis(dim: int) -> list[Places]:
        size = dims[dim]
        values = [np.zeros(size, np.int64) if own is None else own.places(dim, size)
                  for own in (zero, scale)]  # fmt: skip
        target = places(room.desc, dim)[:size]
        return [np.repeat(places(tensor.desc, dim), source.groups[dim])[:size], *values, target]

    axes = [axis(dim) for dim in range(len(dims))] or [[np.zeros(1, np.int64)] * len(SIDES)]
    units = [_unit(own) for own in axes]
    inner = max(range(len(axes)), key=lambda dim: (_is_dense(axes[dim], units[dim]), units[dim]))
    unit, dense = units[inner], _is_dense(axes[inner], units[inner])
    steps = _steps(axes[inner])
    kernel = DecompressionKernel(
        tensor.desc.data_type, room.desc.data_type, zero.tensor.desc.data_type if zero else "",
        scale.tensor.desc.data_type if scale else "", steps if dense else None,
    )  # fmt: skip
    outer = [own for dim, own in enumerate(axes) if dim != inner]
    extent = len(axes[inner][0])
    values = {
        "kernel": kernel.address, "src": tensor.address, "dst": room.address,
        "zero": zero.tensor.address if zero else 0, "scale": scale.tensor.address if scale else 0,
        "src_start": tensor.desc.offset0, "units": extent // max(1, unit), "unit": unit,
        **{f"{side}_step": step for side, step in zip(SIDES, steps, strict=True)},
        "inner": _values(axes[inner]), "outer_axes": len(outer),
        "outer": [_values(own) for own in reversed(outer)],
    }  # fmt: skip
    items = math.prod(dims) // max(1, unit)
    return Step(decompress, values, items, grain=max(1, GRAIN // max(1, unit)))


def _values(axis: Sequence[Places]) -> dict[str, object]:
    """Return the values of the axis's `AXIS` record."""
    tables = {side: Table(own) for side, own in zip(SIDES, axis, strict=True)}
    return {"extent": len(axis[0]), **tables}


def _unit(axis: Sequence[Places]) -> int:
    """Return the largest divisor of a dim whose runs of elements are evenly spaced everywhere."""
    size = len(axis[0])
    if size < 2:
        return size
    steps = np.diff(np.stack(axis), axis=1)
    breaks = np.flatnonzero((steps != steps[:, :1]).any(axis=0)) + 1
    return math.gcd(size, *map(int, breaks))


def _steps(axis: Sequence[Places]) -> tuple[int, ...]:
    """Return the distance of the first two elements in each tensor; 1 for a single element."""
    return tuple(int(own[1] - own[0]) if len(own) > 1 else 1 for own in axis)


def _is_dense(axis: Sequence[Places], unit: int) -> bool:
    """Whether units are dense in src and dst, with equal or contiguous zero points and scales."""
    src, zero, scale, dst = _steps(axis)
    return unit > 1 and src == dst == 1 and zero in (0, 1) and scale in (0, 1)
