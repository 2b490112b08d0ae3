"""The kernel of the sums of layer normalization's gradient: of rows, and of columns.

A kernel is a native function of `GRADIENT_CALL`. With g = diff * weight, it computes

    sums    of each row: the sum of g, and the sum of g * (x - mean)
    shift   plus all rows of diff
    scale   plus all rows of diff * (x - mean) * factor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import STORED, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value

TOGETHER = 4  # rows for which the sums of columns are loaded and stored once

GRADIENT_CALL = Record(
    "sums of a gradient",
    ("x diff", "address"),
    ("x_row diff_row", "bytes"),
    ("rows columns", "count"),
    ("means factors", "address", "of rows; f32"),
    ("weight shift scale", "address", "of columns; f32; the last two are sums"),
    ("sums", "address", "of rows; f32; the second sums follow all first ones"),
)


@dataclass(frozen=True)
class GradientKernel(NativeKernel):
    """A class of kernels. source, diff: types."""

    ARGUMENTS = GRADIENT_CALL
    isa = BEST

    source: str
    diff: str

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        _Emitter(self, builder, args).emit()


class _Emitter:
    def __init__(self, kernel: GradientKernel, builder: Builder, args: vir.Values) -> None:
        self.builder, self.args = builder, args
        self.kinds = {"x": kernel.source, "diff": kernel.diff}
        self.vector = vir.vector_of(BEST.lanes)

    def emit(self) -> None:
        """Emit the loop over groups of rows, then over the other rows."""
        builder, done = self.builder, I64(0)
        for count in (TOGETHER, 1):
            turns = builder.udiv(builder.sub(self.args["rows"], done), I64(count))

            def turn(index: Value, _: Any, count: int = count, done: Value = done) -> list[Value]:
                first = builder.add(done, builder.mul(index, I64(count)))
                self._group([builder.add(first, I64(n)) for n in range(count)])
                return []

            vir.loop(builder, turns, [], turn)
            done = builder.mul(turns, I64(count))

    def _number(self, name: str, place: Value) -> Value:
        pointer = vir.address(self.builder, self.args[name])
        return vir.at(self.builder, pointer, self.builder.shl(place, I64(2)))

    def _repeated(self, name: str, place: Value) -> Value:
        number = self.builder.load(self._number(name, place), typ=F32, align=4)
        return vir.repeat(self.builder, number, self.vector)

    def _group(self, rows: Sequence[Value]) -> None:
        """Emit the sums of some rows."""
        builder, args, lanes = self.builder, self.args, self.vector.count
        places = [
            {
                n: vir.at(builder, vir.address(builder, args[n]),
                          builder.mul(row, args[f"{n}_row"]))
                for n in self.kinds
            }
            for row in rows
        ]  # fmt: skip
        of_rows = [[self._repeated(n, row) for n in ("means", "factors")] for row in rows]
        turns = builder.udiv(args["columns"], I64(lanes))

        def turn(index: Value, sums: Sequence[Value]) -> list[Value]:
            return self._added(places, of_rows, builder.mul(index, I64(lanes)), sums, None)

        sums = vir.loop(builder, turns, [self.vector(None)] * 2 * len(rows), turn)
        rest, before = builder.urem(args["columns"], I64(lanes)), builder.block
        with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
            mask = vir.first_lanes(builder, rest, lanes)
            after = self._added(places, of_rows, builder.mul(turns, I64(lanes)), sums, mask)
            within = builder.block
        merged = [builder.phi(self.vector) for _ in sums]
        vir.join(merged, (before, sums), (within, after))
        for place, value in enumerate(merged):
            total = vir.combined_lanes(builder, [value], builder.fadd)
            second = builder.mul(args["rows"], I64(place % 2))
            target = self._number("sums", builder.add(rows[place // 2], second))
            builder.store(total, target, align=4)

    def _added(
        self, places: Sequence[dict[str, Value]], of_rows: Sequence[Sequence[Value]],
        column: Value, sums: Sequence[Value], mask: Value | None,
    ) -> list[Value]:  # fmt: skip
        """Add a vector of columns of all rows. mask: the lanes that exist; others are 0."""
        builder = self.builder
        targets = {name: self._number(name, column) for name in ("weight", "shift", "scale")}
        weight, shift, scale = (
            vir.load(builder, pointer, self.vector, mask) for pointer in targets.values()
        )
        after: list[Value] = []
        for own, (mean, factor), total, product in zip(
            places, of_rows, sums[::2], sums[1::2], strict=True
        ):
            x, diff = (self._loaded(name, own[name], column, mask) for name in self.kinds)
            term = builder.fmul(diff, builder.fsub(x, mean))
            after.append(vir.multiply_add(builder, diff, weight, total))
            after.append(vir.multiply_add(builder, term, weight, product))
            shift = builder.fadd(shift, diff)
            scale = vir.multiply_add(builder, term, factor, scale)
        vir.store(builder, shift, targets["shift"], mask)
        vir.store(builder, scale, targets["scale"], mask)
        return after

    def _loaded(self, name: str, row: Value, column: Value, mask: Value | None) -> Value:
        builder, kind = self.builder, self.kinds[name]
        place = vir.at(builder, row, builder.mul(column, I64(vir.bytes_of(STORED[kind]))))
        return load_as_f32(builder, place, kind, self.vector.count, mask)
