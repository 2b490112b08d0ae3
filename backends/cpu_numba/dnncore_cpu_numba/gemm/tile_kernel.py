"""The body of the microkernel for AMX: products of tiles of 16 rows by 16 groups or columns.

The kernel has the arguments of `gemm/microkernel.py` and reads A and B in the same layouts. Sums
stay in up to four tile registers: two row tiles by two vectors. They are stored to the stack, and
the epilogue reads a few rows at a time from there.

A tile of A is read in place if its rows are evenly spaced and the segment uses all of them.
Otherwise its rows are first copied to the stack. A remainder of k that fills no tile is also
copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import I8, I32, I64, Value
from dnncore_cpu_numba.elementwise import epilogue
from dnncore_cpu_numba.elementwise.epilogue import View

SIDE = 16  # rows, groups and columns of a tile
ROW = 64  # bytes of a row of a tile
TILES_OF_A, TILES_OF_B = (4, 5), (6, 7)  # tile registers; 0 to 3 hold sums
ROWS_AT_ONCE = 4  # rows that the epilogue computes together
LETTERS = {"s8": "s", "u8": "u"}


class TileBody:
    """Emits the code for tile registers. The microkernel's emitter emits the loops around it."""

    def __init__(
        self, kernel: Any, builder: vir.Builder, args: vir.Values,
        row: Callable[[Value, int], Value],
    ) -> None:  # fmt: skip
        self.kernel, self.builder, self.args, self._row = kernel, builder, args, row
        rows = kernel.rows
        self.heights = [min(SIDE, rows - first) for first in range(0, rows, SIDE)]
        lines = vir.vector_of(SIDE)
        self.sums_room = vir.room(self.builder, lines, 4 * SIDE)
        self.a_room = vir.room(self.builder, lines, 2 * SIDE)
        self.b_room = vir.room(self.builder, lines, 2 * SIDE)
        self.line = ir.VectorType(I32, SIDE)

    def begin(self) -> None:
        """Configure the tile registers, and zero the sums."""
        builder, config = self.builder, vir.room(self.builder, vir.vector_of(SIDE), 1)
        sizes = [self.heights[i // 2] if i // 2 < len(self.heights) else 1 for i in range(4)]
        sizes += [self.heights[i] if i < len(self.heights) else 1 for i in range(2)]
        sizes += [SIDE] * 2
        data = bytearray(64)
        data[0] = 1  # the palette of eight tiles
        for i, size in enumerate(sizes):
            data[16 + 2 * i] = ROW
            data[48 + i] = size
        for at in range(0, 64, 8):
            word = int.from_bytes(data[at : at + 8], "little", signed=True)
            builder.store(I64(word), vir.at(builder, config, at))
        self._call("ldtilecfg", config)
        for i, n in self._places():
            self._call("tilezero", I8(2 * i + n))

    def element(self, rows: Sequence[int], k: Value, a: Value, b: Value) -> None:
        """Add the products of one element of the batch. a, b: pointers."""
        builder = self.builder

        def turn(_: Value, state: Sequence[Value]) -> list[Value]:
            own_a, own_b = state
            self._multiply(rows, own_a, own_b, None)
            return [vir.at(builder, own_a, ROW), vir.at(builder, own_b, SIDE * ROW)]

        a, b = vir.loop(builder, builder.ashr(k, I64(4)), [a, b], turn)
        rest = builder.and_(k, I64(SIDE - 1))
        with builder.if_then(builder.icmp_signed("!=", rest, I64(0))):
            self._multiply(rows, a, b, rest)

    def _multiply(self, rows: Sequence[int], a: Value, b: Value, count: Value | None) -> None:
        """Multiply the tiles at a and b. count: the number of groups if they fill no tile."""
        builder, arithmetic = self.builder, self.kernel.arithmetic
        stride = self._even_stride(rows) if count is None else None
        if stride is None:
            self._copy_rows(rows, a, count)
        for i in range(len(self.heights)):
            first = i * SIDE
            if stride is None:
                place, step = vir.at(builder, self.a_room, first * ROW), I64(ROW)
            else:
                place, step = self._row(a, first), stride
            self._call("tileloadd64", I8(TILES_OF_A[i]), place, step)
        for n in range(self.kernel.vectors):
            place = vir.at(builder, b, builder.mul(self.args["b_block"], I64(n)))
            if count is not None:
                place = self._copy_groups(place, n, count)
            self._call("tileloadd64", I8(TILES_OF_B[n]), place, I64(ROW))
        name = "tdpbf16ps"
        if arithmetic.is_integer:
            name = f"tdpb{LETTERS[arithmetic.a]}{LETTERS[arithmetic.b]}d"
        for i, n in self._places():
            self._call(name, I8(2 * i + n), I8(TILES_OF_A[i]), I8(TILES_OF_B[n]))

    def _even_stride(self, rows: Sequence[int]) -> Value | None:
        """Return the bytes from row to row of A, None if rows are missing or unevenly spaced."""
        if len(rows) < self.kernel.rows:
            return None
        places = self.kernel.a_rows
        if not places:
            return self.args["a_stride"]
        steps = {after - own for own, after in itertools.pairwise(places)} or {0}
        return I64(steps.pop()) if len(steps) == 1 else None

    def _copy_rows(self, rows: Sequence[int], a: Value, count: Value | None) -> None:
        """Copy rows of A to the stack. Rows that are not in `rows` become zero."""
        builder = self.builder
        mask = None if count is None else vir.first_lanes(builder, count, SIDE)
        for m in range(self.kernel.rows):
            value = self.line(None)
            if m in rows:
                value = vir.load(builder, self._row(a, m), self.line, mask)
            vir.store(builder, value, vir.at(builder, self.a_room, m * ROW), None)

    def _copy_groups(self, b: Value, n: int, count: Value) -> Value:
        """Copy the first groups of a tile of B to the stack, then zeros. Returns the address."""
        builder = self.builder
        room = vir.at(builder, self.b_room, n * SIDE * ROW)
        for group in range(SIDE):
            there = builder.icmp_signed("<", I64(group), count)
            mask = vir.first_lanes(builder, builder.select(there, I64(SIDE), I64(0)), SIDE)
            value = vir.load(builder, vir.at(builder, b, group * ROW), self.line, mask)
            vir.store(builder, value, vir.at(builder, room, group * ROW), None)
        return room

    def finish(
        self, c: View, operands: Sequence[View],
        store: Callable[[dict[tuple[int, int], Value]], None], *, is_raw: bool,
    ) -> None:  # fmt: skip
        """Apply the epilogue and store C. is_raw: store the sums without an epilogue."""
        builder, kernel = self.builder, self.kernel
        for i, n in self._places():
            self._call("tilestored64", I8(2 * i + n), self._sums(SIDE * i, n), I64(ROW))
        self._call("tilerelease")
        adds = kernel.result == "f32" and not kernel.arithmetic.is_integer
        sums = kernel.arithmetic.sums(SIDE)
        for first in range(0, kernel.rows, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, kernel.rows)
            places = [(m, n) for m in range(first, last) for n in range(kernel.vectors)]
            tile = [vir.load(builder, self._sums(m, n), sums, None) for m, n in places]

            def accumulated(
                _: Value, tile: Sequence[Value], places: Sequence[tuple[int, int]] = places
            ) -> list[Value]:
                pairs = zip(tile, places, strict=True)
                return [builder.fadd(x, c.load(m, n)) for x, (m, n) in pairs]

            if adds:
                tile = vir.loop(builder, self.args["accumulate"], tile, accumulated)
            if not is_raw:
                tile = epilogue.apply(kernel.epilogue, tile, c, operands, places)
            store(dict(zip(places, tile, strict=True)))

    def _sums(self, m: int, n: int) -> Value:
        """Return a pointer to the sums of row m and vector n on the stack."""
        return vir.at(self.builder, self.sums_room, (2 * SIDE * n + m) * ROW)

    def _places(self) -> list[tuple[int, int]]:
        return [(i, n) for i in range(len(self.heights)) for n in range(self.kernel.vectors)]

    def _call(self, name: str, *args: Value) -> None:
        vir.intrinsic(self.builder, f"llvm.x86.{name}", ir.VoidType(), args)
