"""Reorder: dst = src in another format or data type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Refused
from dnncore_opencl.algorithms import Step
from dnncore_opencl.pointwise import Pass, Pointwise
from dnncore_opencl.transpose import TransposedPass
from dnncore_opencl.vectors import TYPES

FLOATS = ("f32", "f64")


class Reorder(Pointwise):
    """Any formats of the data types that the operation knows."""

    def compute(self, op: Any, work: Pass) -> None:
        """Convert v0, in vectors of LANES."""
        src, dst = op.src.data_type, op.dst.data_type
        work.then(Step(f"{TYPES[dst]}LANES x = {_converted(src, dst)};"))

    def refuse(self, op: Any, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse post-ops, which are defined in f32, and f64 on devices that lack it."""
        types = (op.src.data_type, op.dst.data_type)
        if attr.post_ops and types != ("f32", "f32"):
            return Refused(
                "attribute", f"post-ops work in f32; this reorder is {' to '.join(types)}"
            )
        if "f64" in types and "cl_khr_fp64" not in engine.native.device.extensions:
            return Refused(
                "device", f"{engine.device.name} does not compute in f64 (no cl_khr_fp64)"
            )
        return None


class Transpose(Reorder):
    """Formats that are contiguous along different dims, through tiles."""

    name = "opencl:transpose"
    pass_type = TransposedPass

    def refuse(self, op: Any, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse what needs no transposition, too."""
        src, dst = _innermost(op.src), _innermost(op.dst)
        if src != dst and TransposedPass(engine, [op.src, op.dst], 1).is_fit:
            return super().refuse(op, attr, engine)
        return Refused(
            "format", f"src is contiguous along dim {src} and dst along {dst}, if at all"
        )

    def efficiency(self, engine: Any, descs: Sequence[MemoryDesc]) -> float:
        """Lines are whole, but each passes through the tile."""
        return 0.2 if engine.is_cpu else 0.45


def _innermost(desc: MemoryDesc) -> int:
    """The dim whose index steps through neighbours."""
    if desc.inner_blocks:
        return desc.inner_blocks[-1][0]
    return min(range(desc.ndims), key=lambda d: desc.strides[d] if desc.dims[d] > 1 else math.inf)


def _converted(src: str, dst: str) -> str:
    """Round to nearest even; integers saturate and hold 0 for NaN."""
    if src == dst:
        return "v0"
    convert = f"convert_{TYPES[dst]}LANES"
    if dst in FLOATS:
        return f"{convert}(v0)"
    if src in FLOATS:
        return f"{convert}_sat_rte(v0 == v0 ? v0 : 0)"
    return f"{convert}_sat(v0)"


TABLE = (Transpose(), Reorder())
