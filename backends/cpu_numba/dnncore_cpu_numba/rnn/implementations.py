"""Recurrent cells and their gradient by products of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnncore.backend import RNN, Accepted, Attributes, Implementation, Refused, RNNForward
from dnncore_cpu_numba.codegen.isa import BEST, Isa
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.tiling import Blocking
from dnncore_cpu_numba.rnn.backward import plan_backward
from dnncore_cpu_numba.rnn.forward import plan_forward
from dnncore_cpu_numba.rnn.integers import KEPT, plan_integers, refuse_scales
from dnncore_cpu_numba.rnn.layers import with_panels

UTILISATION = 0.5  # of the peak by the products of a few rows
BLOCK_KIB = 512
"""KiB of a product's rows that stay in a cache while all weights are read.

LSTM and GRU of batch 64 were up to 1.03 times as fast with 512 KiB as with 256 KiB, on
an AVX2 processor whose second level has 512 KiB."""


class Recurrent(Implementation[RNN]):
    """All gates of all steps of a layer are one product; then step by step."""

    data_types = (*FLOATS, "u8", "s8")
    attributes = ("rnn_qparams",)

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.name = f"cpu_numba:brgemm:{isa.name}"

    def accept(self, op: RNN, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept all cells, in layouts with strides."""
        if attr.post_ops:
            return Refused("attribute", f"takes no post-ops; got {len(attr.post_ops)}")
        if 0 in (op.sizes.dhc, op.sizes.slc, op.sizes.dic):
            return Refused("shape", "has no cells without channels")
        if not op.is_integer:
            op = with_panels(op, self.isa.lanes)
        elif refused := refuse_scales(op, attr):
            return refused
        for argument, desc in op.tensors():
            if desc.is_any:
                op = op.with_descs(**{argument.name: desc.with_format(None)})
            elif desc.format_kind != "blocked":
                return Refused("format", f"{argument.name} must have strides; got {desc.tag!r}")
        if op.workspace_desc(hint) != op.workspace_desc():
            return Refused("format", "reads only row-major workspaces")
        return _planned(self.isa, op, attr, engine, engine.num_threads)


@lru_cache(maxsize=32)  # a plan of several layers takes milliseconds
def _planned(isa: Isa, op: RNN, attr: Attributes, engine: Any, num_threads: int) -> Accepted:
    kept = KEPT if op.is_integer else ()
    blocking = Blocking(num_threads, cache_kib=BLOCK_KIB)
    plan = ProgramPlan(op, attr, blocking, kept, workspace=op.workspace_desc())
    if isinstance(op, RNNForward) and op.is_integer:
        plan_integers(isa, plan, op, attr)
    elif isinstance(op, RNNForward):
        plan_forward(isa, plan, op)
    else:
        plan_backward(isa, plan, op)
    return plan.accepted(op, engine, UTILISATION)


TABLE = (Recurrent(BEST),)
