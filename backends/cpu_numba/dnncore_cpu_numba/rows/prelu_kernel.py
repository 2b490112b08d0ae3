"""The kernel of PReLU's gradient: it writes diff_src and sums the products of each weight.

A kernel is a native function of `SUMS_CALL`, where y is diff_src, x is src and `means` are weights.

    y       = diff if x > 0 else weight * diff
    product = 0 if x > 0 else x * diff
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import (
    LINE,
    elements_before_lines,
    mark_streamed,
    prefetch_shared_lines,
)
from dnncore_cpu_numba.codegen.type_conversion import STORED, from_f32, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value
from dnncore_cpu_numba.rows.sums_kernel import SUMS_CALL


@dataclass(frozen=True)
class PReLUKernel(NativeKernel):
    """A class of kernels.

    source: the type of src and diff. target: of y.
    weights: whose they are, and so the products that `sums` receives: of a row or of a column, as
        f32, or of an element, as `slope`. Products of elements are not added.
    slope: the type of weights and products.
    streamed: whole lines of y use non-temporal stores.
    """

    ARGUMENTS = SUMS_CALL
    isa = BEST

    source: str
    target: str
    weights: Literal["row", "column", "element"]
    slope: str = "f32"
    streamed: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        _Emitter(self, builder, args).emit()


class _Emitter:
    def __init__(self, kernel: PReLUKernel, builder: Builder, args: vir.Values) -> None:
        self.kernel, self.builder, self.args = kernel, builder, args
        self.kinds = {"y": kernel.target, "x": kernel.source, "diff": kernel.source}
        self.of_row = kernel.weights == "row"
        if not self.of_row:
            self.kinds |= {"means": kernel.slope, "sums": kernel.slope}
        self.sizes = {n: vir.bytes_of(STORED[kind]) for n, kind in self.kinds.items()}

    def emit(self) -> None:
        """Emit the loop over rows."""
        builder, args = self.builder, self.args
        if self.kernel.weights == "column":

            def clear(index: Value, _: Any) -> list[Value]:
                builder.store(ir.Constant(F32, 0.0), self._number("sums", index), align=4)
                return []

            vir.loop(builder, args["columns"], [], clear)

        def row(index: Value, _: Any) -> list[Value]:
            places = {n: vir.address(builder, args[n]) for n in self.kinds}
            for n in ("y", "x", "diff"):
                places[n] = vir.at(builder, places[n], builder.mul(index, args[f"{n}_row"]))
            weight = None
            if self.of_row:
                weight = builder.load(self._number("means", index), typ=F32, align=4)
            products = self._row(places, weight)
            if self.of_row:
                builder.store(products, self._number("sums", index), align=4)
            return []

        vir.loop(builder, args["rows"], [], row)

    def _number(self, name: str, place: Value) -> Value:
        """Return where a number of an array of f32 is."""
        pointer = vir.address(self.builder, self.args[name])
        return vir.at(self.builder, pointer, self.builder.shl(place, I64(2)))

    def _row(self, places: dict[str, Value], weight: Value | None) -> Value:
        """Emit a row. Returns the sum of its products if the weight is the row's."""
        builder, done, columns = self.builder, I64(0), self.args["columns"]
        result = ir.Constant(F32, 0.0)
        sections = [(16, columns), (4, columns), (1, columns)]
        if self.kernel.streamed:
            size = self.sizes["y"]
            nbytes = builder.mul(columns, I64(size))
            prefetch_shared_lines(builder, places["y"], self.args["y_row"], nbytes)
            head, line = elements_before_lines(builder, places["y"], size, columns), LINE // size
            sections = [(4, head), (1, head), (line, columns), *sections]
        for number, (lanes, end) in enumerate(sections):
            vector = vir.vector_of(lanes)
            held = None if weight is None else vir.repeat(builder, weight, vector)
            streamed = self.kernel.streamed and number == 2
            turns = builder.sdiv(builder.sub(end, done), I64(lanes))

            def turn(
                index: Value, state: Sequence[Value], done: Value = done, lanes: int = lanes,
                held: Any = held, streamed: bool = streamed,
            ) -> list[Value]:  # fmt: skip
                column = builder.add(done, builder.mul(index, I64(lanes)))
                products = self._vector(column, places, held, lanes, streamed=streamed)
                return [builder.fadd(state[0], products)] if state else []

            start = [vir.constant(vector, 0.0)] if self.of_row else []
            for products in vir.loop(builder, turns, start, turn):
                added = vir.combined_lanes(builder, [products], builder.fadd)
                result = builder.fadd(result, added)
            done = builder.add(done, builder.mul(turns, I64(lanes)))
        return result

    def _vector(
        self, column: Value, places: dict[str, Value], weight: Value | None, lanes: int, *,
        streamed: bool,
    ) -> Value:  # fmt: skip
        """Emit a vector of elements. Returns their products."""
        builder, kernel = self.builder, self.kernel
        own = {
            n: vir.at(builder, place, builder.mul(column, I64(self.sizes[n])))
            for n, place in places.items()
        }
        if streamed:
            for name in ("x", "diff"):
                vir.prefetch(builder, vir.at(builder, own[name], self.args["ahead"]))
        x, diff = (load_as_f32(builder, own[n], kernel.source, lanes) for n in ("x", "diff"))
        if weight is None:
            weight = load_as_f32(builder, own["means"], kernel.slope, lanes)
        zero = vir.constant(x.type, 0.0)
        positive = builder.fcmp_ordered(">", x, zero)
        value = builder.select(positive, diff, builder.fmul(weight, diff))
        products = builder.select(positive, zero, builder.fmul(x, diff))
        if kernel.weights == "column":
            sums = vir.load(builder, own["sums"], x.type, None)
            vir.store(builder, builder.fadd(sums, products), own["sums"], None)
        elif kernel.weights == "element":
            vir.store(builder, from_f32(builder, products, kernel.slope), own["sums"], None)
        store = vir.store(builder, from_f32(builder, value, kernel.target), own["y"], None)
        if streamed:
            mark_streamed(builder, store)
        return products
