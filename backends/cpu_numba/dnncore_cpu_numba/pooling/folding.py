"""The arithmetic of the pooling kernels: loads, combines and stores of vectors of all types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.nontemporal import mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import (
    F64,
    I16,
    INTEGERS,
    LIMITS,
    STORED,
    converted,
    from_f32,
    load_as_f32,
)
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, Value
from dnncore_cpu_numba.pooling.kernel import PoolingKernel

INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80}  # bit patterns
LOWEST_F32, LOWEST_F64 = -(2 - 2.0**-23) * 2.0**127, -(2 - 2.0**-52) * 2.0**1023


@dataclass(frozen=True)
class Point:
    """The state of a vector of results.

    value: the result so far. tap: the taps of maxima. least: of maxima of halves, the minimum.
    """

    value: Value
    tap: Value | None = None
    least: Value | None = None

    @property
    def values(self) -> list[Value]:
        """The values that are not None."""
        return [value for value in (self.value, self.tap, self.least) if value is not None]


@dataclass(frozen=True)
class Cell:
    """A vector of a, multiplied by b if b is a share. winner: b if it has the taps of maxima."""

    value: Value
    winner: Value | None = None


class Folding:
    """The arithmetic of one kernel."""

    def __init__(self, kernel: PoolingKernel, builder: ir.IRBuilder, fields: vir.Values) -> None:
        self.kernel, self.builder, self.fields = kernel, builder, fields
        self.vector = ir.VectorType(STORED[kernel.held], kernel.lanes)
        self.winners = ir.VectorType(ir.IntType(kernel.index or 32), kernel.lanes)
        # Short numbers are cheaper if a condition has the same form for elements of any size.
        narrow = kernel.fold == "winners" or kernel.has_masks
        self.taps = self.winners if narrow else ir.VectorType(I32, kernel.lanes)

    # -- points ------------------------------------------------------------------------------------

    def start(self, tap: Value | None = None) -> Point:
        """The state before the first tap. tap: the first tap, as a vector."""
        value = vir.repeat(self.builder, self._initial(), self.vector)
        if self.kernel.keeps_taps:
            return Point(value, tap)
        return Point(value, None, self.vector(None) if self.kernel.is_half else None)

    def points(self, values: Sequence[Value], count: int) -> list[Point]:
        """Return the `count` points whose `values` follow each other."""
        each = len(values) // max(1, count)
        rows = [values[each * i : each * (i + 1)] for i in range(count)]
        if self.kernel.keeps_taps:
            return [Point(*row) for row in rows]
        return [Point(row[0], None, *row[1:]) for row in rows]

    def _initial(self) -> Value:
        """The initial value of a fold: the field `start`, or the lowest integer or f64."""
        builder, held = self.builder, self.kernel.held
        start = vir.float_of(builder, self.fields["start"])
        if self.kernel.is_half:
            return _as_integer(builder, from_f32(builder, start, held))
        if held in INTEGERS:
            return self.vector.element(int(LIMITS[held][0]))
        if held == "f32":
            return start
        lowest = builder.fcmp_ordered("==", start, F32(LOWEST_F32))
        return builder.select(lowest, F64(LOWEST_F64), builder.fpext(start, F64))

    def splat(self, number: Value) -> Value:
        """Return a vector of copies of a tap's number."""
        return vir.repeat(self.builder, self.builder.trunc(number, self.taps.element), self.taps)

    # -- taps --------------------------------------------------------------------------------------

    def cell(self, a: Value, b: Value) -> Cell:
        """Load the cell at the addresses a and b."""
        builder, kernel = self.builder, self.kernel
        if kernel.held == kernel.source:
            value = vir.load(builder, a, self.vector, None)
        else:
            value = load_as_f32(builder, a, kernel.source, kernel.lanes)
        if kernel.is_half:
            value = _as_integer(builder, value)
        if kernel.fold == "winners":
            return Cell(value, builder.load(b, typ=self.winners, align=1))
        if kernel.fold == "shares":
            element = self.vector.element
            factor = builder.load(b, typ=element, align=vir.bytes_of(element))
            value = builder.fmul(value, vir.repeat(builder, factor, self.vector))
        return Cell(value)

    def folded(self, point: Point, cell: Cell, tap: Value | None, *, heed_nan: bool) -> Point:
        """Add a cell to a point. tap: its number, as a vector."""
        builder = self.builder
        if self.kernel.fold == "winners":
            wins = builder.icmp_signed("==", cell.winner, tap)
            total = builder.fadd(point.value, cell.value)
            return Point(builder.select(wins, total, point.value))
        least = cell.value if self.kernel.is_half else None
        return self.joined(point, Point(cell.value, tap, least), heed_nan=heed_nan)

    def joined(self, first: Point, then: Point, *, heed_nan: bool) -> Point:
        """Combine two folds. Of equal maxima, and of several NaN, the first is kept."""
        builder = self.builder
        if self.kernel.fold != "largest":
            return Point(builder.fadd(first.value, then.value))
        if self.kernel.is_half:
            largest = vir.lanewise(builder, "smax", first.value, then.value)
            return Point(largest, None, vir.lanewise(builder, "smin", first.least, then.least))
        if self.kernel.held in INTEGERS:
            compare = builder.icmp_unsigned if self.kernel.held == "u8" else builder.icmp_signed
            larger = compare(">", then.value, first.value)
        elif heed_nan:
            larger = builder.fcmp_unordered(">", then.value, first.value)
            known = builder.fcmp_ordered("ord", first.value, first.value)
            larger = builder.and_(larger, known)
        elif first.tap:  # not a maximum for LLVM: a blend uses other units than the comparison
            keep = builder.fcmp_ordered("<=", then.value, first.value)
            value = builder.select(keep, first.value, then.value)
            return Point(value, builder.select(keep, first.tap, then.tap))
        else:
            larger = builder.fcmp_ordered(">", then.value, first.value)
        value = builder.select(larger, then.value, first.value)
        tap = builder.select(larger, then.tap, first.tap) if first.tap else None
        return Point(value, tap)

    # -- NaN ---------------------------------------------------------------------------------------

    def sound(self) -> Value:
        """A condition that holds in all lanes."""
        element = ir.IntType(1 if self.kernel.has_masks else 8 * vir.bytes_of(self.vector.element))
        return vir.constant(ir.VectorType(element, self.kernel.lanes), -1)

    def still_sound(self, sound: Value, cells: Sequence[Cell]) -> Value:
        """Whether `sound` holds and no cell is NaN. One comparison tests two values.

        With taps, comparisons limit the speed. Then the values are sums of two cells. The sum of
        two infinities may be NaN, too; a second fold is right for all values.
        """
        builder, values = self.builder, [cell.value for cell in cells]
        if self.kernel.keeps_taps:
            values = [builder.fadd(*p) if len(p) > 1 else p[0] for p in _pairs(values)]
        row = None
        for pair in _pairs(values):
            ordered = builder.fcmp_ordered("ord", pair[0], pair[-1])
            if not self.kernel.has_masks:
                ordered = builder.sext(ordered, sound.type)
            row = ordered if row is None else builder.and_(row, ordered)
        return builder.and_(sound, row)

    def is_doubtful(self, sound: Value) -> Value:
        """Whether a condition fails in some lane."""
        builder, lanes = self.builder, self.kernel.lanes
        bits = ir.IntType(lanes)
        if not self.kernel.has_masks:
            sound = builder.trunc(sound, ir.VectorType(ir.IntType(1), lanes))
        return builder.icmp_unsigned("!=", builder.bitcast(sound, bits), bits(-1))

    # -- results -----------------------------------------------------------------------------------

    def finish(self, point: Point, result: Value, b: Value, taps: int = 1) -> None:
        """Divide a sum, convert and store. The divisor is the field times `taps`."""
        builder, kernel = self.builder, self.kernel
        value = self._half(point) if kernel.is_half else point.value
        if kernel.fold == "sum":
            divisor = builder.fmul(vir.float_of(builder, self.fields["divisor"]), F32(taps))
            if kernel.held == "f64":
                divisor = builder.fpext(divisor, F64)
            divide = builder.fmul if kernel.multiplies else builder.fdiv
            value = divide(value, vir.repeat(builder, divisor, self.vector))
        value = converted(builder, value, kernel.held, kernel.target)
        store = vir.store(builder, value, result, None)
        if kernel.streamed:
            mark_streamed(builder, store, kernel.lanes * kernel.sizes["result"])
        if point.tap:
            same = point.tap.type == self.winners
            tap = point.tap if same else builder.trunc(point.tap, self.winners)
            builder.store(tap, b, align=1)

    def _half(self, point: Point) -> Value:
        """Return the bits of the largest half, or of NaN if any value is NaN."""
        builder, most = self.builder, INFINITIES[self.kernel.held]
        above = builder.icmp_signed(">", point.value, vir.constant(self.vector, most))
        below = builder.icmp_signed("<", point.least, vir.constant(self.vector, -1 - most))
        nan = vir.constant(self.vector, 0x7FFF)
        return builder.select(builder.or_(above, below), nan, _as_integer(builder, point.value))


def _pairs(values: Sequence[Value]) -> list[Sequence[Value]]:
    """Divide values into pairs. The last pair may have one value."""
    return [values[i : i + 2] for i in range(0, len(values), 2)]


def _as_integer(builder: ir.IRBuilder, half: Value) -> Value:
    """Convert the bits of halves to integers in the order of their values, or back."""
    kind = vir.kind_of(half, I16)
    sign = builder.ashr(half, vir.constant(kind, 15))
    return builder.xor(half, builder.and_(sign, vir.constant(kind, 0x7FFF)))
