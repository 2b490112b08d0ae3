"""The kernel that packs rows of a matrix in groups: neighbouring elements of a column.

    dst[g][lane][j] = src[g * group + j][lane]        lane < lanes, j < group

A group has 4 bytes. Missing rows and lanes become zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Builder, Value

INTERLEAVE_CALL = Record(
    "interleaving kernel",
    ("src dst", "address"),
    ("src_row", "bytes"),
    ("rows lanes", "count", "those that exist"),
)


@dataclass(frozen=True)
class InterleaveKernel(NativeKernel):
    """A class of kernels. masked: only the first lanes are valid."""

    ARGUMENTS = INTERLEAVE_CALL
    isa = BEST

    lanes: int
    group: int
    masked: bool = False

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        group, lanes = self.group, self.lanes
        vector = ir.VectorType(ir.IntType(32 // group), lanes)
        mask = vir.first_lanes(builder, args["lanes"], lanes) if self.masked else None
        row = args["src_row"]

        def step(_: Value, state: Sequence[Value]) -> list[Value]:
            src, dst = state
            vectors = []
            for _row in range(group):
                vectors.append(vir.load(builder, vir.address(builder, src), vector, mask))
                src = builder.add(src, row)
            vir.store(builder, self._joined(builder, vectors), vir.address(builder, dst), None)
            return [src, builder.add(dst, I64(4 * lanes))]

        whole = builder.ashr(args["rows"], I64(group.bit_length() - 1))
        src, dst = vir.loop(builder, whole, [args["src"], args["dst"]], step)
        rest = builder.and_(args["rows"], I64(group - 1))
        with builder.if_then(builder.icmp_signed("!=", rest, I64(0))):
            vectors = []
            for j in range(group):
                there = builder.select(
                    builder.icmp_signed("<", I64(j), rest), args["lanes"], I64(0)
                )
                lasting = vir.first_lanes(builder, there, lanes)
                vectors.append(vir.load(builder, vir.address(builder, src), vector, lasting))
                src = builder.add(src, row)
            vir.store(builder, self._joined(builder, vectors), vir.address(builder, dst), None)

    def _joined(self, builder: Builder, vectors: Sequence[Value]) -> Value:
        """Return the elements of all vectors, interleaved lane by lane."""
        while len(vectors) > 1:
            half = len(vectors) // 2
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [_interleaved(builder, *pair) for pair in pairs]
        return vectors[0]


def _interleaved(builder: Builder, x: Value, y: Value) -> Value:
    count = x.type.count
    order = [lane for pair in zip(range(count), range(count, 2 * count), strict=True)
             for lane in pair]  # fmt: skip
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 2 * count), order))
