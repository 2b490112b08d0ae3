"""Reorder: dst = src in another format or data type, by the copies of `copies/reformat.py`.

With post-ops, which are from f32 to f32, it is a chain (`elementwise/chains.py`).
"""

from __future__ import annotations

from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, Refused, Reorder
from dnncore_cpu_numba.convolution.winograd.weights import WinogradReorder
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import chain_steps, zero_padding
from dnncore_cpu_numba.elementwise.implementation import refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import stages_of
from dnncore_cpu_numba.runtime.program import Program, Step
from dnncore_cpu_numba.runtime.tensor import arguments


class ReorderImplementation(Implementation[Reorder]):
    """Copy, transpose and convert in one pass."""

    name = "cpu_numba:simd"
    data_types = ("f32", "f64", "f16", "bf16")
    takes_repeats = True

    def accept(self, op: Reorder, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides; post-ops from f32 to f32."""
        if refusal := refuse_post_ops(op, attr):
            return refusal
        if attr.post_ops and {op.src.data_type, op.dst.data_type} != {"f32"}:
            types = f"{op.src.data_type} to {op.dst.data_type}"
            return Refused("attribute", f"applies post-ops from f32 to f32 only; got {types}")
        return Accepted(
            op,
            build=lambda: self._build(op, attr, engine.num_threads),
            efficiency=0.6 if op.src.data_type == op.dst.data_type else 0.3,  # on 2 cores, measured
            notes=("compiles",),
        )

    def _build(self, op: Reorder, attr: Attributes, num_threads: int) -> Executable:
        src, dst, *operands = arguments(op, attr=attr).values()

        def steps() -> list[Step]:
            if attr.post_ops:
                stages = stages_of(attr.post_ops, 2)
                return chain_steps(op.dst.dims, [dst, src, *operands], stages)
            return copy_steps(dst, src) + zero_padding(dst)

        return Program(steps, num_threads)


TABLE = (ReorderImplementation(), WinogradReorder())
