"""The kernel that applies the numbers of rows or columns to the elements of a tile.

    linear       y = (x - mean) * slope + other * share + rest
    elements     y = (x - mean) * slope * share + rest
    gradient     y = ((x - mean) * slope + other * weight + rest) * share
    decay        y = e**(x - mean) * slope                       no x is above the mean
    product      y = (x - mean) * other
    exponential  y = x - e**other * mean

A kernel is a native function of `APPLY_CALL`. The numbers belong to a row or to a column. For
`elements`, mean and slope belong to the row, and each column has its share and rest. For
`gradient`, all numbers belong to the row, and each column has its weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.exponentials import decay, exp
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import (
    LINE,
    elements_before_lines,
    mark_streamed,
    prefetch_shared_lines,
)
from dnncore_cpu_numba.codegen.type_conversion import STORED, from_f32, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I64, Builder, Value

APPLY_AHEAD = 1024  # bytes; the usual prefetch distance
NUMBERS = ("mean", "slope", "share", "rest")
Formula = Literal["linear", "elements", "gradient", "decay", "product", "exponential"]
APPLY_CALL = Record(
    "application to a tile",
    ("y x other mask", "address"),
    ("y_row x_row other_row mask_row", "bytes"),
    ("rows columns", "count"),
    (" ".join(NUMBERS), "address", "f32"),
    ("weight", "address", "of columns; f32; for `gradient`"),
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
            "elements": NUMBERS, "decay": ("mean", "slope"), "gradient": (*NUMBERS, "weight"),
        }  # fmt: skip
        self.numbers = named.get(kernel.formula, ("mean",))
        of_rows = NUMBERS[:2] if kernel.formula == "elements" else NUMBERS if kernel.along else ()
        self.of_rows = [n for n in self.numbers if n in of_rows]
        self.sizes = {n: vir.bytes_of(STORED[kind]) for n, kind in self.types.items()}
        # of steps of the loop over columns; masks of small elements cost a branch per lane
        self.widths = [2 * BEST.lanes if kernel.target == "bf16" else LINE // 4]
        if min(self.sizes.values()) < 4 and BEST.lanes < self.widths[0]:
            self.widths.append(BEST.lanes)

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
        self.own = {
            width: {n: vir.repeat(builder, numbers[n], vir.vector_of(width)) for n in self.of_rows}
            for width in self.widths
        }
        begin = I64(0)
        if self.kernel.streamed:
            nbytes = builder.mul(columns, I64(self.sizes["y"]))
            prefetch_shared_lines(builder, places["y"], self.args["y_row"], nbytes)
            begin = elements_before_lines(builder, places["y"], self.sizes["y"], columns)
            self._span(I64(0), begin, places, numbers, streamed=False)
        self._span(begin, columns, places, numbers, streamed=self.kernel.streamed)

    def _span(
        self, begin: Value, end: Value, places: dict[str, Value], numbers: dict[str, Value], *,
        streamed: bool,
    ) -> None:  # fmt: skip
        """Emit whole vectors of a row, then the rest. streamed: use non-temporal stores."""
        builder, done = self.builder, begin
        for width in self.widths:
            turns, size = builder.udiv(builder.sub(end, done), I64(width)), I64(width)

            def turn(
                index: Value, _: Any, width: int = width, size: Value = size, done: Value = done
            ) -> list[Value]:
                column = builder.add(done, builder.mul(index, size))
                store = self._vector(column, places, numbers | self.own[width], width, None)
                if streamed and width == self.widths[0]:
                    mark_streamed(builder, store, width * self.sizes["y"])
                return []

            vir.loop(builder, turns, [], turn)
            done = builder.add(done, builder.mul(turns, size))
        rest, width = builder.sub(end, done), self.widths[-1]
        with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
            mask = vir.first_lanes(builder, rest, width)
            self._vector(done, places, numbers | self.own[width], width, mask)

    def _vector(
        self, column: Value, places: dict[str, Value], numbers: dict[str, Value], width: int,
        mask: Value | None,
    ) -> Value:  # fmt: skip
        """Emit a vector of elements. mask: those that exist. Returns the store of y."""
        builder, kernel = self.builder, self.kernel
        own = {
            n: vir.at(builder, place, builder.mul(column, I64(self.sizes[n])))
            for n, place in places.items()
        }
        place = builder.shl(column, I64(2))
        for name in set(self.numbers) - set(self.of_rows):
            pointer = vir.at(builder, numbers[name], place)
            numbers[name] = vir.load(builder, pointer, vir.vector_of(width), mask)
        if kernel.streamed and mask is None:
            for name in [n for n in ("x", "other") if n in own]:
                for offset in range(0, width * self.sizes[name], LINE):
                    place = vir.at(builder, own[name], offset)
                    vir.prefetch(builder, vir.at(builder, place, self.args["ahead"]))
        value = self._value(own, numbers, width, mask)
        zero = vir.constant(value.type, 0.0)
        if kernel.relu or kernel.mask == "written":
            positive = builder.fcmp_unordered(">", value, zero)  # NaN remains
            if kernel.relu:
                value = builder.select(positive, value, zero)
            if kernel.mask == "written":
                bits = builder.zext(positive, ir.VectorType(I8, width))
                vir.store(builder, bits, own["mask"], mask)
        return vir.store(builder, from_f32(builder, value, kernel.target), own["y"], mask)

    def _value(
        self, own: dict[str, Value], numbers: dict[str, Value], width: int, mask: Value | None
    ) -> Value:
        """Return y of a vector in f32."""
        builder, kernel, mean = self.builder, self.kernel, numbers["mean"]
        x = load_as_f32(builder, own["x"], kernel.source, width, mask)
        other = self._other(own, width, mask) if kernel.other else None
        match kernel.formula:
            case "decay":
                return builder.fmul(decay(builder, builder.fsub(x, mean)), numbers["slope"])
            case "product":
                return builder.fmul(builder.fsub(x, mean), other)
            case "exponential":
                return builder.fsub(x, builder.fmul(exp(builder, other), mean))
            case "gradient":
                value = builder.fsub(x, mean)
                value = vir.multiply_add(builder, value, numbers["slope"], numbers["rest"])
                value = vir.multiply_add(builder, other, numbers["weight"], value)
                return builder.fmul(value, numbers["share"])
            case "elements":
                value = builder.fmul(builder.fsub(x, mean), numbers["slope"])
                return vir.multiply_add(builder, value, numbers["share"], numbers["rest"])
        value = builder.fsub(x, mean)
        value = vir.multiply_add(builder, value, numbers["slope"], numbers["rest"])
        if kernel.scaled:
            return vir.multiply_add(builder, other, numbers["share"], value)
        return value if other is None else builder.fadd(value, other)

    def _other(self, own: dict[str, Value], width: int, mask: Value | None) -> Value:
        """Return `other`, or 0 where the tensor `mask` is 0."""
        builder, kernel = self.builder, self.kernel
        other = load_as_f32(builder, own["other"], kernel.other, width, mask)
        if kernel.mask != "read":
            return other
        bits = vir.load(builder, own["mask"], ir.VectorType(I8, width), mask)
        is_set = builder.icmp_unsigned("!=", bits, vir.constant(bits.type, 0))
        return builder.select(is_set, other, vir.constant(other.type, 0.0))
