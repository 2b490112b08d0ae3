"""Rows of elements that are copied or summed by tables of their places: `PermutedKernel`.

A vector of the result needs elements that lie in a few runs of the source. A window is a vector of
the source. The vector is permuted from its windows, so no element is loaded separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST, Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import STORED, converted
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I16, I32, I64, Builder, Value

MOST_WINDOWS = 8  # of a vector; more need as many loads as single elements
ROW_CALL = Record(
    "row kernel",
    ("src dst", "address"),
    ("planes rows", "count", "of the source, which are summed; 1 for copies"),
    ("plane_weights row_weights", "address", "f32"),
    ("shape", "address", "of constants, such as `PERMUTED`"),
)
PERMUTED = Record(
    "permuted vectors",
    ("vectors", "count", "of a step"),
    ("steps", "count", "with equal tables"),
    ("src_step dst_step", "bytes", "from step to step"),
    ("plane row", "bytes", "strides of summed planes and rows of the source"),
    ("targets", "address", "per vector: its place in dst in bytes; int64"),
    ("bases", "address", "per vector, tap (if not shared) and window: its place in bytes; int64"),
    ("lanes", "address", "per vector, tap and lane: its place in the windows; int32"),
    ("shares", "address", "per vector, tap and lane: its weight; f32; 0 without a tap"),
    ("src_count dst_count", "count", "elements, if they are fewer than a vector has"),
)
INTEGERS = {1: I8, 2: I16, 4: I32}  # by size in bytes


@dataclass(frozen=True)
class PermutedKernel(NativeKernel):
    """A class of kernels.

    is_copy: elements are copied. Otherwise taps are weighted and added in f32.
    taps: elements that are added for each element of the result, per row.
    windows: of a tap, or of all taps if they share them. lanes: of a vector.
    is_single: the source is one row, whose weight is 1.
    ragged: some elements have fewer taps. is_short, is_narrow: src or dst has less than a vector.
    streamed: non-temporal stores, which must be aligned.
    in_order: all vectors of a step are computed before the next step.
    """

    ARGUMENTS = ROW_CALL

    source: str
    target: str
    lanes: int = BEST.lanes
    is_copy: bool = False
    taps: int = 1
    windows: int = 1
    shares_windows: bool = False
    is_single: bool = False
    ragged: bool = False
    is_short: bool = False
    is_narrow: bool = False
    streamed: bool = False
    in_order: bool = False
    isa: Isa = BEST

    def _emit(self, builder: Builder, args: dict[str, Value]) -> None:
        sizes = vir.fields(builder, vir.address(builder, args["shape"]), PERMUTED)
        src, dst = vir.address(builder, args["src"]), vir.address(builder, args["dst"])

        def vector(v: Value, steps: Callable[[Callable[[Value], None]], None]) -> None:
            taps = [self._tap(builder, sizes, v, t) for t in range(self.taps)]
            target = vir.at(builder, dst, _entry(builder, sizes["targets"], v))

            def step(p: Value) -> None:
                start = vir.at(builder, src, builder.mul(p, sizes["src_step"]))
                if self.is_copy:
                    value = taps[0].read(start)
                else:
                    value = self._sum(builder, args, sizes, start, taps)
                place = vir.at(builder, target, builder.mul(p, sizes["dst_step"]))
                self._store(builder, value, place, sizes)

            steps(step)

        def each(name: str, body: Callable[[Value], None]) -> None:
            def turn(index: Value, _: Sequence[Value]) -> list[Value]:
                body(index)
                return []

            vir.loop(builder, sizes[name], [], turn)

        if self.in_order:
            each("steps", lambda p: each("vectors", lambda v: vector(v, lambda step: step(p))))
        else:
            each("vectors", lambda v: vector(v, lambda step: each("steps", step)))

    def _tap(self, builder: Builder, sizes: Any, v: Value, t: int) -> _Tap:
        number = builder.add(builder.mul(v, I64(self.taps)), I64(t))
        return _Tap(self, builder, sizes, number, v if self.shares_windows else number)

    def _sum(
        self, builder: Builder, args: dict[str, Value], sizes: Any, start: Value,
        taps: Sequence[_Tap],
    ) -> Value:  # fmt: skip
        def weighted(offset: Value) -> Value:
            total = None
            for tap in taps:
                value = tap.read(vir.at(builder, start, offset))
                total = (
                    vir.multiply_add(builder, value, tap.share, total)
                    if total
                    else builder.fmul(value, tap.share)
                )
            return total

        def row(weight: Value, offset: Value, sums: Sequence[Value]) -> list[Value]:
            weights = vir.repeat(builder, weight, vir.vector_of(self.lanes))
            return [vir.multiply_add(builder, weighted(offset), weights, sums[0])]

        if self.is_single:
            return weighted(I64(0))
        zero = vir.constant(vir.vector_of(self.lanes), 0.0)
        (total,) = summed_rows(builder, args, sizes, I64(0), [zero], row)
        return total

    def _store(self, builder: Builder, value: Value, place: Value, sizes: Any) -> None:
        if not self.is_copy:
            value = converted(builder, value, "f32", self.target)
        mask = None
        if self.is_narrow:
            mask = vir.first_lanes(builder, sizes["dst_count"], self.lanes)
        store = vir.store(builder, value, place, mask)
        if self.streamed and mask is None:
            mark_streamed(builder, store, vir.bytes_of(value.type.element) * self.lanes)


def summed_rows(
    builder: Builder, args: dict[str, Value], sizes: Any, start: Value, sums: list[Value],
    row: Any,
) -> list[Value]:  # fmt: skip
    """Emit loops over the planes and rows of `ROW_CALL`. Returns the sums.

    row: (weight, the row's offset in bytes, the sums so far) -> the next sums. start: the offset of
    the first row.
    """
    weights = {name: vir.address(builder, args[f"{name}_weights"]) for name in ("plane", "row")}

    def weight_of(name: str, index: Value) -> Value:
        return builder.load(vir.at(builder, weights[name], builder.shl(index, I64(2))), typ=F32)

    def plane(d: Value, sums: Sequence[Value]) -> list[Value]:
        outer = weight_of("plane", d)
        begin = builder.add(start, builder.mul(d, sizes["plane"]))

        def one(h: Value, sums: Sequence[Value]) -> list[Value]:
            weight = builder.fmul(outer, weight_of("row", h))
            offset = builder.add(begin, builder.mul(h, sizes["row"]))
            return list(row(weight, offset, sums))

        return vir.loop(builder, args["rows"], sums, one)

    return vir.loop(builder, args["planes"], sums, plane)


class _Tap:
    """One tap of a vector: its tables in registers."""

    def __init__(
        self, kernel: PermutedKernel, builder: Builder, sizes: Any, number: Value, windows: Value
    ) -> None:
        self.kernel, self.builder, self.sizes = kernel, builder, sizes
        lanes = kernel.lanes
        integers = ir.VectorType(I32, lanes)
        place = builder.mul(number, I64(4 * lanes))
        table = vir.at(builder, vir.address(builder, sizes["lanes"]), place)
        self.indices = builder.load(table, typ=integers, align=4)
        window = builder.lshr(self.indices, vir.constant(integers, lanes.bit_length() - 1))
        self.masks = [
            builder.icmp_signed("==", window, vir.constant(integers, k))
            for k in range(1, kernel.windows)
        ]
        first = builder.mul(windows, I64(kernel.windows))
        self.bases = [
            _entry(builder, sizes["bases"], builder.add(first, I64(k)))
            for k in range(kernel.windows)
        ]
        if not kernel.is_copy:
            table = vir.at(builder, vir.address(builder, sizes["shares"]), place)
            self.share = builder.load(table, typ=vir.vector_of(lanes), align=4)
            if kernel.ragged:
                self.zero = vir.constant(self.share.type, 0.0)
                self.is_there = builder.fcmp_unordered("!=", self.share, self.zero)

    def read(self, place: Value) -> Value:
        """Return the elements of a row: their bits for copies, else f32. Missing ones are 0."""
        kernel, builder = self.kernel, self.builder
        value = self._permuted(place, self.bases[0])
        for mask, base in zip(self.masks, self.bases[1:], strict=True):
            value = builder.select(mask, self._permuted(place, base), value)
        if kernel.is_copy:
            size = vir.bytes_of(STORED[kernel.source])
            kind = ir.VectorType(INTEGERS[size], kernel.lanes)
            return value if size == 4 else builder.trunc(value, kind)
        if kernel.ragged:
            value = builder.select(self.is_there, value, self.zero)
        return value

    def _permuted(self, place: Value, base: Value) -> Value:
        kernel, builder = self.kernel, self.builder
        stored = STORED[kernel.source]
        element = INTEGERS[vir.bytes_of(stored)] if kernel.is_copy else stored
        mask = None
        if kernel.is_short:
            mask = vir.first_lanes(builder, self.sizes["src_count"], kernel.lanes)
        window = ir.VectorType(element, kernel.lanes)
        value = vir.load(builder, vir.at(builder, place, base), window, mask)
        if not kernel.is_copy:
            value = converted(builder, value, kernel.source, "f32")
        elif element is not I32:
            value = builder.zext(value, ir.VectorType(I32, kernel.lanes))
        return vir.permuted(builder, value, self.indices, kernel.isa.lanes)


def _entry(builder: Builder, table: Value, index: Value) -> Value:
    place = vir.at(builder, vir.address(builder, table), builder.shl(index, I64(3)))
    return builder.load(place, typ=I64)


# -- tables ----------------------------------------------------------------------------------------


def windows_of(places: Any, lanes: int, ends: Any) -> tuple[Any, Any] | None:
    """Return the first place of each window, and the place of each lane in the windows.

    places: of elements; an array whose last axis is the lanes of a vector. ends: the end of the run
    of places from which each of them comes; a window does not exceed it. Returns None if a vector
    needs more than `MOST_WINDOWS` windows.
    """
    places, ends = np.broadcast_arrays(places, ends)
    lane_places = np.zeros(places.shape, np.int32)
    missing = np.ones(places.shape, bool)
    bases: list[Any] = []
    while missing.any():
        if len(bases) == MOST_WINDOWS:
            return None
        first = np.where(missing, places, np.iinfo(np.int64).max).min(-1, keepdims=True)
        end = np.where(missing & (places == first), ends, 0).max(-1, keepdims=True)
        base = np.where(missing.any(-1, keepdims=True), np.minimum(first, end - lanes), 0)
        base = np.maximum(base, 0)
        covered = missing & (places >= base) & (places < base + lanes)
        lane_places[covered] = (places - base + len(bases) * lanes)[covered]
        missing &= ~covered
        bases.append(base[..., 0])
    return np.stack(bases, -1), lane_places
