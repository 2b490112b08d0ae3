"""The kernel that folds rows of neighbouring elements, each into one accumulator, in registers.

    sums[i] = both(sums[i], each(src[i * stride]), each(src[i * stride + 1]), ...)    for all rows i

It is a native function of reduction's, `(src, stride, sums, count, params)`: numba's compiler makes
scalars of loops as short as a row's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dnncore_cpu_numba import native
from dnncore_cpu_numba import vector_ir as vir
from dnncore_cpu_numba.isa import BEST
from dnncore_cpu_numba.vector_ir import F32, I64

__all__ = ["MAPS", "RowsKernel"]

AT_ONCE = 4  # vectors that are folded beside each other
AHEAD = 4096  # bytes from what is folded to what is prefetched
I32 = ir.IntType(32)
Value = Any
Builder = ir.IRBuilder


@dataclass(frozen=True)
class RowsKernel:
    """A class of kernels.

    map, combine: of MAPS and COMBINATIONS. length_slot, start_slot: where a row's length and the
    bits of what an empty set gives are among the parameters.
    """

    map: str
    combine: str
    length_slot: int
    start_slot: int

    @property
    def address(self) -> int:
        """The address of the compiled function."""
        way = f"{self.map}_{self.combine}_{self.length_slot}_{self.start_slot}"
        return native.function(f"reduction_rows_{BEST.name}_{way}", self.llvm_text)

    def llvm_text(self, symbol: str) -> str:
        """The LLVM assembly of a module that defines the kernel as `symbol`."""
        names = ("src", "stride", "sums", "count", "params")
        return vir.function_text(symbol, names, lambda b, args: _Emitter(self, b, args).emit())


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: RowsKernel, builder: Builder, args: dict[str, Value]) -> None:
        self.builder, self.args = builder, args
        self.map, self.combine = MAPS[kernel.map], COMBINATIONS[kernel.combine]
        self.vector = vir.vector_of(BEST.lanes)
        params = vir.address(builder, args["params"])
        self.length = builder.load(vir.at(builder, params, 8 * kernel.length_slot), typ=I64)
        start = builder.load(vir.at(builder, params, 8 * kernel.start_slot), typ=F32)
        self.start = vir.repeat(builder, start, self.vector)

    def emit(self) -> None:
        """Fold row by row."""
        builder, args = self.builder, self.args
        src, sums = (vir.address(builder, args[name]) for name in ("src", "sums"))
        step = builder.shl(args["stride"], I64(2))

        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            folded = self._row(vir.at(builder, src, builder.mul(index, step)))
            place = vir.at(builder, sums, builder.shl(index, I64(2)))
            before = builder.load(place, typ=F32, align=4)
            builder.store(self.combine(builder, before, folded), place, align=4)
            return []

        vir.loop(builder, args["count"], [], row)

    def _row(self, x: Value) -> Value:
        """The outcome of a row: several vectors at a time, then one, then what is left."""
        builder, lanes = self.builder, BEST.lanes
        some, each = I64(AT_ONCE * lanes), I64(lanes)
        turns = builder.udiv(self.length, some)
        folded = self._turns(x, turns, [self.start] * AT_ONCE)
        x = vir.at(builder, x, builder.mul(turns, I64(4 * AT_ONCE * lanes)))
        left = builder.urem(self.length, some)
        turns = builder.udiv(left, each)
        while len(folded) > 1:
            folded = [self.combine(builder, *pair) for pair in _pairs(folded)]
        (total,) = self._turns(x, turns, folded)
        x = vir.at(builder, x, builder.mul(turns, I64(4 * lanes)))
        return self._of_lanes(self._rest(x, builder.urem(left, each), total))

    def _turns(self, x: Value, count: Value, folded: Sequence[Value]) -> list[Value]:
        """Fold as many vectors a turn as there are accumulators."""
        builder = self.builder

        def turn(index: Value, inside: Sequence[Value]) -> list[Value]:
            size = 4 * self.vector.count
            place = vir.at(builder, x, builder.mul(index, I64(size * len(inside))))
            return [self._with(vir.at(builder, place, size * i), v) for i, v in enumerate(inside)]

        return vir.loop(builder, count, folded, turn)

    def _with(self, place: Value, folded: Value) -> Value:
        vir.prefetch(self.builder, vir.at(self.builder, place, AHEAD))
        value = self.map(self.builder, vir.load(self.builder, place, self.vector, None))
        return self.combine(self.builder, folded, value)

    def _rest(self, x: Value, count: Value, folded: Value) -> Value:
        """Fold less than a vector, if anything."""
        builder, before = self.builder, self.builder.block
        with builder.if_then(builder.icmp_signed(">", count, I64(0))):
            mask = vir.first_lanes(builder, count, self.vector.count)
            value = self.map(builder, vir.load(builder, x, self.vector, mask))
            more = builder.select(mask, self.combine(builder, folded, value), folded)
            within = builder.block
        total = builder.phi(self.vector)
        total.add_incoming(folded, before)
        total.add_incoming(more, within)
        return total

    def _of_lanes(self, vector: Value) -> Value:
        """The lanes of a vector folded, in halves."""
        builder, lanes = self.builder, vector.type.count
        while lanes > 1:
            lanes //= 2
            halves = [_part(builder, vector, start, lanes) for start in (0, lanes)]
            vector = self.combine(builder, *halves)
        return builder.extract_element(vector, I32(0))


def _part(builder: Builder, vector: Value, start: int, count: int) -> Value:
    order = ir.Constant(ir.VectorType(I32, count), list(range(start, start + count)))
    return builder.shuffle_vector(vector, vector, order)


def _pairs(values: Sequence[Value]) -> list[tuple[Value, Value]]:
    half = len(values) // 2
    return list(zip(values[:half], values[half:], strict=True))


def _extreme(sign: str) -> Callable[[Builder, Value, Value], Value]:
    def extreme(builder: Builder, x: Value, y: Value) -> Value:
        wins = builder.fcmp_ordered(sign, y, x)
        is_nan = builder.fcmp_unordered("uno", y, y)  # which stays
        return builder.select(builder.or_(wins, is_nan), y, x)

    return extreme


MAPS: dict[str, Callable[[Builder, Value], Value]] = {
    "itself": lambda builder, x: x,
    "size": lambda builder, x: vir.intrinsic(builder, f"llvm.fabs.v{x.type.count}f32", x.type, [x]),
    "square": lambda builder, x: builder.fmul(x, x),
}
COMBINATIONS: dict[str, Callable[[Builder, Value, Value], Value]] = {
    "larger": _extreme(">"),
    "smaller": _extreme("<"),
    "sum": lambda builder, x, y: builder.fadd(x, y),
    "product": lambda builder, x, y: builder.fmul(x, y),
}
