"""The batch-reduce GEMM microkernel, from which all of this backend's matrix work is built.

    acc[m][j] = sum over i < batch, x < k of A_i[m][x] * B_i[x][j]       m < rows, j < vectors * VL

or, where A has columns as well, A_i[m][x][j] * B_i[x][j].

`acc` is one tile of registers. It starts from zero or, with `accumulate`, from C; at the end the
epilogue is applied to it and it is stored to C. The class of a problem (instruction set, tile,
direction of A, kind of B, edge, epilogue) is compiled in; sizes, strides and addresses are
arguments, so that few kernels serve all shapes. All strides are in bytes:

    A_i[m][x]               a + a_offset[i] + m * a_stride + x * 4      where A runs along k
                            a + a_offset[i] + m * 4 + x * a_stride      where A runs along rows
    A_i[m][x][n * VL + lane]
        a + a_offset[i] + m * a_stride + x * a_k + n * a_block + lane * 4       along lanes
    B_i[x][n * VL + lane]   b + b_offset[i] + n * b_block + x * b_row + lane * 4
    C[m][n * VL + lane]     c + m * c_row + n * c_block + lane * 4

b_row is VL * 4, which lets the processor fetch ahead, unless B is a plain matrix in place.
`batch_table` holds (a_offset, b_offset) per element, `operands` (address, row stride, block stride)
per operand of the epilogue, then the address of a row per call, all int64. `lanes` is the number of
valid lanes in the last vector of each row, for tiles on the edge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from dnncore_cpu_numba import epilogue, native
from dnncore_cpu_numba import vector_ir as vir
from dnncore_cpu_numba.epilogue import Epilogue, View
from dnncore_cpu_numba.isa import Isa
from dnncore_cpu_numba.vector_ir import F32, I64

__all__ = ["ARGUMENTS", "Microkernel"]

ARGUMENTS = (
    "a", "b", "c", "batch_table", "batch", "k", "a_stride", "a_k", "a_block", "b_row",
    "b_block", "c_row", "c_block", "accumulate", "lanes", "operands",
)  # fmt: skip
UNROLL = 4  # steps of k per turn of the inner loop

Value = Any


@dataclass(frozen=True)
class Microkernel:
    """A class of microkernels.

    along: the direction in which A is contiguous; where that is "lanes" A has columns.
    panel: B's rows follow each other in each block; if not, b_row is anything.
    edge: what the last vector of each row of C is: "full"; "masked", where only `lanes` of it are
        touched; "zeroed", where the others are padding and become zero.
    """

    isa: Isa
    rows: int
    vectors: int
    along: Literal["k", "rows", "lanes"] = "k"
    panel: bool = True
    edge: Literal["full", "masked", "zeroed"] = "full"
    epilogue: Epilogue = ()

    @property
    def name(self) -> str:
        """An identifier of everything that is compiled in."""
        kind = "panel" if self.panel else "matrix"
        tile = f"{self.rows}x{self.vectors}"
        name = f"brgemm_{self.isa.name}_{tile}_{self.along}_{kind}_{self.edge}"
        chain = hashlib.sha256(repr(self.epilogue).encode()).hexdigest()[:16]
        return f"{name}_{chain}" if self.epilogue else name

    @property
    def address(self) -> int:
        """The address of the compiled function, which takes `ARGUMENTS`. Raises `BuildError`."""
        return native.function(self.name, self.llvm_text, self.isa)

    def llvm_text(self, symbol: str) -> str:
        """The LLVM assembly of a module that defines the kernel as `symbol`."""
        module = ir.Module(symbol)
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS))
        function = ir.Function(module, kind, symbol)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        _emit(self, builder, dict(zip(ARGUMENTS, function.args, strict=True)))
        builder.ret_void()
        return str(module)


def _emit(kernel: Microkernel, builder: ir.IRBuilder, args: dict[str, Value]) -> None:
    vector = vir.vector_of(kernel.isa.lanes)
    places = [(m, n) for m in range(kernel.rows) for n in range(kernel.vectors)]
    mask = None
    if kernel.edge != "full":
        mask = vir.first_lanes(builder, args["lanes"], kernel.isa.lanes)
    last = kernel.vectors - 1

    def view(pointer: Value, row: Value, block: Value) -> View:
        return View(builder, vector, vir.address(builder, pointer), row, block, last, mask)

    c = view(args["c"], args["c_row"], args["c_block"])

    def load_c(_turn: Value, _zeros: Sequence[Value]) -> list[Value]:
        return [c.load(m, n) for m, n in places]

    def element(index: Value, tile: Sequence[Value]) -> list[Value]:
        return _batch_element(kernel, builder, args, mask, index, tile)

    tile = vir.loop(builder, args["accumulate"], [vector(None)] * len(places), load_c)
    tile = vir.loop(builder, args["batch"], tile, element)
    operands = [view(*row) for row in _operands(kernel, builder, args["operands"])]
    tile = epilogue.apply(kernel.epilogue, tile, c, operands, places)
    for (m, n), x in zip(places, tile, strict=True):
        pointer, valid = c.place(m, n)
        if valid is not None and kernel.edge == "zeroed":
            vir.store(builder, builder.select(valid, x, vector(None)), pointer, None)
        else:
            vir.store(builder, x, pointer, valid)


def _operands(kernel: Microkernel, builder: ir.IRBuilder, table: Value) -> list[list[Value]]:
    """(address, row stride, block stride) of each row that the epilogue reads."""
    base = vir.address(builder, table)
    return [
        [builder.load(vir.at(builder, base, 8 * (3 * i + j)), typ=I64) for j in range(3)]
        for i in range(epilogue.table_rows(kernel.epilogue))
    ]


def _batch_element(
    kernel: Microkernel,
    builder: ir.IRBuilder,
    args: dict[str, Value],
    mask: Value | None,
    index: Value,
    tile: Sequence[Value],
) -> list[Value]:
    entry = vir.at(builder, vir.address(builder, args["batch_table"]), builder.shl(index, I64(4)))
    offsets = [builder.load(vir.at(builder, entry, 8 * i), typ=I64) for i in range(2)]
    starts = [builder.add(args[name], o) for name, o in zip("ab", offsets, strict=True)]
    state = [*(vir.address(builder, start) for start in starts), *tile]
    for count, steps in (
        (builder.ashr(args["k"], I64(UNROLL.bit_length() - 1)), UNROLL),
        (builder.and_(args["k"], I64(UNROLL - 1)), 1),
    ):
        state = vir.loop(
            builder, count, state,
            lambda _, s, steps=steps: _steps(kernel, builder, args, mask, s, steps),
        )  # fmt: skip
    return state[2:]


def _steps(
    kernel: Microkernel,
    builder: ir.IRBuilder,
    args: dict[str, Value],
    mask: Value | None,
    state: Sequence[Value],
    steps: int,
) -> list[Value]:
    """Some steps of k; the state is the pointers into A and B, then the tile."""
    a, b, *tile = state
    vector = vir.vector_of(kernel.isa.lanes)
    b_row = I64(4 * kernel.isa.lanes) if kernel.panel else args["b_row"]
    a_k = {"k": I64(4), "rows": args["a_stride"], "lanes": args["a_k"]}[kernel.along]
    masks = [None] * (kernel.vectors - 1) + [None if kernel.panel else mask]
    for _ in range(steps):
        row_of_b = [
            vir.load(builder, vir.multiple(builder, b, args["b_block"], n), vector, masks[n])
            for n in range(kernel.vectors)
        ]
        for m in range(kernel.rows):
            factors = _row_of_a(kernel, builder, args, mask, a, m)
            for n, pair in enumerate(zip(factors, row_of_b, strict=True)):
                place = m * kernel.vectors + n
                tile[place] = vir.multiply_add(builder, *pair, tile[place])
        a, b = vir.at(builder, a, a_k), vir.at(builder, b, b_row)
    return [a, b, *tile]


def _row_of_a(
    kernel: Microkernel,
    builder: ir.IRBuilder,
    args: dict[str, Value],
    mask: Value | None,
    a: Value,
    m: int,
) -> list[Value]:
    """Row m of A at one k: a vector per vector of the tile, the same one where it has no columns.

    a: the pointer to row 0.
    """
    vector = vir.vector_of(kernel.isa.lanes)
    if kernel.along == "rows":
        pointer = vir.at(builder, a, 4 * m)
    else:
        pointer = vir.multiple(builder, a, args["a_stride"], m)
    if kernel.along != "lanes":
        scalar = builder.load(pointer, typ=F32, align=4)
        return [vir.repeat(builder, scalar, vector)] * kernel.vectors
    masks = [None] * (kernel.vectors - 1) + [mask]
    return [
        vir.load(builder, vir.multiple(builder, pointer, args["a_block"], n), vector, masks[n])
        for n in range(kernel.vectors)
    ]
