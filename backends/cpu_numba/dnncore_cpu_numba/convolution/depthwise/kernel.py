"""The depthwise kernel: computes rows of pixels, one channel per lane.

    dst[row][pixel][lane] = sum over entries of the row's list, over the pixel's (tap, place):
        src[entry + place][lane] * weights[entry + tap][lane],         then the epilogue

Each input is loaded once per row of taps. If a vector holds several channels of a group, they are
neighbours, and the sum includes them: each input is loaded once per channel, with this channel in
all lanes of its group.

A row of output is divided into tiles of pixels (`depthwise/tiles.py`). The sums of a tile stay in
registers. The taps and places of its pixels along the row are compiled in. They include the border,
so that no instruction is needed for padding. The rows of taps inside the image are data: each row
of output has a list of (offset in src, offset in weights), with one entry per row of taps inside
the image. Many rows share a list. Rank, dilation, stride and direction only affect these tables.

The innermost loop repeats a tile for several vectors of channels. If channels are contiguous, these
vectors are contiguous in memory.

Elements of all types are converted when they are loaded. Sums are f32, f64 if all types are f64, or
s32 of factors from which the zero points were subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE, mark_streamed
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseTile
from dnncore_cpu_numba.elementwise import epilogue
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, View
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.microkernel import Emitter

ROW = Record(
    "row of dst",
    ("src dst", "bytes", "offsets"),
    ("list", "bytes", "to its `PAIR`s"),
    ("count", "count", "of them"),
    ("z y", "index"),
    ("ahead", "bytes", "to the last row of src that the next row sees"),
)
Sums: TypeAlias = Literal["f32", "f64", "s32"]
PAIR = Record("entry of a row's list", ("src weights", "bytes", "offsets"))
OPERAND = Record("operand of rows", ("address", "address"), ("block x z y", "bytes", "strides"))
DEPTHWISE_CALL = Record(
    "depthwise kernel",
    ("src weights dst", "address"),
    ("rows", Pointer(ROW)),
    ("row_count", "count"),
    ("lists", "address", "of `PAIR`s"),
    ("vectors", "count"),
    ("src_block weights_block dst_block", "bytes", "from vector to vector"),
    ("lanes", "count"),
    ("operands", Pointer(OPERAND), "of the epilogue"),
    ("src_zero_point weights_zero_point", "address", "where there is one"),
)


@dataclass(frozen=True)
class DepthwiseKernel(NativeKernel):
    """A class of kernels.

    src_pixel, dst_pixel, tap: bytes from one to the next along a row.
    channels: the number of channels of a group in a vector. channel: bytes from the weights of one
        channel to the weights of the next.
    edge: of all vectors, as in `Microkernel`. streamed: full vectors use non-temporal stores. dst
        must be aligned to cache lines.
    ahead: the rows of src that are prefetched, as distances from the row's `ahead`.
    types: of src, weights and dst. sums: the type of sums; s32 only for 8-bit integers, f64 only if
        all types are f64.
    zero_points: the types of the zero points of src and weights; "" without one.
    """

    ARGUMENTS = DEPTHWISE_CALL

    isa: Isa
    tiles: tuple[DepthwiseTile, ...]
    src_pixel: int
    dst_pixel: int
    tap: int
    channels: int = 1
    channel: int = 0
    edge: Literal["full", "masked", "zeroed"] = "full"
    epilogue: Epilogue = ()
    streamed: bool = False
    ahead: tuple[int, ...] = ()
    types: tuple[str, str, str] = ("f32", "f32", "f32")
    sums: Sums = "f32"
    zero_points: tuple[str, str] = ("", "")

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args).rows()


class _Emitter(Emitter):
    """Emits a kernel. The methods emit its loops, the outermost first."""

    def real_vector(self) -> ir.VectorType:
        """Return the vector type of f64 if the sums are f64, otherwise of f32."""
        lanes = self.kernel.isa.lanes
        return self.arithmetic.sums(lanes) if self.kernel.sums == "f64" else vir.vector_of(lanes)

    def rows(self) -> None:
        """Compute all rows of output."""
        names = ("src_zero_point", "weights_zero_point")
        self.zero_points = [
            self._view(self.args[name], I64(0), own).load_integer(0, 0, splat=True) if own else None
            for name, own in zip(names, self.kernel.zero_points, strict=True)
        ]

        def row(index: Value, _none: Sequence[Value]) -> list[Value]:
            table = self.record(self.args["rows"], index, ROW)
            operands = [
                self._operand_row(i, table)
                for i in range(epilogue.table_rows(self.kernel.epilogue))
            ]
            for tile in self.kernel.tiles:
                self._alike(tile, table, operands)
            return []

        vir.loop(self.builder, self.args["row_count"], [], row)

    def _alike(
        self, tile: DepthwiseTile, row: vir.Values, operands: Sequence[tuple[Value, Value, Value]]
    ) -> None:
        """Compute all tiles equal to `tile`, for all vectors of channels."""
        b, kernel = self.builder, self.kernel
        src = b.add(b.add(self.args["src"], row["src"]), I64(tile.origin * kernel.src_pixel))
        dst = b.add(b.add(self.args["dst"], row["dst"]), I64(tile.first * kernel.dst_pixel))

        def one(index: Value, _none: Sequence[Value]) -> list[Value]:
            first = b.add(I64(tile.first), b.mul(index, I64(tile.pixels)))
            at = {
                "src": b.add(src, b.mul(index, I64(tile.advance * kernel.src_pixel))),
                "dst": b.add(dst, b.mul(index, I64(tile.pixels * kernel.dst_pixel))),
                "weights": self.args["weights"],
            }
            starts = [(b.add(place, b.mul(x, first)), x, block) for place, x, block in operands]

            def vector(number: Value, _none: Sequence[Value]) -> list[Value]:
                places = {
                    name: b.add(place, b.mul(number, self.args[f"{name}_block"]))
                    for name, place in at.items()
                }
                views = [
                    self._view(b.add(place, b.mul(block, number)), x) for place, x, block in starts
                ]
                self._tile(tile, row, places, views)
                return []

            return vir.loop(b, self.args["vectors"], [], vector)

        vir.loop(b, I64(tile.count), [], one)

    def _tile(
        self, tile: DepthwiseTile, row: vir.Values, at: dict[str, Value], operands: Sequence[View]
    ) -> None:
        """Compute one tile of one vector of channels."""
        b = self.builder
        pairs = b.add(self.args["lists"], row["list"])

        def taps(index: Value, sums: Sequence[Value]) -> list[Value]:
            offsets = self.record(pairs, index, PAIR)
            src, weights = (
                vir.address(b, b.add(at[name], offsets[name])) for name in ("src", "weights")
            )
            return self._row_of_taps(tile, src, weights, sums)

        self._prefetch(tile, b.add(b.sub(at["src"], row["src"]), row["ahead"]))
        zero = self.arithmetic.sums(self.kernel.isa.lanes)(None)
        sums = vir.loop(b, row["count"], [zero] * tile.pixels, taps)
        dst = self._view(at["dst"], I64(self.kernel.dst_pixel), self.kernel.types[2])
        places = [(m, 0) for m in range(tile.pixels)]
        sums = epilogue.apply(self.kernel.epilogue, sums, dst, operands, places)
        for (m, n), x in zip(places, sums, strict=True):
            if self.kernel.streamed:
                mark_streamed(b, b.store(x, dst.place(m, n)[0]))
            else:
                dst.store(x, m, n, self.kernel.edge)

    def _prefetch(self, tile: DepthwiseTile, src: Value) -> None:
        """Prefetch the inputs that the next row reads and this row does not."""
        b, first = self.builder, min(tile.readers, default=0)
        step = max(1, LINE // max(1, self.kernel.src_pixel))
        for row in self.kernel.ahead:
            for place in range(first, first + tile.advance, step):
                offset = I64(row + place * self.kernel.src_pixel)
                vir.prefetch(b, vir.address(b, b.add(src, offset)))

    def _row_of_taps(
        self, tile: DepthwiseTile, src: Value, weights: Value, sums: Sequence[Value]
    ) -> list[Value]:
        """Add the products of a tile with one row of taps."""
        b, kernel, sums = self.builder, self.kernel, list(sums)
        for channel in range(kernel.channels):
            if channel:
                vir.barrier(b)
            factors = {}
            for tap in sorted({tap for seen in tile.seen for tap, _ in seen}):
                place = vir.at(b, weights, tap * kernel.tap + channel * kernel.channel)
                factors[tap] = self._factor(place, 1, None)
            order = vir.spread(kernel.isa.lanes, kernel.channels, channel)
            for place, readers in tile.readers.items():
                pointer = vir.at(b, src, place * kernel.src_pixel)
                x = vir.shuffled(b, self._factor(pointer, 0, self.mask), order)
                for pixel, tap in readers:
                    sums[pixel] = self.arithmetic.multiply_add(
                        b, kernel.isa, [x], [factors[tap]], sums[pixel]
                    )
        return sums

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of vectors of factors."""
        return Arithmetic(self.kernel.sums, self.kernel.sums)

    def _factor(self, pointer: Value, number: int, mask: Value | None) -> Value:
        """Load a vector of src (number 0) or weights (1) in the type of the products."""
        kernel, zero = self.kernel, self.zero_points[number]
        data_type = kernel.types[number]
        view = View(
            self.builder, self.vector, pointer, I64(0), I64(0), 0, mask, data_type, kernel.isa
        )
        if kernel.sums != "s32":
            return view.load(0, 0)
        x = view.load_integer(0, 0, splat=False)
        return x if zero is None else self.builder.sub(x, zero)

    def _operand_row(self, number: int, row: vir.Values) -> tuple[Value, Value, Value]:
        """Return an operand's address at a row, and its strides along pixels and vectors."""
        b = self.builder
        table = self.record(self.args["operands"], I64(number), OPERAND)
        shifts = [b.mul(row[dim], table[dim]) for dim in ("z", "y")]
        return b.add(table["address"], b.add(*shifts)), table["x"], table["block"]

    def _view(self, place: Value, pixel: Value, data_type: str = "f32") -> View:
        pointer, isa = vir.address(self.builder, place), self.kernel.isa
        return View(self.builder, self.vector, pointer, pixel, I64(0), 0, self.mask, data_type, isa)
