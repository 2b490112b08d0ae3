"""The kernel of `gemm/few_rows.py`: a column of decompressed weights times a few rows.

    y[m] = sum over k of x[m][k] * (w[k] - zero[k]) * scale[k]

Blocks are `unroll` vectors of x. Of 8-bit weights, vector i has the elements from i * lanes on. Of
4-bit weights, a vector of 32-bit words has 8 in each lane; x has the order of the i-th ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import PACKED, STORED, as_f32
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Builder, Value, constant

PER_WORD = 8  # 4-bit elements
SUMS = 8  # independent ones hide the latency of multiply-adds
COLUMN = Record(
    "column of weights",
    ("weights x", "address"),
    ("x_row y_row", "bytes", "from row to row"),
    ("zero scale", "address", "of the column's first value"),
    ("zero_places scale_places", "address", "of a table of places, one for each unit"),
    ("units", "count", "stretches of k with one zero point and one scale"),
    ("blocks", "count", "of a unit"),
    ("y", "address"),
)
_TABLE = "llvm.x86.avx512.permvar.sf.512"


@dataclass(frozen=True)
class ColumnKernel(NativeKernel):
    """A class of kernels.

    source: the type of weights. zero, scale: those of zero points and scales, "" without them.
    rows: of x. lanes: of its vectors. unroll: vectors of a block.
    """

    ARGUMENTS = COLUMN

    isa: Isa
    source: str
    zero: str
    scale: str
    rows: int
    lanes: int
    unroll: int

    @property
    def block_bytes(self) -> int:
        """The bytes of a block of weights."""
        elements = self.lanes * self.unroll
        return elements // 2 if self.source in PACKED else elements

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        each = max(1, min(self.unroll, SUMS // self.rows))
        zeros = [vir.vector_of(self.lanes)(None)] * (self.rows * each)

        def unit(index: Value, state: Sequence[Value]) -> Sequence[Value]:
            values = {
                name: self._value(builder, args, name, own, index)
                for name, own in (("zero", self.zero), ("scale", self.scale))
                if own
            }
            table = self._table(builder, values)

            def block(_: Value, state: Sequence[Value]) -> list[Value]:
                return self._block(builder, args, values, table, state)

            return vir.loop(builder, args["blocks"], state, block)

        state = [args["weights"], args["x"], *zeros]
        _, _, *sums = vir.loop(builder, args["units"], state, unit)
        for m in range(self.rows):
            own = sums[m * each : (m + 1) * each]
            while len(own) > 1:
                own = [builder.fadd(*own[i : i + 2]) if len(own[i : i + 2]) > 1 else own[i]
                       for i in range(0, len(own), 2)]  # fmt: skip
            y = vir.address(builder, builder.add(args["y"], builder.mul(args["y_row"], I64(m))))
            builder.store(self._total(builder, own[0]), y, align=4)

    def _block(
        self, builder: Builder, args: vir.Values, values: dict[str, Value], table: Value | None,
        state: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        weights, x, *sums = state
        each = len(sums) // self.rows
        vectors = self._vectors(builder, weights, table)
        if table is None:
            vectors = [self._scaled(builder, w, values) for w in vectors]
        for i, w in enumerate(vectors):
            for m in range(self.rows):
                place = builder.add(x, builder.mul(args["x_row"], I64(m)))
                place = vir.address(builder, builder.add(place, I64(4 * self.lanes * i)))
                factor = builder.load(place, typ=vir.vector_of(self.lanes), align=4)
                at = m * each + i % each
                sums[at] = vir.multiply_add(builder, w, factor, sums[at])
        moved = builder.add(weights, I64(self.block_bytes))
        return [moved, builder.add(x, I64(4 * self.lanes * self.unroll)), *sums]

    def _vectors(self, builder: Builder, weights: Value, table: Value | None) -> list[Value]:
        """The weights of a block as f32; with a table, what is there."""
        pointer = vir.address(builder, weights)
        if self.source not in PACKED:
            kind = ir.VectorType(STORED[self.source], self.lanes)
            places = (vir.at(builder, pointer, self.lanes * i) for i in range(self.unroll))
            loaded = (builder.load(place, typ=kind, align=1) for place in places)
            return [as_f32(builder, x, self.source, self.isa) for x in loaded]
        kind = ir.VectorType(I32, self.lanes)
        words = builder.load(pointer, typ=kind, align=1)
        if table is not None:  # it reads the lowest four bits
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
        """All 16 weights, where the instruction set looks them up."""
        if self.source not in PACKED or self.isa.lanes != 16 or self.lanes != 16:
            return None
        half = 8 if self.source == "s4" else 16
        numbers = [float(i if i < half else i - 16) for i in range(16)]
        return self._scaled(builder, ir.Constant(vir.vector_of(16), numbers), values)

    def _scaled(self, builder: Builder, w: Value, values: dict[str, Value]) -> Value:
        if "zero" in values:
            w = builder.fsub(w, values["zero"])
        return builder.fmul(w, values["scale"]) if "scale" in values else w

    def _value(
        self, builder: Builder, args: vir.Values, name: str, own: str, index: Value
    ) -> Value:
        """The zero point or the scale of a unit."""
        element = STORED[own]
        table = vir.address(builder, args[f"{name}_places"])
        place = builder.load(vir.at(builder, table, builder.shl(index, I64(3))), typ=I64)
        size = vir.bytes_of(element)
        start = builder.add(args[name], builder.mul(place, I64(size)))
        x = builder.load(vir.address(builder, start), typ=element, align=size)
        x = as_f32(builder, x, own, self.isa)
        return vir.repeat(builder, x, vir.vector_of(self.lanes))

    def _total(self, builder: Builder, x: Value) -> Value:
        """The sum of all lanes, in halves."""
        while x.type.count > 1:
            half = x.type.count // 2
            low = vir.shuffled(builder, x, range(half))
            high = vir.shuffled(builder, x, range(half, 2 * half))
            x = builder.fadd(low, high)
        return builder.extract_element(x, I32(0))


def lanes_of(isa: Isa) -> list[int]:
    """The lanes of vectors that a kernel may have, most first."""
    return [lanes for lanes in (16, 8, 4) if lanes <= max(4, isa.lanes)]
