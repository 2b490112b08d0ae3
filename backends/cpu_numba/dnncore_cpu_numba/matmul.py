"""Matrix multiplication: the implementations, best first."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from dnncore.backend import Attributes, MatMul, Refused
from dnncore_cpu_numba.codegen.isa import BEST, DOT_ISAS, ISAS
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.gemm import ranges
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.factors import SMALL, is_decompressed, prepare, values_of
from dnncore_cpu_numba.gemm.few_rows import MOST_ROWS, FewRows
from dnncore_cpu_numba.gemm.plan import INTEGERS, PlannedImplementation, ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns
from dnncore_cpu_numba.gemm.quantization import ATTRIBUTES, Terms, refuse_varying
from dnncore_cpu_numba.gemm.tiling import utilisation


class BrgemmMatMul(PlannedImplementation[MatMul]):
    """One product. Weights of format `any` become panels unless they are decompressed."""

    data_types: Collection[str] = (*FLOATS, "f64", *INTEGERS, *SMALL)
    attributes = (*ATTRIBUTES, "groups")

    def arithmetic(self, op: MatMul) -> Arithmetic:
        """Return products of groups of k if the instruction set has them."""
        return Arithmetic.of(op.src, op.weights, self.isa)

    def kept(self, op: MatMul) -> tuple[str, ...]:
        """Return dst and bias, and the factors that are not converted to f32 first."""
        if not self.arithmetic(op).converts:
            return ("dst", "bias", "src", "weights")
        return ("dst", "bias", *(("weights",) if is_decompressed(op) else ()))

    def refused(self, op: MatMul, attr: Attributes) -> Refused | None:
        """Refuse scales and zero points of integers that vary along K."""
        return super().refused(op, attr) or refuse_varying(op, attr, self.arithmetic(op).group)

    def resolved(self, op: MatMul) -> MatMul:
        """Resolve weights to panels, and all other tensors to row-major."""
        plain = "abcdefghijkl"[: op.dst.ndims]
        arithmetic = self.arithmetic(op)
        lanes = arithmetic.vectors_of(self.isa).lanes
        panels = blocked_columns(op.weights, lanes, arithmetic.group)
        weights = self._small(op) if is_decompressed(op) else panels
        op = op.resolve_any(src=plain, weights=weights, dst=plain)
        return op if op.bias is None else op.resolve_any(bias=plain)

    def plan(self, plan: ProgramPlan, op: MatMul, attr: Attributes) -> None:
        """Append the steps."""
        few = self._few_rows(plan, op, attr)
        if few is not None and few.serves:
            few.append_to(plan)
            return
        scales = prepare(plan, op, attr, self.arithmetic(op))
        product = self.product(plan, op, Terms.of(plan, op, attr, scales=scales))
        dataclasses.replace(
            product, a_zero=plan.tensors.get("src_zero_points"),
            b_zero=plan.tensors.get("weights_zero_points"),
        ).append_to(plan)  # fmt: skip

    def _small(self, op: MatMul) -> str:
        """Return the tag of weights that are decompressed. Few rows use contiguous columns."""
        letters = "abcdefghijkl"[: op.dst.ndims]
        if op.dst.nelems > MOST_ROWS * op.dst.dims[-1]:
            return letters
        return f"{letters[:-2]}{letters[-1]}{letters[-2]}"

    def _few_rows(self, plan: ProgramPlan, op: MatMul, attr: Attributes) -> FewRows | None:
        """Return the product that decompresses weights in registers; None if it does not apply."""
        own = attr.scales.get("src")
        if op.data_type not in FLOATS or not is_decompressed(op) or (own and own.mask):
            return None
        zero, scale = (values_of(plan, attr, kind, "weights") for kind in ("zero_points", "scales"))
        return FewRows(
            isa=self.isa, a=plan.tensors["src"], b=plan.tensors["weights"], c=plan.tensors["dst"],
            terms=Terms.of(plan, op, attr, scales=("src",)), zero=zero, scale=scale,
        )  # fmt: skip

    def product(self, plan: ProgramPlan, op: MatMul, terms: Terms) -> MatrixProduct:
        """Return the product without zero points of its factors."""
        return MatrixProduct(
            isa=self.isa, a=plan.tensors["src"], b=plan.tensors["weights"], c=plan.tensors["dst"],
            terms=terms, arithmetic=self.arithmetic(op),
        )  # fmt: skip

    def utilisation(self, op: MatMul) -> float:
        """Return the utilisation of tiles of rows by columns."""
        arithmetic = self.arithmetic(op)
        isa = arithmetic.vectors_of(self.isa)
        return arithmetic.speed(self.isa) * utilisation(isa, *op.dst.dims[-2:])


class GemmMatMul(ranges.RangedProduct[MatMul], BrgemmMatMul):
    """Products of s32."""

    def plan(self, plan: ProgramPlan, op: MatMul, attr: Attributes) -> None:
        """Append the steps."""
        prepare(plan, op, attr, self.arithmetic(op))
        product = self.product(plan, op, Terms.of(plan, op, attr, scales=()))
        scales = (plan.tensors.get(f"{name}_scales") for name in ("src", "weights"))
        ranges.append_ranges(plan, product, *scales)


TABLE = (*(BrgemmMatMul(isa) for isa in (*DOT_ISAS, *ISAS)), GemmMatMul(BEST))
