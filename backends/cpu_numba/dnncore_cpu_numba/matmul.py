"""Matrix multiplication: the implementations, best first."""

from __future__ import annotations

from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, Refused
from dnncore_cpu_numba.isa import ISAS, Isa
from dnncore_cpu_numba.plan import Plan
from dnncore_cpu_numba.product import MOST_BATCH_DIMS, Product, blocked_columns

__all__ = ["TABLE"]


class BrgemmMatMul(Implementation):
    """One product; weights that may be `any` become panels."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.name = f"cpu_numba:brgemm:{isa.name}"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: object) -> Accepted | Refused:
        """Resolve formats and plan."""
        if missing := self.isa.missing:
            return Refused("device", f"the processor lacks {', '.join(missing)}")
        batch_dims = op.dst.ndims - 2
        if batch_dims > MOST_BATCH_DIMS:
            return Refused(
                "shape", f"{batch_dims} batch dims; at most {MOST_BATCH_DIMS} are served"
            )
        plain = "abcdefghijkl"[: op.dst.ndims]
        panels = blocked_columns(op.weights, self.isa.lanes)
        op = op.resolve_any(src=plain, weights=panels, bias=plain, dst=plain)
        plan = Plan(op, attr, engine.num_threads)
        Product(
            isa=self.isa, a=plan.argument("src", op.src), b=plan.argument("weights", op.weights),
            c=plan.argument("dst", op.dst), bias=op.bias and plan.argument("bias", op.bias),
            attr=attr, operands=plan.operands(attr),
        ).append_to(plan)  # fmt: skip
        return plan.accepted(op, engine, 0.8)


TABLE = tuple(BrgemmMatMul(isa) for isa in ISAS)
