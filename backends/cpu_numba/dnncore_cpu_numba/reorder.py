"""Reorder: dst = src in another format or data type; the copying itself is in three files.

Layouts that transpose go by tiles (`transpose.py`), others of one type are a chain without
stages (`chains.py`), all else goes through a buffer (`convert.py`).
"""

from __future__ import annotations

import itertools
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba.chains import chain_steps, zero_padding
from dnncore_cpu_numba.convert import convert_steps
from dnncore_cpu_numba.convolution_winograd_weights import WinogradReorder
from dnncore_cpu_numba.elementwise import refuse_layouts
from dnncore_cpu_numba.native import cpu_features
from dnncore_cpu_numba.nest import nests
from dnncore_cpu_numba.plan import Tensor
from dnncore_cpu_numba.post_ops import stages_of
from dnncore_cpu_numba.program import Arg, Program, Scratch, Step
from dnncore_cpu_numba.transpose import transpose_steps

__all__ = ["TABLE"]

SRC, DST = 0, 1  # binding order
_ALIGNMENT = 64  # bytes
_WORTH_STEPS = 1 << 14  # elements that take longer than the launches of two more steps


class SimdReorder(Implementation):
    """Copy, transpose and convert in native tiles."""

    name = "cpu_numba:simd"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides; post-ops from f32 to f32."""
        operands = [desc for _, desc in attr.operands()]
        refusal = refuse_layouts([op.src, op.dst, *operands], op.dst)
        if refusal := refusal or _refuse_halves(op):
            return refusal
        if attr.post_ops and {op.src.data_type, op.dst.data_type} != {"f32"}:
            types = f"{op.src.data_type} to {op.dst.data_type}"
            return Refused("attribute", f"applies post-ops from f32 to f32 only; got {types}")
        return Accepted(
            op,
            build=lambda: self._build(op, attr, engine.num_threads),
            efficiency=_efficiency(op),
            scratchpad_bytes=sum(tensor.desc.nbytes + _ALIGNMENT for tensor in _hops(op)[1:-1]),
        )

    def _build(self, op: Any, attr: Attributes, num_threads: int) -> Executable:
        if attr.post_ops:
            tensors = [(DST, op.dst), (SRC, op.src)]
            tensors += enumerate([desc for _, desc in attr.operands()], 2)
            steps = chain_steps(op.dst.dims, tensors, stages_of(attr.post_ops, 2))
        else:
            pairs = itertools.pairwise(_hops(op))
            steps = [step for src, dst in pairs for step in _copied(dst, src)]
            steps += zero_padding(DST, op.dst)
        return Program(steps, num_threads)


def _refuse_halves(op: Any) -> Refused | None:
    """LLVM calls a library for f16 where an x86 processor does not convert it."""
    if "f16" in (op.src.data_type, op.dst.data_type) and "-f16c" in cpu_features().split(","):
        return Refused("device", "the processor lacks f16c, which converts f16")
    return None


def _hops(op: Any) -> list[Tensor]:
    """src, what lies in the scratchpad on the way, and dst.

    Only four-byte elements are transposed by tiles, so that a conversion is a step of its own.
    """
    tensors, nbytes = [Tensor(Arg(SRC), op.src)], 0
    for desc in _between(op.src, op.dst):
        tensors.append(Tensor(Scratch(nbytes), desc))
        nbytes += -(-desc.nbytes // _ALIGNMENT) * _ALIGNMENT
    return [*tensors, Tensor(Arg(DST), op.dst)]


def _between(src: MemoryDesc, dst: MemoryDesc) -> list[MemoryDesc]:
    """What src is to become before it is dst: nothing, if it need not be transposed too."""
    types = (src.data_type, dst.data_type)
    if (types[0] == types[1] and src.itemsize == 4) or src.nelems < _WORTH_STEPS:
        return []
    if src.itemsize == 4:
        way = [dst.with_data_type(types[0])]
    elif dst.itemsize == 4:
        way = [src.with_data_type(types[1])]
    elif "f64" not in types:
        way = [src.with_data_type("f32"), dst.with_data_type("f32")]
    else:
        return []
    if refuse_layouts((), *way) or not _transposed(Tensor(Arg(DST), dst), Tensor(Arg(SRC), src)):
        return []
    return way


def _transposed(dst: Tensor, src: Tensor) -> list[Step]:
    """The steps of dst = src by tiles; none where that does not serve."""
    pieces = [nest.ordered() for nest in nests(dst.desc.dims, (dst.desc, src.desc))]
    tiles = [transpose_steps(nest, (dst.address, src.address)) for nest in pieces]
    return [step for steps in tiles for step in steps or ()] if all(tiles) else []


def _copied(dst: Tensor, src: Tensor) -> list[Step]:
    """The steps of dst = src, whatever is in dst's padding."""
    if src.desc.data_type != dst.desc.data_type or src.desc.itemsize != 4:
        return convert_steps(dst.desc, src.desc, (dst.address, src.address))
    tensors = [(dst.address, dst.desc), (src.address, src.desc)]
    return _transposed(dst, src) or chain_steps(dst.desc.dims, tensors, [])


def _efficiency(op: Any) -> float:
    """Measured on 2 cores."""
    return 0.6 if op.src.data_type == op.dst.data_type else 0.3


TABLE = (SimdReorder(), WinogradReorder())
