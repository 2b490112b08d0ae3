"""The kernel of products of blocks: all register tiles of C = A B or C += A B in one call.

    C[i][j] = sum over x of A[i][x] * B[x][j]              A transposed: A[x][i] * B[x][j]

The depth of attention's products is small. So a call per tile, as for `gemm/microkernel.py`, would
take a large part of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value

PRODUCT = Record(
    "product of blocks",
    ("a b c", "address"),
    ("a_row", "bytes", "from row to row of A as it is stored"),
    ("b_panel", "bytes", "from panel to panel; the rows of a panel are as wide as a tile"),
    ("c_row", "bytes"),
    ("tiles panels", "count", "of the rows of C, of its columns"),
    ("depth", "count"),
    ("accumulate", "flag", "C is added"),
)
UNROLL = 4  # steps of the depth per iteration


@dataclass(frozen=True)
class ProductKernel(NativeKernel):
    """The kernel of an instruction set. is_transposed: whether the rows of A are the depth."""

    ARGUMENTS = PRODUCT

    isa: Isa
    is_transposed: bool = False

    @property
    def vectors(self) -> int:
        """The vectors of a tile: a power of 2, so that panels divide blocks of columns."""
        return max(n for n in self.isa.rows if n & (n - 1) == 0)

    @property
    def rows(self) -> int:
        """The rows of a tile."""
        return self.isa.rows[self.vectors]

    @property
    def columns(self) -> int:
        """The columns of a tile."""
        return self.vectors * self.isa.lanes

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        a_tile = I64(4) if self.is_transposed else args["a_row"]

        def panel(number: Value, _: Sequence[Value]) -> list[Value]:
            b = _moved(builder, args["b"], args["b_panel"], number)
            c = builder.add(args["c"], builder.mul(number, I64(4 * self.columns)))

            def tile(index: Value, _: Sequence[Value]) -> list[Value]:
                first = builder.mul(index, I64(self.rows))
                a = _moved(builder, args["a"], a_tile, first)
                self._tile(builder, args, a, b, _moved(builder, c, args["c_row"], first))
                return []

            vir.loop(builder, args["tiles"], [], tile)
            return []

        vir.loop(builder, args["panels"], [], panel)

    def _tile(self, builder: Builder, args: vir.Values, a: Value, b: Value, c: Value) -> None:
        """Emit one tile. a, b, c: addresses."""
        kind = vir.vector_of(self.isa.lanes)
        c_rows = [
            vir.multiple(builder, vir.address(builder, c), args["c_row"], m)
            for m in range(self.rows)
        ]
        places = [
            vir.at(builder, row, 4 * self.isa.lanes * n)
            for row in c_rows
            for n in range(self.vectors)
        ]
        for place in c_rows:
            vir.prefetch(builder, place)
        pointers = [vir.address(builder, x) for x in (a, b)]
        state = [*pointers, *[kind(None)] * len(places)]
        depth = args["depth"]
        for count, steps in (
            (builder.ashr(depth, I64(UNROLL.bit_length() - 1)), UNROLL),
            (builder.and_(depth, I64(UNROLL - 1)), 1),
        ):

            def turn(_: Value, state: Sequence[Value], steps: int = steps) -> list[Value]:
                return self._steps(builder, args, state, steps)

            state = vir.loop(builder, count, state, turn)

        before, is_sum = builder.block, builder.icmp_signed("!=", args["accumulate"], I64(0))
        with builder.if_then(is_sum):
            pairs = zip(state[2:], places, strict=True)
            sums = [builder.fadd(x, vir.load(builder, place, kind, None)) for x, place in pairs]
            within = builder.block
        tile = [builder.phi(kind) for _ in places]
        vir.join(tile, (before, state[2:]), (within, sums))
        for x, place in zip(tile, places, strict=True):
            vir.store(builder, x, place, None)

    def _steps(
        self, builder: Builder, args: vir.Values, state: Sequence[Value], steps: int
    ) -> list[Value]:
        """Emit some steps of the depth. The state is the pointers into A and B, then the tile."""
        a, b, *tile = state
        kind, lanes = vir.vector_of(self.isa.lanes), self.isa.lanes
        for _ in range(steps):
            row = [vir.load(builder, vir.at(builder, b, 4 * lanes * n), kind, None)
                   for n in range(self.vectors)]  # fmt: skip
            for m in range(self.rows):
                if self.is_transposed:
                    place = vir.at(builder, a, 4 * m)
                else:
                    place = vir.multiple(builder, a, args["a_row"], m)
                factor = vir.repeat(builder, builder.load(place, typ=F32, align=4), kind)
                for n, x in enumerate(row):
                    at = m * self.vectors + n
                    tile[at] = vir.multiply_add(builder, factor, x, tile[at])
            a = vir.at(builder, a, args["a_row"] if self.is_transposed else 4)
            b = vir.at(builder, b, 4 * self.columns)
        return [a, b, *tile]


def _moved(builder: Builder, start: Value, stride: Value, index: Value) -> Value:
    return builder.add(start, builder.mul(stride, index))
