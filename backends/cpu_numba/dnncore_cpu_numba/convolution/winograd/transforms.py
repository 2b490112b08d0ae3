"""The kernels that apply Winograd's transforms to tiles of src, to weights and to products.

Each kernel is vector code that loops over vectors of channels. The entries of the matrices are
constants in the code; `dnncore/planning/toom_cook.py` computes them. For a pair of points +-p, the
even and the odd part of a sum are computed once. All strides are in bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from llvmlite import ir

from dnncore.planning.toom_cook import F43, TAPS, Rows
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import I64, Builder, Value
from dnncore_cpu_numba.elementwise import epilogue
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, View

OUTPUTS, SPAN, POSITIONS = F43.outputs, F43.span, F43.positions
SRC_CALL = Record(
    "transform of src",
    ("src", "address", "the tile's first pixel, which may lie outside"),
    ("row pixel step", "bytes", "strides; step: to the next vector of channels"),
    ("count", "count", "vectors"),
    ("target", "address", "position 0; vectors follow each other there"),
    ("plane", "bytes", "from position to position"),
    ("first_row end_row first_column end_column", "index", "those that lie inside"),
    ("lanes", "count", "channels of each vector that exist"),
)
WEIGHTS_CALL = Record(
    "transform of weights",
    ("src", "address", "the first tap"),
    ("row column", "bytes", "to the next taps, negative where the filter is flipped"),
    ("count", "count", "vectors"),
    ("target", "address", "position 0"),
    ("plane", "bytes", "from position to position"),
)
OPERAND = Record(
    "operand of a tile of dst",
    ("address", "address", "at the tile's first pixel"),
    ("row pixel step", "bytes", "strides"),
)
DST_CALL = Record(
    "transform to dst",
    ("products", "address", "position 0"),
    ("plane", "bytes", "from position to position"),
    ("dst", "address", "the tile's first pixel"),
    ("row pixel step", "bytes", "strides; step: to the next vector of channels"),
    ("count rows lanes", "count", "vectors, and rows and lanes that exist"),
    ("operands", Pointer(OPERAND), "for each row that the epilogue reads"),
    ("direct", "address", "of a function of `DIRECT_CALL`, for pixels that are not finite"),
    ("loop", "address", "of the parameters of the task"),
    ("tile vector", "index", "of all tiles, and of the first vector of channels"),
)
DIRECT_CALL = Record(
    "direct sums of pixels of a row of a tile",
    ("loop", "address", "of the parameters of the task"),
    ("tile vector row", "index"),
    ("columns", "count", "pixels"),
    ("pixels", "address", "a vector of channels for each, to be replaced where not finite"),
)


# -- sums of vectors -------------------------------------------------------------------------------


def _combine(builder: Builder, factors: Sequence[Fraction], vectors: Sequence[Value]) -> Value:
    """Return the sum of all factor * vector."""
    terms = [term for term in zip(factors, vectors, strict=True) if term[0]]
    terms.sort(key=lambda term: term[0] != 1)
    (factor, total), *rest = terms
    if factor != 1:
        total = builder.fmul(vir.constant(total.type, float(factor)), total)
    for factor, x in rest:
        if factor == 1:
            total = builder.fadd(total, x)
        else:
            constant = vir.constant(x.type, float(factor))
            total = vir.multiply_add(builder, constant, x, total)
    return total


def _to_points(builder: Builder, rows: Rows, x: Sequence[Value]) -> list[Value]:
    """Return rows * x for SRC and WEIGHTS.

    The rows of the points +p and -p differ in the signs of odd columns.
    """
    results = [_combine(builder, rows[0], x)]
    for row in rows[1:-1:2]:
        even, odd = (_combine(builder, row[i::2], x[i::2]) for i in range(2))
        results += [builder.fadd(even, odd), builder.fsub(even, odd)]
    return [*results, _combine(builder, rows[-1], x)]


def _from_points(builder: Builder, rows: Rows, x: Sequence[Value]) -> list[Value]:
    """Return rows * x for DST.

    The columns of the points +p and -p differ in the signs of odd rows.
    """
    pairs = list(zip(x[1:-1:2], x[2::2], strict=False))
    sums = [builder.fadd(a, b) for a, b in pairs], [builder.fsub(a, b) for a, b in pairs]
    return [
        _combine(builder, (row[0], *row[1:-1:2], row[-1]), (x[0], *sums[i % 2], x[-1]))
        for i, row in enumerate(rows)
    ]


def _columns(apply: Callable[..., list[Value]], builder: Builder, rows: Rows, x: Any) -> Any:
    """Return rows * X. X is a list of rows."""
    columns = [apply(builder, rows, column) for column in zip(*x, strict=True)]
    return list(zip(*columns, strict=True))


# -- kernels ---------------------------------------------------------------------------------------


def _at(builder: Builder, pointer: Value, *steps: tuple[Value, int]) -> Value:
    """Return pointer + the sum of all stride * count."""
    for stride, count in steps:
        pointer = vir.at(builder, pointer, builder.mul(stride, I64(count)))
    return pointer


def _store_points(builder: Builder, rows: Rows, x: Any, target: Value, plane: Value) -> None:
    """Store rows * X * rows^T at all positions, which are `plane` bytes apart."""
    halfway = _columns(_to_points, builder, rows, x)
    points = itertools.chain(*(_to_points(builder, rows, row) for row in halfway))
    for position, value in enumerate([*points]):
        vir.store(builder, value, _at(builder, target, (plane, position)), None)


@dataclass(frozen=True)
class SrcTransform(NativeKernel):
    """Computes SRC D SRC^T of one tile, for `count` vectors of channels.

    bordered: only the rows and columns [first, end) of the tile are inside the image; the others
    are zero. masked: only the first `lanes` channels of each vector exist.
    """

    ARGUMENTS = SRC_CALL

    isa: Isa
    bordered: bool
    masked: bool

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        vector, size = vir.vector_of(self.isa.lanes), 4 * self.isa.lanes
        mask = vir.first_lanes(builder, args["lanes"], self.isa.lanes) if self.masked else None
        zeros = vir.room(builder, vector, 1)
        vir.store(builder, vector(None), zeros, None)
        rows, columns = (
            [_between(builder, i, args[f"first_{side}"], args[f"end_{side}"]) for i in range(SPAN)]
            for side in ("row", "column")
        )

        def load(src: Value, r: int, c: int) -> Value:
            pointer = _at(builder, src, (args["row"], r), (args["pixel"], c))
            if self.bordered:
                pointer = builder.select(builder.and_(rows[r], columns[c]), pointer, zeros)
            return vir.load(builder, pointer, vector, mask)

        def transform(_: Value, state: Sequence[Value]) -> list[Value]:
            src, target = state
            tile = [[load(src, r, c) for c in range(SPAN)] for r in range(SPAN)]
            _store_points(builder, F43.src, tile, target, args["plane"])
            return [vir.at(builder, src, args["step"]), vir.at(builder, target, size)]

        start = [vir.address(builder, args[name]) for name in ("src", "target")]
        vir.loop(builder, args["count"], start, transform)


def _between(builder: Builder, index: int, first: Value, end: Value) -> Value:
    above = builder.icmp_signed("<=", first, I64(index))
    return builder.and_(above, builder.icmp_signed(">", end, I64(index)))


@dataclass(frozen=True)
class WeightsTransform(NativeKernel):
    """Computes WEIGHTS G WEIGHTS^T for `count` contiguous vectors, one per input channel."""

    ARGUMENTS = WEIGHTS_CALL

    isa: Isa

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        vector, size = vir.vector_of(self.isa.lanes), 4 * self.isa.lanes

        def transform(_: Value, state: Sequence[Value]) -> list[Value]:
            src, target = state
            pointers = [
                [_at(builder, src, (args["row"], r), (args["column"], s)) for s in range(TAPS)]
                for r in range(TAPS)
            ]
            taps = [[vir.load(builder, p, vector, None) for p in row] for row in pointers]
            _store_points(builder, F43.weights, taps, target, args["plane"])
            return [vir.at(builder, src, size), vir.at(builder, target, size)]

        start = [vir.address(builder, args[name]) for name in ("src", "target")]
        vir.loop(builder, args["count"], start, transform)


@dataclass(frozen=True)
class DstTransform(NativeKernel):
    """Computes DST M DST^T of one tile and the epilogue, for `count` vectors of channels.

    columns: the number of pixels of a row. edge: of each vector, as in `Microkernel`.
    """

    ARGUMENTS = DST_CALL

    isa: Isa
    columns: int
    edge: Literal["full", "masked", "zeroed"] = "full"
    epilogue: Epilogue = ()

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        vector, size = vir.vector_of(self.isa.lanes), 4 * self.isa.lanes
        mask = None
        if self.edge != "full":
            mask = vir.first_lanes(builder, args["lanes"], self.isa.lanes)
        table = vir.address(builder, args["operands"])
        operands = [
            [vir.field(builder, table, OPERAND, name, i) for name in OPERAND.fields]
            for i in range(epilogue.table_rows(self.epilogue))
        ]

        def view(operand: Sequence[Value], index: Value, r: int) -> View:
            address, row, pixel, step = operand
            pointer = vir.at(builder, vir.address(builder, address), builder.mul(index, step))
            return View(builder, vector, _at(builder, pointer, (row, r)), pixel, I64(0), 0, mask)

        def transform(index: Value, state: Sequence[Value]) -> list[Value]:
            products, dst = state
            points = [
                vir.load(builder, _at(builder, products, (args["plane"], i)), vector, None)
                for i in range(POSITIONS)
            ]
            tile = [points[SPAN * r : SPAN * (r + 1)] for r in range(SPAN)]
            for r, row in enumerate(_columns(_from_points, builder, F43.dst, tile)):
                with builder.if_then(builder.icmp_signed(">", args["rows"], I64(r))):
                    pixels = _from_points(builder, F43.dst[: self.columns], row)
                    pixels = self._finite(builder, args, index, r, pixels)
                    views = [view(operand, index, r) for operand in operands]
                    pointer = _at(builder, dst, (args["row"], r))
                    own = View(builder, vector, pointer, args["pixel"], I64(0), 0, mask)
                    self._finish(pixels, own, views)
            return [vir.at(builder, products, size), vir.at(builder, dst, args["step"])]

        start = [vir.address(builder, args[name]) for name in ("products", "dst")]
        vir.loop(builder, args["count"], start, transform)

    def _finite(
        self, builder: Builder, args: vir.Values, index: Value, r: int, pixels: list[Value]
    ) -> list[Value]:
        """Emit a call that replaces pixels of row r that are not finite."""
        total = pixels[0]
        for x in pixels[1:]:
            total = builder.fadd(total, x)
        nothing = builder.fsub(total, total)  # NaN if a term is not finite
        lanes = builder.fcmp_unordered("uno", nothing, nothing)
        some = builder.icmp_unsigned(
            "!=", builder.bitcast(lanes, ir.IntType(self.isa.lanes)), ir.IntType(self.isa.lanes)(0)
        )
        before = builder.block
        with builder.if_then(some, likely=False):
            vector = pixels[0].type
            buffer = vir.room(builder, vector, self.columns)
            places = [vir.at(builder, buffer, 4 * vector.count * x) for x in range(self.columns)]
            for place, x in zip(places, pixels, strict=True):
                vir.store(builder, x, place, None)
            vir.call(
                builder, args["direct"], DIRECT_CALL, loop=args["loop"], tile=args["tile"],
                vector=builder.add(args["vector"], index), row=r, columns=self.columns,
                pixels=builder.ptrtoint(buffer, I64),
            )  # fmt: skip
            replaced = [vir.load(builder, place, vector, None) for place in places]
            inside = builder.block
        results = [builder.phi(x.type) for x in pixels]
        vir.join(results, (before, pixels), (inside, replaced))
        return results

    def _finish(self, pixels: Sequence[Value], dst: View, operands: Sequence[View]) -> None:
        places = [(x, 0) for x in range(self.columns)]
        pixels = epilogue.apply(self.epilogue, pixels, dst, operands, places)
        for (m, n), x in zip(places, pixels, strict=True):
            dst.store(x, m, n, self.edge)
