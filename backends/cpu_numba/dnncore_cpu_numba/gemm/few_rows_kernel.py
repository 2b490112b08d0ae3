"""The kernel of `gemm/few_rows.py`: columns of decompressed weights times a few rows.

    y[m][n] = sum over k of x[m][k] * (w[k][n] - zero[k][n]) * scale[k][n]

A block has `unroll` vectors of x. For 8-bit weights, vector i begins at element i * lanes. 4-bit
weights are loaded as a vector of 32-bit words with 8 elements per lane; vector i of x has the
elements that match element i of each lane.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import PACKED, STORED, as_f32
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Builder, Value, constant

PER_WORD = 8  # 4-bit elements of a 32-bit word
SUMS = 8  # independent sums that hide the latency of multiply-adds
COLUMNS = Record(
    "columns of weights",
    ("weights x", "address"),
    ("column", "bytes", "from column to column of weights"),
    ("x_row y_row", "bytes", "from row to row"),
    ("zero scale", "address"),
    ("zero_columns scale_columns", "address", "of tables: bytes of each column's values"),
    ("zero_places scale_places", "address", "of tables: bytes of each unit's value"),
    ("units", "count", "stretches of k with the same values, or blocks with several"),
    ("blocks", "count", "of a unit"),
    ("y", "address"),
)
_TABLE = "llvm.x86.avx512.permvar.sf.512"


@dataclass(frozen=True)
class ColumnsKernel(NativeKernel):
    """A class of kernels.

    source: the type of the weights. zero, scale: the types of zero points and scales, "" without
    them. rows, columns: the size of y. lanes: lanes of a vector of x. unroll: vectors per block.
    values: zero points and scales per block; each belongs to an equal part of its 4-bit weights.
    """

    ARGUMENTS = COLUMNS

    isa: Isa
    source: str
    zero: str
    scale: str
    rows: int
    columns: int
    lanes: int
    unroll: int
    values: int = 1

    @property
    def block_bytes(self) -> int:
        """The size of a block of weights in bytes."""
        elements = self.lanes * self.unroll
        return elements // 2 if self.source in PACKED else elements

    @property
    def _each(self) -> int:
        """The number of partial sums per element of y."""
        return max(1, min(self.unroll, SUMS // (self.rows * self.columns)))

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        each = self._each
        zeros = [vir.vector_of(self.lanes)(None)] * (self.rows * self.columns * each)
        starts = [
            {
                name: builder.add(args[name], self._entry(builder, args[f"{name}_columns"], I64(n)))
                for name, own in (("zero", self.zero), ("scale", self.scale))
                if own
            }
            for n in range(self.columns)
        ]

        def unit(index: Value, state: Sequence[Value]) -> Sequence[Value]:
            values = [self._values(builder, args, own, index) for own in starts]
            tables = [self._table(builder, own) for own in values]

            def block(_: Value, state: Sequence[Value]) -> list[Value]:
                return self._block(builder, args, values, tables, state)

            return vir.loop(builder, args["blocks"], state, block)

        state = [args["weights"], args["x"], *zeros]
        _, _, *sums = vir.loop(builder, args["units"], state, unit)
        for m in range(self.rows):
            row = builder.add(args["y"], builder.mul(args["y_row"], I64(m)))
            for n in range(self.columns):
                first = (m * self.columns + n) * each
                total = functools.reduce(builder.fadd, sums[first : first + each])
                place = vir.address(builder, builder.add(row, I64(4 * n)))
                builder.store(self._total(builder, total), place, align=4)

    def _block(
        self, builder: Builder, args: vir.Values, values: Sequence[dict[str, Value]],
        tables: Sequence[Value | None], state: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        weights, x, *sums = state
        each = self._each
        columns = []
        for n, (own, table) in enumerate(zip(values, tables, strict=True)):
            place = builder.add(weights, builder.mul(args["column"], I64(n)))
            vectors = self._vectors(builder, place, table)
            if table is None:
                vectors = [self._scaled(builder, w, own) for w in vectors]
            columns.append(vectors)
        for i in range(self.unroll):
            for m in range(self.rows):
                place = builder.add(x, builder.mul(args["x_row"], I64(m)))
                place = vir.address(builder, builder.add(place, I64(4 * self.lanes * i)))
                factor = builder.load(place, typ=vir.vector_of(self.lanes), align=4)
                for n, vectors in enumerate(columns):
                    at = (m * self.columns + n) * each + i % each
                    sums[at] = vir.multiply_add(builder, vectors[i], factor, sums[at])
        moved = builder.add(weights, I64(self.block_bytes))
        return [moved, builder.add(x, I64(4 * self.lanes * self.unroll)), *sums]

    def _vectors(self, builder: Builder, weights: Value, table: Value | None) -> list[Value]:
        """Return the weights of a block as f32. table: the values of all 16 4-bit weights."""
        pointer = vir.address(builder, weights)
        if self.source not in PACKED:
            kind = ir.VectorType(STORED[self.source], self.lanes)
            places = (vir.at(builder, pointer, self.lanes * i) for i in range(self.unroll))
            loaded = (builder.load(place, typ=kind, align=1) for place in places)
            return [as_f32(builder, x, self.source, self.isa) for x in loaded]
        kind = ir.VectorType(I32, self.lanes)
        words = builder.load(pointer, typ=kind, align=1)
        if table is not None:  # the instruction reads only the lowest four bits
            shifted = (builder.lshr(words, constant(kind, 4 * i)) for i in range(PER_WORD))
            return [vir.intrinsic(builder, _TABLE, table.type, [table, x]) for x in shifted]
        vectors = []
        for i in range(PER_WORD):
            upper = builder.shl(words, constant(kind, 28 - 4 * i))
            shift = builder.ashr if self.source == "s4" else builder.lshr
            x = shift(upper, constant(kind, 28))
            vectors.append(builder.sitofp(x, vir.vector_of(self.lanes)))
        return vectors

    def _table(self, builder: Builder, values: dict[str, Value]) -> Value | None:
        """Return the scaled values of all 16 weights; None if a lookup is not possible."""
        wide = self.isa.lanes == 16 == self.lanes
        if self.source not in PACKED or self.values > 1 or not wide:
            return None
        half = 8 if self.source == "s4" else 16
        numbers = [float(i if i < half else i - 16) for i in range(16)]
        return self._scaled(builder, ir.Constant(vir.vector_of(16), numbers), values)

    def _scaled(self, builder: Builder, w: Value, values: dict[str, Value]) -> Value:
        if "zero" in values:
            w = builder.fsub(w, values["zero"])
        return builder.fmul(w, values["scale"]) if "scale" in values else w

    def _values(
        self, builder: Builder, args: vir.Values, starts: dict[str, Value], index: Value
    ) -> dict[str, Value]:
        """Load the zero points and scales of a unit of one column."""
        found = {}
        for name, start in starts.items():
            own = self.zero if name == "zero" else self.scale
            element = STORED[own]
            align, vector = vir.bytes_of(element), ir.VectorType(element, self.lanes)
            x = ir.Constant(vector, ir.Undefined)
            for part in range(self.values):
                number = builder.add(builder.mul(index, I64(self.values)), I64(part))
                place = builder.add(start, self._entry(builder, args[f"{name}_places"], number))
                value = builder.load(vir.address(builder, place), typ=element, align=align)
                if self.values == 1:
                    x = vir.repeat(builder, value, vector)
                else:
                    same = self.lanes // self.values
                    for lane in range(part * same, (part + 1) * same):
                        x = builder.insert_element(x, value, I32(lane))
            found[name] = as_f32(builder, x, own, self.isa)
        return found

    def _entry(self, builder: Builder, table: Value, index: Value) -> Value:
        """Load an entry of a table."""
        pointer = vir.address(builder, builder.add(table, builder.shl(index, I64(3))))
        return builder.load(pointer, typ=I64)

    def _total(self, builder: Builder, x: Value) -> Value:
        """Return the sum of all lanes, by adding halves."""
        while x.type.count > 1:
            half = x.type.count // 2
            low = vir.shuffled(builder, x, range(half))
            high = vir.shuffled(builder, x, range(half, 2 * half))
            x = builder.fadd(low, high)
        return builder.extract_element(x, I32(0))
