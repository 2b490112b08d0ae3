"""The kernel of depthwise gradients by weights: sums over pixels, each channel a lane.

    sums[r][tap][lane] += sum over pixels that see place `at` of row r of src through `tap`:
        src[entry r + at][lane] * diff_dst[pixel][lane]

Where a group has several channels, these are neighbours in a vector, and there are such sums for
each of them in src, which is repeated in all lanes of its group.

The sums of a few rows of taps stay in registers while the kernel passes over rows of diff_dst. If
it serves several vectors of channels, which are neighbours in memory then, it takes turns between
them tile by tile, and their sums stay in cache. A tile of diff_dst is loaded once for all taps, and
each place of src once for each row of taps that sees it. As in `depthwise_kernel`, what a tile sees
along its row is compiled in; each row of diff_dst has a record of where the rows of src are, and
which of them are inside the image.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseTile
from dnncore_cpu_numba.gemm.microkernel import Emitter

DEPTHWISE_WEIGHTS_CALL = Record(
    "depthwise kernel of weights",
    ("src diff_dst sums bias", "address"),
    ("rows", "address", "of `row_record`s"),
    ("row_count lanes", "count", "rows, and valid lanes"),
    ("accumulate", "flag"),
    ("vectors", "count"),
    ("src_block diff_dst_block sums_block bias_block", "bytes", "from vector to vector"),
)
CHAINS = 8  # sums that hide the latency of a multiply-add


@functools.cache
def row_record(taps: int) -> Record:
    """A row of diff_dst and, for each row of taps, the row of src that it reads."""
    seen = [
        group
        for row in range(taps)
        for group in (
            (f"inside_{row}", "flag", "the row of taps is in the image"),
            (f"src_{row}", "bytes", "offset"),
        )
    ]
    return Record(f"row of diff_dst and {taps} of taps", ("diff_dst", "bytes", "offset"), *seen)


@dataclass(frozen=True)
class DepthwiseWeightsKernel(NativeKernel):
    """A class of kernels.

    tiles: of a row of diff_dst. src_pixel, diff_dst_pixel: bytes from one to the next along a row.
    ahead: bytes in src from what a row of diff_dst sees to what the next one sees, which is
    prefetched. fresh: so many rows of taps, the last ones, see there what none has seen before.
    taps: the place of each sum, in bytes, for each row of taps; of several channels of a group in a
    vector, those of the first one come first. bias: diff_dst is summed as well.
    in_turn: there are several vectors. edge: whether all lanes are valid, or `lanes` of them.
    types: of src and diff_dst; sums are f32.
    """

    ARGUMENTS = DEPTHWISE_WEIGHTS_CALL

    isa: Isa
    tiles: tuple[DepthwiseTile, ...]
    src_pixel: int
    ahead: int
    fresh: int
    diff_dst_pixel: int
    taps: tuple[tuple[int, ...], ...]
    channels: int
    bias: bool
    in_turn: bool
    edge: Literal["full", "masked"] = "full"
    types: tuple[str, str] = ("f32", "f32")

    @property
    def copies(self) -> int:
        """The number of copies of each sum. If sums are few, pixels use the copies in turn."""
        return max(1, CHAINS // max(1, sum(map(len, self.taps))))

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args).rows()


class _Emitter(Emitter):
    """Emits a kernel; what its loops carry is a list: copies of the sums, row by row, and bias."""

    @property
    def zeros(self) -> list[Value]:
        """One copy of the sums before anything is added."""
        return [self.vector(None)] * (sum(map(len, self.kernel.taps)) + self.kernel.bias)

    def rows(self) -> None:
        """Start from zeros or from the sums in memory; pass over all rows."""
        b, args = self.builder, self.args
        if not self.kernel.in_turn:
            sums = vir.loop(b, args["accumulate"], self.zeros, lambda *_: self._load(I64(0)))
            sums = [*sums, *self.zeros * (self.kernel.copies - 1)]
            self._store(I64(0), vir.loop(b, args["row_count"], sums, self._row))
            return

        def clear(number: Value, _none: Sequence[Value]) -> list[Value]:
            self._store(number, self.zeros)
            return []

        fresh = b.sub(I64(1), args["accumulate"])
        vir.loop(b, b.mul(fresh, args["vectors"]), [], clear)
        vir.loop(b, args["row_count"], [], self._row)

    def _places(self, number: Value) -> list[tuple[Value, Value | None]]:
        """The pointers to the sums of a vector, and their masks."""
        b = self.builder
        sums, bias = (
            vir.address(b, b.add(self.args[name], b.mul(number, self.args[f"{name}_block"])))
            for name in ("sums", "bias")
        )
        # padding's sums are zero, and stored as well
        places = [(vir.at(b, sums, at), None) for row in self.kernel.taps for at in row]
        return [*places, (bias, self.mask)] if self.kernel.bias else places

    def _load(self, number: Value) -> list[Value]:
        places = self._places(number)
        return [vir.load(self.builder, place, self.vector, mask) for place, mask in places]

    def _store(self, number: Value, sums: Sequence[Value]) -> None:
        """Add the copies and store their sums."""
        for i, (place, mask) in enumerate(self._places(number)):
            total, *others = sums[i :: len(self.zeros)]
            for other in others:
                total = self.builder.fadd(total, other)
            vir.store(self.builder, total, place, mask)

    def _row(self, index: Value, sums: Sequence[Value]) -> list[Value]:
        """One row of diff_dst; it carries sums unless vectors take turns."""
        b, kernel = self.builder, self.kernel
        values = self.record(self.args["rows"], index, row_record(len(kernel.taps)))
        at = values["diff_dst"]
        rows = [(values[f"inside_{i}"], values[f"src_{i}"]) for i in range(len(kernel.taps))]
        step = self._tile_in_turn if kernel.in_turn else self._tile
        for tile in kernel.tiles:
            pixel = b.add(self.args["diff_dst"], b.add(at, I64(tile.first * kernel.diff_dst_pixel)))
            place = b.add(self.args["src"], I64(tile.origin * kernel.src_pixel))

            def one(
                number: Value, sums: Sequence[Value],
                tile: DepthwiseTile = tile, pixel: Value = pixel, place: Value = place,
            ) -> list[Value]:  # fmt: skip
                first = b.add(pixel, b.mul(number, I64(tile.pixels * kernel.diff_dst_pixel)))
                seen = b.add(place, b.mul(number, I64(tile.advance * kernel.src_pixel)))
                return step(tile, first, seen, rows, sums)

            sums = vir.loop(b, I64(tile.count), sums, one)
        return list(sums)

    def _tile_in_turn(
        self, tile: DepthwiseTile, first: Value, place: Value, rows: Sequence[tuple[Value, Value]],
        _none: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """A tile of all vectors, from sums in memory to sums in memory."""
        b, args = self.builder, self.args

        def vector(number: Value, _none: Sequence[Value]) -> list[Value]:
            pixel = b.add(first, b.mul(number, args["diff_dst_block"]))
            seen = b.add(place, b.mul(number, args["src_block"]))
            sums = [*self._load(number), *self.zeros * (self.kernel.copies - 1)]
            self._store(number, self._tile(tile, pixel, seen, rows, sums))
            return []

        return vir.loop(b, args["vectors"], [], vector)

    def _tile(
        self, tile: DepthwiseTile, first: Value, place: Value, rows: Sequence[tuple[Value, Value]],
        sums: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Add the products of a tile of one vector."""
        b, kernel, sums = self.builder, self.kernel, list(sums)
        pointer = vir.address(b, first)
        pixels = [
            self._factor(vir.at(b, pointer, m * kernel.diff_dst_pixel), kernel.types[1])
            for m in range(tile.pixels)
        ]
        stale = kernel.taps[: -kernel.fresh]  # an earlier tile has read them
        start = 0
        for (inside, offset), taps in zip(rows, kernel.taps, strict=True):
            own = [
                copy * len(self.zeros) + start + tap
                for copy in range(kernel.copies)
                for tap in range(len(taps))
            ]

            def row(
                _index: Value, old: Sequence[Value], offset: Value = offset,
                taps: Sequence[int] = taps,
            ) -> list[Value]:  # fmt: skip
                src = vir.address(b, b.add(place, offset))
                is_fresh = taps not in stale
                return self._row_of_taps(tile, src, pixels, len(taps), old, is_fresh=is_fresh)

            for i, x in zip(own, vir.loop(b, inside, [sums[i] for i in own], row), strict=True):
                sums[i] = x
            start += len(taps)
        if kernel.bias:
            for m, x in enumerate(pixels):
                i = m % kernel.copies * len(self.zeros) + start
                sums[i] = b.fadd(sums[i], x)
        return sums

    def _factor(self, pointer: Value, data_type: str) -> Value:
        """A vector of src or diff_dst as float32."""
        isa = self.kernel.isa
        return load_as_f32(self.builder, pointer, data_type, isa.lanes, self.mask, isa)

    def _row_of_taps(
        self, tile: DepthwiseTile, src: Value, pixels: Sequence[Value], width: int,
        sums: Sequence[Value], *, is_fresh: bool,
    ) -> list[Value]:  # fmt: skip
        """Add the products of a tile with one row of taps."""
        b, sums = self.builder, list(sums)
        channels, lanes = self.kernel.channels, self.kernel.isa.lanes
        for place, readers in tile.readers.items():
            pointer = vir.at(b, src, place * self.kernel.src_pixel)
            if is_fresh:
                vir.prefetch(b, vir.at(b, pointer, self.kernel.ahead))
            x = self._factor(pointer, self.kernel.types[0])
            for channel in range(channels):
                own = vir.shuffled(b, x, vir.spread(lanes, channels, channel))
                for pixel, tap in readers:
                    i = pixel % self.kernel.copies * width + channel * (width // channels) + tap
                    sums[i] = vir.multiply_add(b, own, pixels[pixel], sums[i])
        return sums
