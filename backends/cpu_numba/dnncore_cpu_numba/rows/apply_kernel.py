"""The kernel that applies the numbers of a channel to the elements of a tile.

    y = (x - mean) * slope + other * share + rest

A kernel is a native function of `APPLY_CALL`. The four numbers belong to a row or to a column. For
rows whose elements have their own scale and shift, mean and slope belong to the row:

    y = (x - mean) * slope * share + rest
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
from dnncore_cpu_numba.codegen.nontemporal import LINE, mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import STORED, from_f32, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I64, Builder, Value

LANES = LINE // 4  # of a step of the loop over columns
_AHEAD = 1024  # prefetch distance in bytes

NUMBERS = ("mean", "slope", "share", "rest")
APPLY_CALL = Record(
    "application to a tile",
    ("y x other mask", "address"),
    ("y_row x_row other_row mask_row", "bytes"),
    ("rows columns", "count"),
    (" ".join(NUMBERS), "address", "f32"),
    ("step", "bytes", "between the numbers of rows"),
)


@dataclass(frozen=True)
class ApplyKernel(NativeKernel):
    """A class of kernels.

    source, target, other: types; "" if there is no other tensor.
    scaled: whether `other` is multiplied by `share`.
    mask: whether the u8 mask selects elements of `other`, or is written: where the result is
        greater than 0.
    relu: whether negative results become 0.
    along: whether the numbers belong to rows, or else to columns.
    streamed: whole lines of y, which begin rows, use non-temporal stores.
    per_element: whether the second formula holds.
    """

    ARGUMENTS = APPLY_CALL
    isa = BEST

    source: str
    target: str
    along: bool
    other: str = ""
    scaled: bool = False
    mask: Literal["", "read", "written"] = ""
    relu: bool = False
    streamed: bool = False
    per_element: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        _Emitter(self, builder, args).emit()


class _Emitter:
    def __init__(self, kernel: ApplyKernel, builder: Builder, args: vir.Values) -> None:
        self.kernel, self.builder, self.args = kernel, builder, args
        self.types = {"x": kernel.source, "y": kernel.target}
        if kernel.other:
            self.types["other"] = kernel.other
        if kernel.mask:
            self.types["mask"] = "u8"
        self.numbers = [n for n in NUMBERS if n != "share" or kernel.scaled or kernel.per_element]
        of_rows = NUMBERS[:2] if kernel.per_element else NUMBERS if kernel.along else ()
        self.of_rows = [n for n in self.numbers if n in of_rows]

    def emit(self) -> None:
        """Emit the loop over rows."""
        builder, args = self.builder, self.args
        numbers = {n: vir.address(builder, args[n]) for n in self.numbers}

        def row(index: Value, _: Any) -> list[Value]:
            places = {
                n: vir.at(builder, vir.address(builder, args[n]),
                          builder.mul(index, args[f"{n}_row"]))
                for n in self.types
            }  # fmt: skip
            moved, own = builder.mul(index, args["step"]), {}
            for name in self.of_rows:
                place = vir.at(builder, numbers[name], moved)
                own[name] = builder.load(place, typ=F32, align=4)
            self._row(places, numbers | own)
            return []

        vir.loop(builder, args["rows"], [], row)

    def _row(self, places: dict[str, Value], numbers: dict[str, Value]) -> None:
        builder, done = self.builder, I64(0)
        for lanes in (LANES, 4, 1):
            turns = builder.udiv(builder.sub(self.args["columns"], done), I64(lanes))
            vector = vir.vector_of(lanes)
            held = {
                n: vir.repeat(builder, value, vector) if n in self.of_rows else value
                for n, value in numbers.items()
            }

            def turn(
                index: Value, _: Sequence[Value], done: Value = done, lanes: int = lanes,
                held: Any = held,
            ) -> list[Value]:  # fmt: skip
                self._vector(builder.add(done, builder.mul(index, I64(lanes))), places, held, lanes)
                return []

            vir.loop(builder, turns, [], turn)
            done = builder.add(done, builder.mul(turns, I64(lanes)))

    def _vector(
        self, column: Value, places: dict[str, Value], numbers: dict[str, Value], lanes: int
    ) -> None:
        builder, kernel = self.builder, self.kernel
        own = {
            n: vir.at(builder, place, builder.mul(column, I64(vir.bytes_of(STORED[self.types[n]]))))
            for n, place in places.items()
        }
        place, numbers = builder.shl(column, I64(2)), dict(numbers)
        for name in set(self.numbers) - set(self.of_rows):
            pointer = vir.at(builder, numbers[name], place)
            numbers[name] = vir.load(builder, pointer, vir.vector_of(lanes), None)
        if kernel.streamed and lanes == LANES:
            for name in ("x", "other"):
                if name in own:
                    vir.prefetch(builder, vir.at(builder, own[name], _AHEAD))
        x = load_as_f32(builder, own["x"], kernel.source, lanes)
        value = builder.fsub(x, numbers["mean"])
        factor = numbers["slope"]
        if kernel.per_element:
            value, factor = builder.fmul(value, factor), numbers["share"]
        value = vir.multiply_add(builder, value, factor, numbers["rest"])
        if kernel.other:
            value = self._with_other(value, own, numbers, lanes)
        zero = vir.constant(value.type, 0.0)
        if kernel.relu or kernel.mask == "written":
            positive = builder.fcmp_unordered(">", value, zero)  # NaN remains
            if kernel.relu:
                value = builder.select(positive, value, zero)
            if kernel.mask == "written":
                bits = builder.zext(positive, ir.VectorType(I8, lanes))
                vir.store(builder, bits, own["mask"], None)
        stored = from_f32(builder, value, kernel.target)
        store = vir.store(builder, stored, own["y"], None)
        if kernel.streamed and lanes == LANES:
            mark_streamed(builder, store, LANES * vir.bytes_of(STORED[kernel.target]))

    def _with_other(
        self, value: Value, own: dict[str, Value], numbers: dict[str, Value], lanes: int
    ) -> Value:
        builder, kernel = self.builder, self.kernel
        other = load_as_f32(builder, own["other"], kernel.other, lanes)
        if kernel.mask == "read":
            bits = vir.load(builder, own["mask"], ir.VectorType(I8, lanes), None)
            there = builder.icmp_unsigned("!=", bits, vir.constant(bits.type, 0))
            other = builder.select(there, other, vir.constant(other.type, 0.0))
        if kernel.scaled:
            return vir.multiply_add(builder, other, numbers["share"], value)
        return builder.fadd(value, other)
