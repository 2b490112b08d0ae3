"""The kernel of gradients of attention: scores become weights, their slopes slopes of scores.

    weight = 2**(score * factor - lse)        slope = weight * (slope - mean)

lse and the scores times the factor are in the base 2. A weight of a score of -inf is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnncore_cpu_numba.attention.weights_kernel import power
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value

SLOPES = Record(
    "slopes of rows",
    ("weights slopes", "address", "scores and slopes of weights; replaced"),
    ("rows", "count"),
    ("row", "bytes", "from row to row"),
    ("vectors", "count", "of a row"),
    ("lse mean", "address", "one number per row, or per column"),
    ("factor", "float32"),
)


@dataclass(frozen=True)
class SlopesKernel(NativeKernel):
    """The kernel of an instruction set. by_columns: queries are columns."""

    ARGUMENTS = SLOPES

    isa: Isa
    by_columns: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        kind = vir.vector_of(self.isa.lanes)
        factor = vir.repeat(builder, vir.float_of(builder, args["factor"]), kind)

        def place(name: str, number: Value, step: Value) -> Value:
            return vir.address(builder, builder.add(args[name], builder.mul(number, step)))

        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            names = ("weights", "slopes")
            rows = [builder.add(args[n], builder.mul(index, args["row"])) for n in names]
            if not self.by_columns:
                own = [
                    vir.repeat(
                        builder, builder.load(place(n, index, I64(4)), typ=F32, align=4), kind
                    )
                    for n in ("lse", "mean")
                ]

            def vector(number: Value, _: Sequence[Value]) -> list[Value]:
                offset = builder.mul(number, I64(4 * self.isa.lanes))
                places = [vir.address(builder, builder.add(start, offset)) for start in rows]
                score, slope = (vir.load(builder, at, kind, None) for at in places)
                if self.by_columns:
                    step = I64(4 * self.isa.lanes)
                    lse, mean = (
                        vir.load(builder, place(n, number, step), kind, None)
                        for n in ("lse", "mean")
                    )
                else:
                    lse, mean = own
                exponent = vir.multiply_add(builder, score, factor, builder.fneg(lse))
                weight = power(builder, exponent)
                vir.store(builder, weight, places[0], None)
                vir.store(builder, builder.fmul(weight, builder.fsub(slope, mean)), places[1], None)
                return []

            vir.loop(builder, args["vectors"], [], vector)
            return []

        vir.loop(builder, args["rows"], [], row)
