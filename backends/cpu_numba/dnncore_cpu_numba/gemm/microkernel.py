"""The batch-reduce GEMM microkernel. All matrix work of this backend uses it.

    acc[m][j] = sum over blocks q, elements i, x < k of A_qi[m][x] * B_qi[x][j]
                                                           m < rows, j < vectors * VL

`acc` is one tile in registers, which begins at zero. With `accumulate`, C is added to it at the
end, so that rounding errors grow with the length of a chunk of k, not with that of the whole sum.
Then the epilogue is applied, and the tile is stored to C. The class of a problem (instruction set,
tile, direction of A, kind of B, edge, epilogue) is compiled in. Sizes, strides and addresses are
arguments, so that one kernel serves many shapes. All strides are in bytes:

    A_qi[m][x]              a + q * a_advance + a_offset[i] + row(m) + x * 4    contiguous along k
                            a + q * a_advance + a_offset[i] + m * 4 + x * a_stride      along rows
    B_qi[x][n * VL + lane]  b + q * b_advance + b_offset[i] + n * b_block + x * b_row + lane * 4
    C[m][n * VL + lane]     c + m * c_row + n * c_block + lane * 4

row(m) is m * a_stride. For many pixels, or several rows of an image, row(m) is compiled in. In a
panel, b_row is VL * 4, which suits the hardware prefetcher. In a plain matrix in place, b_block is
VL * 4.

A step of k is a group of 4 bytes, as defined in `gemm/arithmetic.py`. C has elements of any type.
Groups of f64 have 8 bytes. VL is the number of groups in a vector.

The batch is divided into segments. Each segment applies to some rows of the tile. If the window of
one pixel leaves the image, the tap outside is an element for the other pixels only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel, digest
from dnncore_cpu_numba.codegen.nontemporal import LINE, mark_streamed
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.elementwise import epilogue
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, View
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.tile_kernel import TileBody

ELEMENT = Record("element of a batch", ("a b", "bytes", "a_offset and b_offset"))
SEGMENT = Record(
    "segment of a batch", ("count k", "count", "elements, and their k"), ("elements", Many(ELEMENT))
)
OPERAND = Record("operand of a tile", ("address", "address"), ("row block", "bytes", "strides"))
MICROKERNEL = Record(
    "microkernel",
    ("a b", "address"),
    ("fetch", "bytes", "how far ahead B is prefetched, if it is"),
    ("c", "address"),
    ("batch_table", Pointer(SEGMENT), "one behind the other"),
    ("blocks", "count"),
    ("a_advance b_advance a_stride b_row b_block c_row c_block", "bytes"),
    ("accumulate", "flag"),
    ("lanes", "count", "valid lanes of the last vector of each row, for tiles on the edge"),
    ("operands", Pointer(OPERAND), "of the epilogue, then one per call: the address of its stage"),
)
SUMS = "sums"
UNROLL = 4  # steps of k per iteration of the innermost loop


@dataclass(frozen=True)
class Microkernel(NativeKernel):
    """A class of microkernels.

    along: the direction in which A is contiguous.
    panel: the rows of each block of B are contiguous. Otherwise the blocks of each row are
        contiguous, and b_row is arbitrary.
    edge: the last vector of each row of C. "full": all lanes are valid. "masked": only the first
        `lanes` lanes are read or written. "zeroed": the other lanes are padding and become zero.
    a_rows: the offsets of A's rows in bytes, compiled in. If empty, rows are a_stride apart.
    segments: the rows of each segment of the batch. If empty, there is one segment of all rows.
    a_ahead: the part of A that is prefetched. "block": all rows of the next block, which is far
        away; after the last block, of the next tile. "tile": the part of the next tile that
        corresponds to the current iteration.
    b_ahead: rows of B that each iteration of the innermost loop prefetches, `fetch` bytes ahead.
    c_ahead: C is prefetched before the products.
    whole: each k is a multiple of `UNROLL`.
    streamed: C uses non-temporal stores if its vectors are aligned cache lines. Requires a full
        edge and C of f32.
    arithmetic: the types of A and B.
    result: the type of C, or "sums": the s32 sums without an epilogue. Only C of f32, or of f64 if
        sums are f64, can accumulate.
    """

    ARGUMENTS = MICROKERNEL

    isa: Isa
    rows: int
    vectors: int
    along: Literal["k", "rows"] = "k"
    panel: bool = True
    edge: Literal["full", "masked", "zeroed"] = "full"
    epilogue: Epilogue = ()
    a_rows: tuple[int, ...] = ()
    segments: tuple[tuple[int, ...], ...] = ()
    a_ahead: Literal["", "block", "tile"] = ""
    b_ahead: int = 0
    c_ahead: bool = False
    whole: bool = False
    streamed: bool = False
    arithmetic: Arithmetic = F32_PRODUCTS
    result: str = "f32"

    @property
    def name(self) -> str:
        """An identifier of all properties that are compiled in."""
        kind = "panel" if self.panel else "matrix"
        tile = f"{self.rows}x{self.vectors}"
        name = f"brgemm_{self.isa.name}_{tile}_{self.along}_{kind}_{self.edge}"
        name += f"_{self.a_ahead}_ahead" if self.a_ahead else ""
        name += f"_{self.b_ahead}_b_ahead" if self.b_ahead else ""
        name += f"{'_c_ahead' * self.c_ahead}{'_whole' * self.whole}{'_streamed' * self.streamed}"
        if self.arithmetic != F32_PRODUCTS or self.result != "f32":
            name += f"_{self.arithmetic.a}_{self.arithmetic.b}_{self.result}"
        rest = (self.epilogue, self.a_rows, self.segments)
        return f"{name}_{digest(rest, 16)}" if any(rest) else name

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        emitter = _TileEmitter if self.isa.has_tiles else _Emitter
        emitter(self, builder, args).emit()


class Emitter:
    """Base of the emitters of kernels. mask: the valid `lanes`; None if the edge is full."""

    def __init__(self, kernel: Any, builder: ir.IRBuilder, args: vir.Values) -> None:
        self.kernel, self.builder, self.args = kernel, builder, args
        lanes = kernel.isa.lanes
        self.vector, self.mask = self.real_vector(), None
        if kernel.edge != "full":
            self.mask = vir.first_lanes(builder, args["lanes"], lanes)

    def real_vector(self) -> ir.VectorType:
        """Return the vector type that the epilogue computes with."""
        return vir.vector_of(self.kernel.isa.lanes)

    def record(self, table: Value, index: Value, record: Record) -> vir.Values:
        """Return the fields of a record of a table."""
        place = vir.entry(self.builder, vir.address(self.builder, table), record, index)
        return vir.fields(self.builder, place, record)


class _Emitter(Emitter):
    """Emits the body of a microkernel."""

    def real_vector(self) -> ir.VectorType:
        """Return the vector type of f32, or of f64 if the sums are f64."""
        arithmetic, lanes = self.kernel.arithmetic, self.kernel.isa.lanes
        return vir.vector_of(lanes) if arithmetic.is_integer else arithmetic.sums(lanes)

    def emit(self) -> None:
        """Emit the body: the tile, its epilogue, the store."""
        kernel, builder, args = self.kernel, self.builder, self.args
        places = [(m, n) for m in range(kernel.rows) for n in range(kernel.vectors)]
        own = "s32" if kernel.result == SUMS else kernel.result
        c = self._view(args["c"], args["c_row"], args["c_block"], own)

        def add_c(_turn: Value, tile: Sequence[Value]) -> list[Value]:
            return [builder.fadd(x, c.load(*place)) for x, place in zip(tile, places, strict=True)]

        for m, n in places if kernel.c_ahead else ():
            vir.prefetch(builder, c.place(m, n)[0])
        arithmetic, isa = kernel.arithmetic, kernel.isa
        tile = [arithmetic.sums(isa.lanes)(None)] * len(places)
        state = [args["a"], args["b"], *tile]
        _, _, *tile = vir.loop(builder, args["blocks"], state, self._block)
        if kernel.result == arithmetic.real and not arithmetic.is_integer:
            tile = vir.loop(builder, args["accumulate"], tile, add_c)
        if kernel.result != SUMS:
            tile = epilogue.apply(kernel.epilogue, tile, c, self._operands(), places)
        self._store(c, dict(zip(places, tile, strict=True)))

    def _store(self, c: View, tile: Mapping[tuple[int, int], Value]) -> None:
        """Store the tile, with non-temporal stores if permitted and its vectors are aligned."""
        builder, aligned = self.builder, ir.Constant(ir.IntType(1), 0)
        if self.kernel.streamed:
            places = functools.reduce(builder.or_, (c.row, c.block, self.args["c"]))
            within = builder.and_(places, I64(LINE - 1))
            aligned = builder.icmp_signed("==", within, I64(0))
        with builder.if_else(aligned) as (streams, otherwise):
            with streams:
                for (m, n), x in tile.items():
                    mark_streamed(builder, builder.store(x, c.place(m, n)[0]))
            with otherwise:
                store = c.store_as_is if self.kernel.result == SUMS else c.store
                for (m, n), x in tile.items():
                    store(x, m, n, self.kernel.edge)

    def _view(self, address: Value, row: Value, block: Value, data_type: str = "f32") -> View:
        pointer, last = vir.address(self.builder, address), self.kernel.vectors - 1
        isa = self.kernel.isa
        return View(self.builder, self.vector, pointer, row, block, last, self.mask, data_type, isa)

    def _operands(self) -> list[View]:
        """Return views of the rows that the epilogue reads."""
        table = self.args["operands"]
        return [
            self._view(*(self._load(table, OPERAND, name, i) for name in OPERAND.fields))
            for i in range(epilogue.table_rows(self.kernel.epilogue))
        ]

    def _load(self, table: Value, record: Record, name: str, number: int = 0) -> Value:
        pointer = vir.address(self.builder, table)
        return vir.field(self.builder, pointer, record, name, number)

    def _block(self, index: Value, state: Sequence[Value]) -> list[Value]:
        """Emit all segments of the batch. The state is the addresses of A and B, then the tile."""
        builder, (a, b, *tile) = self.builder, state
        self.following = self._next_block(index)
        entry = self.args["batch_table"]
        for rows in self.kernel.segments or (range(self.kernel.rows),):
            count, k = (self._load(entry, SEGMENT, name) for name in ("count", "k"))
            element = functools.partial(self._element, rows, k, (a, b))
            state = [builder.add(entry, I64(8 * SEGMENT.field("elements").slot)), *tile]
            entry, *tile = vir.loop(builder, count, state, element)
        advanced = zip((a, b), ("a_advance", "b_advance"), strict=True)
        return [*(builder.add(x, self.args[name]) for x, name in advanced), *tile]

    def _next_block(self, index: Value) -> Value:
        """Return the distance in A to the next block, or to the first block of the next tile."""
        builder, advance = self.builder, self.args["a_advance"]
        if self.kernel.along == "rows" or self.kernel.a_rows:
            return advance
        height = builder.mul(self.args["a_stride"], I64(self.kernel.rows))
        tile = builder.sub(height, builder.mul(index, advance))
        is_last = builder.icmp_signed("==", builder.add(index, I64(1)), self.args["blocks"])
        return builder.select(is_last, tile, advance)

    def _element(
        self, rows: Sequence[int], k: Value, block: Sequence[Value],
        _index: Value, state: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Emit one element of the batch. The state is its address in the table, then the tile."""
        builder, (entry, *tile) = self.builder, state
        places = zip(block, ELEMENT.fields, strict=True)
        starts = [builder.add(x, self._load(entry, ELEMENT, name)) for x, name in places]
        if self.kernel.a_ahead == "block":
            following = vir.address(builder, builder.add(starts[0], self.following))
            for m in rows:
                vir.prefetch(builder, self._row(following, m))
        state = [*(vir.address(builder, start) for start in starts), *tile]
        turns = [(builder.ashr(k, I64(UNROLL.bit_length() - 1)), UNROLL)]
        if not self.kernel.whole:
            turns.append((builder.and_(k, I64(UNROLL - 1)), 1))
        for count, steps in turns:

            def turn(_: Value, state: Sequence[Value], steps: int = steps) -> list[Value]:
                return self._steps(rows, state, steps)

            state = vir.loop(builder, count, state, turn)
        return [builder.add(entry, I64(ELEMENT.nbytes)), *state[2:]]

    def _steps(self, rows: Sequence[int], state: Sequence[Value], steps: int) -> list[Value]:
        """Emit some steps of k. The state is the pointers into A and B, then the tile."""
        builder, args, (a, b, *tile) = self.builder, self.args, state
        vectors, isa, arithmetic = self.kernel.vectors, self.kernel.isa, self.kernel.arithmetic
        groups = arithmetic.groups_of(isa.lanes)
        align = arithmetic.size // arithmetic.group  # a group may begin at any element
        b_row, b_block = self._strides_of_b()
        a_k = I64(arithmetic.size) if self.kernel.along == "k" else args["a_stride"]
        if self.kernel.a_ahead == "tile" and steps == UNROLL:
            for m in rows:
                vir.prefetch(builder, self._row(a, self.kernel.rows + m))
        fetched = vir.at(builder, b, args["fetch"])
        for _ in range(self.kernel.b_ahead if steps == UNROLL else 0):
            for n in range(vectors):
                vir.prefetch(builder, vir.multiple(builder, fetched, b_block, n))
            fetched = vir.at(builder, fetched, b_row)
        for _ in range(steps):
            row_of_b = [
                arithmetic.parts(builder, isa, x, arithmetic.b) for x in self._row_of_b(b, groups)
            ]
            for m in rows:
                factor = builder.load(self._row(a, m), typ=groups.element, align=align)
                factor = vir.repeat(builder, factor, groups)
                parts = arithmetic.parts(builder, isa, factor, arithmetic.a)
                for n, x in enumerate(row_of_b):
                    place = m * vectors + n
                    tile[place] = arithmetic.multiply_add(builder, isa, parts, x, tile[place])
            a, b = vir.at(builder, a, a_k), vir.at(builder, b, b_row)
        return [a, b, *tile]

    def _row(self, a: Value, m: int) -> Value:
        """Return a pointer to row m of A."""
        if self.kernel.a_rows:
            return vir.at(self.builder, a, self.kernel.a_rows[m])
        if self.kernel.along == "rows":
            return vir.at(self.builder, a, self.kernel.arithmetic.size * m)
        return vir.multiple(self.builder, a, self.args["a_stride"], m)

    def _strides_of_b(self) -> tuple[Value, Value]:
        """Return the strides of B from row to row and from vector to vector. One is constant."""
        vector = I64(self.kernel.arithmetic.size * self.kernel.isa.lanes)
        if self.kernel.panel:
            return vector, self.args["b_block"]
        return self.args["b_row"], vector

    def _row_of_b(self, b: Value, groups: ir.VectorType) -> list[Value]:
        """Load the vectors of groups of one row of B."""
        _, block = self._strides_of_b()
        masks = [None] * (self.kernel.vectors - 1) + [None if self.kernel.panel else self.mask]
        places = [vir.multiple(self.builder, b, block, n) for n in range(len(masks))]
        pairs = zip(places, masks, strict=True)
        return [vir.load(self.builder, place, groups, mask) for place, mask in pairs]


class _TileEmitter(_Emitter):
    """Emits the body of a microkernel with sums in AMX tile registers."""

    def emit(self) -> None:
        """Emit the body."""
        kernel, builder, args = self.kernel, self.builder, self.args
        self.body = TileBody(kernel, builder, args, self._row)
        self.body.begin()
        vir.loop(builder, args["blocks"], [args["a"], args["b"]], self._block)
        is_raw = kernel.result == SUMS
        own = "s32" if is_raw else kernel.result
        c = self._view(args["c"], args["c_row"], args["c_block"], own)
        self.body.finish(c, self._operands(), lambda tile: self._store(c, tile), is_raw=is_raw)

    def _element(
        self, rows: Sequence[int], k: Value, block: Sequence[Value],
        _index: Value, state: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Emit one element of the batch. The state is its address in the table."""
        builder, (entry,) = self.builder, state
        places = zip(block, ELEMENT.fields, strict=True)
        starts = [builder.add(x, self._load(entry, ELEMENT, name)) for x, name in places]
        self.body.element(rows, k, *(vir.address(builder, start) for start in starts))
        return [builder.add(entry, I64(ELEMENT.nbytes))]
