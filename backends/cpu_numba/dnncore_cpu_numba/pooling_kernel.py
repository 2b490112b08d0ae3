"""The kernel of pooling: a tile of results in registers, over a box of taps.

    result[i][lane] = fold over d < D, h < H, w < W of term(a, b)    for `count` points, all columns

a and b are read at `a + i * a_step + d * a_d + h * a_h + w * a_w + lane`, so that a window going
forward and the windows that see a cell going backward are the same box with other steps:

    largest     the maximum of a, with its tap in `b` if the kernel has an index; NaN wins for good
    sum         the sum of a, divided by `divisor`
    winners     the sum of a where b, the tap that won, is this one
    shares      the sum of a times b, one number for all columns

Forward a is src; backward a is diff_dst. Columns are neighbours; the last vector of them overlaps
the one before it, and so does the last tile of points, so that nothing is computed by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba import native
from dnncore_cpu_numba import vector_ir as vir
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.streaming import LINE, mark_streamed
from dnncore_cpu_numba.vector_ir import F32, I64

__all__ = ["FIELDS", "SLOT", "PoolingKernel"]

FIELDS = (
    "result", "a", "b", "result_step", "a_step", "b_step", "count", "columns",
    "d", "h", "w", "a_d", "a_h", "a_w", "b_d", "b_h", "b_w", "tap", "tap_d", "tap_h", "tap_w",
    "start", "divisor",
)  # fmt: skip
SLOT = {name: slot for slot, name in enumerate(FIELDS)}
"""Where each field lies in the block of int64 that is the kernel's argument. Steps are in bytes;
tap: the first tap's number; start: the bits of the float32 that an empty box gives."""

I1, I8, I32 = (ir.IntType(width) for width in (1, 8, 32))
Value = Any


