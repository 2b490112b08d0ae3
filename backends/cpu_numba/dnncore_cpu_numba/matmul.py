"""Matrix multiplication: the implementations, best first."""

from __future__ import annotations

from dnncore.backend import Attributes, MatMul, Refused
from dnncore_cpu_numba.codegen.isa import DOT_ISAS, ISAS
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.plan import INTEGERS, PlannedImplementation, ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns
from dnncore_cpu_numba.gemm.quantization import WORDS, Terms, refuse_varying
from dnncore_cpu_numba.gemm.tiling import utilisation


class BrgemmMatMul(PlannedImplementation[MatMul]):
    """One product; weights that may be `any` become panels."""

    data_types = (*FLOATS, "f64", *INTEGERS)
    attributes = WORDS

    def arithmetic(self, op: MatMul) -> Arithmetic:
        """Products of groups of k, where the instruction set has them."""
        return Arithmetic.of(op.src, op.weights, self.isa)

    def kept(self, op: MatMul) -> tuple[str, ...]:
        """The result, and the factors if they are multiplied as they are."""
        return ("dst", "bias", *(() if self.arithmetic(op).converts else ("src", "weights")))

    def refused(self, op: MatMul, attr: Attributes) -> Refused | None:
        """Refuse scales and zero points that vary along K."""
        return super().refused(op, attr) or refuse_varying(op, attr)

    def resolved(self, op: MatMul) -> MatMul:
        """Weights become panels, all else row-major."""
        plain = "abcdefghijkl"[: op.dst.ndims]
        arithmetic = self.arithmetic(op)
        lanes = arithmetic.vectors_of(self.isa).lanes
        panels = blocked_columns(op.weights, lanes, arithmetic.group)
        op = op.resolve_any(src=plain, weights=panels, dst=plain)
        return op if op.bias is None else op.resolve_any(bias=plain)

    def plan(self, plan: ProgramPlan, op: MatMul, attr: Attributes) -> None:
        """Append the steps."""
        MatrixProduct(
            isa=self.isa, a=plan.tensors["src"], b=plan.tensors["weights"], c=plan.tensors["dst"],
            terms=Terms.of(plan, op, attr), arithmetic=self.arithmetic(op),
            a_zero=plan.tensors.get("src_zero_points"),
            b_zero=plan.tensors.get("weights_zero_points"),
        ).append_to(plan)  # fmt: skip

    def utilisation(self, op: MatMul) -> float:
        """The utilisation of tiles of rows by columns."""
        speed = self.arithmetic(op).speed(self.isa)
        return speed * utilisation(self.isa, *op.dst.dims[-2:])


TABLE = tuple(BrgemmMatMul(isa) for isa in (*DOT_ISAS, *ISAS))
