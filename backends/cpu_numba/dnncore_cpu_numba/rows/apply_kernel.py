"""The kernel that applies the numbers of rows or columns to the elements of a tile.

    linear       y = (x - mean) * slope + other * share + rest
    elements     y = (x - mean) * slope * share + rest
    decay        y = e**(x - mean) * slope                       no x is above the mean
    product      y = (x - mean) * other
    exponential  y = x - e**other * mean

A kernel is a native function of `APPLY_CALL`. The numbers belong to a row or to a column. For
`elements`, mean and slope belong to the row, and each column has its share and rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.exponentials import decay, exp
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE, elements_before_lines, mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import STORED, from_f32, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I64, Builder, Value

LANES = LINE // 4  # of a step of the loop over columns

APPLY_AHEAD = 1024  # bytes; the usual prefetch distance
NUMBERS = ("mean", "slope", "share", "rest")
Formula = Literal["linear", "elements", "decay", "product", "exponential"]
APPLY_CALL = Record(
    "application to a tile",
    ("y x other mask", "address"),
    ("y_row x_row other_row mask_row", "bytes"),
    ("rows columns", "count"),
    (" ".join(NUMBERS), "address", "f32"),
    ("step", "bytes", "between the numbers of rows"),
    ("ahead", "bytes", "prefetch distance, if y is streamed"),
)


@dataclass(frozen=True)
class ApplyKernel(NativeKernel):
    """A class of kernels.

    source, target, other: types; "" if there is no other tensor.
    scaled: whether `other` is multiplied by `share` if the formula is linear.
    mask: whether the u8 mask selects elements of `other`, or is written: where the result is
        greater than 0.
    relu: whether negative results become 0.
    along: whether the numbers belong to rows, or else to columns.
    streamed: whole lines of y use non-temporal stores.
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
    formula: Formula = "linear"

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
        named = {
            "linear": NUMBERS if kernel.scaled else ("mean", "slope", "rest"),
            "elements": NUMBERS, "decay": ("mean", "slope"),
        }  # fmt: skip
        self.numbers = named.get(kernel.formula, ("mean",))
        of_rows = NUMBERS[:2] if kernel.formula == "elements" else NUMBERS if kernel.along else ()
        self.of_rows = [n for n in self.numbers if n in of_rows]
        self.sizes = {n: vir.bytes_of(STORED[kind]) for n, kind in self.types.items()}

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
        builder, columns = self.builder, self.args["columns"]
        vector = vir.vector_of(LANES)
        own = {n: vir.repeat(builder, numbers[n], vector) for n in self.of_rows}
        held, begin = numbers | own, I64(0)
        if self.kernel.streamed:
            begin = elements_before_lines(builder, places["y"], self.sizes["y"], columns)
            self._span(I64(0), begin, places, held, streamed=False)
        self._span(begin, columns, places, held, streamed=self.kernel.streamed)

    def _span(
        self, begin: Value, end: Value, places: dict[str, Value], numbers: dict[str, Value], *,
        streamed: bool,
    ) -> None:  # fmt: skip
        """Emit whole vectors of a row, then the rest. streamed: use non-temporal stores."""
        builder = self.builder
        turns = builder.udiv(builder.sub(end, begin), I64(LANES))

        def turn(index: Value, _: Sequence[Value]) -> list[Value]:
            column = builder.add(begin, builder.mul(index, I64(LANES)))
            store = self._vector(column, places, numbers, None)
            if streamed:
                mark_streamed(builder, store, LANES * self.sizes["y"])
            return []

        vir.loop(builder, turns, [], turn)
        done = builder.add(begin, builder.mul(turns, I64(LANES)))
        rest = builder.sub(end, done)
        with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
            self._vector(done, places, numbers, vir.first_lanes(builder, rest, LANES))

    def _vector(
        self, column: Value, places: dict[str, Value], numbers: dict[str, Value],
        mask: Value | None,
    ) -> Value:  # fmt: skip
        """Emit a vector of elements. mask: those that exist. Returns the store of y."""
        builder, kernel, numbers = self.builder, self.kernel, dict(numbers)
        own = {
            n: vir.at(builder, place, builder.mul(column, I64(self.sizes[n])))
            for n, place in places.items()
        }
        place = builder.shl(column, I64(2))
        for name in set(self.numbers) - set(self.of_rows):
            pointer = vir.at(builder, numbers[name], place)
            numbers[name] = vir.load(builder, pointer, vir.vector_of(LANES), mask)
        if kernel.streamed and mask is None:
            for name in [n for n in ("x", "other") if n in own]:
                vir.prefetch(builder, vir.at(builder, own[name], self.args["ahead"]))
        value = self._value(own, numbers, mask)
        zero = vir.constant(value.type, 0.0)
        if kernel.relu or kernel.mask == "written":
            positive = builder.fcmp_unordered(">", value, zero)  # NaN remains
            if kernel.relu:
                value = builder.select(positive, value, zero)
            if kernel.mask == "written":
                bits = builder.zext(positive, ir.VectorType(I8, LANES))
                vir.store(builder, bits, own["mask"], mask)
        return vir.store(builder, from_f32(builder, value, kernel.target), own["y"], mask)

    def _value(self, own: dict[str, Value], numbers: dict[str, Value], mask: Value | None) -> Value:
        """Return y of a vector in f32."""
        builder, kernel, mean = self.builder, self.kernel, numbers["mean"]
        x = load_as_f32(builder, own["x"], kernel.source, LANES, mask)
        other = self._other(own, mask) if kernel.other else None
        match kernel.formula:
            case "decay":
                return builder.fmul(decay(builder, builder.fsub(x, mean)), numbers["slope"])
            case "product":
                return builder.fmul(builder.fsub(x, mean), other)
            case "exponential":
                return builder.fsub(x, builder.fmul(exp(builder, other), mean))
            case "elements":
                value = builder.fmul(builder.fsub(x, mean), numbers["slope"])
                return vir.multiply_add(builder, value, numbers["share"], numbers["rest"])
        value = builder.fsub(x, mean)
        value = vir.multiply_add(builder, value, numbers["slope"], numbers["rest"])
        if kernel.scaled:
            return vir.multiply_add(builder, other, numbers["share"], value)
        return value if other is None else builder.fadd(value, other)

    def _other(self, own: dict[str, Value], mask: Value | None) -> Value:
        """Return `other`, or 0 where the tensor `mask` is 0."""
        builder, kernel = self.builder, self.kernel
        other = load_as_f32(builder, own["other"], kernel.other, LANES, mask)
        if kernel.mask != "read":
            return other
        bits = vir.load(builder, own["mask"], ir.VectorType(I8, LANES), mask)
        is_set = builder.icmp_unsigned("!=", bits, vir.constant(bits.type, 0))
        return builder.select(is_set, other, vir.constant(other.type, 0.0))