@dataclass(frozen=True)
class PoolingKernel:
    """A class of kernels.

    lanes: columns of a vector; there are at least as many columns.
    along: whether the points of a tile are neighbouring vectors of columns or points.
    index: bits of a tap in b, 0 where b is none.
    width: how many taps along w are unrolled; boxes of another width are for loops.
    streamed: results are whole, aligned cache lines that go past the caches.
    """

    isa: Isa
    fold: Literal["largest", "sum", "winners", "shares"]
    lanes: int
    along: Literal["columns", "points"]
    index: int = 0
    width: int = 1
    streamed: bool = False

    @property
    def tile(self) -> int:
        """Points of a tile: their results, with taps, fit into half of the registers."""
        return 8 if self.isa.lanes == LINE // 4 else 4

    @property
    def name(self) -> str:
        """An identifier of everything that is compiled in."""
        way = f"{self.lanes}x{self.along}_{self.width}_{self.index}{'_streamed' * self.streamed}"
        return f"pooling_{self.isa.name}_{self.fold}_{way}"

    @property
    def address(self) -> int:
        """The address of the compiled function, which takes a block of `FIELDS`."""
        return native.function(self.name, self.llvm_text)

    def llvm_text(self, symbol: str) -> str:
        """The LLVM assembly of a module that defines the kernel as `symbol`."""
        module = ir.Module(symbol)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64]), symbol)
        if self.isa.target:  # an attribute that llvmlite does not list
            set.add(function.attributes, f'"target-cpu"="{self.isa.target}"')
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        _Emitter(self, builder, function.args[0]).emit()
        builder.ret_void()
        return str(module)


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: PoolingKernel, builder: ir.IRBuilder, block: Value) -> None:
        self.kernel, self.builder = kernel, builder
        base = vir.address(builder, block)
        self.fields = {n: builder.load(vir.at(builder, base, 8 * i), typ=I64)
                       for n, i in SLOT.items()}  # fmt: skip
        self.vector = vir.vector_of(kernel.lanes)
        self.taps = ir.VectorType(I32, kernel.lanes)
        self.b_size = kernel.index // 8

    def emit(self) -> None:
        """Loop over columns and points, in the order that suits the tile."""
        kernel, fields = self.kernel, self.fields
        if kernel.along == "columns":
            width = kernel.tile * kernel.lanes
            self._loop(fields["count"], 1, lambda point:
                       self._loop(fields["columns"], width, lambda column:
                                  self._tile(point, column, kernel.tile)))  # fmt: skip
            return

        def points(column: Value) -> None:
            enough = self.builder.icmp_signed(">=", fields["count"], I64(kernel.tile))
            with self.builder.if_else(enough) as (tiles, singles):
                for way, size in ((tiles, kernel.tile), (singles, 1)):
                    with way:
                        self._loop(fields["count"], size,
                                   lambda p, size=size: self._tile(p, column, size))  # fmt: skip

        self._loop(fields["columns"], kernel.lanes, points)

    def _loop(self, count: Value, step: int, body: Any) -> None:
        """For 0, step, 2 * step, ..., the last one moved back to end at `count`."""
        builder = self.builder
        turns = builder.sdiv(builder.add(count, I64(step - 1)), I64(step))
        last = builder.sub(count, I64(step))

        def turn(index: Value, _: Sequence[Value]) -> list[Value]:
            first = builder.mul(index, I64(step))
            over = builder.icmp_signed(">", first, last)
            body(builder.select(over, last, first))
            return []

        vir.loop(builder, turns, [], turn)

    def _tile(self, point: Value, column: Value, size: int) -> None:
        """Fold `size` points, from one point and one column on."""
        builder, fields = self.builder, self.fields
        sizes = {"result": 4, "a": 4, "b": self.b_size}
        places = {}
        for name, nbytes in sizes.items():
            place = builder.add(fields[name], builder.mul(point, fields[f"{name}_step"]))
            place = builder.add(place, builder.mul(column, I64(nbytes)))
            places[name] = vir.address(builder, place)
        start = builder.bitcast(builder.trunc(fields["start"], I32), F32)
        kept = [vir.repeat(builder, start, self.vector)] * size
        if self._keeps_taps:
            kept += [self._splat(fields["tap"])] * size
        state = [places["a"], places["b"], fields["tap"], *kept]
        usual = builder.icmp_signed("==", fields["w"], I64(self.kernel.width))
        with builder.if_else(usual) as (unrolled, looped):
            for way, is_usual in ((unrolled, True), (looped, False)):
                with way:
                    kept = self._box("dhw", state, size, unrolled=is_usual)[3:]
                    self._finish(kept[:size], kept[size:], places, size)

    @property
    def _keeps_taps(self) -> bool:
        return self.kernel.fold == "largest" and self.kernel.index > 0

    def _box(
        self, dims: str, state: Sequence[Value], size: int, *, unrolled: bool = False
    ) -> list[Value]:
        """Go through the box of taps; the state is a, b, the tap, and what is kept."""
        if not dims:
            return self._taps(state, size, 1)
        builder, fields, dim = self.builder, self.fields, dims[0]
        if dim == "w" and unrolled:
            return self._taps(state, size, self.kernel.width)

        def turn(_: Value, inside: Sequence[Value]) -> list[Value]:
            kept = self._box(dims[1:], inside, size, unrolled=unrolled)[3:]
            return [*self._next(dim, inside), *kept]

        return vir.loop(builder, fields[dim], state, turn)

    def _taps(self, state: Sequence[Value], size: int, count: int) -> list[Value]:
        """What is kept after some taps along w, which are folded by themselves first."""
        places = [list(state[:3])]
        while len(places) < count:
            places.append(self._next("w", places[-1]))
        kept = state[3:]
        points = []
        for i in range(size):
            row, *others = (self._term(*place, i) for place in places)
            for other in others:
                row = self._joined(row, other)
            points.append(self._joined(kept[i::size], row))
        return [*places[-1], *(value for values in zip(*points, strict=True) for value in values)]

    def _next(self, dim: str, state: Sequence[Value]) -> list[Value]:
        """a, b and the tap one step along a dim."""
        builder, fields = self.builder, self.fields
        a = vir.at(builder, state[0], fields[f"a_{dim}"])
        b = vir.at(builder, state[1], fields[f"b_{dim}"])
        return [a, b, builder.add(state[2], fields[f"tap_{dim}"])]

    def _term(self, a: Value, b: Value, tap: Value, i: int) -> tuple[Value, ...]:
        """What a single tap gives to the i-th point, and for maxima the tap."""
        builder, kernel = self.builder, self.kernel
        value = vir.load(builder, self._at("a", a, i), self.vector, None)
        if self._keeps_taps:
            return value, self._splat(tap)
        if kernel.fold == "shares":
            factor = builder.load(self._at("b", b, i), typ=F32, align=4)
            value = builder.fmul(value, vir.repeat(builder, factor, self.vector))
        elif kernel.fold == "winners":
            kind = ir.VectorType(ir.IntType(kernel.index), kernel.lanes)
            winner = builder.load(self._at("b", b, i), typ=kind, align=1)
            wins = builder.icmp_signed("==", winner, self._splat(tap, kind))
            value = builder.select(wins, value, self.vector(None))
        return (value,)

    def _joined(self, first: Sequence[Value], then: Sequence[Value]) -> Sequence[Value]:
        """Two folds as one; of maxima the first is kept, and of NaN."""
        builder = self.builder
        if self.kernel.fold != "largest":
            return (builder.fadd(first[0], then[0]),)
        larger = builder.fcmp_unordered(">", then[0], first[0])
        larger = builder.and_(larger, builder.fcmp_ordered("ord", first[0], first[0]))
        return [builder.select(larger, new, old) for old, new in zip(first, then, strict=True)]

    def _finish(
        self, results: Sequence[Value], taps: Sequence[Value], places: Any, size: int
    ) -> None:
        builder = self.builder
        divisor = None
        if self.kernel.fold == "sum":
            number = builder.bitcast(builder.trunc(self.fields["divisor"], I32), F32)
            divisor = vir.repeat(builder, number, self.vector)
        for i, result in enumerate(results):
            value = builder.fdiv(result, divisor) if divisor else result
            store = builder.store(value, self._at("result", places["result"], i), align=4)
            if self.kernel.streamed:
                mark_streamed(builder, store)
        for i, tap in enumerate(taps):
            kind = ir.VectorType(ir.IntType(self.kernel.index), self.kernel.lanes)
            number = tap if kind == tap.type else builder.trunc(tap, kind)
            builder.store(number, self._at("b", places["b"], i), align=1)

    def _at(self, name: str, pointer: Value, i: int) -> Value:
        """The i-th point of a tile."""
        if self.kernel.along == "columns":
            nbytes = self.b_size if name == "b" else 4
            return vir.at(self.builder, pointer, nbytes * self.kernel.lanes * i)
        return vir.multiple(self.builder, pointer, self.fields[f"{name}_step"], i)

    def _splat(self, number: Value, kind: ir.VectorType | None = None) -> Value:
        kind = kind or self.taps
        return vir.repeat(self.builder, self.builder.trunc(number, kind.element), kind)
