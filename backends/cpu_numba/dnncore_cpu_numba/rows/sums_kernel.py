"""The kernel that sums the rows or the columns of a tile, in registers.

A kernel is a native function of `SUMS_CALL`. It is emitted because LLVM does not vectorise loops
as short as a row, and converts elements of half types one by one. The sums of a row or column are

    plain       sum of x
    deviations  sum of x - mean,  sum of (x - mean)**2
    products    sum of g,         sum of g * (x - mean)        g = diff, or 0 where mask is 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import STORED, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I32, I64, Builder, Value

AT_ONCE = 4  # vectors of a row that are summed at a time
_AHEAD = 2048  # prefetch distance in bytes

SUMS_CALL = Record(
    "sums of a tile",
    ("y x diff mask", "address", "y: of `PReLUKernel`"),
    ("y_row x_row diff_row mask_row", "bytes"),
    ("rows columns", "count"),
    ("means", "address", "of rows or columns; f32"),
    ("sums", "address", "f32; the second sums follow all first ones"),
)
FORMULAS = {"plain": 1, "deviations": 2, "products": 2}
"""The number of sums of each formula."""


@dataclass(frozen=True)
class SumsKernel(NativeKernel):
    """A class of kernels.

    along: whether each row is summed, or else each column. source, diff: types. masked: whether
    there is a mask, which is u8.
    """

    ARGUMENTS = SUMS_CALL
    isa = BEST

    formula: Literal["plain", "deviations", "products"]
    along: bool
    source: str
    diff: str = "f32"
    masked: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        emitter = _Emitter(self, builder, args)
        (emitter.rows if self.along else emitter.columns)()


class _Emitter:
    def __init__(self, kernel: SumsKernel, builder: Builder, args: vir.Values) -> None:
        self.kernel, self.builder, self.args = kernel, builder, args
        self.names = ["x"]
        if kernel.formula == "products":
            self.names += ["diff", *(["mask"] if kernel.masked else [])]
        self.sizes = {
            "x": vir.bytes_of(STORED[kernel.source]), "diff": vir.bytes_of(STORED[kernel.diff]),
            "mask": 1,
        }  # fmt: skip
        self.numbers = FORMULAS[kernel.formula]

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
        self, places: dict[str, Value], lanes: int, mean: Value | None, sums: Sequence[Value]
    ) -> list[Value]:
        """Add the terms of a vector of elements to the sums."""
        builder, kernel = self.builder, self.kernel
        x = load_as_f32(builder, places["x"], kernel.source, lanes)
        if kernel.formula == "plain":
            return [builder.fadd(sums[0], x)]
        deviation = builder.fsub(x, mean)
        term = deviation
        if kernel.formula == "products":
            term = load_as_f32(builder, places["diff"], kernel.diff, lanes)
            if kernel.masked:
                bits = vir.load(builder, places["mask"], ir.VectorType(I8, lanes), None)
                there = builder.icmp_unsigned("!=", bits, vir.constant(bits.type, 0))
                term = builder.select(there, term, vir.constant(term.type, 0.0))
        second = vir.multiply_add(builder, term, deviation, sums[1])
        return [builder.fadd(sums[0], term), second]

    def _fetch(self, places: dict[str, Value], lanes: int) -> None:
        """Prefetch what follows. Deviations are of elements that are in the cache."""
        if lanes > 1 and self.kernel.formula != "deviations":
            for place in places.values():
                vir.prefetch(self.builder, vir.at(self.builder, place, _AHEAD))

    def _at(self, name: str, place: Value) -> Value:
        """Return where a number of an array of f32 is."""
        pointer = vir.address(self.builder, self.args[name])
        return vir.at(self.builder, pointer, self.builder.shl(place, I64(2)))

    def _sum(self, number: int, place: Value) -> Value:
        builder = self.builder
        count = self.args["rows" if self.kernel.along else "columns"]
        return self._at("sums", builder.add(place, builder.mul(count, I64(number))))

    def _store(self, sums: Sequence[Value], place: Value) -> None:
        for number, value in enumerate(sums):
            self.builder.store(value, self._sum(number, place), align=4)

    @staticmethod
    def _zero(lanes: int) -> Value:
        return vir.constant(vir.vector_of(lanes), 0.0)

    # -- columns -----------------------------------------------------------------------------------

    def columns(self) -> None:
        """Emit sums of columns, which memory holds: each row is added, in the order of memory."""
        builder, args = self.builder, self.args

        def clear(index: Value, _: Any) -> list[Value]:
            self._store([ir.Constant(F32, 0.0)] * self.numbers, index)
            return []

        def row(index: Value, _: Any) -> list[Value]:
            self._add_row(self._places(index))
            return []

        vir.loop(builder, args["columns"], [], clear)
        vir.loop(builder, args["rows"], [], row)

    def _add_row(self, places: dict[str, Value]) -> None:
        builder, done = self.builder, I64(0)
        for lanes in (BEST.lanes, 1):
            turns = builder.udiv(builder.sub(self.args["columns"], done), I64(lanes))

            def turn(index: Value, _: Any, first: Value = done, lanes: int = lanes) -> list[Value]:
                column = builder.add(first, builder.mul(index, I64(lanes)))
                mean = None
                if self.kernel.formula != "plain":
                    mean = vir.load(builder, self._at("means", column), vir.vector_of(lanes), None)
                sums = [
                    vir.load(builder, self._sum(n, column), vir.vector_of(lanes), None)
                    for n in range(self.numbers)
                ]
                own = self._moved(places, column)
                self._fetch(own, lanes)
                self._store(self._added(own, lanes, mean, sums), column)
                return []

            vir.loop(builder, turns, [], turn)
            done = builder.add(done, builder.mul(turns, I64(lanes)))

    # -- rows --------------------------------------------------------------------------------------

    def rows(self) -> None:
        """Emit sums of rows."""
        builder, args = self.builder, self.args

        def row(index: Value, _: Any) -> list[Value]:
            mean = None
            if self.kernel.formula != "plain":
                mean = builder.load(self._at("means", index), typ=F32, align=4)
            self._store(self._row(self._places(index), mean), index)
            return []

        vir.loop(builder, args["rows"], [], row)

    def _row(self, places: dict[str, Value], mean: Value | None) -> list[Value]:
        builder, done, count = self.builder, I64(0), self.args["columns"]
        totals = [ir.Constant(F32, 0.0)] * self.numbers
        for vectors, lanes in ((AT_ONCE, BEST.lanes), (1, BEST.lanes), (1, 1)):
            vector = vir.vector_of(lanes)
            means = None if mean is None else vir.repeat(builder, mean, vector)
            turns = builder.udiv(builder.sub(count, done), I64(vectors * lanes))
            base = self._moved(places, done)

            def turn(
                index: Value, state: Sequence[Value], size: int = vectors, lanes: int = lanes,
                means: Any = means, base: Any = base,
            ) -> list[Value]:  # fmt: skip
                start = self._moved(base, builder.mul(index, I64(size * lanes)))
                after: list[Value] = []
                for v in range(size):
                    own = self._moved(start, lanes * v)
                    self._fetch(own, lanes)
                    held = state[v * self.numbers : (v + 1) * self.numbers]
                    after += self._added(own, lanes, means, held)
                return after

            state = vir.loop(builder, turns, [self._zero(lanes)] * self.numbers * vectors, turn)
            for number in range(self.numbers):
                parts = [state[v * self.numbers + number] for v in range(vectors)]
                totals[number] = builder.fadd(totals[number], total(builder, parts))
            done = builder.add(done, builder.mul(turns, I64(vectors * lanes)))
        return totals


def total(builder: Builder, vectors: Sequence[Value]) -> Value:
    """Return the sum of all lanes of vectors."""
    vectors = list(vectors)
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [builder.fadd(x, y) for x, y in zip(vectors[:half], vectors[half:], strict=True)]
    value = vectors[0]
    while value.type.count > 1:
        half = value.type.count // 2
        orders = [range(half), range(half, 2 * half)]
        parts = [vir.shuffled(builder, value, order) for order in orders]
        value = builder.fadd(*parts)
    return builder.extract_element(value, I32(0))
