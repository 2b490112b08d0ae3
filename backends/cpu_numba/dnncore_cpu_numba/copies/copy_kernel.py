"""The kernels of `copies/reformat.py`. A kernel copies a tile to another layout and data type.

A kernel is a native function of `COPY_CALL` with the shape of its kind:

    rows        dst[p * dst_plane + r * dst_row + c * dst_column] = src[...] likewise
    transposed  dst[columns[j] + a] = src[rows[a] + j], blocks of 16 x 16 transposed in registers

If a side is longer than a vector, the last vector overlaps the vector before it. If it is shorter,
vectors of rows are shorter, and those of transposes are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import (
    LINE,
    elements_before_lines,
    mark_streamed,
    prefetch_shared_lines,
)
from dnncore_cpu_numba.codegen.type_conversion import STORED, converted
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Builder, Value

_SHORTEST = 4  # least elements of a vector
SIDE = 16  # rows and columns of a block that is transposed
COPY_CALL = Record(
    "copy kernel", ("src dst", "address"), ("shape", "address", "a `ROWS` or a `TRANSPOSED`")
)
ROWS = Record(
    "shape of rows",
    ("columns rows planes", "count"),
    ("src_column dst_column src_row dst_row src_plane dst_plane", "bytes"),
    ("ahead", "bytes", "from what is copied to what is prefetched, if anything is"),
)
TRANSPOSED = Record(
    "shape of a transpose",
    ("a j", "count", "along dst and along src"),
    ("rows columns", "address", "of tables of places in bytes: of each a in src, of each j in dst"),
)
SHAPES = {"rows": ROWS, "transposed": TRANSPOSED}


@dataclass(frozen=True)
class CopyKernel(NativeKernel):
    """A class of kernels, from one data type to another.

    streamed: whole vectors use non-temporal stores. They must be aligned.
    ragged: rows may begin and end within a cache line. Only their whole lines are streamed.
    flipped: the highest bit of each byte is inverted. This adds 128 to s8 and converts to u8.
    fetches: src is prefetched for whole vectors of rows.
    """

    ARGUMENTS = COPY_CALL
    isa = BEST

    kind: Literal["rows", "transposed"]
    source: str
    target: str
    streamed: bool = False
    ragged: bool = False
    flipped: bool = False
    fetches: bool = False

    def convert(self, builder: Builder, value: Value) -> Value:
        """Convert elements to the type in which they are stored."""
        if self.flipped:
            return builder.xor(value, vir.constant(value.type, 128))
        return converted(builder, value, self.source, self.target)

    def _emit(self, builder: Builder, args: dict[str, Value]) -> None:
        src, dst, shape = (vir.address(builder, arg) for arg in args.values())
        emit = _emit_rows if self.kind == "rows" else _emit_transposed
        emit(self, builder, src, dst, vir.fields(builder, shape, SHAPES[self.kind]))


def _emit_rows(kernel: CopyKernel, builder: Builder, src: Value, dst: Value, sizes: Any) -> None:
    elements = STORED[kernel.source], STORED[kernel.target]
    lanes = LINE // vir.bytes_of(elements[1])
    dense, repeated = (
        builder.and_(
            builder.icmp_signed("==", sizes["src_column"], I64(src_column)),
            builder.icmp_signed("==", sizes["dst_column"], I64(vir.bytes_of(elements[1]))),
        )
        for src_column in (vir.bytes_of(elements[0]), 0)
    )

    def advanced(places: Sequence[Value], index: Value, step: str) -> list[Value]:
        """Return the places in src and dst moved by `index` columns, rows or planes."""
        return [builder.add(place, builder.mul(index, sizes[f"{side}_{step}"]))
                for side, place in zip(("src", "dst"), places, strict=True)]  # fmt: skip

    def read(count: int, source: Value) -> Value:
        if kernel.fetches and count > 1:
            vir.prefetch(builder, vir.address(builder, builder.add(source, sizes["ahead"])))
        vector = ir.VectorType(elements[0], count)
        value = vir.load(builder, vir.address(builder, source), vector, None)
        return kernel.convert(builder, value)

    def write(value: Value, target: Value) -> None:
        place = vir.address(builder, target)
        _store(builder, value, place, None, streamed=kernel.streamed)

    def copied(count: int, places: Sequence[Value], columns: Value | None = None) -> None:
        def move(column: Value) -> None:
            source, target = advanced(places, column, "column")
            write(read(count, source), target)

        each(builder, sizes["columns"] if columns is None else columns, count, move)

    def copied_lines(count: int, places: Sequence[Value]) -> None:
        """Copy elements one by one before the first whole line of dst and after the last one."""
        target = vir.address(builder, places[1])
        size = vir.bytes_of(elements[1])
        head = elements_before_lines(builder, target, size, sizes["columns"])
        rest = builder.sub(sizes["columns"], head)
        tail = builder.and_(rest, I64(count - 1))
        body = builder.sub(rest, tail)
        nbytes = builder.mul(sizes["columns"], I64(size))
        prefetch_shared_lines(builder, target, sizes["dst_row"], nbytes)
        copied(1, places, head)
        with builder.if_then(builder.icmp_signed(">", body, I64(0))):
            copied(count, advanced(places, head, "column"), body)
        copied(1, advanced(places, builder.add(head, body), "column"), tail)

    def spread(count: int, places: Sequence[Value]) -> None:
        scalar = builder.extract_element(read(1, places[0]), I32(0))
        value = vir.repeat(builder, scalar, ir.VectorType(elements[1], count))
        each(builder, sizes["columns"], count,
             lambda column: write(value, advanced(places, column, "column")[1]))  # fmt: skip

    def planes(row: Callable[[int, Sequence[Value]], None], count: int) -> None:
        """Emit loops over planes and rows. row: emits the loop over columns, `count` at a time."""

        def rows(places: Sequence[Value]) -> None:
            each(builder, sizes["rows"], 1, lambda r: row(count, advanced(places, r, "row")))

        each(builder, sizes["planes"], 1, lambda p: rows(advanced(bases, p, "plane")))

    bases = [builder.ptrtoint(side, I64) for side in (src, dst)]
    enough = builder.icmp_signed(">=", sizes["columns"], I64(lanes))

    def vectors(count: int) -> None:
        """Copy in vectors of `count` elements, or in shorter ones if rows are shorter."""
        if count < _SHORTEST:
            planes(copied, 1)
            return
        fits = builder.icmp_signed(">=", sizes["columns"], I64(count))
        with builder.if_else(fits) as (long, short):
            with long:
                planes(copied, count)
            with short:
                vectors(count // 2)

    with builder.if_else(dense) as (contiguous, others):
        with contiguous:
            if kernel.ragged:
                planes(copied_lines, lanes)
            else:
                vectors(lanes)
        with others, builder.if_else(builder.and_(repeated, enough)) as (repeats, singles):
            with repeats:
                planes(spread, lanes)
            with singles:
                planes(copied, 1)


def _emit_transposed(
    kernel: CopyKernel, builder: Builder, src: Value, dst: Value, sizes: Any
) -> None:
    source = ir.VectorType(STORED[kernel.source], SIDE)
    tables = {name: vir.address(builder, sizes[name]) for name in ("rows", "columns")}

    def place(table: str, base: Value, index: Value) -> Value:
        entry = vir.at(builder, tables[table], builder.shl(index, I64(3)))
        return vir.at(builder, base, builder.load(entry, typ=I64))

    def block(a: Value, j: Value, lanes: tuple[Value, Value] | None) -> None:
        """Copy one block. lanes: the valid lanes along a and j; None if all are valid."""
        start = vir.at(builder, src, builder.mul(j, I64(vir.bytes_of(source.element))))
        mask = vir.first_lanes(builder, lanes[1], SIDE) if lanes else None
        vectors = []
        for i in range(SIDE):
            row = builder.add(a, I64(i))
            if lanes:
                row = _smaller(builder, row, builder.sub(sizes["a"], I64(1)))
            value = vir.load(builder, place("rows", start, row), source, mask)
            vectors.append(kernel.convert(builder, value))
        start = vir.at(builder, dst, builder.mul(a, I64(vir.bytes_of(STORED[kernel.target]))))
        for i, value in enumerate(transposed(builder, vectors)):
            column, mask = builder.add(j, I64(i)), None
            if lanes:
                there = builder.icmp_signed("<", I64(i), lanes[1])
                mask = vir.first_lanes(builder, builder.select(there, lanes[0], I64(0)), SIDE)
                column = _smaller(builder, column, builder.sub(sizes["j"], I64(1)))
            _store(builder, value, place("columns", start, column), mask, streamed=kernel.streamed)

    def blocks(lanes: tuple[Value, Value] | None) -> None:
        each(builder, sizes["j"], SIDE, lambda j:
             each(builder, sizes["a"], SIDE, lambda a: block(a, j, lanes)))  # fmt: skip

    whole = builder.and_(*(builder.icmp_signed(">=", sizes[n], I64(SIDE)) for n in "aj"))
    with builder.if_else(whole) as (unmasked, masked):
        with unmasked:
            blocks(None)
        with masked:
            a, j = (_smaller(builder, sizes[n], I64(SIDE)) for n in "aj")
            blocks((a, j))


def each(builder: Builder, count: Value, step: int, body: Callable[[Value], None]) -> None:
    """Emit body(i) for i = 0, step, 2 * step, ...; the last i is max(0, count - step)."""
    last = builder.sub(count, I64(step))
    positive = builder.icmp_signed(">", last, I64(0))
    last = builder.select(positive, last, I64(0))
    turns = builder.sdiv(builder.add(count, I64(step - 1)), I64(step))

    def turn(index: Value, _: Sequence[Value]) -> list[Value]:
        body(_smaller(builder, builder.mul(index, I64(step)), last))
        return []

    vir.loop(builder, turns, [], turn)


def transposed(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """Return the transpose of `SIDE` vectors with `SIDE` lanes.

    The algorithm swaps the off-diagonal quarters of blocks of decreasing size (J. O. Eklundh 1972).
    """
    rows, half = list(rows), SIDE // 2
    while half:
        upper = [i if i & half == 0 else i - half + SIDE for i in range(SIDE)]
        lower = [i + half if i & half == 0 else i + SIDE for i in range(SIDE)]
        for k in range(SIDE):
            if k & half == 0:
                pair = rows[k], rows[k + half]
                rows[k] = _shuffled(builder, *pair, upper)
                rows[k + half] = _shuffled(builder, *pair, lower)
        half //= 2
    return rows


def _shuffled(builder: Builder, x: Value, y: Value, order: Sequence[int]) -> Value:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, SIDE), order))


def _store(
    builder: Builder, value: Value, pointer: Value, mask: Value | None, *, streamed: bool
) -> None:
    store, vector = vir.store(builder, value, pointer, mask), value.type
    if streamed and mask is None and vector.count > 1:
        mark_streamed(builder, store, vir.bytes_of(vector.element) * vector.count)


def _smaller(builder: Builder, x: Value, y: Value) -> Value:
    return builder.select(builder.icmp_signed("<", x, y), x, y)
