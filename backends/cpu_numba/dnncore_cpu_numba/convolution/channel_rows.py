"""Plain activations as matrices: one row per channel, one column per pixel."""

from __future__ import annotations

import math

from dnncore.backend import Attributes, Convolution, MemoryDesc
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry, Triple
from dnncore_cpu_numba.convolution.image import as_5d
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.quantization import Terms
from dnncore_cpu_numba.runtime.tensor import Tensor


def read_terms(plan: ProgramPlan, op: Convolution, attr: Attributes, g: Geometry) -> Terms:
    """Return post-ops, and bias, scales and zero points as (1, G, channels, 1) or one value."""

    def as_dst(name: str, tensor: Tensor) -> Tensor:
        if name == "bias":
            tensor = plan.read(tensor, "a")
        several = tensor.desc.nelems > 1
        dims = (1, g.groups, g.oc, 1) if several else (1, 1, 1, 1)
        return tensor.seen_as(MemoryDesc(dims, tensor.desc.data_type))

    return Terms.of(plan, op, attr, as_dst, _read_operands(plan, attr, g))


def read_matrices(plan: ProgramPlan, tensor: Tensor, g: Geometry) -> Tensor:
    """Return an activation as (N, G, channels, pixels)."""
    tensor = as_5d(tensor)
    return _as_matrices(plan.read(tensor, _with_rows(tensor.desc)), g.groups)


def write_matrices(plan: ProgramPlan, tensor: Tensor, g: Geometry, attr: Attributes) -> Tensor:
    """Return an output, or a tensor for it, as (N, G, channels, pixels)."""
    tensor = as_5d(tensor)
    tensor = plan.write(tensor, _with_rows(tensor.desc), old=attr.reads_dst)
    return _as_matrices(tensor, g.groups)


def _read_operands(plan: ProgramPlan, attr: Attributes, g: Geometry) -> list[Tensor]:
    """Return the post-ops' operands as (N, G, channels, pixels of dst). Any dim may be 1."""
    operands = map(as_5d, plan.operands(attr))
    return [_as_matrices(_with_pixels(plan, operand, g.dst), g.groups) for operand in operands]


def _with_pixels(plan: ProgramPlan, tensor: Tensor, pixels: Triple) -> Tensor:
    """Return a tensor with this number of pixels, or with one if it is broadcast along all."""
    dims = tensor.desc.dims
    wanted = MemoryDesc((*dims[:2], *(ONES if dims[2:] == ONES else pixels)))
    serves = wanted.dims == dims and _with_rows(tensor.desc) is None
    return tensor if serves else plan.read(tensor, wanted, expand=True)


def _with_rows(desc: MemoryDesc) -> MemoryDesc | None:
    """Return the plain layout, None if the pixels of each channel are dense and in order."""
    plain = desc.with_format("abcde")
    spatial = zip(desc.dims[2:], desc.strides[2:], plain.strides[2:], strict=True)
    has_rows = all(size == 1 or given == wanted for size, given, wanted in spatial)
    return None if desc.is_plain and has_rows else plain


def _as_matrices(tensor: Tensor, groups: int) -> Tensor:
    """Return an activation with contiguous pixels as (N, G, channels, pixels)."""
    n, c, *spatial = tensor.desc.dims
    batch, channel = tensor.desc.strides[:2]
    if c == 1:
        groups, channel = 1, 0
    per_group = c // groups
    desc = MemoryDesc(
        (n, groups, per_group, math.prod(spatial)),
        tensor.desc.data_type,
        strides=(batch if n > 1 else 0, per_group * channel, channel, 1),
    )
    return tensor.seen_as(desc)
