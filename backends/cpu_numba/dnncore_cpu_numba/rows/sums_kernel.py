"""The kernel that sums the rows or the columns of a tile, in registers.

A kernel is a native function of `SUMS_CALL`. It is emitted because LLVM does not vectorise loops
as short as a row, and converts elements of half types one by one. The sums of a row or column are

    plain       sum of x
    sizes       sum of |x|
    squares     sum of x**2
    multiplied  product of all x
    largest     the largest x, or NaN if there is one
    smallest    the smallest x, or NaN if there is one
    dots        sum of x * diff
    deviations  sum of x - mean,  sum of (x - mean)**2
    products    sum of g,         sum of g * (x - mean)        g = diff, or 0 where mask is 0
    decays      sum of e**(x - mean), where no x is above the mean; y = e**(x - mean) if kept
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.exponentials import decay
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, STORED, load_as_f32, pair_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I32, I64, Builder, Value

SOURCES = (*FLOATS, "s8", "u8")
"""Types of x in plans of sums."""

AT_ONCE = 4  # vectors of a row that are summed at a time
ROWS_AT_ONCE = 4  # rows that are added to sums of columns at a time; for f32, memory is slower

SUMS_AHEAD = 2048  # bytes; the usual prefetch distance
SUMS_CALL = Record(
    "sums of a tile",
    ("y x diff mask", "address", "y: f32 of kept decays, and of `PReLUKernel`"),
    ("y_row x_row diff_row mask_row", "bytes"),
    ("rows columns", "count"),
    ("means", "address", "of rows or columns; f32"),
    ("sums", "address", "f32; the second sums follow all first ones"),
    ("ahead", "bytes", "prefetch distance"),
)
Formula = Literal[
    "plain", "sizes", "squares", "multiplied", "largest", "smallest", "dots", "deviations",
    "products", "decays",
]  # fmt: skip
_OF_NOTHING = {
    "multiplied": 1.0, "largest": float("-inf"), "smallest": float("inf"),
}  # fmt: skip


@dataclass(frozen=True)
class SumsKernel(NativeKernel):
    """A class of kernels.

    along: whether each row is summed, or else each column. source, diff: types. masked: whether
    there is a mask, which is u8. kept: whether decays are stored.
    """

    ARGUMENTS = SUMS_CALL
    isa = BEST

    formula: Formula
    along: bool
    source: str
    diff: str = "f32"
    masked: bool = False
    kept: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        emitter = _Emitter(self, builder, args)
        (emitter.rows if self.along else emitter.columns)()


class _Emitter:
    def __init__(self, kernel: SumsKernel, builder: Builder, args: vir.Values) -> None:
        self.kernel, self.builder, self.args = kernel, builder, args
        self.names = ["x"]
        if kernel.formula in ("products", "dots"):
            self.names += ["diff", *(["mask"] if kernel.masked else [])]
        if kernel.kept:
            self.names += ["y"]
        self.sizes = {
            "x": vir.bytes_of(STORED[kernel.source]), "diff": vir.bytes_of(STORED[kernel.diff]),
            "mask": 1, "y": 4,
        }  # fmt: skip
        self.numbers = 2 if kernel.formula in ("deviations", "products") else 1
        self.has_mean = kernel.formula in ("deviations", "products", "decays")
        self.start = F32(_OF_NOTHING.get(kernel.formula, 0.0))
        self.vector = vir.vector_of(BEST.lanes)

    # -- both orders -------------------------------------------------------------------------------

    def _places(self, row: Value) -> dict[str, Value]:
        """Return where each tensor's row begins."""
        builder, args = self.builder, self.args
        return {
            n: vir.at(builder, vir.address(builder, args[n]), builder.mul(row, args[f"{n}_row"]))
            for n in self.names
        }

    def _moved(self, places: dict[str, Value], elements: Value | int) -> dict[str, Value]:
        builder = self.builder
        elements = I64(elements) if isinstance(elements, int) else elements
        return {
            n: vir.at(builder, place, builder.mul(elements, I64(self.sizes[n])))
            for n, place in places.items()
        }

    def _added(
        self, places: dict[str, Value], mean: Value | None, sums: Sequence[Value],
        mask: Value | None = None,
    ) -> list[Value]:  # fmt: skip
        """Add the terms of a vector of elements to the sums. mask: the lanes that exist."""
        builder = self.builder
        read = [name for name in self.names if name in ("x", "diff")]
        values = {name: self._loaded(name, places, mask) for name in read}
        after = self._sums_with(values, places, mean, sums, mask)
        if mask is None:
            return after
        pairs = zip(after, sums, strict=True)
        return [builder.select(mask, new, old) for new, old in pairs]

    def _added_pairs(
        self, places: dict[str, Value], mean: Value | None, sums: Sequence[Value]
    ) -> list[Value]:
        """Add the terms of two vectors of bf16 to the sums of two: the even ones, then the odd."""
        builder = self.builder
        pairs = {}
        for name in self.names:
            stored = vir.load(builder, places[name], ir.VectorType(I32, self.vector.count), None)
            stored.align = 2
            pairs[name] = pair_as_f32(builder, stored)
        after: list[Value] = []
        for half in range(2):
            values = {name: pair[half] for name, pair in pairs.items()}
            held = sums[half * self.numbers : (half + 1) * self.numbers]
            after += self._sums_with(values, places, mean, held, None)
        return after

    def _sums_with(
        self, values: dict[str, Value], places: dict[str, Value], mean: Value | None,
        sums: Sequence[Value], mask: Value | None,
    ) -> list[Value]:  # fmt: skip
        builder, kernel, x = self.builder, self.kernel, values["x"]
        if kernel.formula in ("squares", "dots"):
            return [vir.multiply_add(builder, x, values.get("diff", x), sums[0])]
        if mean is None:
            size = vir.lanewise(builder, "fabs", x) if kernel.formula == "sizes" else x
            return [self._both(sums[0], size)]
        deviation = builder.fsub(x, mean)
        if kernel.formula == "decays":
            term = decay(builder, deviation)
            if kernel.kept:
                vir.store(builder, term, places["y"], mask)
            return [builder.fadd(sums[0], term)]
        term = values.get("diff", deviation)
        second = vir.multiply_add(builder, term, deviation, sums[1])
        return [builder.fadd(sums[0], term), second]

    def _loaded(self, name: str, places: dict[str, Value], mask: Value | None) -> Value:
        """Return a vector of x, or of diff with 0 where the tensor `mask` is 0."""
        builder, kernel = self.builder, self.kernel
        kind = kernel.source if name == "x" else kernel.diff
        value = load_as_f32(builder, places[name], kind, self.vector.count, mask)
        if name == "x" or not kernel.masked:
            return value
        bits = vir.load(builder, places["mask"], vir.kind_of(value, I8), mask)
        is_set = builder.icmp_unsigned("!=", bits, vir.constant(bits.type, 0))
        return builder.select(is_set, value, vir.constant(value.type, 0.0))

    def _both(self, x: Value, y: Value) -> Value:
        """Combine two sums. Of the larger or smaller one, the chain from x is short."""
        builder, formula = self.builder, self.kernel.formula
        if formula == "multiplied":
            return builder.fmul(x, y)
        if formula not in ("largest", "smallest"):
            return builder.fadd(x, y)
        sign = ">" if formula == "largest" else "<"
        value = builder.select(builder.fcmp_ordered(sign, y, x), y, x)
        return builder.select(builder.fcmp_unordered("uno", y, y), y, value)

    def _fetch(self, places: dict[str, Value], vectors: int) -> None:
        """Prefetch as many bytes of each tensor as are read now."""
        for name in sorted(set(places) - {"y"}):
            place = vir.at(self.builder, places[name], self.args["ahead"])
            for offset in range(0, vectors * self.vector.count * self.sizes[name], LINE):
                vir.prefetch(self.builder, vir.at(self.builder, place, offset))

    def _rest(
        self, count: Value, values: Sequence[Value],
        body: Callable[[Value], Sequence[Value]],
    ) -> list[Value]:  # fmt: skip
        """Emit `if count > 0: values = body(mask of the first count lanes)`. Returns the values."""
        builder, before = self.builder, self.builder.block
        with builder.if_then(builder.icmp_signed(">", count, I64(0))):
            after = body(vir.first_lanes(builder, count, self.vector.count))
            within = builder.block
        merged = [builder.phi(value.type) for value in values]
        vir.join(merged, (before, values), (within, after))
        return merged

    def _at(self, name: str, place: Value) -> Value:
        """Return where a number of an array of f32 is."""
        pointer = vir.address(self.builder, self.args[name])
        return vir.at(self.builder, pointer, self.builder.shl(place, I64(2)))

    def _sum(self, number: int, place: Value) -> Value:
        builder = self.builder
        count = self.args["rows" if self.kernel.along else "columns"]
        return self._at("sums", builder.add(place, builder.mul(count, I64(number))))

    # -- columns -----------------------------------------------------------------------------------

    def columns(self) -> None:
        """Emit sums of columns, which memory holds: several rows at a time are added to them."""
        builder, args = self.builder, self.args

        def clear(index: Value, _: Any) -> list[Value]:
            for number in range(self.numbers):
                builder.store(self.start, self._sum(number, index), align=4)
            return []

        vir.loop(builder, args["columns"], [], clear)
        done = I64(0)
        short = self.names == ["x"] and self.sizes["x"] < 4 and self.kernel.formula != "decays"
        for together in (ROWS_AT_ONCE, 1) if short else (1,):
            turns = builder.udiv(builder.sub(args["rows"], done), I64(together))

            def turn(index: Value, _: Any, n: int = together, done: Value = done) -> list[Value]:
                first = builder.add(done, builder.mul(index, I64(n)))
                self._add_rows([self._places(builder.add(first, I64(i))) for i in range(n)])
                return []

            vir.loop(builder, turns, [], turn)
            done = builder.mul(turns, I64(together))

    def _add_rows(self, rows: list[dict[str, Value]]) -> None:
        builder, count, lanes = self.builder, self.args["columns"], self.vector.count
        turns = builder.udiv(count, I64(lanes))

        def turn(index: Value, _: Any) -> list[Value]:
            self._add_columns(rows, builder.mul(index, I64(lanes)), None)
            return []

        def rest(mask: Value) -> list[Value]:
            self._add_columns(rows, builder.mul(turns, I64(lanes)), mask)
            return []

        vir.loop(builder, turns, [], turn)
        self._rest(builder.urem(count, I64(lanes)), [], rest)

    def _add_columns(self, rows: list[dict[str, Value]], column: Value, mask: Value | None) -> None:
        builder = self.builder
        mean = None
        if self.has_mean:
            mean = vir.load(builder, self._at("means", column), self.vector, mask)
        targets = [self._sum(number, column) for number in range(self.numbers)]
        sums = [vir.load(builder, target, self.vector, mask) for target in targets]
        for places in rows:
            own = self._moved(places, column)
            if mask is None:
                self._fetch(own, 1)
            sums = self._added(own, mean, sums, mask)
        for value, target in zip(sums, targets, strict=True):
            vir.store(builder, value, target, mask)

    # -- rows --------------------------------------------------------------------------------------

    def rows(self) -> None:
        """Emit sums of rows."""
        builder, args = self.builder, self.args

        def row(index: Value, _: Any) -> list[Value]:
            mean = None
            if self.has_mean:
                mean = builder.load(self._at("means", index), typ=F32, align=4)
                mean = vir.repeat(builder, mean, self.vector)
            for number, value in enumerate(self._row(self._places(index), mean)):
                builder.store(value, self._sum(number, index), align=4)
            return []

        vir.loop(builder, args["rows"], [], row)

    def _row(self, places: dict[str, Value], mean: Value | None) -> list[Value]:
        """Return the sums of a row: of several vectors at a time, of single ones, of the rest."""
        builder, lanes, left = self.builder, self.vector.count, self.args["columns"]
        start = vir.repeat(builder, self.start, self.vector)
        kinds = {"x": self.kernel.source, "diff": self.kernel.diff}
        paired = all(kinds.get(name) == "bf16" for name in self.names)
        sums = [start] * self.numbers * AT_ONCE
        for vectors in (AT_ONCE, 1):
            while len(sums) > self.numbers * vectors:
                half = len(sums) // 2
                pairs = zip(sums[:half], sums[half:], strict=True)
                sums = [self._both(*pair) for pair in pairs]
            size = I64(vectors * lanes)
            turns, base = builder.udiv(left, size), places

            def turn(
                index: Value, state: Sequence[Value], vectors: int = vectors, size: Value = size,
                base: Any = base,
            ) -> list[Value]:  # fmt: skip
                first = self._moved(base, builder.mul(index, size))
                self._fetch(first, vectors)
                after: list[Value] = []
                each = 2 if paired and vectors > 1 else 1
                add = self._added_pairs if each == 2 else self._added
                for v in range(0, vectors, each):
                    held = state[v * self.numbers : (v + each) * self.numbers]
                    after += add(self._moved(first, lanes * v), mean, held)
                return after

            sums = vir.loop(builder, turns, sums, turn)
            places = self._moved(places, builder.mul(turns, size))
            left = builder.urem(left, size)
        sums = self._rest(left, sums, lambda mask: self._added(places, mean, sums, mask))
        return [vir.combined_lanes(builder, [value], self._both) for value in sums]
