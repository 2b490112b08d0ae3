"""The kernel that folds contiguous rows, each into one accumulator, in registers.

    sums[i] = both(sums[i], each(src[i * stride]), each(src[i * stride + 1]), ...)    for all rows i

The kernel is a native function of `FOLD_CALL`. It is emitted because LLVM does not vectorise loops
as short as a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nest import NEST
from dnncore_cpu_numba.codegen.type_conversion import STORED, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value

SOURCE = Record("source of a reduction", ("src", "address"))
TENSORS = Record("tensors of a reduction", ("dst", "address"), ("source", SOURCE))
FOLD = Record(
    "fold",
    ("results", Pointer(NEST), "over (dst, src)"),
    ("places", Pointer(NEST), "of a result, over src"),
    ("steps parts per_part", "count", "of a row of results, its parts, and steps of a part"),
    ("in_lanes", "flag"),
    ("width length", "count", "accumulators, and elements of a step"),
    ("src_stride dst_stride", "elements"),
    ("function merge", "address", "a `FOLD_CALL`: of src, and of outcomes"),
    ("start power", "float32", "the outcome of nothing, and the norm's p"),
    ("finish", "index", "of `FINISHES`"),
    ("divisor eps", "float32"),
    ("wide_start wide_power wide_divisor wide_eps", "bits", "of the same as float64"),
    ("part_bytes", "bytes", "from a part's outcomes to the next"),
    ("dst_size", "bytes", "of an element"),
    ("store", "address", "a kernel that converts rows of f32 to dst; 0 for f32 and f64"),
    ("row", "elements", "of src that `RowsKernel` folds into one"),
    ("starts", TENSORS),
)
FOLD_CALL = Record(
    "fold function",
    ("src", "address"),
    ("stride", "elements", "between the elements that are counted, or rows"),
    ("sums", "address"),
    ("count", "count"),
    ("params", Pointer(FOLD)),
)

AT_ONCE = 4  # vectors that are folded at a time
AHEAD = 4096  # prefetch distance in bytes
I32 = ir.IntType(32)


@dataclass(frozen=True)
class RowsKernel(NativeKernel):
    """A class of kernels.

    map, combine: keys of MAPS and COMBINATIONS. source: the type of src.
    """

    ARGUMENTS = FOLD_CALL
    isa = BEST

    map: str
    combine: str
    source: str = "f32"

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        _Emitter(self, builder, args).emit()


class _Emitter:
    """The code of one kernel.

    Maxima and minima ignore NaN. A separate mask records NaN. This shortens the dependency chain,
    because comparisons for NaN do not wait for earlier results.
    """

    def __init__(self, kernel: RowsKernel, builder: Builder, args: dict[str, Value]) -> None:
        self.builder, self.args = builder, args
        self.map, self.combine = MAPS[kernel.map], COMBINATIONS[kernel.combine]
        self.heeds_nan = kernel.combine in ("larger", "smaller")
        self.source, self.size = kernel.source, vir.bytes_of(STORED[kernel.source])
        self.vector, self.bits = vir.vector_of(BEST.lanes), ir.IntType(BEST.lanes)
        params = vir.address(builder, args["params"])
        self.length = vir.field(builder, params, FOLD, "row")
        start = vir.float_of(builder, vir.field(builder, params, FOLD, "start"))
        self.start = vir.repeat(builder, start, self.vector)

    def emit(self) -> None:
        """Emit the loop over rows."""
        builder, args = self.builder, self.args
        src, sums = (vir.address(builder, args[name]) for name in ("src", "sums"))
        step = builder.mul(args["stride"], I64(self.size))

        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            place = vir.at(builder, sums, builder.shl(index, I64(2)))
            before = builder.load(place, typ=F32, align=4)
            nan, folded = self._row(vir.at(builder, src, builder.mul(index, step)))
            total = self.combine(builder, before, folded)
            if self.heeds_nan:
                known = builder.fcmp_ordered("ord", before, before)
                known = builder.and_(known, builder.icmp_unsigned("==", nan, self.bits(0)))
                total = builder.select(known, total, F32(float("nan")))
            builder.store(total, place, align=4)
            return []

        vir.loop(builder, args["count"], [], row)

    def _row(self, x: Value) -> tuple[Value, Value]:
        """Fold a row: several vectors at a time, then single vectors, then the remainder.

        Returns (mask of NaN, outcome).
        """
        builder, lanes = self.builder, self.vector.count
        nan, folded = self.bits(0), [self.start] * AT_ONCE
        left = self.length
        for at_once in (AT_ONCE, 1):
            while len(folded) > at_once:
                folded = [self.combine(builder, *pair) for pair in _pairs(folded)]
            turns, size = builder.udiv(left, I64(at_once * lanes)), I64(self.size * at_once * lanes)
            nan, *folded = self._turns(x, turns, [nan, *folded])
            x = vir.at(builder, x, builder.mul(turns, size))
            left = builder.urem(left, I64(at_once * lanes))
        nan, total = self._rest(x, left, nan, folded[0])
        return nan, self._of_lanes(total)

    def _turns(self, x: Value, count: Value, state: Sequence[Value]) -> list[Value]:
        """Fold one vector per accumulator in each iteration. state: NaN mask, accumulators."""
        builder, size = self.builder, self.size * self.vector.count

        def turn(index: Value, inside: Sequence[Value]) -> list[Value]:
            nan, *folded = inside
            start = vir.at(builder, x, builder.mul(index, I64(size * len(folded))))
            values = []
            for i in range(len(folded)):
                place = vir.at(builder, start, size * i)
                vir.prefetch(builder, vir.at(builder, place, AHEAD))
                values.append(self.map(builder, self._load(place)))
            pairs = zip(folded, values, strict=True)
            return [self._nan(nan, values), *(self.combine(builder, *pair) for pair in pairs)]

        return vir.loop(builder, count, state, turn)

    def _load(self, place: Value, mask: Value | None = None) -> Value:
        return load_as_f32(self.builder, place, self.source, self.vector.count, mask)

    def _nan(self, nan: Value, values: Sequence[Value]) -> Value:
        """Add the NaN of values to the mask. One comparison covers two vectors."""
        if not self.heeds_nan:
            return nan
        builder = self.builder
        for x, y in _pairs(values) if len(values) > 1 else [(values[0], values[0])]:
            found = builder.bitcast(builder.fcmp_unordered("uno", x, y), self.bits)
            nan = builder.or_(nan, found)
        return nan

    def _rest(self, x: Value, count: Value, nan: Value, folded: Value) -> tuple[Value, Value]:
        """Fold the remainder, which is less than a vector and may be empty."""
        builder, before = self.builder, self.builder.block
        with builder.if_then(builder.icmp_signed(">", count, I64(0))):
            mask = vir.first_lanes(builder, count, self.vector.count)
            value = self.map(builder, self._load(x, mask))
            both = builder.select(mask, self.combine(builder, folded, value), folded)
            ways = (before, (nan, folded)), (builder.block, (self._nan(nan, [value]), both))
        merged = [builder.phi(value.type) for value in (nan, folded)]
        vir.join(merged, *ways)
        return merged[0], merged[1]

    def _of_lanes(self, vector: Value) -> Value:
        """Fold the lanes of a vector to a scalar, by halves."""
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
    return lambda builder, x, y: builder.select(builder.fcmp_ordered(sign, x, y), x, y)


MAPS: dict[str, Callable[[Builder, Value], Value]] = {
    "itself": lambda _, x: x,
    "size": lambda builder, x: vir.lanewise(builder, "fabs", x),
    "square": lambda builder, x: builder.fmul(x, x),
}
COMBINATIONS: dict[str, Callable[[Builder, Value, Value], Value]] = {
    "larger": _extreme(">"),
    "smaller": _extreme("<"),
    "sum": lambda builder, x, y: builder.fadd(x, y),
    "product": lambda builder, x, y: builder.fmul(x, y),
}
