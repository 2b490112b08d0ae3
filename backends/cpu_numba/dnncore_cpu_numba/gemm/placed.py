"""Copies of tensors of any type into a part of a tensor. The rest of the target is filled."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore_cpu_numba.copies.fill_task import fill_step
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import zero_padding
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor


def placed_steps(
    source: Tensor, target: Tensor, starts: Sequence[int] | None = None, *, flipped: bool = False
) -> list[Step]:
    """Return steps that copy a tensor into another layout: target[i] = source[i - start].

    The target's dims may be larger, which leaves a border, or smaller, which cuts the source off.
    The border and padding become zero. A target with a border must be in the scratchpad. flipped:
    as in `CopyKernel`; the border then becomes 128.
    """
    byte = 128 if flipped else 0
    starts = starts or [0] * target.desc.ndims
    sizes = zip(source.desc.dims, target.desc.dims, starts, strict=True)
    common = tuple(min(size, max(0, wanted - start)) for size, wanted, start in sizes)
    if 0 in common:
        return [fill_step(target, byte)]
    part = target.seen_as(target.desc.submemory(common, starts))
    copies = copy_steps(part, source, flipped=flipped)
    if isinstance(target.address, Scratch):
        return [fill_step(target, byte), *copies]
    return [*copies, *zero_padding(target)]
