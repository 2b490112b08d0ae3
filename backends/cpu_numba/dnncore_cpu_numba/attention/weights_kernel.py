"""The kernel of online softmax: the scores of rows become weights, and sums of the rows are scaled.

    now = max(top, scores of the row)       weight = 2**(score - now)
    factor = 2**(top - now)                 total, sums = total * factor + weights, sums * factor

Scores are in the base 2. A weight of a score of -inf is 0, also if the maximum is -inf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, I64, Builder, Value, constant

STEP = 32  # scores of a row that are computed side by side
WEIGHTS = Record(
    "weights of rows",
    ("x", "address", "scores"),
    ("rows", "count"),
    ("row", "bytes", "from row to row"),
    ("steps", "count", "of a row, each of `STEP` scores"),
    ("top total", "address", "one number per row"),
    ("sums", "address"),
    ("sum_row", "bytes"),
    ("sum_vectors", "count", "of a row"),
)
LOWEST = -127.0  # 2**LOWEST is below the normal numbers; it becomes 0
MANTISSA, BIAS = 23, 127  # bits of a mantissa; exponent of 1.0
ROUNDER = 1.5 * 2**MANTISSA + BIAS  # x + ROUNDER has round(x) + BIAS in its lowest bits
# (2**x - 1) / x, |x| <= 1/2; the relative error of 2**x is 9e-8
POLYNOMIAL = (
    0.0013264727247195955, 0.009671512688153677, 0.05550733743574149, 0.2402224208463507,
    0.693146977598717,
)  # fmt: skip


@dataclass(frozen=True)
class WeightsKernel(NativeKernel):
    """The kernel of an instruction set."""

    ARGUMENTS = WEIGHTS

    isa: Isa

    @property
    def _vectors(self) -> int:
        return STEP // self.isa.lanes

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            self._row(builder, args, index)
            return []

        vir.loop(builder, args["rows"], [], row)

    def _row(self, builder: Builder, args: vir.Values, index: Value) -> None:
        kind = vir.vector_of(self.isa.lanes)
        x = _place(builder, args["x"], args["row"], index)
        top, total = (_place(builder, args[name], I64(4), index) for name in ("top", "total"))
        before = builder.load(top, typ=F32, align=4)

        def largest(score: Value, _: Value, most: Value) -> Value:
            return _larger(builder, score, most)

        begin = [vir.repeat(builder, before, kind)] * self._vectors
        found = self._each(builder, args, x, begin, largest)
        now = vir.combined_lanes(builder, found, functools.partial(_larger, builder))
        builder.store(now, top, align=4)
        is_none = builder.fcmp_ordered("==", now, F32(-float("inf")))
        shift = vir.repeat(builder, builder.select(is_none, F32(0.0), now), kind)

        def weigh(score: Value, place: Value, sum_: Value) -> Value:
            weight = power(builder, builder.fsub(score, shift))
            vir.store(builder, weight, place, None)
            return builder.fadd(sum_, weight)

        sums = self._each(builder, args, x, [kind(None)] * self._vectors, weigh)
        added = vir.combined_lanes(builder, sums, builder.fadd)
        change = power(builder, builder.fsub(vir.repeat(builder, before, kind), shift))
        factor = builder.extract_element(change, I32(0))
        old = builder.load(total, typ=F32, align=4)
        builder.store(builder.fadd(builder.fmul(old, factor), added), total, align=4)
        with builder.if_then(builder.fcmp_unordered("!=", factor, F32(1.0))):
            self._scale(builder, args, index, change)

    def _each(
        self, builder: Builder, args: vir.Values, x: Value, values: Sequence[Value],
        combined: Callable[[Any, Any, Value], Value],
    ) -> list[Value]:  # fmt: skip
        """Emit a loop over the vectors of a row: value = combined(vector, its place, value)."""
        kind = vir.vector_of(self.isa.lanes)

        def step(number: Value, state: Sequence[Value]) -> list[Value]:
            first = vir.at(builder, x, builder.mul(number, I64(4 * STEP)))
            places = [vir.at(builder, first, 4 * self.isa.lanes * i) for i in range(self._vectors)]
            loaded = [builder.load(place, typ=kind, align=4) for place in places]
            return [combined(*each) for each in zip(loaded, places, state, strict=True)]

        return vir.loop(builder, args["steps"], values, step)

    def _scale(self, builder: Builder, args: vir.Values, index: Value, factor: Value) -> None:
        sums = _place(builder, args["sums"], args["sum_row"], index)

        def vector(number: Value, _: Sequence[Value]) -> list[Value]:
            place = vir.at(builder, sums, builder.mul(number, I64(4 * self.isa.lanes)))
            value = builder.load(place, typ=factor.type, align=4)
            vir.store(builder, builder.fmul(value, factor), place, None)
            return []

        vir.loop(builder, args["sum_vectors"], [], vector)


def _place(builder: Builder, start: Value, stride: Value, index: Value) -> Value:
    return vir.address(builder, builder.add(start, builder.mul(stride, index)))


def _larger(builder: Builder, x: Value, y: Value) -> Value:
    """Return the larger number; y if x is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def power(builder: Builder, x: Value) -> Value:
    """Return 2**x for x < 128. Results below 2**-126.5 become 0; NaN stays."""
    kind, integers = x.type, vir.kind_of(x, I32)
    lowest = constant(kind, LOWEST)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    rounded = builder.fadd(x, constant(kind, ROUNDER))
    rest = builder.fsub(x, builder.fsub(rounded, constant(kind, ROUNDER)))
    first, *others = POLYNOMIAL
    y: Value = constant(kind, first)
    for coefficient in others:
        y = vir.multiply_add(builder, y, rest, constant(kind, coefficient))
    y = vir.multiply_add(builder, y, rest, constant(kind, 1.0))
    shift = ir.Constant(integers, [MANTISSA] * kind.count)
    power = builder.shl(builder.bitcast(rounded, integers), shift)
    return builder.fmul(y, builder.bitcast(power, kind))
