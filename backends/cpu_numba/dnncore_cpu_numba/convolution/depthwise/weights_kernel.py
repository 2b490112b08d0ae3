"""The kernel of depthwise weights gradients: sums over pixels, one channel per lane.

    sums[r][tap][lane] += sum over pixels whose `tap` reads place `at` of row r of src:
        src[entry r + at][lane] * diff_dst[pixel][lane]

If a vector holds several channels of a group, they are neighbours. There are separate sums for each
of these channels of src; the channel is broadcast to all lanes of its group.

The sums of a few rows of taps stay in registers while the kernel reads rows of diff_dst. With
several vectors of channels, which are contiguous in memory, the kernel computes each tile for all
vectors before the next tile, and the sums stay in cache. A tile of diff_dst is loaded once for all
taps. Each place of src is loaded once for each row of taps that reads it. As in
`depthwise/kernel.py`, the taps and places of a tile along its row are compiled in. Each row of
diff_dst has a record with the offsets of the rows of src, and with flags for the rows inside the
image.
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
from dnncore_cpu_numba.codegen.type_conversion import F64, load_as_f32
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Value
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
CHAINS = 8  # independent sums that hide the latency of a multiply-add


@functools.cache
def row_record(taps: int) -> Record:
    """Return the record of a row of diff_dst and of the rows of src that its taps read."""
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
    ahead: bytes in src from the pixels that a row of diff_dst reads to the pixels that the next row
    reads. They are prefetched. fresh: the number of last rows of taps that read there pixels that
    no earlier row has read.
    taps: the offset of each sum in bytes, for each row of taps. If a vector holds several channels
    of a group, all sums of its first channel come first. bias: also sum diff_dst.
    in_turn: there are several vectors. edge: "full": all lanes are valid; "masked": only the first
    `lanes`. types: of src and diff_dst. Sums are f32, or f64 if both are f64.
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
    """Emits a kernel. The state of its loops is the copies of the sums, row by row, and bias."""

    def real_vector(self) -> ir.VectorType:
        """Return the vector type of the sums."""
        kind = F64 if self.kernel.types[0] == "f64" else F32
        return ir.VectorType(kind, self.kernel.isa.lanes)

    @property
    def zeros(self) -> list[Value]:
        """The initial value of one copy of the sums."""
        return [self.vector(None)] * (sum(map(len, self.kernel.taps)) + self.kernel.bias)

    def rows(self) -> None:
        """Emit the loop over all rows. Sums start from zero or from memory."""
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
        """Return the pointers to the sums of a vector, and their masks."""
        b = self.builder
        sums, bias = (
            vir.address(b, b.add(self.args[name], b.mul(number, self.args[f"{name}_block"])))
            for name in ("sums", "bias")
        )
        # the sums of padding are zero and are stored too
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
        """Emit one row of diff_dst. The state is the sums; it is empty with several vectors."""
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
        """Compute a tile for all vectors. Sums are loaded from and stored to memory."""
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
        stale = kernel.taps[: -kernel.fresh]  # an earlier row has read their pixels
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
        """Load a vector of src or diff_dst as f32 or f64."""
        isa = self.kernel.isa
        if data_type == "f64":
            return vir.load(self.builder, pointer, self.vector, self.mask)
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
