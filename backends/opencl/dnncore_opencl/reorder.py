"""Reorder: dst = src in another format or data type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dnncore import backend as core
from dnncore.backend import Attributes, MemoryDesc, Refused
from dnncore_opencl.codegen.vectors import F8, HALVES, INTEGERS
from dnncore_opencl.convolution.winograd.cpu_weights import WinogradReorder
from dnncore_opencl.convolution.winograd.gpu import WinogradPlanesReorder
from dnncore_opencl.copies.conversion import FLOATS, SMALL, converted, start_copy
from dnncore_opencl.copies.transpose import TransposedPass
from dnncore_opencl.elementwise.implementation import Elementwise, Pass


class Reorder(Elementwise[core.Reorder]):
    """Any formats, and all data types of the operation."""

    data_types: tuple[str, ...] = (*FLOATS, *SMALL, *INTEGERS)
    attributes: tuple[str, ...] = (*Elementwise.attributes, "scales", "zero_points", "groups")

    def compute(self, op: core.Reorder, attr: Attributes, work: Pass) -> None:
        """Convert v0. Attributes are applied in f32, between two conversions."""
        src, dst = op.src.data_type, op.dst.data_type
        if attr.post_ops or attr.words:
            self._compute_steps(src, dst, attr, work)
            return
        start_copy(work, src, dst)

    def _compute_steps(self, src: str, dst: str, attr: Attributes, work: Pass) -> None:
        """Compute the steps in f32, or in f64 if there are only post-ops and a tensor is f64."""
        work.is_exact = True  # applies to post-ops too
        if attr.words or "f64" not in (src, dst):
            value = work.dequantized("src")
            work.start(value.replace("v0", "convert_floatLANES(v0)") if src == "f64" else value)
            work.old = "convert_floatLANES(v1)" if dst == "f64" else "v1"
            work.post_ops(attr)
            if dst == "f64":
                work.stored = "convert_doubleLANES(x)"
            return
        work.parameters.is_wide = work.keeps_integers = True
        work.start("v0")
        work.post_ops(attr)
        if dst in SMALL:
            work.snippets.append("odd")
        if dst != "f64":
            work.stored = converted("f64", dst, "x")


class Transpose(Reorder):
    """Reorder between formats that are contiguous along different dims, through tiles."""

    name = "opencl:transpose"
    data_types = (*FLOATS, *HALVES, *F8, *INTEGERS)
    attributes = ()
    pass_type = TransposedPass

    def refuse(self, op: core.Reorder, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse also reorders that need no transposition."""
        src, dst = _innermost(op.src), _innermost(op.dst)
        if src != dst and TransposedPass(engine, [op.src, op.dst], 1).is_fit:
            return super().refuse(op, attr, engine)
        return Refused(
            "format", f"src is contiguous along dim {src} and dst along {dst}, if at all"
        )

    def efficiency(self, engine: Any, descs: Sequence[MemoryDesc]) -> float:
        """Return the share of the bandwidth. Lines are whole, but elements pass through a tile."""
        return 0.2 if engine.is_cpu else 0.45


def _innermost(desc: MemoryDesc) -> int:
    """Return the dim along which elements are contiguous."""
    if desc.inner_blocks:
        return desc.inner_blocks[-1][0]
    return min(range(desc.ndims), key=lambda d: desc.strides[d] if desc.dims[d] > 1 else math.inf)


TABLE = (Transpose(), Reorder(), WinogradReorder(), WinogradPlanesReorder())
