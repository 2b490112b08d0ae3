"""The pooling kernel: folds a box of taps into a tile of results in registers.

    result[i][lane] = fold over d < D, h < H, w < W of term(a, b)    for all columns

a is read at `a + i * a_step + d * a_d + h * a_h + w * a_w + lane`, and b in the same way. Forward,
the box is a window of src. Backward, the box is the windows that contain a cell. Only the steps
differ. The folds are:

    largest     the maximum of a; b receives its tap if the kernel has an index; NaN propagates
    sum         the sum of a, divided by `divisor`
    winners     the sum of a over the taps whose number equals b, the tap of the maximum
    shares      the sum of a times b; b has one value for all columns

Forward, a is src. Backward, a is diff_dst. Columns are contiguous. The last vector of columns
overlaps the vector before it, and the last tile of points overlaps the tile before it, so that all
vectors and tiles are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE, mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import (
    F64,
    HALVES,
    I16,
    INTEGERS,
    LIMITS,
    STORED,
    converted,
    from_f32,
    load_as_f32,
)
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, I64, Value

FIELDS = Record(
    "fields of the pooling kernel",
    ("result a b", "address"),
    ("result_step a_step b_step", "bytes", "from point to point"),
    ("result_line a_line b_line", "bytes", "from line to line"),
    ("count lines columns", "count", "points of a line, lines, columns"),
    ("d h w", "count", "taps"),
    ("a_d a_h a_w b_d b_h b_w", "bytes", "from tap to tap"),
    ("tap tap_d tap_h tap_w", "index", "of the first tap, and steps from tap to tap"),
    ("start divisor", "float32", "the result of an empty box, and the divisor of sums"),
    ("ahead", "bytes", "from a to the first new rows that the next line of results reads"),
    ("ahead_rows", "count", "number of these rows"),
)
INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80}  # bit patterns
LOWEST_F32, LOWEST_F64 = -(2 - 2.0**-23) * 2.0**127, -(2 - 2.0**-52) * 2.0**1023
FoldName: TypeAlias = Literal["largest", "sum", "winners", "shares"]
POOLING_CALL = Record("pooling kernel", ("fields", Pointer(FIELDS)))


@dataclass(frozen=True)
class PoolingKernel(NativeKernel):
    """A class of kernels.

    lanes: columns per vector. A problem has at least this number of columns.
    along: whether the vectors of a tile are contiguous along the columns, or belong to
    neighbouring points.
    index: the bits of a tap number in b; 0 without b.
    source, target: the types of a and of the result.
    held: the type of the computation: f32, f64 if all types are f64, or an integer or half type
    equal to `source`, whose maximum needs no conversion. Halves are compared as integers in the
    same order; the integers beyond the two infinities are NaN.
    width: the number of taps along w that are unrolled. Boxes of another width use a loop.
    fetches: prefetch a in software. Its rows are too short and too many for the hardware
    prefetcher (measured: 2.5 times as fast on 51 MB).
    scattered: prefetch the results of the next line. The results of a line are so far apart that
    few of their cache lines arrive from the third-level cache at a time (measured: twice as fast
    on 8 MB).
    streamed: use non-temporal stores. Results are whole cache lines, written in order.
    """

    ARGUMENTS = POOLING_CALL
    isa = BEST

    fold: FoldName
    lanes: int
    along: Literal["columns", "points"]
    index: int = 0
    source: str = "f32"
    target: str = "f32"
    held: str = "f32"
    width: int = 1
    fetches: bool = False
    scattered: bool = False
    streamed: bool = False

    @property
    def keeps_taps(self) -> bool:
        """Whether the kernel stores the tap of each maximum."""
        return self.fold == "largest" and bool(self.index)

    @property
    def is_half(self) -> bool:
        """Whether the kernel computes maxima of halves."""
        return self.held in HALVES

    @property
    def tile(self) -> int:
        """The number of vectors of a tile. Their state should fit into half of the registers.

        Four vectors of contiguous columns are faster than eight of points that are far apart
        (measured).
        """
        few = self.along == "columns" or self.keeps_taps
        registers = 32 if self.isa.lanes == LINE // 4 else 16
        return registers // 8 if few else registers // 4

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args["fields"]).emit()


@dataclass(frozen=True)
class _Point:
    """The state of a vector of results.

    value: the result so far. tap: the taps of maxima. total: of maxima of floats, a sum that is
    NaN if any value is NaN; of maxima of halves, the minimum.
    """

    value: Value
    tap: Value | None = None
    total: Value | None = None

    @property
    def values(self) -> list[Value]:
        """The values that are not None."""
        return [value for value in (self.value, self.tap, self.total) if value is not None]


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: PoolingKernel, builder: ir.IRBuilder, block: Value) -> None:
        self.kernel, self.builder = kernel, builder
        self.fields = vir.fields(builder, vir.address(builder, block), FIELDS)
        self.vector = ir.VectorType(STORED[kernel.held], kernel.lanes)
        self.taps = ir.VectorType(I32, kernel.lanes)
        result, a = (vir.bytes_of(STORED[kind]) for kind in (kernel.target, kernel.source))
        self.sizes = {"result": result, "a": a, "b": kernel.index // 8}

    def emit(self) -> None:
        """Emit loops over columns and points in the order that fits the tile."""
        kernel, fields = self.kernel, self.fields

        def columns(line: Value) -> None:
            width = kernel.tile * kernel.lanes
            self._loop(fields["count"], 1, lambda point: self._loop(
                fields["columns"], width, lambda column: self._tile(line, point, column,
                                                                    kernel.tile)))  # fmt: skip

        def points(column: Value, line: Value) -> None:
            enough = self.builder.icmp_signed(">=", fields["count"], I64(kernel.tile))
            with self.builder.if_else(enough) as (tiles, singles):
                for way, size in ((tiles, kernel.tile), (singles, 1)):
                    with way:
                        self._loop(fields["count"], size, lambda point, size=size:
                                   self._tile(line, point, column, size))  # fmt: skip

        if kernel.along == "columns":
            self._loop(fields["lines"], 1, columns)
        else:
            self._loop(fields["columns"], kernel.lanes, lambda column: self._loop(
                fields["lines"], 1, lambda line: points(column, line)))  # fmt: skip

    def _loop(self, count: Value, step: int, body: Any) -> None:
        """Emit body(i) for i = 0, step, 2 * step, ...; the last i is at most count - step."""
        builder = self.builder
        turns = builder.sdiv(builder.add(count, I64(step - 1)), I64(step))
        last = builder.sub(count, I64(step))

        def turn(index: Value, _: Sequence[Value]) -> list[Value]:
            first = builder.mul(index, I64(step))
            over = builder.icmp_signed(">", first, last)
            body(builder.select(over, last, first))
            return []

        vir.loop(builder, turns, [], turn)

    def _tile(self, line: Value, point: Value, column: Value, size: int) -> None:
        """Fold the `size` vectors of a tile that begins at a point and a column of a line."""
        builder, fields = self.builder, self.fields
        places = {}
        for name, nbytes in self.sizes.items():
            place = builder.add(fields[name], builder.mul(point, fields[f"{name}_step"]))
            place = builder.add(place, builder.mul(line, fields[f"{name}_line"]))
            place = builder.add(place, builder.mul(column, I64(nbytes)))
            places[name] = vir.address(builder, place)
        if size == 1:
            self._finish(self._folded(places, 1, unrolled=False), places)
            return
        if self.kernel.fetches:
            self._prefetch(places["a"], size)
        if self.kernel.scattered:
            following = vir.at(builder, places["result"], fields["result_line"])
            for i in range(size):
                vir.prefetch(builder, self._at("result", following, i), write=True)
        usual = builder.icmp_signed("==", fields["w"], I64(self.kernel.width))
        with builder.if_else(usual) as (unrolled, looped):
            for way, is_usual in ((unrolled, True), (looped, False)):
                with way:
                    self._checked(self._folded(places, size, unrolled=is_usual), places)

    def _prefetch(self, a: Value, size: int) -> None:
        """Prefetch the rows that the next line of results reads and this line does not.

        Each point prefetches two cache lines, half a step apart: the cells of a window of stride 2.
        """
        builder, fields = self.builder, self.fields
        start = vir.at(builder, a, fields["ahead"])
        half = builder.ashr(fields["a_step"], I64(1))

        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            first = vir.at(builder, start, builder.mul(index, fields["a_h"]))
            for i in range(size):
                place = self._at("a", first, i)
                vir.prefetch(builder, place)
                vir.prefetch(builder, vir.at(builder, place, half))
            return []

        vir.loop(builder, fields["ahead_rows"], [], row)

    def _checked(self, points: Sequence[_Point], places: dict[str, Value]) -> None:
        """Store a tile. If maxima may have met a NaN, fold the points again one by one."""
        builder = self.builder
        if not self.heeds_nan:
            self._finish(points, places)
            return
        total = points[0].total
        for point in points[1:]:
            total = builder.fadd(total, point.total)
        lanes = builder.fcmp_unordered("uno", total, total)
        bits = ir.IntType(self.kernel.lanes)
        doubtful = builder.icmp_unsigned("!=", builder.bitcast(lanes, bits), bits(0))
        with builder.if_else(doubtful, likely=False) as (one_by_one, all_at_once):
            with one_by_one:
                self._loop(I64(len(points)), 1, lambda i: self._single(places, i))
            with all_at_once:
                self._finish(points, places)

    def _single(self, places: dict[str, Value], i: Value) -> None:
        """Fold one point of a tile."""
        builder, moved = self.builder, {}
        for name, place in places.items():
            step = self.fields[f"{name}_step"]
            if self.kernel.along == "columns":
                step = I64(self.kernel.lanes * self.sizes[name])
            moved[name] = vir.at(builder, place, builder.mul(i, step))
        self._finish(self._folded(moved, 1, unrolled=False), moved)

    def _folded(self, places: dict[str, Value], size: int, *, unrolled: bool) -> list[_Point]:
        """Fold points over the whole box. The fold of a single point propagates NaN."""
        builder, fields = self.builder, self.fields
        value = vir.repeat(builder, self._start(), self.vector)
        tap = self._splat(fields["tap"]) if self.kernel.keeps_taps else None
        checked = self.kernel.is_half or (self.heeds_nan and size > 1)
        total = self.vector(None) if checked else None
        state = [places["a"], places["b"], fields["tap"]]
        state += _Point(value, tap, total).values * size
        return self._points(self._box("dhw", state, size, unrolled=unrolled), size)

    @property
    def heeds_nan(self) -> bool:
        """Whether a NaN among maxima requires a second fold."""
        return self.kernel.fold == "largest" and self.kernel.held in ("f32", "f64")

    def _start(self) -> Value:
        """The initial value of a fold: the field `start`, or the lowest integer or f64."""
        if self.kernel.is_half:
            start = vir.float_of(self.builder, self.fields["start"])
            return _as_integer(self.builder, from_f32(self.builder, start, self.kernel.held))
        if self.kernel.held in INTEGERS:
            return self.vector.element(int(LIMITS[self.kernel.held][0]))
        start = vir.float_of(self.builder, self.fields["start"])
        if self.kernel.held == "f32":
            return start
        lowest = self.builder.fcmp_ordered("==", start, F32(LOWEST_F32))
        wide = self.builder.fpext(start, F64)
        return self.builder.select(lowest, F64(LOWEST_F64), wide)

    def _points(self, state: Sequence[Value], size: int) -> list[_Point]:
        """Return the points that a state contains."""
        kept, each = state[3:], (len(state) - 3) // size
        rows = [kept[each * i : each * (i + 1)] for i in range(size)]
        if self.kernel.keeps_taps:
            return [_Point(*row) for row in rows]
        return [_Point(row[0], None, *row[1:]) for row in rows]

    def _box(self, dims: str, state: Sequence[Value], size: int, *, unrolled: bool) -> list[Value]:
        """Emit loops over the box of taps. The state is a, b, the tap and the points' values."""
        builder, fields = self.builder, self.fields
        if not dims:
            return self._row(state, size, 1)
        if dims == "w" and unrolled:
            return self._row(state, size, self.kernel.width)

        def turn(_: Value, inside: Sequence[Value]) -> list[Value]:
            kept = self._box(dims[1:], inside, size, unrolled=unrolled)[3:]
            return [*self._next(dims[0], inside), *kept]

        return vir.loop(builder, fields[dims[0]], state, turn)

    def _row(self, state: Sequence[Value], size: int, count: int) -> list[Value]:
        """Fold `count` taps along w.

        The taps are combined with each other before the point, which shortens the dependency chain
        of each point. A single point folds one tap at a time, to propagate NaN.
        """
        places = [list(state[:3])]
        while len(places) < count:
            places.append(self._next("w", places[-1]))
        kept = []
        for i, point in enumerate(self._points(state, size)):
            row, *others = (self._term(a, b, where, i) for a, b, where in places)
            for other in others:
                row = self._joined(row, other, heed_nan=False)
            kept += self._joined(point, row, heed_nan=size == 1).values
        return [*places[-1], *kept]

    def _next(self, dim: str, state: Sequence[Value]) -> list[Value]:
        """Return a, b and the tap moved by one step along a dim."""
        builder, fields = self.builder, self.fields
        a = vir.at(builder, state[0], fields[f"a_{dim}"])
        b = vir.at(builder, state[1], fields[f"b_{dim}"])
        return [a, b, builder.add(state[2], fields[f"tap_{dim}"])]

    def _term(self, a: Value, b: Value, tap: Value, i: int) -> _Point:
        """Return the term of one tap for the i-th point."""
        builder, kernel = self.builder, self.kernel
        place = self._at("a", a, i)
        if kernel.held == kernel.source:
            value = vir.load(builder, place, self.vector, None)
        else:
            value = load_as_f32(builder, place, kernel.source, kernel.lanes)
        if kernel.is_half:
            value = _as_integer(builder, value)
            return _Point(value, None, value)
        if kernel.fold == "largest":
            taps = self._splat(tap) if kernel.keeps_taps else None
            return _Point(value, taps, value if self.heeds_nan else None)
        if kernel.fold == "shares":
            element = self.vector.element
            factor = builder.load(self._at("b", b, i), typ=element, align=vir.bytes_of(element))
            value = builder.fmul(value, vir.repeat(builder, factor, self.vector))
        elif kernel.fold == "winners":
            kind = ir.VectorType(ir.IntType(kernel.index), kernel.lanes)
            winner = builder.load(self._at("b", b, i), typ=kind, align=1)
            wins = builder.icmp_signed("==", winner, self._splat(tap, kind))
            value = builder.select(wins, value, self.vector(None))
        return _Point(value)

    def _joined(self, first: _Point, then: _Point, *, heed_nan: bool) -> _Point:
        """Combine two folds. Of equal maxima, and of several NaN, the first is kept."""
        builder = self.builder
        if self.kernel.fold != "largest":
            return _Point(builder.fadd(first.value, then.value))
        if self.kernel.is_half:
            largest = vir.lanewise(builder, "smax", first.value, then.value)
            return _Point(largest, None, vir.lanewise(builder, "smin", first.total, then.total))
        if not self.heeds_nan:
            compare = builder.icmp_unsigned if self.kernel.held == "u8" else builder.icmp_signed
            larger = compare(">", then.value, first.value)
        elif heed_nan:
            larger = builder.fcmp_unordered(">", then.value, first.value)
            known = builder.fcmp_ordered("ord", first.value, first.value)
            larger = builder.and_(larger, known)
        else:
            larger = builder.fcmp_ordered(">", then.value, first.value)
        value = builder.select(larger, then.value, first.value)
        tap = builder.select(larger, then.tap, first.tap) if first.tap else None
        total = builder.fadd(first.total, then.total) if first.total and not heed_nan else None
        return _Point(value, tap, total)

    def _finish(self, points: Sequence[_Point], places: dict[str, Value]) -> None:
        """Divide sums, convert and store."""
        builder = self.builder
        divisor = vir.float_of(builder, self.fields["divisor"])
        if self.kernel.held == "f64":
            divisor = builder.fpext(divisor, F64)
        for i, point in enumerate(points):
            value = self._half(point) if self.kernel.is_half else point.value
            if self.kernel.fold == "sum":
                value = builder.fdiv(value, vir.repeat(builder, divisor, self.vector))
            place = self._at("result", places["result"], i)
            value = converted(builder, value, self.kernel.held, self.kernel.target)
            store = vir.store(builder, value, place, None)
            if self.kernel.streamed:
                mark_streamed(builder, store, self.kernel.lanes * self.sizes["result"])
            if point.tap:
                kind = ir.VectorType(ir.IntType(self.kernel.index), self.kernel.lanes)
                tap = point.tap if kind == self.taps else builder.trunc(point.tap, kind)
                builder.store(tap, self._at("b", places["b"], i), align=1)

    def _half(self, point: _Point) -> Value:
        """Return the bits of the largest half, or of NaN if any value is NaN."""
        builder, most = self.builder, INFINITIES[self.kernel.held]
        above = builder.icmp_signed(">", point.value, vir.constant(self.vector, most))
        below = builder.icmp_signed("<", point.total, vir.constant(self.vector, -1 - most))
        nan = vir.constant(self.vector, 0x7FFF)
        return builder.select(builder.or_(above, below), nan, _as_integer(builder, point.value))

    def _at(self, name: str, pointer: Value, i: int) -> Value:
        """The address of the i-th vector of a tile."""
        if self.kernel.along == "columns":
            return vir.at(self.builder, pointer, self.sizes[name] * self.kernel.lanes * i)
        return vir.multiple(self.builder, pointer, self.fields[f"{name}_step"], i)

    def _splat(self, number: Value, kind: ir.VectorType | None = None) -> Value:
        kind = kind or self.taps
        return vir.repeat(self.builder, self.builder.trunc(number, kind.element), kind)


def _as_integer(builder: ir.IRBuilder, half: Value) -> Value:
    """Convert the bits of halves to integers in the order of their values, or back."""
    kind = vir.kind_of(half, I16)
    sign = builder.ashr(half, vir.constant(kind, 15))
    return builder.xor(half, builder.and_(sign, vir.constant(kind, 0x7FFF)))
