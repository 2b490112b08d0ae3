"""The kernel that transposes blocks of 16 x 16 elements in vector registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dnncore_cpu_numba import native
from dnncore_cpu_numba import vector_ir as vir
from dnncore_cpu_numba.vector_ir import I64

__all__ = ["ARGUMENTS", "SIDE", "Transposer"]

ARGUMENTS = ("src", "src_row", "src_last", "src_step", "dst", "dst_row", "dst_last", "dst_step",
             "blocks")  # fmt: skip
SIDE = 16
Value = Any


@dataclass(frozen=True)
class Transposer:
    """dst = the transpose of src, block after block, for elements of so many bits.

    Row i of a block is at src + min(i, src_last) * src_row, and so of dst; what is beyond the last
    row is the last row again. The steps lead from block to block; all in bytes.
    """

    bits: int

    @property
    def address(self) -> int:
        """The address of the compiled function, which takes `ARGUMENTS`."""
        return native.function(f"transpose_{self.bits}", self.llvm_text)

    def llvm_text(self, symbol: str) -> str:
        """The LLVM assembly of a module that defines the kernel as `symbol`."""
        module = ir.Module(symbol)
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS))
        function = ir.Function(module, kind, symbol)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        args = dict(zip(ARGUMENTS, function.args, strict=True))
        rows = [
            _rows(builder, args[f"{side}_row"], args[f"{side}_last"]) for side in ("src", "dst")
        ]
        vector = ir.VectorType(ir.IntType(self.bits), SIDE)
        align = self.bits // 8

        def block(_: Value, sides: Sequence[Value]) -> list[Value]:
            src, dst = sides
            lines = [builder.load(vir.at(builder, src, row), typ=vector, align=align)
                     for row in rows[0]]  # fmt: skip
            for line, row in zip(transposed(builder, lines), rows[1], strict=True):
                builder.store(line, vir.at(builder, dst, row), align=align)
            return [vir.at(builder, side, args[f"{name}_step"])
                    for name, side in (("src", src), ("dst", dst))]  # fmt: skip

        sides = [vir.address(builder, args[name]) for name in ("src", "dst")]
        vir.loop(builder, args["blocks"], sides, block)
        builder.ret_void()
        return str(module)


def _rows(builder: ir.IRBuilder, step: Value, last: Value) -> list[Value]:
    """Where each row of a block begins."""
    rows = []
    for i in range(SIDE):
        inside = builder.icmp_signed("<", last, I64(i))
        rows.append(builder.mul(builder.select(inside, last, I64(i)), step))
    return rows


def transposed(builder: ir.IRBuilder, rows: Sequence[Value]) -> list[Value]:
    """Swap the off-diagonal quarters of ever smaller blocks (J. O. Eklundh 1972)."""
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


def _shuffled(builder: ir.IRBuilder, x: Value, y: Value, order: Sequence[int]) -> Value:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), SIDE), order))
