"""Rows of pixels, each a run of contiguous elements, as sums of pixels of other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST, Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import STORED, converted
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value
from dnncore_cpu_numba.copies.permuted_kernel import INTEGERS, ROW_CALL, summed_rows

PIXELS = Record(
    "rows of pixels",
    ("pixels", "count"),
    ("inner", "count", "elements of a pixel"),
    ("src_pixel dst_pixel", "bytes", "from pixel to pixel"),
    ("plane row", "bytes", "strides of summed planes and rows of the source"),
    ("firsts", "address", "per pixel: the place of its first tap in bytes; int64"),
    ("starts", "address", "per pixel: its first weight; int64"),
    ("weights", "address", "f32"),
)


@dataclass(frozen=True)
class PixelKernel(NativeKernel):
    """A class of kernels. is_copy: pixels are copied. streamed, is_single: as in `PermutedKernel`.

    at_once: vectors that are computed together.

    taps: the number of taps of all pixels; each has its place and its weight in the tables, which
    have no starts. 0: the taps of a pixel are neighbours.
    """

    ARGUMENTS = ROW_CALL

    source: str
    target: str
    is_copy: bool = False
    taps: int = 0
    is_single: bool = False
    at_once: int = 4
    streamed: bool = False
    isa: Isa = BEST

    @property
    def lanes(self) -> int:
        """The elements of a vector."""
        return self.isa.lanes * 4 // vir.bytes_of(STORED[self.target]) if self.is_copy else (
            self.isa.lanes)  # fmt: skip

    def _emit(self, builder: Builder, args: dict[str, Value]) -> None:
        sizes = vir.fields(builder, vir.address(builder, args["shape"]), PIXELS)
        tables = {n: vir.address(builder, sizes[n]) for n in ("firsts", "starts", "weights")}
        src, dst = vir.address(builder, args["src"]), vir.address(builder, args["dst"])
        into, out_of = (vir.bytes_of(STORED[kind]) for kind in (self.target, self.source))

        def pixel(p: Value, _: Sequence[Value]) -> list[Value]:
            target = vir.at(builder, dst, builder.mul(p, sizes["dst_pixel"]))
            taps = self._taps(builder, tables, p, src)

            def body(place: Value, lanes: int, count: int) -> None:
                start = builder.mul(place, I64(out_of))
                values = self._values(builder, args, sizes, start, lanes, count, taps)
                for j, value in enumerate(values):
                    there = vir.at(builder, target, builder.mul(place, I64(into)))
                    there = vir.at(builder, there, j * lanes * into)
                    store = vir.store(builder, value, there, None)
                    if self.streamed and lanes > 1:
                        mark_streamed(builder, store, lanes * into)

            _in_vectors(builder, sizes["inner"], self.lanes, self.at_once, body)
            return []

        vir.loop(builder, sizes["pixels"], [], pixel)

    def _taps(self, builder: Builder, tables: dict[str, Value], p: Value, src: Value) -> _Taps:
        count = self.taps
        if count:
            number = builder.mul(p, I64(count))
            taps = [builder.add(number, I64(t)) for t in range(count)]
            places = [vir.at(builder, src, _entry(builder, tables["firsts"], t)) for t in taps]
            if self.is_copy:
                return _Taps(places, [], I64(count))
            return _Taps(places, [_weight(builder, tables["weights"], t) for t in taps], I64(count))
        first, begin = (_entry(builder, tables[name], p) for name in ("firsts", "starts"))
        end = _entry(builder, tables["starts"], builder.add(p, I64(1)))
        weights = vir.at(builder, tables["weights"], builder.shl(begin, I64(2)))
        return _Taps([vir.at(builder, src, first)], [weights], builder.sub(end, begin))

    def _values(
        self, builder: Builder, args: dict[str, Value], sizes: Any, start: Value, lanes: int,
        count: int, taps: _Taps,
    ) -> list[Value]:  # fmt: skip
        """Return vectors of the result. start: the place of the first one in a pixel, in bytes."""
        stored = STORED[self.source]
        size = vir.bytes_of(stored)
        vector = ir.VectorType(INTEGERS[size] if self.is_copy else stored, lanes)

        def read(place: Value, j: int) -> Value:
            return vir.load(builder, vir.at(builder, place, j * lanes * size), vector, None)

        def added(sums: Sequence[Value], factor: Value, place: Value) -> list[Value]:
            factor = vir.repeat(builder, factor, vir.vector_of(lanes))
            values = [converted(builder, read(place, j), self.source, "f32") for j in range(count)]
            pairs = zip(values, sums, strict=True)
            return [vir.multiply_add(builder, value, factor, total) for value, total in pairs]

        def row(weight: Value, offset: Value, sums: Sequence[Value]) -> Sequence[Value]:
            if self.taps:
                for place, own in zip(taps.places, taps.weights, strict=True):
                    factor = builder.fmul(own, weight)
                    sums = added(sums, factor, vir.at(builder, place, offset))
                return sums

            def tap(t: Value, sums: Sequence[Value]) -> list[Value]:
                factor = builder.fmul(_weight(builder, taps.weights[0], t), weight)
                place = vir.at(builder, taps.places[0], builder.mul(t, sizes["src_pixel"]))
                return added(sums, factor, vir.at(builder, place, offset))

            return vir.loop(builder, taps.count, sums, tap)

        if self.is_copy:
            return [read(vir.at(builder, taps.places[0], start), j) for j in range(count)]
        zeros = [vir.constant(vir.vector_of(lanes), 0.0)] * count
        if self.is_single:
            sums = row(ir.Constant(F32, 1.0), start, zeros)
        else:
            sums = summed_rows(builder, args, sizes, start, zeros, row)
        return [converted(builder, total, "f32", self.target) for total in sums]


@dataclass(frozen=True)
class _Taps:
    """The taps of a pixel: addresses and weights of all, or of the first one, and their number."""

    places: Sequence[Value]
    weights: Sequence[Value]
    count: Value


def _in_vectors(
    builder: Builder, count: Value, lanes: int, at_once: int,
    body: Callable[[Value, int, int], None],
) -> None:  # fmt: skip
    """Emit body(place, lanes, vectors) for all elements. The last vector may overlap another."""
    many = lanes * at_once

    def each(begin: Value, turns: Value, step: int, wide: int) -> None:
        def turn(i: Value, _: Sequence[Value]) -> list[Value]:
            body(builder.add(begin, builder.mul(i, I64(step))), wide, step // wide)
            return []

        vir.loop(builder, turns, [], turn)

    blocks = builder.sdiv(count, I64(many))
    each(I64(0), blocks, many, lanes)
    begin = builder.mul(blocks, I64(many))
    vectors = builder.sdiv(builder.sub(count, begin), I64(lanes))
    each(begin, vectors, lanes, lanes)
    rest = builder.srem(count, I64(lanes))
    is_long = builder.icmp_signed(">=", count, I64(lanes))
    has_rest = builder.icmp_signed("!=", rest, I64(0))
    with builder.if_then(has_rest), builder.if_else(is_long) as (overlapping, single):
        with overlapping:
            body(builder.sub(count, I64(lanes)), lanes, 1)
        with single:
            each(I64(0), rest, 1, 1)


def _entry(builder: Builder, table: Value, index: Value) -> Value:
    return builder.load(vir.at(builder, table, builder.shl(index, I64(3))), typ=I64)


def _weight(builder: Builder, table: Value, index: Value) -> Value:
    return builder.load(vir.at(builder, table, builder.shl(index, I64(2))), typ=F32)
