"""Activations as matrices: a row per channel, a column per pixel, as plain formats have them."""

from __future__ import annotations

import math

from dnncore.backend import Attributes, MemoryDesc
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import as_5d
from dnncore_cpu_numba.gemm.plan import ProgramPlan, has_sum
from dnncore_cpu_numba.runtime.tensor import Tensor


def read_bias(plan: ProgramPlan, tensor: Tensor, g: Geometry) -> Tensor:
    """A bias as (1, G, channels, 1)."""
    return plan.read(tensor, "a").seen_as(MemoryDesc((1, g.groups, g.oc, 1)))


def read_matrices(plan: ProgramPlan, tensor: Tensor, g: Geometry) -> Tensor:
    """An activation as (N, G, channels, pixels)."""
    tensor = tensor.seen_as(as_5d(tensor.desc))
    if not _has_rows(tensor.desc):
        tensor = plan.read(tensor, tensor.desc.with_format("abcde"))
    return _as_matrices(tensor, g.groups)


def write_matrices(plan: ProgramPlan, tensor: Tensor, g: Geometry, attr: Attributes) -> Tensor:
    """An output, or room for it, as (N, G, channels, pixels)."""
    tensor = tensor.seen_as(as_5d(tensor.desc))
    wanted = None if _has_rows(tensor.desc) else tensor.desc.with_format("abcde")
    return _as_matrices(plan.write(tensor, wanted, old=has_sum(attr)), g.groups)


def read_operand(plan: ProgramPlan, tensor: Tensor, g: Geometry) -> Tensor:
    """A post-op's operand as (N, G, channels, pixels of dst), any of which may be 1."""
    tensor = tensor.seen_as(as_5d(tensor.desc))
    pixels = tensor.desc.dims[2:]
    if pixels not in ((1, 1, 1), g.dst) or not _has_rows(tensor.desc):
        full = (1, 1, 1) if pixels == (1, 1, 1) else g.dst
        tensor = plan.read(tensor, MemoryDesc((*tensor.desc.dims[:2], *full)), expand=True)
    return _as_matrices(tensor, g.groups)


def _has_rows(desc: MemoryDesc) -> bool:
    """Whether the pixels of each channel lie dense and in order."""
    dense = MemoryDesc(desc.dims).strides
    return desc.is_plain and all(
        size == 1 or given == wanted
        for size, given, wanted in zip(desc.dims[2:], desc.strides[2:], dense[2:], strict=True)
    )


def _as_matrices(tensor: Tensor, groups: int) -> Tensor:
    """An activation that has rows as (N, G, channels, pixels)."""
    n, c, *spatial = tensor.desc.dims
    batch, channel = tensor.desc.strides[:2]
    if c == 1:
        groups, channel = 1, 0
    per_group = c // groups
    desc = MemoryDesc(
        (n, groups, per_group, math.prod(spatial)),
        strides=(batch if n > 1 else 0, per_group * channel, channel, 1),
    )
    return tensor.seen_as(desc)
